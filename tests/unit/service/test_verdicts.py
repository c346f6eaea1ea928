"""How long advice is open, and when it is said once more."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.model import Attempt, Job, OpenAdvice, Successor
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, Mode, Reason
from advisor.store.records import AttemptKey, StoredAttempt
from advisor.verdicts import lapsed, time_to_live
from tests.integration.store.worlds import decision

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
RESTART = replace(decision(), mode=Mode.AUTONOMOUS)
ADVICE = OpenAdvice(
    generation=1,
    action=Action.RESTART,
    exclude_nodes=(),
    category=Category.GPU_HARDWARE,
    reason=Reason.NODES_IMPLICATED,
    created_at=NOW,
    applied=False,
)
LIVE = StoredAttempt(
    key=AttemptKey(job_key="k", number=0),
    job=Job(key="k", cluster="c", job_id="7", user="ada", in_scope=True),
    attempt=Attempt(number=0, state=AttemptState.RUNNING),
    advice=ADVICE,
    advice_expires_at=NOW + timedelta(seconds=240),
)
ENDED = replace(LIVE, remembered_until=NOW + timedelta(seconds=300))


WAITS = Successor(number=1, state=AttemptState.PENDING, by_us=False)
UNDONE = replace(ENDED, undone=True)


def test_advice_is_open_as_long_as_the_scheduler_knows_the_attempt() -> None:
    """Never longer, whenever it is given; a live attempt's by policy."""
    at = [time_to_live(ENDED, Policy(), NOW + timedelta(seconds=s)).total_seconds() for s in (0, 290, 400)]
    assert at == [300, 10, 0]
    assert time_to_live(LIVE, Policy(), NOW).total_seconds() == Policy().advice_time_to_live_seconds


@pytest.mark.parametrize(
    ("item", "seconds", "again"),
    [
        (LIVE, 239, False),
        (LIVE, 240, True),
        (ENDED, 240, True),
        (ENDED, 299, True),
        (ENDED, 300, False),
        (replace(ENDED, forgotten=True), 250, False),
        (replace(ENDED, advice=replace(ADVICE, applied=True)), 250, False),
        (replace(ENDED, advice_expires_at=NOW + timedelta(seconds=300)), 250, False),
        (replace(ENDED, successor=WAITS), 250, False),
    ],
)
def test_advice_that_ran_out_untaken_is_said_once_more(item: StoredAttempt, seconds: float, again: bool) -> None:
    """While somebody could still apply it: given before the end, it runs out before the scheduler forgets."""
    assert lapsed(item, RESTART, NOW + timedelta(seconds=seconds)) is again


@pytest.mark.parametrize(
    ("item", "again"),
    [
        (UNDONE, True),
        (replace(UNDONE, successor=WAITS), True),
        (replace(UNDONE, successor=replace(WAITS, state=AttemptState.RUNNING)), False),
        (replace(UNDONE, forgotten=True), False),
        (replace(UNDONE, attempt=Attempt(number=0, state=AttemptState.CANCELLED)), False),
    ],
)
def test_what_the_scheduler_has_forgotten_is_said_once_more_at_once(item: StoredAttempt, again: bool) -> None:
    """Also where others have requeued it before that: their attempt is to avoid the same nodes."""
    assert lapsed(item, RESTART, NOW) is again
