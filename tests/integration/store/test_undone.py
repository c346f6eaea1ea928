"""What came of advice, and was forgotten with the requeue that came of it."""

import pytest

from advisor.core.words import Action, AttemptState, Mode
from advisor.store.records import AttemptKey, Reconciliation, ReconciliationReason, ReconciliationStatus
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, decision, pending, record, report, running, seen

pytestmark = pytest.mark.postgres

STATUS, REASON = ReconciliationStatus, ReconciliationReason
FAILED_AGAIN = seen(AttemptState.FAILED, ended_at=at(20), observed_at=at(70))


async def advised(store: Store, key: AttemptKey, action: Action, *, applied: bool, generation: int = 0) -> str:
    made = await store.commit_decision(
        record(key, generation, decision=decision(action=action, mode=Mode.AUTONOMOUS), created_at=at(30 + generation))
    )
    if applied:
        news = Reconciliation(status=STATUS.APPLIED, reason=REASON.OBSERVED, at=at(40 + generation))
        await store.record_reconciliation(made.decision_id, news, who="agent")
    return made.decision_id


@pytest.mark.parametrize("applied", [True, False])
async def test_a_stop_of_a_withdrawn_attempt_is_none_of_the_one_that_has_its_number_then(
    store: Store, applied: bool
) -> None:
    """A running job that is requeued is shown as its next attempt at once, still ending, and may be decided about."""
    key = await running(store)
    await report(store, seen(AttemptState.COMPLETING, attempt=1, observed_at=at(25)))
    withdrawn = AttemptKey(job_key=key.job_key, number=1)
    await advised(store, withdrawn, Action.STOP, applied=applied)
    before = await store.load([key, withdrawn], now=at(50))
    assert before[withdrawn].stop is not None
    assert before[key].successor is not None
    assert before[key].successor.stopped
    assert (await report(store, FAILED_AGAIN)).withdrawn == (withdrawn,)
    assert await store.open_advice(CLUSTER, at(71)) == ()
    await report(store, pending(attempt=1, submitted_at=at(80), observed_at=at(81)))
    await report(store, seen(attempt=1, submitted_at=at(80), started_at=at(82), observed_at=at(83)))
    after = await store.load([key, withdrawn], now=at(84))
    assert after[withdrawn].stop is None
    assert after[key].successor is not None
    assert not after[key].successor.stopped


async def test_a_stop_that_was_forgotten_calls_off_no_attempt_that_follows(store: Store) -> None:
    """It had taken back the restart that was made before it, of which nothing is left either."""
    key = await running(store)
    await report(store, seen(AttemptState.FAILED, ended_at=at(20), observed_at=at(21)))
    await advised(store, key, Action.RESTART, applied=True)
    ours = {"attempt": 1, "marked_generation": 1, "marked_attempt": 0}
    await report(store, pending(**ours, submitted_at=at(45), observed_at=at(46)))
    await advised(store, key, Action.STOP, applied=True, generation=1)
    second = AttemptKey(job_key=key.job_key, number=1)
    before = await store.load([key, second], now=at(50))
    assert (before[key].stop, before[second].stop) != (None, None)
    await report(store, FAILED_AGAIN)
    again = (await store.load([key], now=at(71)))[key]
    assert (again.stop, again.undone) == (None, True)
    await report(store, pending(**ours, submitted_at=at(80), observed_at=at(81)))
    after = await store.load([key, second], now=at(82))
    assert (after[key].stop, after[second].stop) == (None, None)


async def test_what_is_told_late_of_what_was_forgotten_makes_it_no_less_undone(store: Store) -> None:
    """An agent had seen the requeue, and says so only now; the attempt that follows really undoes it no less."""
    key = await running(store)
    await report(store, seen(AttemptState.FAILED, ended_at=at(20), observed_at=at(21)))
    made = await advised(store, key, Action.RESTART, applied=True)
    await report(store, pending(attempt=1, submitted_at=at(45), observed_at=at(46)))
    await report(store, FAILED_AGAIN)
    row = await store.audit.decision(made)
    assert row is not None
    assert (row.status, row.reconciliations[-1].detail) == (STATUS.ABANDONED, "its scheduler has forgotten the requeue")
    late = Reconciliation(status=STATUS.VERIFIED, reason=REASON.OBSERVED, at=at(60))
    await store.record_reconciliation(made, late, who="agent")
    item = (await store.load([key], now=at(71)))[key]
    assert item.advice is not None
    assert (item.advice.applied, item.undone) == (False, True)
    await report(store, pending(attempt=1, submitted_at=at(80), observed_at=at(81)))
    assert (await store.load([key], now=at(82)))[key].undone
