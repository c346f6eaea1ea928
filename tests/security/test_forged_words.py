"""What a user writes about itself, about others, and in the places that carry more than words."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.core.model import Unavailable
from advisor.core.words import Action, AttemptState, IncidentKind, UnavailableReason
from advisor.ports import RulesRequest
from advisor.rules.job_rules import CONFIGURATION_BYTES_MAX
from connectors.logs.rules_files import JobRulesFiles
from slurm_plugin import mark, scope, telling
from tests.cost import within
from tests.security.test_endless import MEMORY_MB_MAX, peak_mb
from tests.unit.core_detect.test_live import Live, xid79
from watchdog import marks

SCOPE = scope.ScopeConfig()
OUTSIDE = '{"advisor": {"enabled": false}}'


# Forged Xids and nodes


def test_a_forged_xid_costs_nodes_of_ones_own_job_only() -> None:
    """Printed of the own nodes it excludes them for this job at most; of others' it is counted, and nothing is done."""
    job = Live(nodes=("node1", "node2"))
    job.steps(range(1, 8))
    job.read("".join(xid79(node, job.now) for node in ("node1", "node9", "node10", "login1", "node[1-9999]")))
    job.ends(AttemptState.FAILED)
    job.wait(300)
    decision = job.decide()
    assert set(decision.isolation.exclude_for_job) <= {"node1", "node2"}
    assert decision.isolation.isolate_for_cluster == ()
    assert job.foreign >= 3


# Forged progress


def test_forged_progress_hides_what_the_kernel_says_until_the_end() -> None:
    """Steps after a fatal record read as survival, so that no job is ended for one. Its end tells all the same."""
    job = Live()
    job.steps(range(1, 12))
    job.read(xid79("node2", job.now), kernel="node2")
    job.steps(range(12, 40))
    assert not job.decide().may_end_live_attempt
    job.ends(AttemptState.FAILED)
    job.wait(300)
    decision = job.decide()
    assert decision.incident.kind is IncidentKind.CRASH
    assert decision.attribution.nodes == ("node2",)
    assert decision.isolation.exclude_for_job == ("node2",)


def test_forged_progress_keeps_a_job_alive_on_its_own_time() -> None:
    """Who prints steps without training is not restarted and not ended: it costs him his own allocation, as it would
    without us. When the steps end the hang is found as ever.
    """
    job = Live()
    job.steps(range(1, 60))
    assert job.decide().incident.kind is IncidentKind.NONE
    job.wait(3_600)
    assert job.decide().incident.kind is IncidentKind.HANG


@pytest.mark.parametrize("step", ["-1", "0", "9" * 12, "9" * 40, "nan", "1e9"])
def test_no_number_of_a_step_breaks_the_count(step: str) -> None:
    """Steps beyond every number, before the first, or none at all."""
    job = Live()
    job.steps(range(1, 6))
    job.wait(1)
    job.read(f"iteration {step}/ 100 | elapsed time per iteration (ms): {step} | lm loss: {step} |\n")
    job.ends(AttemptState.FAILED)
    job.wait(300)
    assert job.decide().action is not Action.STOP


# Comments

BOMBS = {
    "deep lists": "[" * 16_000,
    "deep objects": '{"a":' * 3_000 + "1" + "}" * 3_000,
    "deep within ours": '{"advisor": ' + "[" * 8_000 + "]" * 8_000 + "}",
    "not a number": '{"advisor": {"enabled": NaN, "max_restarts": Infinity}}',
    "endless number": '{"advisor": {"enabled": true, "max_restarts": ' + "9" * 12_000 + "}}",
    "many beginnings": '{"advisor": ' * 1_300,
    "many objects": "{}" * 8_000,
    "lone surrogates": '{"advisor": {"enabled": "\ud800\udfff"}}',
    "a megabyte": '{"advisor": {"x": "' + "y" * (1 << 20) + '"}}',
    "forged mark": '{"advisor": {"v": 1, "job": 7, "attempt": "x", "generation": -1, "nodes": "n[0-999999999]"}}',
}
READERS: dict[str, Callable[[str], object]] = {
    "scope": lambda text: scope.judge(SCOPE, comment=text, partition="p", user="u", account="a"),
    "rules": scope.job_rules,
    "mark": mark.find,
    "mark removed": mark.remove,
    "told": lambda text: telling.merged(text, "a line"),
    "watchdog": marks.find,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_comment_that_is_a_bomb_costs_milliseconds(reader: str, bomb: str) -> None:
    """By depth, size, number or repetition: read as nothing, or as what it says, at once and without an error."""
    within(0.5, lambda: READERS[reader](BOMBS[bomb]))


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_bomb_opts_a_job_in(bomb: str) -> None:
    """What is not exactly the documented form is none, a number without an end least of all."""
    found = scope.judge(SCOPE, comment=BOMBS[bomb], partition="p", user="u", account="a")
    assert not found.inside


@pytest.mark.parametrize("bomb", [name for name in BOMBS if "advisor" in BOMBS[name]])
def test_a_bomb_that_speaks_of_us_takes_the_job_out_of_what_the_site_selects(bomb: str) -> None:
    """Whatever it was to say, it was not yes."""
    selected = scope.ScopeConfig(partitions=("p",))
    found = scope.judge(selected, comment=BOMBS[bomb], partition="p", user="u", account="a")
    assert not found.inside
    assert len(found.reason) < 250


def test_of_a_key_that_stands_twice_none_says_more_than_the_user_could_say() -> None:
    """Opting in twice, or in and out: it is one's own job, whichever counts, and no limit is lifted."""
    text = '{"advisor": {"enabled": true, "max_restarts": 2, "max_restarts": 999999999}}'
    found = scope.judge(SCOPE, comment=text, partition="p", user="u", account="a")
    assert not found.inside  # beyond what can be meant
    first_out = scope.judge(SCOPE, comment=OUTSIDE + scope.OPT_IN, partition="p", user="u", account="a")
    assert not first_out.inside


# Rule files


async def test_a_rule_file_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path) -> None:
    """By its size, with the reason, and without its bytes in our memory."""
    path = tmp_path / "rules.json"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"[" * (1 << 20))
    source = JobRulesFiles(clock=SystemClock(), lookup_uid=lambda user: None)
    request = RulesRequest(
        key="k", user="mallory", user_id=os.geteuid(), path=str(path), bytes_max=CONFIGURATION_BYTES_MAX
    )
    before = peak_mb()
    answer = (await source.read([request]))["k"]
    await source.close()
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.LIMIT
    assert peak_mb() - before < MEMORY_MB_MAX / 10


def test_bombs_are_bombs() -> None:
    """Most of them break a reader that is not careful, so that the checks above can fail."""
    broken = 0
    for text in BOMBS.values():
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            broken += 1
    assert broken >= 5
