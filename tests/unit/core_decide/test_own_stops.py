"""What we stopped ourselves is nobody else's cancel; what somebody else cancelled is still his."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.core.codec import decode, encode
from advisor.core.decide import decide
from advisor.core.model import Order, Snapshot
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, IncidentKind, OrderKind, Reason
from advisor.rules.loader import load_rules
from tests.unit.core_decide.worlds import LATER, advice, attempt, order, our_stop, snapshot, successor, world

S, R = AttemptState, Reason
RULES = load_rules()
RESTART, STOP, NONE = Action.RESTART, Action.STOP, Action.NONE
ORDER = order(OrderKind.OVERRIDE, action=STOP, ends_live=True)
ORDERED = our_stop(reason=R.OPERATOR, order=ORDER)
CALLED_OFF = successor(S.CANCELLED, by_us=True)


def outcome(state: AttemptState = S.FAILED, **changes: Any) -> tuple[Action, Reason]:
    decision = world(state, IncidentKind.NONE, **changes).decide()
    return decision.action, decision.reason


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("state", [S.COMPLETING, S.OTHER, S.CANCELLED])
def test_an_end_that_may_be_ours_leaves_the_order_as_it_is(state: AttemptState, applied: bool) -> None:
    """Whether the scheduler's answer has come already or not, and it still says whose order it is."""
    stop = replace(ORDERED, applied=applied)
    made = world(state, IncidentKind.NONE, stop=stop, orders=(ORDER,)).decide()
    assert (made.action, made.reason, made.ordered_by, made.order) == (STOP, R.OPERATOR, "ada", ORDER.id)
    assert "ordered by ada (told so)" in made.explanation
    assert outcome(state, orders=(ORDER,))[1] in {R.OUTCOME_NOT_VISIBLE, R.USER_CANCELLED}


def test_a_stop_of_the_tables_own_is_kept_as_well() -> None:
    """A hung attempt that we ended is not cancelled by its user, and keeps why it was ended."""
    stop = our_stop(reason=R.BUDGET_EXHAUSTED)
    assert outcome(S.CANCELLED, stop=stop) == outcome(S.COMPLETING, stop=stop) == (STOP, R.BUDGET_EXHAUSTED)
    assert outcome(S.COMPLETED, stop=stop) == (NONE, R.COMPLETED)
    assert outcome(S.FAILED, stop=stop)[0] is RESTART


def test_a_restart_that_an_operator_called_off_is_stopped_by_order() -> None:
    """Both attempts say so: the one that was advised on, and the one that never started."""
    ours = {"advice": advice(), "successor": CALLED_OFF}
    assert outcome(stop=ORDERED, **ours) == (STOP, R.OPERATOR)
    assert outcome(**ours) == (NONE, R.USER_CANCELLED)
    never = attempt(S.CANCELLED, number=1, started_at=None)
    made = world(S.CANCELLED, IncidentKind.NONE, attempt=never, stop=ORDERED).decide()
    assert (made.action, made.reason, made.ordered_by) == (NONE, R.STOPPED, "ada")
    assert made.explanation == "Nothing to do: stopped by order of ada (told so)."


def test_a_restart_is_kept_when_the_next_attempt_is_stopped_by_us() -> None:
    """It was right, whatever was ordered about the attempt that followed; a user's cancel of that one is his word."""
    ours = {"advice": advice(), "successor": replace(CALLED_OFF, stopped=True)}
    assert outcome(**ours) == (RESTART, R.HANG)
    assert outcome(successor=successor(S.CANCELLED, stopped=True)) == (NONE, R.ALREADY_REQUEUED)
    assert outcome(advice=advice(), successor=CALLED_OFF) == (NONE, R.USER_CANCELLED)


def test_what_we_cancelled_has_no_cause_of_the_users() -> None:
    """The scheduler's word for a cancel is no evidence against anybody where it is ours."""
    seen = snapshot(S.CANCELLED)
    assert decide(seen, RULES, Policy(), LATER).attribution.category is Category.USER_CANCEL
    made = decide(replace(seen, stop=ORDERED), RULES, Policy(), LATER)
    assert (made.attribution.category, made.incident.signals) == (Category.NONE, ())


def test_a_stop_that_nobody_reported_is_told_as_far_as_it_is_known() -> None:
    """Neither as ours nor as the user's: of the attempt, and of the restart that was called off with it."""
    lost = replace(ORDERED, applied=False, unreported=True)
    made = world(S.CANCELLED, IncidentKind.NONE, stop=lost).decide()
    assert (made.action, made.reason, made.ordered_by, made.order) == (NONE, R.STOP_UNREPORTED, "ada", ORDER.id)
    assert made.explanation == (
        "Nothing to do: our stop was out, and not reported back: ended by it, or by somebody else; "
        "ordered by ada (told so)."
    )
    assert outcome(stop=lost, advice=advice(), successor=CALLED_OFF) == (NONE, R.STOP_UNREPORTED)
    never = attempt(S.CANCELLED, number=1, started_at=None)
    assert outcome(S.CANCELLED, attempt=never, stop=lost) == (NONE, R.STOP_UNREPORTED)
    mine = replace(lost, reason=R.HANG, order=None)
    assert outcome(S.CANCELLED, stop=mine) == (NONE, R.STOP_UNREPORTED)
    decided = decide(replace(snapshot(S.CANCELLED), stop=mine), RULES, Policy(), LATER)
    assert (decided.attribution.category, decided.incident.signals) == (Category.NONE, ())


@pytest.mark.parametrize("order", [None, order(OrderKind.OVERRIDE, action=RESTART)])
@pytest.mark.parametrize("state", list(S))
def test_nothing_that_was_cancelled_is_restarted_for_a_stop_that_nobody_reported(
    state: AttemptState, order: Order | None
) -> None:
    """Only a cancel may be ours: what ended otherwise is judged as if no stop had been out."""
    lost = our_stop(applied=False, unreported=True)
    orders = () if order is None else (order,)
    expected = (NONE, R.STOP_UNREPORTED) if state is S.CANCELLED else outcome(state, orders=orders)
    assert outcome(state, stop=lost, orders=orders) == expected


def test_a_waiting_restart_that_is_cancelled_while_our_stop_is_out_waits_for_the_agents_word() -> None:
    """It may be somebody else's cancel."""
    never = attempt(S.CANCELLED, number=1, started_at=None)
    assert outcome(S.CANCELLED, attempt=never, stop=replace(ORDERED, applied=False)) == (NONE, R.OUTCOME_NOT_VISIBLE)


def test_what_was_stored_before_is_read_as_it_was() -> None:
    """Inputs of an older build know nothing of our stops, and give the decision that they gave."""
    seen = snapshot(S.FAILED, successor=CALLED_OFF, advice=advice(action=STOP))
    stored = (
        encode(seen).replace(b',"stop":null', b"").replace(b'"stopped":false,', b"").replace(b',"stopped":false', b"")
    )
    assert b"stop" not in stored.replace(b'"stop"', b"")
    assert decode(Snapshot, stored) == seen
