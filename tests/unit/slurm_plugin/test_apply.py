"""The acting process against a Slurm that changes under it: races, refusals, and death after any step."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin import apply, guard, mark
from slurm_plugin.apply import Clocks, Request, Result, carry_out
from slurm_plugin.guard import Action, Advice, Limits, Reason, Status
from slurm_plugin.scope import ScopeConfig
from slurm_plugin.squeue import SlurmError
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm

ADVICE = Advice(
    advice_id="a",
    incarnation="i",
    job_key="k",
    job_id="17",
    attempt=0,
    submitted_at=1000,
    user="alice",
    generation=1,
    action=Action.RESTART,
    exclude=("node2",),
    autonomous=True,
    expires_monotonic=1e9,
)
REQUEST = Request(
    advice=ADVICE,
    shown_id="17",
    limits=Limits(act=True, in_scope=True, requeue_delay_seconds=6),
    scope=ScopeConfig(),
)


def world(**job: object) -> tuple[FakeSlurm, FakeJob]:
    slurm = FakeSlurm()
    return slurm, slurm.add(FakeJob(**job))  # type: ignore[arg-type]


def run(slurm: FakeSlurm, request: Request = REQUEST) -> Result:
    return carry_out(request, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0))


def before_verb(slurm: FakeSlurm, verb: str, change: Callable[[], None]) -> None:
    """Let the world change between the look and the verb."""

    def hook(argv: Sequence[str]) -> None:
        if list(argv[1:2]) == [verb]:
            change()

    slurm.before = hook


def test_a_failed_attempt_is_requeued_and_updated() -> None:
    """Two verbs, in order, and the job waits with our exclusions and our mark."""
    slurm, job = world()
    result = run(slurm)
    assert (result.status, [verb.name for verb in result.done]) == (Status.APPLIED, ["requeue", "update"])
    assert (job.state, job.restarts, job.excluded) == ("PENDING", 1, "node2")
    found = mark.find(job.admin_comment)
    assert found is not None
    assert (found.attempt, found.generation, found.nodes) == (0, 1, ("node2",))


def test_acting_twice_does_nothing_twice() -> None:
    """The second process finds the first one's mark."""
    slurm, _ = world()
    run(slurm)
    again = run(slurm)
    assert (again.status, again.by_us, slurm.requeues) == (Status.VERIFIED, True, 1)


@pytest.mark.parametrize("dies_before", ["requeue", "update"])
def test_death_before_any_step_leaves_one_requeue(dies_before: str) -> None:
    """Whenever it dies, the next process finishes what is left, and nothing else."""
    slurm, job = world()

    def die() -> None:
        raise KeyboardInterrupt

    before_verb(slurm, dies_before, die)
    with pytest.raises(KeyboardInterrupt):
        run(slurm)
    slurm.before = lambda argv: None
    assert run(slurm).status is Status.APPLIED
    assert (slurm.requeues, job.restarts, job.excluded) == (1, 1, "node2")


def test_cancelled_before_the_look() -> None:
    """Nothing is sent."""
    slurm, job = world(state="CANCELLED")
    result = run(slurm)
    assert (result.status, result.reason, slurm.verbs) == (Status.WITHHELD, Reason.CANCELLED, [])
    assert job.state == "CANCELLED"


def test_cancelled_between_look_and_update() -> None:
    """The update is refused, the job stays cancelled, and the next look says so."""
    slurm, job = world()

    def cancel() -> None:
        job.state, job.end = "CANCELLED", 1200

    before_verb(slurm, "update", cancel)
    assert run(slurm).status is Status.PENDING
    slurm.before = lambda argv: None
    assert run(slurm).reason is Reason.CANCELLED
    assert (job.state, slurm.requeues) == ("CANCELLED", 1)


def test_a_live_attempt_that_ends_or_is_cancelled_under_us_is_left_alone() -> None:
    """`requeue incomplete` does nothing to it, and the update is refused."""
    for state in ("FAILED", "CANCELLED"):
        slurm, job = world(state="RUNNING", end=None)

        def end(state: str = state, job: FakeJob = job) -> None:
            job.state, job.end = state, 1200

        before_verb(slurm, "requeue", end)
        result = run(slurm, replace(REQUEST, advice=replace(ADVICE, may_end_live_attempt=True)))
        assert (result.status, result.reason) == (Status.PENDING, Reason.STILL_COMPLETING)
        assert (job.state, job.restarts) == (state, 0)


def test_a_live_attempt_is_requeued_and_updated_while_completing() -> None:
    """A node that does not answer holds it; the exclusions are set already."""
    slurm, job = world(state="RUNNING", end=None)
    result = run(slurm, replace(REQUEST, advice=replace(ADVICE, may_end_live_attempt=True)))
    assert [verb.name for verb in result.done] == ["requeue_incomplete", "update"]
    assert (job.state, job.restarts, job.excluded) == ("COMPLETING", 1, "node2")


def test_a_user_who_requeued_first_is_not_overrun() -> None:
    """The look shows the successor: exclusions only."""
    slurm, job = world(state="PENDING", restarts=1, submit=1195, eligible=1201, end=None)
    result = run(slurm)
    assert ([verb.name for verb in result.done], slurm.requeues) == (["update"], 0)
    assert job.excluded == "node2"


def test_the_comment_is_read_afresh() -> None:
    """A job that has opted out since the agent looked is not touched."""
    slurm, _ = world(comment='{"advisor": false}')
    result = run(slurm)
    assert (result.reason, slurm.verbs) == (Reason.OUT_OF_SCOPE, [])


def test_scope_is_never_widened_here() -> None:
    """The agent's own judgement must agree."""
    slurm, _ = world()
    request = replace(REQUEST, limits=replace(REQUEST.limits, in_scope=False))
    assert run(slurm, request).reason is Reason.OUT_OF_SCOPE


def test_a_slow_requeue_moves_the_lease() -> None:
    """The earliest legal start counts from the requeue, not from the look."""
    slurm, job = world()

    def slow() -> None:
        slurm.now += 3

    before_verb(slurm, "requeue", slow)
    request = replace(REQUEST, advice=replace(ADVICE, start_not_before=1208, decision_deadline=1300))
    assert run(slurm, request).status is Status.APPLIED
    found = mark.find(job.admin_comment)
    assert found is not None
    # 1208 was a lease at the time of the look and is none any more: Slurm's own delay ends later.
    assert (found.start, job.eligible) == (None, 1209)


def test_missing_rights_are_said() -> None:
    """An operator may requeue but not set AdminComment; then nothing of the update applies."""
    slurm, _ = world()
    slurm.refuse["update"] = "Access/permission denied for job 17"
    result = run(slurm)
    assert (result.status, result.reason) == (Status.WITHHELD, Reason.PERMISSION)
    assert [verb.name for verb in result.done] == ["requeue"]


@pytest.mark.parametrize(
    ("complaint", "status", "reason"),
    [
        ("Unable to contact slurm controller (connect failure)", Status.PENDING, Reason.SCHEDULER_UNAVAILABLE),
        ("Requested operation is presently disabled for job 17", Status.WITHHELD, Reason.SCHEDULER_REFUSED),
    ],
)
def test_refusals(complaint: str, status: Status, reason: Reason) -> None:
    """A controller that is away is tried again; a refusal is an answer."""
    slurm, _ = world()
    slurm.refuse["requeue"] = complaint
    result = run(slurm)
    assert (result.status, result.reason, result.done) == (status, reason, ())


def test_slurm_that_cannot_be_read_is_not_acted_on() -> None:
    """No look, no verb."""
    slurm, _ = world()

    def silent(argv: Sequence[str]) -> None:
        raise SlurmError("timeout", "no answer")

    slurm.before = silent
    result = run(slurm)
    assert (result.status, result.reason, slurm.verbs) == (Status.PENDING, Reason.SCHEDULER_UNAVAILABLE, [])


def test_stop_cancels_only_what_was_read() -> None:
    """`scancel --state`."""
    ours = mark.render(mark.Mark(job="k", attempt=0, generation=1))
    slurm, job = world(state="PENDING", restarts=1, submit=1195, end=None, admin_comment=ours)
    result = run(slurm, replace(REQUEST, advice=replace(ADVICE, action=Action.STOP)))
    assert (result.status, job.state, slurm.verbs) == (
        Status.APPLIED,
        "CANCELLED",
        [("cancel", "--state=PENDING", "17")],
    )


def test_request_and_result_round_trip() -> None:
    """What one process writes the other reads."""
    full = replace(REQUEST, limits=replace(REQUEST.limits, fitting=("a", "b"), known=("a",)), account="x")
    assert apply.decode(apply.encode(full)) == full
    result = Result(
        status=Status.APPLIED, reason=Reason.OBSERVED, done=(apply.Verb(name="requeue", at=1.5),), excluded=("n",)
    )
    assert apply.decode_result(apply.encode_result(result)) == result


def test_arrays_are_named_by_their_shown_id() -> None:
    """The bare id of an array's last task names all of them."""
    update = guard.Update(excluded=("a", "b"), admin_comment="c=d {}", start_time=5)
    assert apply.command(update, "19_2") == (
        "scontrol",
        "update",
        "JobId=19_2",
        "ExcNodeList=a,b",
        "StartTime=uts5",
        "AdminComment=c=d {}",
    )
    assert apply.command(guard.RequeueLive(), "19_2") == ("scontrol", "requeue", "incomplete", "19_2")


def test_the_alarm_ends_the_whole_group(tmp_path: Path) -> None:
    """Should the agent be dead, the process still ends itself and what it runs, before the delay has passed."""
    tool = tmp_path / "squeue"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    request = replace(REQUEST, bin_dir=str(tmp_path), timeout_seconds=50.0, limit_seconds=0.3)
    # The tool holds our ends of the pipes: this returns early only if it was ended too.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(apply.__file__).resolve())],
        input=apply.encode(request),
        capture_output=True,
        start_new_session=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, b"")


def test_what_was_taken_back_just_before_is_not_done() -> None:
    """The look was made, the guard agreed, and then an operator said no: nothing is sent."""
    slurm, job = world()
    result = carry_out(REQUEST, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0), lambda: True)
    assert (result.status, result.reason, slurm.verbs) == (Status.SUPERSEDED, Reason.NEWER_GENERATION, [])
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_what_slurm_has_accepted_gets_its_mark_although_it_was_taken_back() -> None:
    """Taken back between requeue and update: the job waits with our mark, so that a stop can still call it off."""
    slurm, job = world()
    taken_back: list[bool] = []
    before_verb(slurm, "update", lambda: taken_back.append(True))
    result = carry_out(
        REQUEST, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0), lambda: "requeue" in said_to(slurm)
    )
    assert ([verb.name for verb in result.done], taken_back) == (["requeue", "update"], [True])
    assert mark.find(job.admin_comment) is not None


def said_to(slurm: FakeSlurm) -> set[str]:
    return {verb[0] for verb in slurm.verbs}


@pytest.mark.parametrize("how", ["one more line", "its death"])
def test_a_caller_takes_it_back_by_a_word_or_by_dying(how: str) -> None:
    """What follows the request says so; and a dead caller cannot say any more what an operator wants."""
    ours, theirs = os.pipe()
    os.write(theirs, apply.encode(REQUEST) + b"\n")
    caller = apply.Caller(fd=ours)
    assert apply.decode(caller.request()) == REQUEST
    assert not caller.takes_it_back()
    if how == "one more line":
        os.write(theirs, b"withdrawn\n")
    os.close(theirs)
    assert (caller.takes_it_back(), caller.takes_it_back()) == (True, True)
    os.close(ours)
