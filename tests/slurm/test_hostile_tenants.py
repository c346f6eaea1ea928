"""A hostile tenant on the real path: every trick as a real job of hers on a real Slurm, beside a quiet user's job.

All tricks are played at once, the quiet job fails among them, and then it is looked at what came of it for whom.
"""

import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from advisor.core.policy import Policy
from advisor.demo.cluster import Cluster
from advisor.demo.training import Training
from advisor.demo.waiting import wait_for
from advisor.demo.world import Run, World
from benchmarks.chaos import tricks
from benchmarks.chaos.schedule import HOSTILE, TRICKS
from benchmarks.chaos.witness import Controller, read_controller
from slurm_plugin.hostlist import expand

pytestmark = pytest.mark.timeout(300)
# Those that fail by themselves with an opt-in that Slurm took: something must have been decided about them.
SEEN = ("forged_xid", "forged_nodes", "endless_line", "distinct_errors", "escapes", "shell_names", "dumps")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b\u202a-\u202e\u2066-\u2069]")
DECISIONS_PER_ATTEMPT_MAX = 8
ACTED_SECONDS_MAX = 20.0  # settling 2 s included; a busy machine is nobody's fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is left after all of it. `of`: the job ids of a trick."""

    world: World
    quiet: Run
    bad: str
    of: Mapping[str, Sequence[int]]
    ran_on: Mapping[int, frozenset[str]]  # as slurmctld wrote it down
    restarts: Mapping[int, int]
    decisions: Sequence[Mapping[str, Any]]

    def about(self, trick: str) -> list[Mapping[str, Any]]:
        ids = {str(job_id) for job_id in self.of[trick]}
        return [one for one in self.decisions if one["advice"]["attempt"]["job_id"] in ids]


@pytest.fixture(scope="module")
def trial(everything: World) -> Trial:
    world, cluster = everything, everything.cluster
    world.reset()
    assert world.stack.cli("mode", "set", "autonomous", "--why", "test").returncode == 0
    fault = {"kind": "xid79", "attempt": 0, "rank": 3, "step": 60}
    quiet = world.launch(
        "alice", Training(name="quiet", steps=70, gpus_per_node=0, options=("-x", "node6"), faults=[fault])
    )
    quiet.wait("RUNNING")
    bad = quiet.nodes[-1]
    of: dict[str, list[int]] = {}
    for number, trick in enumerate([*TRICKS, *["shell_names"] * 4, *["comment_bomb"] * 6]):
        of.setdefault(trick, []).append(tricks.submit(cluster, trick, number))
    hers = [job_id for ids in of.values() for job_id in ids]
    quiet.wait("COMPLETED", restarts=1, seconds=120)
    wait_for("an end of each", lambda: _all_ended(cluster, hers), seconds=60, every_seconds=0.5)
    told = [job_id for trick in SEEN for job_id in of[trick]]
    decisions = wait_for("decisions about them", lambda: _about_all(world, told), seconds=30, every_seconds=0.5)
    for job_id in hers:
        cluster.command("scancel", str(job_id))
    book = read_controller(cluster.controller_log)
    return Trial(
        world=world,
        quiet=quiet,
        bad=bad,
        of=of,
        ran_on={job_id: _nodes(book[job_id]) for job_id in hers},
        restarts={job_id: len(book[job_id].starts) - 1 for job_id in hers},
        decisions=decisions,
    )


def _decisions(world: World) -> list[Mapping[str, Any]]:
    """About all of her jobs, newest first."""
    done = world.stack.cli("decisions", "list", "--user", HOSTILE, "--limit", "1000", "--format", "json")
    assert done.returncode == 0, done.stderr
    found: list[Mapping[str, Any]] = json.loads(done.stdout)
    return found


def _about_all(world: World, jobs: Sequence[int]) -> list[Mapping[str, Any]] | None:
    found = _decisions(world)
    about = {int(one["advice"]["attempt"]["job_id"]) for one in found}
    return found if about >= set(jobs) else None


def _nodes(book: Controller) -> frozenset[str]:
    return frozenset(node for start in book.starts for node in expand(start.nodes))


def _all_ended(cluster: Cluster, jobs: Sequence[int]) -> bool:
    book = read_controller(cluster.controller_log)
    return all(job_id in book and book[job_id].ends for job_id in jobs)


def page(world: World, path: str) -> str:
    """A page of the dashboard, as root gets it over the service's HTTP socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(world.stack.socket.with_name("advisor-http.sock")))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: advisor\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            return answer.read().decode("utf-8", "replace")


def test_the_quiet_job_is_recovered_without_its_own_bad_node_and_no_other(trial: Trial) -> None:
    """One restart, one exclusion beside its user's own, for what its own kernel said: nobody else's words count."""
    row = trial.quiet.row
    assert (row.state, row.restarts) == ("COMPLETED", 1)
    assert row.excluded == {trial.bad, "node6"}


def test_its_failure_is_acted_on_while_hers_are_read(trial: Trial) -> None:
    """What was hers to print did not hold it up: from the end of the attempt to its requeue by Slurm's own log."""
    book = read_controller(trial.world.cluster.controller_log)[trial.quiet.job_id]
    assert book.requeues[0] - max(at for at in book.ends if at <= book.requeues[0]) < ACTED_SECONDS_MAX


def test_nothing_of_hers_ran_outside_her_jobs(trial: Trial) -> None:
    """No name, comment, path, pattern or dump was ever given to a shell or an interpreter."""
    assert len(trial.of["shell_names"]) == 5
    folder = trial.world.cluster.runtime.home(HOSTILE) / tricks.FOLDER / str(TRICKS.index("dumps"))
    done = trial.world.stack.cli("analyze", str(folder))
    assert done.returncode == 0, done.stderr
    assert tricks.proofs(trial.world.cluster) == []


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_reaches_her_own_jobs_only(trial: Trial, trick: str) -> None:
    """What was decided because of it names nodes that her own attempts ran on, and no other job's."""
    for decision in trial.about(trick):
        job_id = int(decision["advice"]["attempt"]["job_id"])
        assert set(decision["advice"].get("exclude_nodes", [])) <= trial.ran_on[job_id], decision["advice"]
        assert decision["advice"]["attempt"]["user"] == HOSTILE


def test_something_was_decided_about_each(trial: Trial) -> None:
    """The tricks were read, not overlooked."""
    assert [trick for trick in SEEN if not trial.about(trick)] == []


def test_no_node_is_held_against_anybody_else(trial: Trial) -> None:
    """No drain, no isolation: what a log says makes a node suspect at most."""
    states = {node: trial.world.cluster.node_state(node) for node in trial.world.cluster.nodes}
    assert not [node for node, state in states.items() if "drain" in state or "down" in state], states


def test_what_is_printed_of_her_jobs_drives_no_terminal_and_no_page(trial: Trial) -> None:
    """Commands, JSON and the pages show what she wrote as text."""
    for argv in (["decisions", "list", "--user", HOSTILE, "--limit", "200"], ["explain", str(trial.of["escapes"][0])]):
        done = trial.world.stack.cli(*argv)
        assert done.returncode == 0, done.stderr
        assert not _CONTROL.search(done.stdout), argv
    advice = trial.about("escapes")[-1]["advice"]["advice_id"]
    shown = trial.world.stack.cli("decisions", "show", advice)
    assert "alert(1)" in shown.stdout or "reversed" in shown.stdout or "ValueError" in shown.stdout
    assert not _CONTROL.search(shown.stdout)
    shown_page = page(trial.world, f"/decisions/{advice}")
    assert "<script>alert" not in shown_page
    assert "onerror=alert(1)>" not in shown_page


def test_the_record_of_it_is_whole(trial: Trial) -> None:
    """Decisions about her jobs can be made again from their stored inputs, and the chain verifies."""
    for trick in ("distinct_errors", "escapes", "shell_names"):
        done = trial.world.stack.cli("replay", trial.about(trick)[0]["advice"]["advice_id"])
        assert done.returncode == 0, (trick, done.stdout[-500:])
    done = trial.world.stack.cli("audit", "verify", "--format", "json")
    assert done.returncode == 0, done.stdout
    json.loads(done.stdout)


def test_what_she_can_cost_is_bounded(trial: Trial) -> None:
    """Each attempt of hers was decided on a few times only, whatever it prints, and restarted as anybody's."""
    for trick, ids in trial.of.items():
        attempts = sum(trial.restarts[job_id] + 1 for job_id in ids)
        assert len(trial.about(trick)) <= DECISIONS_PER_ATTEMPT_MAX * attempts, trick
        assert max(trial.restarts[job_id] for job_id in ids) <= Policy().restarts_ceiling, trick
