"""What past attempts cost."""

from typing import Any

import pytest

from advisor.core.budgets import Spent, durable_progress, spent
from advisor.core.model import Attribution, PastAttempt
from advisor.core.policy import Policy
from advisor.core.words import Action, Category, Reason
from tests.unit.core_decide.worlds import attribution, bad_gpu, job, past, progress


def _spent(*history: PastAttempt, last: int | None = None, cause: Attribution | None = None, **changes: Any) -> Spent:
    return spent(job(**changes), history, progress(last), cause or attribution(), Policy())


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
