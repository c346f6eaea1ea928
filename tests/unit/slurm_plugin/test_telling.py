"""A job's user is told where he looks, and nothing that was in the Comment is lost or changed in its meaning."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin import mark, scope, telling
from slurm_plugin.apply import Clocks, carry_out
from slurm_plugin.guard import Action, Status
from slurm_plugin.scope import OPT_IN, ScopeConfig
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm
from tests.unit.slurm_plugin.test_apply import REQUEST

TOLD = "attempt 0: Restart without node2 (advisor explain 17)"
CONFIG = ScopeConfig(partitions=("main",))


def judged(comment: str) -> tuple[bool, int | None, str]:
    found = scope.judge(CONFIG, comment=comment, partition="main", user="alice", account="")
    return found.inside, found.restarts_max, scope.job_rules(comment)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("", f"advisor: {TOLD}"),
        ("my run", f"my run | advisor: {TOLD}"),
        ("my run | advisor: attempt 3: older", f"my run | advisor: {TOLD}"),
        ("advisor: attempt 3: older", f"advisor: {TOLD}"),
        ('{"a": 1}', json.dumps({"a": 1, "advisor_told": TOLD})),
        ('{"a": 1, "advisor_told": "older"}', json.dumps({"a": 1, "advisor_told": TOLD})),
        ('{"a": 1', None),
        ("[1, 2]", None),
        ('{"a": 1, "a": 2}', None),
        ("caf\udce9", None),
        ("x" * 4096, None),
    ],
)
def test_the_line_goes_beside_what_is_there(comment: str, expected: str | None) -> None:
    """An older line of ours is replaced; what a tool might read and we would change is left alone."""
    assert telling.merged(comment, TOLD) == expected


def test_saying_it_twice_changes_nothing() -> None:
    """The second time there is nothing to write."""
    for comment in ("", "my run", OPT_IN):
        once = telling.merged(comment, TOLD)
        assert once is not None
        assert telling.merged(once, TOLD) is None


@given(
    st.sampled_from(
        ["", "run 7", OPT_IN, '{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 2}}', '{"advisor": false}']
    ),
    st.text(max_size=400),
)
def test_no_text_of_a_log_opts_a_job_in_or_out(comment: str, explanation: str) -> None:
    """Whatever a log made us say, the comment means the same as before, and all its own keys are there."""
    told = telling.line(f'{{"advisor": {{"enabled": false}}}} {explanation}', job_id="17", attempt=2)
    assert len(told) <= telling.LINE_CHARACTERS_MAX
    assert told.isprintable()
    after = telling.merged(comment, told)
    if after is not None:
        assert judged(after) == judged(comment)
        if comment.startswith("{"):
            assert {**json.loads(after), **json.loads(comment)} == json.loads(after)


def run(job: FakeJob, action: Action, *, tells: bool = True, live: bool = False) -> tuple[FakeSlurm, Status]:
    slurm = FakeSlurm()
    slurm.add(job)
    advice = replace(REQUEST.advice, action=action, explanation="Its GPU is gone.", may_end_live_attempt=live)
    request = replace(REQUEST, advice=advice, tells_user=tells)
    result = carry_out(request, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0))
    return slurm, result.status


def test_a_restarted_jobs_user_reads_it_in_comment_and_mark() -> None:
    """After the restart, in a call of its own; the mark says the same; a site can switch the comment off."""
    job = FakeJob()
    assert run(job, Action.RESTART)[1] is Status.APPLIED
    told = json.loads(job.comment)
    assert (told["advisor"], told["advisor_told"]) == ({}, "attempt 0: Its GPU is gone. (advisor explain 17)")
    found = mark.find(job.admin_comment)
    assert found is not None
    assert found.told == told["advisor_told"]
    quiet = FakeJob()
    run(quiet, Action.RESTART, tells=False)
    assert json.loads(quiet.comment) == {"advisor": {}}


def test_a_stopped_jobs_user_reads_it_too() -> None:
    """Before the cancel: Slurm changes nothing of a job that has ended."""
    job = FakeJob(state="RUNNING", end=None)
    slurm, status = run(job, Action.STOP, live=True)
    assert (status, job.state) == (Status.APPLIED, "CANCELLED")
    assert "Its GPU is gone" in job.comment
    assert [verb[0] for verb in slurm.verbs] == ["update", "cancel"]


def test_that_nobody_could_be_told_changes_nothing_of_what_is_done() -> None:
    """Slurm refuses the comment: the restart stands."""
    job = FakeJob(comment='{"advisor": {}}')
    slurm = FakeSlurm()
    slurm.add(job)

    def refuse(argv: object) -> None:
        if any(str(item).startswith("Comment=") for item in argv):  # type: ignore[attr-defined]  # an argument vector
            slurm.refuse["update"] = "Access/permission denied"

    slurm.before = refuse
    request = replace(REQUEST, advice=replace(REQUEST.advice, explanation="x"), tells_user=True)
    result = carry_out(request, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0))
    assert (result.status, job.restarts) == (Status.APPLIED, 1)


def test_a_mark_with_a_line_that_is_too_long_is_not_ours() -> None:
    """Type-checked like every other key."""
    plain = mark.Mark(job="k", attempt=0, generation=1, told="x")
    assert mark.find(mark.render(plain)) == plain
    assert mark.find(mark.render(replace(plain, told="x" * 401))) is None
