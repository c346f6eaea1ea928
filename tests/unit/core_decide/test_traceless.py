"""Failures that name nobody: when they speak against the job, and which nodes are tried without."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from advisor.core.isolation import isolate
from advisor.core.model import Attribution, Decision, NodeFact, PastAttempt, Snapshot, SourceReport, Unavailable
from advisor.core.policy import Policy
from advisor.core.remediation import conclude
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    NodeState,
    OrderKind,
    Reason,
    Trust,
    UnavailableReason,
    WithheldReason,
)
from tests.unit.core_decide.worlds import (
    NOON,
    attempt,
    attribution,
    incident,
    job,
    order,
    past,
    progress,
    signal,
    snapshot,
)

TWELVE = tuple(f"n{index:02}" for index in range(12))
SILENT = attribution(evidence=("exit",), fingerprint="")
EXIT = signal("exit", trust=Trust.SCHEDULER)


def _failed(number: int, seconds: float, nodes: tuple[str, ...] = TWELVE, **changes: Any) -> PastAttempt:
    began = NOON - timedelta(hours=12 - number)
    ended = began + timedelta(seconds=seconds)
    return past(number, fingerprint="", nodes=nodes, started_at=began, ended_at=ended, **changes)


def _seen(
    before: Sequence[PastAttempt], seconds: float = 100.0, nodes: tuple[str, ...] = TWELVE, **changes: Any
) -> Snapshot:
    """A job that has failed as often, and now again after so many seconds."""
    now = attempt(
        AttemptState.FAILED,
        number=len(before),
        nodes=nodes,
        started_at=NOON - timedelta(seconds=seconds),
        ended_at=NOON,
    )
    plain = {"job": job(nodes_requested=len(nodes)), "nodes_fitting": 60}
    return snapshot(attempt=now, past=tuple(before), **{**plain, **changes})


def _decide(seen: Snapshot, cause: Attribution = SILENT, policy: Policy | None = None) -> Decision:
    policy, now, what = policy or Policy(), NOON + timedelta(seconds=30), incident(signals=(EXIT,))
    return conclude(seen, what, cause, isolate(seen, what, cause, policy, now), policy, now)


def _avoided(seen: Snapshot, cause: Attribution = SILENT, policy: Policy | None = None) -> tuple[str, ...]:
    return _decide(seen, cause, policy).isolation.exclude_for_job


SCATTERED = (20.0, 300.0, 45.0, 150.0, 80.0, 240.0, 30.0, 190.0)
ALIKE = (100.0, 96.0, 104.0, 110.0, 92.0, 101.0, 99.0, 103.0)


@pytest.mark.parametrize("category", [Category.UNKNOWN, Category.INTERCONNECT, Category.SYSTEM_SOFTWARE])
def test_what_fails_now_here_now_there_is_not_given_up(category: Category) -> None:
    """Few programs fail like that, whatever they printed of others: twice as many restarts, and no more."""
    cause = attribution(category, evidence=("exit",), fingerprint="")
    before = [_failed(n, seconds, category=category) for n, seconds in enumerate(SCATTERED)]
    assert _decide(_seen(before), cause).action is Action.RESTART
    alike = [_failed(n, seconds, category=category) for n, seconds in enumerate(ALIKE)]
    assert _decide(_seen(alike), cause).reason is Reason.BUDGET_EXHAUSTED
    many = [_failed(n, 20.0 * 1.4**n, category=category) for n in range(12)]
    assert _decide(_seen(many[:11], 2000.0), cause).action is Action.RESTART
    assert _decide(_seen(many, 2000.0), cause).reason is Reason.BUDGET_EXHAUSTED


def test_most_of_a_row_must_be_alike() -> None:
    """Six of thirteen that happen to be alike are chance; six of eight are not."""
    same = [_failed(n, seconds) for n, seconds in enumerate(ALIKE[:6])]
    others = [_failed(6 + n, 300.0 + 70 * n) for n in range(7)]
    patient = Policy(restarts_per_root_cause=7)
    assert _decide(_seen([*same, *others]), policy=patient).action is Action.RESTART
    assert _decide(_seen([*same, *others[:2]])).reason is Reason.BUDGET_EXHAUSTED


def test_where_times_are_not_known_nothing_shows_that_failures_differ() -> None:
    """Absence is no evidence: such failures count as before."""
    timeless = [replace(_failed(n, seconds), started_at=None) for n, seconds in enumerate(SCATTERED)]
    assert _decide(_seen(timeless)).reason is Reason.BUDGET_EXHAUSTED


def test_the_same_point_wherever_it_runs_is_the_job() -> None:
    """No node was there each time, so fewer restarts tell as much."""
    places = [("a",), ("a",), ("a",), ("b",)]
    before = [_failed(n, 100.0 + n, nodes=nodes) for n, nodes in enumerate(places)]
    assert _decide(_seen(before, nodes=("b",))).reason is Reason.BUDGET_EXHAUSTED
    assert _decide(_seen(before[:3], nodes=("a",))).action is Action.RESTART
    assert _decide(_seen(before[:3], nodes=("b",))).reason is Reason.BUDGET_EXHAUSTED


def test_the_same_point_as_of_a_mistake_that_was_seen_is_that_mistake() -> None:
    """One in a row had shown a full GPU: the others that nothing explains count with it, and three are enough."""
    before = [_failed(n, seconds) for n, seconds in enumerate(ALIKE[:2])]
    full = {"category": Category.GPU_OUT_OF_MEMORY, "reason": Reason.CONFIRMATION_RETRY}
    assert _decide(_seen([*before, _failed(2, 100.0, **full)])).reason is Reason.BUDGET_EXHAUSTED
    assert _decide(_seen([*before, _failed(2, 400.0, **full)])).action is Action.RESTART
    in_vain = {"category": Category.SCHEDULER_EVENT, "reason": Reason.CONFIRMATION_RETRY}
    assert _decide(_seen([*before, _failed(2, 100.0, **in_vain)])).action is Action.RESTART


def test_equal_steps_are_the_same_point_where_steps_were_seen_to_pass() -> None:
    """However long it took to get there; who prints every hundredth step shows the same one for long."""
    finely = [_failed(n, seconds, first_step=1, last_step=40) for n, seconds in enumerate(SCATTERED)]
    assert _decide(_seen(finely, progress=progress(40, 1))).reason is Reason.BUDGET_EXHAUSTED
    coarsely = [_failed(n, seconds, first_step=100, last_step=100) for n, seconds in enumerate(SCATTERED)]
    assert _decide(_seen(coarsely, progress=progress(100, 100))).action is Action.RESTART


def test_the_same_mistake_after_the_same_time_is_the_same_failure() -> None:
    """Whatever step was the last that a log which loses lines has shown; after another time it may be another one."""
    full = attribution(Category.GPU_OUT_OF_MEMORY, deterministic=True)
    before = _failed(0, 900.0, category=full.category, last_step=38, reason=Reason.CONFIRMATION_RETRY)
    before = replace(before, fingerprint=full.fingerprint)
    assert _decide(_seen([before], 905.0, progress=progress(36)), full).reason is Reason.SAME_FAILURE_SAME_PROGRESS
    assert _decide(_seen([before], 300.0, progress=progress(36)), full).action is Action.RESTART
    vague = replace(full, deterministic=False)
    assert _decide(_seen([before], 905.0, progress=progress(36)), vague).action is Action.RESTART
    untold = replace(before, started_at=None)
    assert _decide(_seen([untold], 905.0, progress=progress(36)), full).action is Action.RESTART


def test_an_hour_earlier_is_another_failure() -> None:
    """Of ten hours it is a tenth, and steps tell points apart, too: both are measured closely where a job is ended."""
    full = attribution(Category.GPU_OUT_OF_MEMORY, deterministic=True)
    before = _failed(0, 36_000.0, category=full.category, last_step=9000, reason=Reason.CONFIRMATION_RETRY)
    before = replace(before, fingerprint=full.fingerprint)
    for seconds, step, stopped in ((32_400.0, 8100, False), (36_060.0, 6000, False), (36_060.0, 8900, True)):
        decision = _decide(_seen([before], seconds, progress=progress(step)), full)
        assert (decision.reason is Reason.SAME_FAILURE_SAME_PROGRESS) == stopped


def test_what_speaks_against_the_job_is_counted_wherever_it_comes() -> None:
    """A traceback of the program's own is its root cause at any point of its course."""
    cause = attribution(Category.APPLICATION, fingerprint="")
    before = [_failed(n, seconds, category=Category.APPLICATION) for n, seconds in enumerate(SCATTERED[:3])]
    assert _decide(_seen(before), cause).reason is Reason.BUDGET_EXHAUSTED


# Nodes to try without.


def test_the_third_in_a_row_is_tried_without_some_nodes_that_were_there_each_time() -> None:
    """As many as one incident may exclude; said in the explanation, and nobody's isolation."""
    before = [_failed(0, 20.0), _failed(1, 300.0)]
    assert _avoided(_seen(before[:1])) == ()
    decision = _decide(_seen(before))
    assert decision.isolation.exclude_for_job == TWELVE[:4]
    assert "tried without n00, n01, n02, n03" in decision.explanation
    assert decision.isolation.isolate_for_cluster == decision.attribution.implications == ()
    assert _avoided(_seen(before), policy=Policy(suspects_after=0)) == ()
    partly = [_failed(0, 20.0, nodes=TWELVE[:6]), _failed(1, 300.0, nodes=TWELVE[4:])]
    assert _avoided(_seen(partly)) == ("n04", "n05")


def test_where_tasks_ended_by_themselves_is_tried_first() -> None:
    """The scheduler saw who exited before the others were ended; where nearly all did, that tells nothing."""
    before = [_failed(0, 20.0), _failed(1, 300.0)]

    def avoided(*exits: tuple[str, str]) -> tuple[str, ...]:
        lines = [
            signal(f"{node}{code}", rule="slurm.task_exited", nodes=(node,), fields={"code": code})
            for node, code in exits
        ]
        what, now = incident(signals=(EXIT, *lines)), NOON + timedelta(seconds=30)
        return isolate(_seen(before), what, SILENT, Policy(), now).exclude_for_job

    assert avoided(("n07", "1"), ("n02", "143")) == ("n07", "n00", "n01", "n02")
    assert avoided(*((node, "1") for node in TWELVE[4:])) == TWELVE[:4]


def test_only_neighbours_make_a_row() -> None:
    """A failure between that somebody was named for begins another one; what the scheduler ended does not."""
    one, two = _failed(0, 20.0), _failed(2, 300.0)
    own = _failed(1, 60.0, category=Category.APPLICATION)
    assert _avoided(_seen([one, own, two])) == ()
    preempted = _failed(1, 60.0, category=Category.SCHEDULER_EVENT, reason=Reason.SCHEDULER_EVENT)
    assert _avoided(_seen([one, preempted, two])) == TWELVE[:4]


def test_nothing_is_tried_while_a_log_cannot_be_read() -> None:
    """During an outage of the log store every crash looks like one that leaves no trace."""
    lost = Unavailable(source="logs", reason=UnavailableReason.TIMEOUT)
    logs = SourceReport(source="logs", trust=Trust.LOG, unavailable=lost)
    before = [_failed(0, 20.0), _failed(1, 300.0)]
    assert _avoided(_seen(before, sources=(logs,))) == ()
    assert _avoided(_seen(before, sources=(replace(logs, unavailable=None),))) == TWELVE[:4]


def test_what_came_without_them_as_well_clears_nodes() -> None:
    """They are given back, and the next ones are tried; what evidence or a person excluded stays excluded."""
    before = [_failed(0, 20.0), _failed(1, 300.0), _failed(2, 90.0, excluded_nodes=TWELVE[:4])]
    left = (*TWELVE[4:], "n12", "n13", "n14", "n15")
    assert _avoided(_seen(before, nodes=left)) == TWELVE[4:8]
    named = replace(before[0], implicated_nodes=("n01",), excluded_nodes=("n01",))
    asked = order(OrderKind.EXCLUDE, node="n02")
    kept = _avoided(_seen([named, _failed(1, 60.0), *before[1:]], nodes=left, orders=(asked,)))
    assert set(kept) == {"n01", "n02", *TWELVE[4:8]}


def test_what_was_given_back_stays_given_back() -> None:
    """Also when the next attempt goes on, or fails of something else."""
    before = [
        _failed(0, 20.0),
        _failed(1, 300.0),
        _failed(2, 90.0, excluded_nodes=TWELVE[:4]),
        _failed(3, 40.0, excluded_nodes=TWELVE[4:8], nodes=TWELVE[4:]),
    ]
    last = TWELVE[:4] + TWELVE[8:]
    assert _avoided(_seen(before, nodes=last, progress=progress(9))) == TWELVE[4:8]
    assert _avoided(_seen(before, nodes=last), attribution(Category.APPLICATION)) == TWELVE[4:8]
    undecided = past(4, action=None, reason=None)
    assert _avoided(_seen([*before, undecided], nodes=last, progress=progress(9))) == TWELVE[4:8]


def test_what_is_tried_now_comes_before_what_was_tried() -> None:
    """Where there is room for no more, older guesses make room; what evidence named never does."""
    kept = ("x1", "x2", *TWELVE[4:10])
    first = _failed(0, 20.0, nodes=kept, excluded_nodes=kept, implicated_nodes=("x1", "x2"), last_step=10)
    before = [first, _failed(1, 300.0, last_step=90), _failed(2, 50.0, last_step=90, excluded_nodes=kept)]
    new = ("m0", "m1", "m2", "m3")
    row = [replace(item, nodes=new) for item in (before[1], before[2])]
    row = [replace(item, number=number, excluded_nodes=kept) for number, item in enumerate(row, 1)]
    avoided = _avoided(_seen([before[0], *row], nodes=new, progress=progress(90)))
    assert avoided == ("x1", "x2", "m0", "m1", *TWELVE[4:8])


def test_nodes_without_which_the_job_got_further_stay_excluded() -> None:
    """That was what had been tried; a later failure that names nobody starts a row of its own."""
    before = [
        _failed(0, 20.0, last_step=10),
        _failed(1, 300.0, last_step=10),
        _failed(2, 90.0, last_step=10, excluded_nodes=TWELVE[:4]),
        _failed(3, 3000.0, last_step=200, excluded_nodes=TWELVE[:4], nodes=TWELVE[4:]),
    ]
    again = _seen(before, nodes=TWELVE[4:], progress=progress(190))
    assert _avoided(again) == TWELVE[:4]


def test_nodes_with_a_record_are_tried_first_and_of_large_jobs_alone() -> None:
    """Others' failures, then where ranks failed first; four at a time do not get through two thousand."""
    record = tuple(NodeFact(name=name, state=NodeState.UP, score=score) for name, score in (("n09", 0.2), ("n10", 0.4)))
    before = [_failed(0, 20.0), _failed(1, 300.0)]
    assert _avoided(replace(_seen(before), nodes=record)) == (
        "n10",
        "n09",
        "n00",
        "n01",
    )
    many = tuple(f"n{index:02}" for index in range(30))
    large = [_failed(0, 20.0, nodes=many), _failed(1, 300.0, nodes=many)]
    assert _avoided(replace(_seen(large, nodes=many, nodes_fitting=90), nodes=record)) == ("n10", "n09")
    assert _avoided(_seen(large, nodes=many, nodes_fitting=90)) == ()


def test_nobody_is_tried_without_where_it_could_not_help_or_not_start() -> None:
    """Where others fit the job, as far as is known, and for failures that may be a node's."""
    before = [_failed(0, 20.0), _failed(1, 300.0)]
    assert _avoided(_seen(before, nodes_fitting=None)) == ()
    scarce = _decide(_seen(before, nodes_fitting=13)).isolation
    assert scarce.exclude_for_job == ("n00",)
    assert {item.reason for item in scarce.withheld} == {WithheldReason.CAPACITY}
    assert _avoided(_seen(before, user_excluded=("n00",))) == ("n01", "n02", "n03")
    assert _avoided(_seen(before, progress=progress(5))) == ()  # it got further
    for category in (Category.APPLICATION, Category.STORAGE, Category.GPU_OUT_OF_MEMORY):
        own = [replace(item, category=category) for item in before]
        assert _avoided(_seen(own)) == _avoided(_seen(before), attribution(category)) == ()
    assert _avoided(_seen(before), replace(SILENT, deterministic=True)) == ()


def test_small_jobs_move() -> None:
    """Of one or two nodes all may be at fault; of three no more than half."""
    for count, most in ((1, 1), (2, 2), (3, 1)):
        nodes = TWELVE[:count]
        before = [_failed(0, 20.0, nodes=nodes), _failed(1, 300.0, nodes=nodes)]
        assert _avoided(_seen(before, nodes=nodes)) == nodes[:most]
