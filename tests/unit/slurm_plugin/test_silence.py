"""Which nodes may be set DOWN, and how long a live attempt is given to save."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from slurm_plugin import guard
from slurm_plugin.apply import Clocks, Request, carry_out
from slurm_plugin.config import decode
from slurm_plugin.looks import Looks
from slurm_plugin.records import JobRow, NodeRow
from slurm_plugin.saving import Saving
from slurm_plugin.scope import ScopeConfig
from slurm_plugin.silence import HOUR_SECONDS, Silence, still_silent
from slurm_plugin.squeue import Slurm, SlurmError
from slurm_plugin.terms import Advice, Down, Limits, Signal
from slurm_plugin.words import Action, Reason
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm

ADVICE = Advice(
    advice_id="a",
    incarnation="i",
    job_key="k",
    job_id="7",
    attempt=0,
    submitted_at=1000,
    user="alice",
    generation=1,
    action=Action.RESTART,
    exclude=("n2",),
    autonomous=True,
    may_end_live_attempt=True,
    save_until=2000,
    dead_nodes=("n2",),
    resume_step=5,
    expires_monotonic=1e9,
)
LIMITS = Limits(act=True, in_scope=True, dead=("n2",), signals=("USR1", "USR2"))


@dataclass(slots=True)
class Hands:
    """A clock that stands."""

    def wall(self) -> float:
        return 1200.0

    def monotonic(self) -> float:
        return 100.0

    boot = monotonic


def node(name: str, state: str = "allocated", *, responding: bool = False, reason: str = "") -> NodeRow:
    return NodeRow(
        name=name,
        state=state,
        responding=responding,
        partitions=("main",),
        cpus=1,
        memory_mb=1,
        gres="",
        features=(),
        reason=reason,
    )


def job(job_id: str = "7", state: str = "RUNNING", nodes: tuple[str, ...] = ("n1", "n2"), restarts: int = 0) -> JobRow:
    return JobRow(
        job_id=job_id,
        shown_id=job_id,
        state=state,
        restarts=restarts,
        submit=1000,
        eligible=1000,
        start=1001,
        user="alice",
        user_id=1,
        partition="main",
        nodes=nodes,
        nodes_wanted=2,
        batch=True,
        requeueable=True,
        excluded=(),
    )


def may(silence: Silence, row: JobRow, *others: JobRow, now: float = 40.0) -> tuple[str, ...]:
    rows = {item.job_id: item for item in (row, *others)}
    return silence.may_go_down(row, rows, after_seconds=30.0, per_hour=1, now=now)


def test_a_node_must_have_been_silent_for_long_enough_without_a_break() -> None:
    """Counted from the first of our looks that showed it; an answer, or a look that failed, begins it anew."""
    silence = Silence()
    silence.learn([node("n1", responding=True), node("n2")], 0.0)
    assert may(silence, job(), now=29.0) == ()
    assert may(silence, job(), now=30.0) == ("n2",)
    silence.learn([node("n2", responding=True)], 31.0)
    silence.learn([node("n2")], 32.0)
    assert may(silence, job(), now=40.0) == ()
    silence.forget()
    assert may(silence, job(), now=1000.0) == ()


def test_nobody_elses_job_may_be_on_it() -> None:
    """DOWN ends every job there: one that another job still holds is left alone."""
    silence = Silence()
    silence.learn([node("n2")], 0.0)
    assert may(silence, job(), job("8", nodes=("n2",))) == ()
    assert may(silence, job(), job("8", state="FAILED", nodes=("n2",))) == ("n2",)


def test_so_many_an_hour() -> None:
    """The agent's own bound, whatever is wanted."""
    silence = Silence()
    silence.learn([node("n1"), node("n2")], 0.0)
    assert may(silence, job()) == ("n1",)
    silence.went_down(1, 40.0)
    assert may(silence, job(), now=41.0) == ()
    assert may(silence, job(), now=3641.0) == ("n1",)


def test_a_fresh_look_has_the_last_word() -> None:
    """One that answers again, is down already, or has a reason of somebody's is not touched."""
    nodes = [node("a"), node("b", responding=True), node("c", "down"), node("d", reason="RMA")]
    assert still_silent(["a", "b", "c", "d", "e"], nodes) == ("a",)


def test_a_dead_node_goes_down_right_behind_the_update() -> None:
    """Requeue, update, down: and only a node that the advice and the agent both call dead and the job still holds."""
    advice = replace(ADVICE, save_until=None)

    def steps(limits: Limits, row: JobRow, advice: Advice = advice) -> list[str]:
        outcome = guard.plan(advice, row, limits, now=1500.0, monotonic=0.0)
        return [type(step).__name__ for step in outcome.steps] if isinstance(outcome, guard.Steps) else []

    assert steps(LIMITS, job()) == ["RequeueLive", "Update", "Down"]
    assert steps(replace(LIMITS, dead=()), job()) == ["RequeueLive", "Update"]
    assert steps(LIMITS, job(), replace(advice, dead_nodes=())) == ["RequeueLive", "Update"]
    assert steps(LIMITS, job(nodes=("n1", "n3"))) == ["RequeueLive", "Update"]
    assert steps(LIMITS, job(state="FAILED")) == ["RequeueEnded", "Update"]
    completing = job(state="COMPLETING", nodes=("n2",), restarts=1)
    assert steps(LIMITS, completing) == ["Update", "Down"]
    outcome = guard.plan(advice, completing, LIMITS, now=1500.0, monotonic=0.0)
    assert isinstance(outcome, guard.Steps)
    assert outcome.steps[-1] == Down(nodes=("n2",), job_id="7")


def test_it_is_asked_before_it_is_ended() -> None:
    """Ask once and wait; it ends when its time is over, when it has saved, or at the agent's own bound."""
    saving = Saving(signals=("USR1", "USR2"), wait_seconds_max=60.0)

    def outcome(advice: Advice, monotonic: float, now: float = 1500.0) -> guard.Outcome:
        limits = replace(LIMITS, dead=(), saving=saving.state(advice, monotonic))
        return guard.plan(advice, job(), limits, now=now, monotonic=monotonic)

    first = outcome(ADVICE, 0.0)
    assert isinstance(first, guard.Steps)
    assert first.steps == (Signal(name="USR1", batch=False), Signal(name="USR2", batch=False))
    saving.asked(ADVICE, heard=True, now=0.0)
    waits = outcome(ADVICE, 10.0)
    assert isinstance(waits, guard.Wait)
    assert waits.reason is Reason.SAVING
    for advice, monotonic, now in (
        (ADVICE, 10.0, 2000.0),
        (replace(ADVICE, resume_step=6), 10.0, 1500.0),
        (ADVICE, 60.0, 1500.0),
    ):
        ended = outcome(advice, monotonic, now)
        assert isinstance(ended, guard.Steps)
        assert isinstance(ended.steps[0], guard.RequeueLive)


@pytest.mark.parametrize(
    "advice", [replace(ADVICE, save_until=None), replace(ADVICE, may_end_live_attempt=False, save_until=None)]
)
def test_nobody_is_asked_where_the_advice_does_not_say_so(advice: Advice) -> None:
    """Nor where the agent's configuration names no signal, nor a second time when Slurm did not take the first."""
    saving = Saving(signals=("USR1",), wait_seconds_max=60.0)
    assert saving.state(advice, 0.0) == ""
    assert Saving(signals=(), wait_seconds_max=60.0).state(ADVICE, 0.0) == ""
    saving.asked(ADVICE, heard=False, now=0.0)
    assert saving.state(ADVICE, 1.0) == ""


def test_what_went_down_before_the_agent_began_counts_for_its_hour() -> None:
    """An agent that dies again and again sets no more nodes DOWN than one that lives."""
    silence = Silence()
    silence.learn([node("n9", "down", reason="advisor: does not respond and held job 5"), node("n2")], 0.0)
    assert may(silence, job()) == ()
    assert may(silence, job(), now=HOUR_SECONDS) == ("n2",)
    other = Silence()
    other.learn([node("n9", "down", reason="RMA"), node("n2")], 0.0)
    assert may(other, job()) == ("n2",)


async def test_a_listing_of_jobs_that_failed_begins_the_count_anew() -> None:
    """Who else is on a node is not known then, nor was the node looked at."""
    slurm, clock = FakeSlurm(nodes={"n1": "idle", "n2": "allocated*"}), Hands()
    looks = Looks(Slurm(run=slurm), decode({"cluster": "c"}, {}), clock)
    assert await looks.all()
    assert set(looks.silence.since) == {"n2"}

    def fail(argv: Sequence[str]) -> None:
        raise SlurmError("timeout", "no answer")

    slurm.before = fail
    assert not await looks.all()
    assert looks.silence.since == {}


def test_a_node_that_somebody_elses_job_is_on_by_now_is_not_set_down() -> None:
    """Looked at again right before: the agent's own listing may be older than that job."""
    slurm = FakeSlurm(nodes={"node1": "idle", "node2": "allocated*"})
    slurm.add(FakeJob(state="RUNNING", end=None))
    advice = replace(ADVICE, job_id="17", exclude=("node2",), dead_nodes=("node2",), save_until=None)
    request = Request(
        advice=advice,
        shown_id="17",
        limits=replace(LIMITS, dead=("node2",)),
        scope=ScopeConfig(),
    )

    def arrives(argv: Sequence[str]) -> None:
        if argv[-2:-1] == ("requeue",) or "requeue" in argv:
            slurm.add(FakeJob(job_id="18", user="bob", state="RUNNING", end=None, nodes="node2"))

    for before, downs in ((arrives, 0), (lambda argv: None, 1)):
        slurm.jobs.pop("18", None)
        slurm.jobs["17"].state, slurm.jobs["17"].restarts, slurm.jobs["17"].admin_comment = "RUNNING", 0, ""
        slurm.before = before
        result = carry_out(request, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0))
        assert sum(verb.name == "down" for verb in result.done) == downs, result
