"""What past attempts cost."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from advisor.core.budgets import Spent, durable_progress, spent
from advisor.core.model import Attribution, PastAttempt
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, OrderKind, Reason
from tests.unit.core_decide.worlds import (
    LATER,
    NOON,
    attempt,
    attribution,
    bad_gpu,
    job,
    order,
    past,
    progress,
    snapshot,
)


def _spent(*history: PastAttempt, last: int | None = None, cause: Attribution | None = None, **changes: Any) -> Spent:
    seen = snapshot(job=job(**changes), past=history, progress=progress(last))
    return spent(seen, cause or attribution(), Policy(), LATER)


def _ran(number: int, days: float, **changes: Any) -> PastAttempt:
    """An attempt on a thousand nodes, and for how long they were its."""
    nodes = tuple(f"n{index}" for index in range(1000))
    return past(number, nodes=nodes, started_at=NOON - timedelta(days=days), ended_at=NOON, **changes)


def test_only_our_own_restarts_cost() -> None:
    """Scheduler events, requeues by others, stops and waiting cost nothing."""
    free = (
        past(0, reason=Reason.SCHEDULER_EVENT),
        past(1, reason=Reason.ALREADY_REQUEUED),
        past(2, action=Action.STOP, reason=Reason.BUDGET_EXHAUSTED),
        past(3, action=Action.NONE, reason=Reason.AWAITING_EXIT),
        past(4, action=None, reason=None),
    )
    assert (_spent(*free).root_cause, _spent(*free).total) == (0, 0)
    assert (_spent(*free, past(5)).root_cause, _spent(*free, past(5)).total) == (1, 1)


def test_progress_resets_the_budget_and_never_the_ceiling() -> None:
    """Getting further than every attempt before forgives what was spent, not how often."""
    history = (past(0, last_step=10), past(1, last_step=10), past(2, last_step=10))
    assert (_spent(*history, last=10).root_cause, _spent(*history, last=11).root_cause) == (3, 0)
    assert _spent(*history, last=11).total == 3
    assert _spent(*history, past(3, last_step=20), past(4, last_step=15), last=20).root_cause == 2


def test_no_step_known_is_no_progress() -> None:
    """An attempt that died before its first step resets nothing."""
    history = (past(0, last_step=10), past(1))
    assert _spent(*history).root_cause == 2
    assert not _spent(*history).progressed
    assert _spent(past(0), last=1).progressed


def test_budgets_count_root_causes_per_place() -> None:
    """Trusted evidence tells places apart; without it the same failure elsewhere is the same failure."""
    elsewhere = past(0, Category.GPU_HARDWARE, trusted=True, implicated_nodes=("node1",))
    here = past(1, Category.GPU_HARDWARE, trusted=True, implicated_nodes=("node2", "node3"))
    by_log = past(2, Category.GPU_HARDWARE, implicated_nodes=("node1",))
    other = past(3, Category.NUMERICS)
    assert _spent(elsewhere, here, by_log, other, cause=bad_gpu("node2")).root_cause == 2
    assert _spent(elsewhere, here, by_log, other, cause=bad_gpu("node2", trusted=False)).root_cause == 3


def test_a_node_that_was_given_again_against_our_exclusion_spends_no_budget() -> None:
    """The job never had its chance elsewhere: only the ceiling counts. Where it was not excluded, it counts."""
    avoided = [
        past(n, Category.GPU_HARDWARE, trusted=True, implicated_nodes=("node2",), excluded_nodes=("node2",))
        for n in range(3)
    ]
    assert (_spent(*avoided, cause=bad_gpu("node2")).root_cause, _spent(*avoided).total) == (0, 3)
    kept = [replace(item, nodes=("node5", "node6")) for item in avoided]
    assert _spent(*kept, cause=bad_gpu("node2")).root_cause == 2  # this attempt is on it again, after the last
    not_avoided = [replace(item, excluded_nodes=()) for item in avoided]
    assert _spent(*not_avoided, cause=bad_gpu("node2")).root_cause == 3
    by_log = [replace(item, trusted=False) for item in avoided]
    assert _spent(*by_log, cause=bad_gpu("node2", trusted=False)).root_cause == 3


def test_failures_without_a_fingerprint_count_by_category() -> None:
    """What cannot be told apart is taken together."""
    cause = attribution(fingerprint="")
    history = (past(0, fingerprint=""), past(1, fingerprint=""), past(2, Category.NUMERICS, fingerprint=""), past(3))
    assert _spent(*history, cause=cause).root_cause == 2
    assert _spent(*history, cause=cause).same_failure == 0


@pytest.mark.parametrize(("own", "ceiling"), [(None, 20), (5, 5), (0, 0), (99, 20)])
def test_the_ceiling_is_the_smaller_one(own: int | None, ceiling: int) -> None:
    """A job may lower the site's ceiling, not raise it."""
    result = _spent(restarts_max=own)
    assert result.ceiling == ceiling
    assert result.at_ceiling == (ceiling == 0)


def test_the_ceiling_grows_with_the_node_days_that_the_scheduler_gave() -> None:
    """Twenty more for each thousand in which it got further; what is not known earns nothing."""
    first = _ran(0, 1.0, last_step=9)
    assert _spent(first).ceiling == 40
    assert _spent(first, _ran(1, 0.55, last_step=30)).ceiling == 51
    assert _spent(_ran(0, 1.0), last=5).ceiling == _spent(first, last=5).ceiling == 40
    assert _spent(replace(first, started_at=None)).ceiling == 20
    assert _spent(replace(first, ended_at=None)).ceiling == 20
    assert _spent(_ran(0, -1.0, last_step=9)).ceiling == 20  # a clock that was set back takes nothing away either
    assert _spent(first, restarts_max=25).ceiling == 25


def test_attempts_in_vain_do_not_raise_the_ceiling() -> None:
    """Except where trusted evidence, or the scheduler, ended them: that is no fault of the job."""
    assert _spent(_ran(0, 1.0), _ran(1, 2.0)).ceiling == 20
    assert _spent(_ran(0, 1.0, last_step=9), _ran(1, 2.0, last_step=9)).ceiling == 40
    assert _spent(_ran(0, 1.0), _ran(1, 2.0), last=5).ceiling == 80  # it got further after all
    assert _spent(_ran(0, 1.0, trusted=True)).ceiling == 40
    assert _spent(_ran(0, 1.0, reason=Reason.SCHEDULER_EVENT)).ceiling == 40


def test_a_live_attempt_earns_until_now() -> None:
    """And one whose nodes are not known earns nothing."""
    running = attempt(AttemptState.RUNNING, nodes=_ran(0, 0.0).nodes, started_at=NOON - timedelta(days=2))
    seen = snapshot(attempt=running, progress=progress(5))
    assert spent(seen, attribution(), Policy(), NOON).ceiling == 60
    unknown = replace(seen, attempt=replace(running, nodes=None))
    assert spent(unknown, attribution(), Policy(), NOON).ceiling == 20


def test_a_ceiling_that_was_reset_counts_node_days_from_there_too() -> None:
    """What the job had earned before is spent with what it had used."""
    reset = order(OrderKind.RESET_BUDGET, attempt=1, ceiling=True)
    seen = snapshot(past=(_ran(0, 1.0, last_step=5), _ran(1, 0.5, last_step=9)), orders=(reset,))
    found = spent(seen, attribution(), Policy(), LATER)
    assert (found.total, found.ceiling) == (1, 30)


def test_failing_faster_than_any_cluster_reaches_the_ceiling() -> None:
    """A thousand nodes that fail every half hour are stopped within half a day, whatever progress they claim."""
    history: tuple[PastAttempt, ...] = ()
    while not (now := _spent(*history, last=len(history) + 1)).at_ceiling:
        history += (_ran(len(history), 1 / 48, last_step=len(history)),)
    assert 20 < now.total < 48


def test_thirteen_failures_a_day_on_two_thousand_nodes_go_on() -> None:
    """As often as published for the worse of two clusters: never at the ceiling in a hundred attempts."""
    history: tuple[PastAttempt, ...] = ()
    for number in range(100):
        assert not _spent(*history).at_ceiling
        history += (_ran(number, 1 / 6.5, last_step=number, checkpoint_step=number),)


@pytest.mark.parametrize(
    ("first", "last", "saved", "durable"),
    [
        (None, None, None, False),
        (1, 150, None, False),
        (90, 150, None, True),
        (1, 150, 120, True),
        (90, 100, 120, False),
        (1, 150, 30, False),
    ],
)
def test_durable_progress_starts_the_next_attempt_further_on(
    first: int | None, last: int | None, saved: int | None, durable: bool
) -> None:
    """Running longer from the same beginning is not progress, and starting later without getting further is not."""
    history = (past(0, first_step=1, last_step=100, checkpoint_step=50),)
    assert durable_progress(history, progress(last, first, checkpoint_step=saved)) == durable
    lesser = past(1, first_step=0, last_step=20, checkpoint_step=10)
    assert durable_progress((*history, lesser), progress(last, first, checkpoint_step=saved)) == durable
