"""The decision table: every row is reached, says what it should, and stands where it must."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from advisor.core.budgets import FREE_REASONS
from advisor.core.policy import Policy
from advisor.core.remediation import TABLE, TAKEN_BACK, Row, choose, describe
from advisor.core.situation import assess
from advisor.core.words import Action, AttemptState, Category, IncidentKind, OrderKind, Reason, Trust
from tests.unit.core_decide.worlds import (
    World,
    advice,
    after,
    attempt,
    attribution,
    bad_gpu,
    job,
    order,
    our_stop,
    past,
    progress,
    signal,
    successor,
    world,
)

S, K, C, R = AttemptState, IncidentKind, Category, Reason
RESTART, STOP, NONE = Action.RESTART, Action.STOP, Action.NONE

QUIET = progress(5, last_at=after(-700), interval_seconds=1.0)
FATAL = (signal(trust=Trust.KERNEL, at=after(-60)),)
SPENT = tuple(past(n) for n in range(3))
VETO = order(OrderKind.VETO)
ENDS_THERE = Policy(restart_at_time_limit=False)
IN_VAIN = past(0, C.SCHEDULER_EVENT, reason=R.CONFIRMATION_RETRY)

# One world per row, in the table's order: the plainest one in which that row decides.
ROWS: tuple[World, ...] = (
    world(S.COMPLETED),
    world(S.CANCELLED, stop=our_stop(applied=False, unreported=True)),
    world(S.CANCELLED, stop=our_stop()),
    world(S.CANCELLED, stop=our_stop(attempt=0, applied=False), attempt=attempt(S.CANCELLED, number=1)),
    world(S.CANCELLED, stop=our_stop(attempt=0), attempt=attempt(S.CANCELLED, number=1)),
    world(S.CANCELLED),
    world(S.RUNNING, K.NONE, attempt=attempt(S.RUNNING, held=True)),
    world(orders=(order(OrderKind.VETO),)),
    world(orders=(order(OrderKind.OVERRIDE, action=STOP),)),
    world(advice=advice(), successor=successor(by_us=True)),
    world(successor=successor(), exclude=("node2",), cause=bad_gpu("node2")),
    world(successor=successor()),
    world(S.COMPLETING),
    world(S.RUNNING, progress=progress(5, in_job_restarts=1)),
    world(S.RUNNING, K.STRAGGLER),
    world(S.RUNNING),
    world(S.RUNNING, K.NONE),
    world(job=job(batch=False)),
    world(dependents_running=True),
    world(S.TIME_LIMIT, progress=progress(9), policy=ENDS_THERE),
    world(S.PREEMPTED),
    world(past=tuple(past(n, C.NUMERICS) for n in range(20))),
    world(orders=(order(OrderKind.OVERRIDE, action=RESTART),)),
    world(S.RUNNING, cause=bad_gpu("node2"), signals=FATAL),
    world(cause=bad_gpu("node2"), exclude=("node2",)),
    world(cause=attribution(C.APPLICATION, certain=True)),
    world(cause=attribution(C.APPLICATION), past=(past(0, C.APPLICATION, last_step=9),), progress=progress(9)),
    world(S.TIME_LIMIT, cause=attribution(C.SCHEDULER_EVENT), past=(IN_VAIN,)),
    world(past=SPENT),
    world(cause=bad_gpu("node2", trust=Trust.LOG), exclude=("node2",)),
    world(cause=attribution(C.STORAGE, transient_storage=True)),
    world(cause=attribution(C.APPLICATION, deterministic=True)),
    world(S.RUNNING, K.HANG, progress=QUIET),
    world(),
)


def _row(action: Action, reason: Reason, nth: int = 0) -> Row:
    return [row for row in TABLE if (row.action, row.reason) == (action, reason)][nth]


# Worlds in which two rows apply and their order decides: the row that must win, the row that must lose, the world.
CONTESTED: tuple[tuple[Row, Row, World], ...] = (
    (_row(NONE, R.COMPLETED), _row(NONE, R.USER_CANCELLED), world(S.COMPLETED, cause=attribution(C.USER_CANCEL))),
    (
        _row(STOP, R.STOPPED),
        _row(NONE, R.HELD_BY_OTHERS),
        world(S.CANCELLED, K.NONE, stop=our_stop(), attempt=attempt(S.CANCELLED, held=True)),
    ),
    (
        _row(NONE, R.COMPLETED),
        _row(NONE, R.STOP_UNREPORTED),
        world(S.COMPLETED, K.NONE, stop=our_stop(unreported=True), successor=successor(S.CANCELLED, by_us=True)),
    ),
    (
        _row(NONE, R.STOP_UNREPORTED),
        _row(NONE, R.HELD_BY_OTHERS),
        world(S.CANCELLED, K.NONE, stop=our_stop(unreported=True), attempt=attempt(S.CANCELLED, held=True)),
    ),
    (_row(STOP, R.STOPPED), _row(NONE, R.STOPPED), world(S.CANCELLED, K.NONE, stop=our_stop())),
    (
        _row(NONE, R.COMPLETED),
        _row(STOP, R.STOPPED),
        world(S.COMPLETED, K.NONE, stop=our_stop(), successor=successor(S.CANCELLED, by_us=True)),
    ),
    (_row(STOP, R.STOPPED), _row(NONE, R.OUTCOME_NOT_VISIBLE, 1), world(S.COMPLETING, K.NONE, stop=our_stop())),
    (_row(NONE, R.USER_CANCELLED), _row(NONE, R.HELD_BY_OTHERS), world(S.CANCELLED, successor=successor(held=True))),
    (
        _row(NONE, R.HELD_BY_OTHERS),
        _row(RESTART, R.WITHIN_BUDGET),
        world(advice=advice(), successor=successor(by_us=True, held=True)),
    ),
    (
        _row(RESTART, R.WITHIN_BUDGET),
        _row(RESTART, R.ALREADY_REQUEUED),
        world(advice=advice(), successor=successor(by_us=True), exclude=("node2",), cause=bad_gpu("node2")),
    ),
    (
        _row(RESTART, R.ALREADY_REQUEUED),
        _row(NONE, R.ALREADY_REQUEUED),
        world(successor=successor(), exclude=("node2",), cause=bad_gpu("node2")),
    ),
    (_row(NONE, R.ALREADY_REQUEUED), _row(NONE, R.OUTCOME_NOT_VISIBLE, 1), world(S.COMPLETING, successor=successor())),
    (
        _row(NONE, R.OUTCOME_NOT_VISIBLE, 1),
        _row(NONE, R.IN_JOB_RESTART),
        world(S.RUNNING, attempt=attempt(S.RUNNING, ended_at=after(0)), progress=progress(5, in_job_restarts=1)),
    ),
    (
        _row(NONE, R.IN_JOB_RESTART),
        _row(NONE, R.AWAITING_EXIT),
        world(S.RUNNING, progress=progress(5, in_job_restarts=1)),
    ),
    (_row(NONE, R.NEXT_CHECKPOINT), _row(NONE, R.AWAITING_EXIT), world(S.RUNNING, K.STRAGGLER)),
    (_row(NONE, R.AWAITING_EXIT), _row(NONE, R.HEALTHY), world(S.RUNNING)),
    (_row(NONE, R.HEALTHY), _row(NONE, R.NOT_RESTARTABLE), world(S.RUNNING, K.NONE, job=job(batch=False))),
    (
        _row(NONE, R.NOT_RESTARTABLE),
        _row(NONE, R.SUCCESSOR_RUNNING),
        world(job=job(requeueable=False), dependents_running=True),
    ),
    (_row(NONE, R.SUCCESSOR_RUNNING), _row(RESTART, R.SCHEDULER_EVENT), world(S.PREEMPTED, dependents_running=True)),
    (
        _row(NONE, R.SUCCESSOR_RUNNING),
        _row(NONE, R.TIME_LIMIT),
        world(S.TIME_LIMIT, policy=ENDS_THERE, dependents_running=True),
    ),
    (
        _row(NONE, R.TIME_LIMIT),
        _row(RESTART, R.SCHEDULER_EVENT),
        world(S.TIME_LIMIT, progress=progress(9), policy=ENDS_THERE),
    ),
    (
        _row(RESTART, R.SCHEDULER_EVENT),
        _row(STOP, R.RESTART_CEILING),
        world(S.PREEMPTED, past=tuple(past(n) for n in range(20))),
    ),
    (
        _row(STOP, R.RESTART_CEILING),
        _row(RESTART, R.NODES_IMPLICATED),
        world(cause=bad_gpu("node2"), exclude=("node2",), past=tuple(past(n) for n in range(20))),
    ),
    (
        _row(RESTART, R.TRUSTED_FATAL),
        _row(RESTART, R.NODES_IMPLICATED),
        world(S.RUNNING, cause=bad_gpu("node2"), signals=FATAL, exclude=("node2",)),
    ),
    (
        _row(RESTART, R.NODES_IMPLICATED),
        _row(RESTART, R.HANG),
        world(S.RUNNING, K.HANG, progress=QUIET, cause=bad_gpu("node2", trusted=True), exclude=("node2",)),
    ),
    (
        _row(STOP, R.CERTAIN_STARTUP_ERROR),
        _row(STOP, R.SAME_FAILURE_SAME_PROGRESS),
        world(cause=attribution(C.APPLICATION, certain=True, deterministic=True), past=(past(0, C.APPLICATION),)),
    ),
    (
        _row(STOP, R.SAME_FAILURE_SAME_PROGRESS),
        _row(STOP, R.BUDGET_EXHAUSTED),
        world(
            cause=attribution(C.APPLICATION),
            past=tuple(past(n, C.APPLICATION, last_step=9) for n in range(3)),
            progress=progress(9),
        ),
    ),
    (
        _row(STOP, R.TIME_LIMIT_WITHOUT_PROGRESS),
        _row(STOP, R.BUDGET_EXHAUSTED),
        world(S.TIME_LIMIT, cause=attribution(C.SCHEDULER_EVENT), past=(IN_VAIN, IN_VAIN, IN_VAIN)),
    ),
    (
        _row(STOP, R.BUDGET_EXHAUSTED),
        _row(RESTART, R.NODES_IMPLICATED, 1),
        world(
            cause=bad_gpu("node2", trust=Trust.LOG),
            exclude=("node2",),
            past=tuple(past(n, C.GPU_HARDWARE) for n in range(6)),
        ),
    ),
    (
        _row(RESTART, R.NODES_IMPLICATED, 1),
        _row(RESTART, R.CONFIRMATION_RETRY),
        world(cause=bad_gpu("node2", trust=Trust.LOG, deterministic=True), exclude=("node2",)),
    ),
    (
        _row(RESTART, R.STORAGE_DELAY),
        _row(RESTART, R.CONFIRMATION_RETRY),
        world(cause=attribution(C.STORAGE, transient_storage=True, deterministic=True)),
    ),
    (
        _row(RESTART, R.CONFIRMATION_RETRY),
        _row(RESTART, R.HANG),
        world(S.RUNNING, K.HANG, progress=QUIET, cause=attribution(C.APPLICATION, deterministic=True)),
    ),
    (_row(RESTART, R.HANG), TABLE[-1], world(S.RUNNING, K.HANG, progress=QUIET)),
    (
        _row(NONE, R.HELD_BY_OTHERS),
        _row(NONE, R.NEXT_CHECKPOINT),
        world(S.RUNNING, K.STRAGGLER, attempt=attempt(S.RUNNING, held=True)),
    ),
    (
        _row(STOP, R.RESTART_CEILING),
        _row(RESTART, R.TRUSTED_FATAL),
        world(S.RUNNING, cause=bad_gpu("node2"), signals=FATAL, past=tuple(past(n) for n in range(20))),
    ),
    (
        _row(STOP, R.RESTART_CEILING),
        _row(STOP, R.CERTAIN_STARTUP_ERROR),
        world(cause=attribution(C.APPLICATION, certain=True), past=tuple(past(n) for n in range(20))),
    ),
    (
        _row(STOP, R.RESTART_CEILING),
        _row(STOP, R.TIME_LIMIT_WITHOUT_PROGRESS),
        world(S.TIME_LIMIT, cause=attribution(C.SCHEDULER_EVENT), past=(IN_VAIN,), job=job(restarts_max=1)),
    ),
    (_row(NONE, R.HELD_BY_OTHERS), _row(NONE, R.VETOED), world(attempt=attempt(held=True), orders=(VETO,))),
    (
        _row(NONE, R.VETOED),
        _row(STOP, R.OPERATOR),
        world(orders=(VETO, order(OrderKind.OVERRIDE, action=STOP))),
    ),
    (
        _row(NONE, R.USER_CANCELLED),
        _row(STOP, R.OPERATOR),
        world(S.CANCELLED, orders=(order(OrderKind.OVERRIDE, action=STOP),)),
    ),
    (
        _row(STOP, R.RESTART_CEILING),
        _row(RESTART, R.OPERATOR),
        world(orders=(order(OrderKind.OVERRIDE, action=RESTART),), past=tuple(past(n) for n in range(20))),
    ),
    (
        _row(STOP, R.BUDGET_EXHAUSTED),
        _row(RESTART, R.STORAGE_DELAY),
        world(cause=attribution(C.STORAGE, transient_storage=True), past=tuple(past(n, C.STORAGE) for n in range(6))),
    ),
)


def _chosen(case: World, table: tuple[Row, ...] = TABLE) -> Row:
    return choose(assess(case.snapshot, case.incident, case.attribution, case.isolation, case.policy, case.now), table)


@pytest.mark.parametrize(("case", "row"), list(zip(ROWS, TABLE, strict=True)), ids=[row.says for row in TABLE])
def test_each_row_is_reached(case: World, row: Row) -> None:
    """For every row of the table there is a world in which that row, and not a later one alike, decides."""
    assert _chosen(case) is row
    decision = case.decide()
    assert decision.action is row.action
    assert decision.reason is (Reason.HANG if row.keeps_reason else row.reason)
    assert decision.free == (row.action is Action.RESTART and row.reason in FREE_REASONS)


@pytest.mark.parametrize(
    ("winner", "loser", "case"), CONTESTED, ids=[f"{w.reason}-{r.reason}" for w, r, _ in CONTESTED]
)
def test_the_order_of_contested_rows_matters(winner: Row, loser: Row, case: World) -> None:
    """Where two rows apply the upper one decides, and with the two exchanged the decision is another one."""
    assert _chosen(case) is winner
    exchange: dict[Row, Row] = {winner: loser, loser: winner}
    assert _chosen(case, tuple(exchange.get(row, row) for row in TABLE)) is loser


@pytest.mark.parametrize("row", TABLE[1:], ids=lambda row: row.says)
def test_no_row_may_move_to_the_top(row: Row) -> None:
    """Every row but the first has a world that it would spoil from the top."""
    moved = (row, *(other for other in TABLE if other is not row))
    assert any(_chosen(case, moved) is not _chosen(case) for case in _worlds())


@pytest.mark.parametrize("row", TABLE[:-1], ids=lambda row: row.says)
def test_no_row_may_move_to_the_bottom(row: Row) -> None:
    """Every row but the last has a world that would be decided otherwise without it."""
    moved = (*(other for other in TABLE if other is not row), row)
    assert any(_chosen(case, moved) is not _chosen(case) for case in _worlds())


def _worlds() -> Iterator[World]:
    yield from ROWS
    yield from (case for _, _, case in CONTESTED)


def test_every_reason_has_a_row() -> None:
    """No reason is promised that the table never gives."""
    assert {row.reason for row in (*TABLE, TAKEN_BACK)} == set(Reason)


def test_the_last_row_always_applies() -> None:
    """The table is total by construction: its last row asks nothing."""
    last: Callable[[Any], bool] = TABLE[-1].when
    assert last(None)


def test_the_printed_table_has_each_row_once() -> None:
    """An operator can read the table as text, in order."""
    lines = describe().splitlines()
    assert len(lines) == len(TABLE)
    assert all(row.says in line and row.reason.value in line for row, line in zip(TABLE, lines, strict=True))
    assert [int(line.split(".")[0]) for line in lines] == list(range(1, len(TABLE) + 1))


def test_rows_above_the_failure_rows_never_stop() -> None:
    """Stops come only after everything that says that nothing may be done, unless ordered, or done already."""
    stops = [index for index, row in enumerate(TABLE) if row.action is Action.STOP]
    first_stop = next(index for index in stops if TABLE[index].reason not in {Reason.OPERATOR, Reason.STOPPED})
    not_restartable = next(index for index, row in enumerate(TABLE) if row.reason is Reason.SUCCESSOR_RUNNING)
    assert first_stop > not_restartable
