"""What operators order is decided, within what binds all advice, and the decision names whose order it was."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from advisor.core.codec import decode, encode
from advisor.core.decide import decide
from advisor.core.isolation import isolate
from advisor.core.model import Order, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.words import Action, AttemptState, Category, IncidentKind, OrderKind, Reason, WithheldReason
from tests.unit.core_decide.worlds import (
    LATER,
    NOON,
    advice,
    after,
    attempt,
    attribution,
    bad_gpu,
    incident,
    job,
    order,
    past,
    progress,
    snapshot,
    successor,
    world,
)

S, K, R = AttemptState, IncidentKind, Reason
RESTART, STOP, NONE = Action.RESTART, Action.STOP, Action.NONE
VETO = order(OrderKind.VETO)
STOP_IT = order(OrderKind.OVERRIDE, action=STOP, ends_live=True)
RESTART_IT = order(OrderKind.OVERRIDE, action=RESTART)
END_AND_RESTART = order(OrderKind.OVERRIDE, action=RESTART, ends_live=True)
CERTAIN = attribution(Category.APPLICATION, certain=True)


def withdrawn(action: Action, category: Category) -> Order:
    return order(OrderKind.WITHDRAW, action=action, category=category)


def outcome(**changes: Any) -> tuple[Action, Reason]:
    state = changes.pop("state", S.FAILED)
    decision = world(state, **changes).decide()
    return decision.action, decision.reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cause": CERTAIN},
        {"cause": bad_gpu("node2"), "exclude": ("node2",)},
        {"state": S.PREEMPTED},
        {"past": tuple(past(n) for n in range(20))},
    ],
)
def test_a_veto_holds_whatever_is_found_later(changes: dict[str, Any]) -> None:
    """Whatever the table would say of the attempt, nothing is done about it, and the decision names who vetoed."""
    assert outcome(**changes)[0] is not NONE
    vetoed = world(changes.pop("state", S.FAILED), orders=(VETO,), **changes).decide()
    assert (vetoed.action, vetoed.reason, vetoed.ordered_by, vetoed.order) == (NONE, R.VETOED, "ada", VETO.id)
    assert "vetoed by ada (told so)" in vetoed.explanation


def test_a_veto_outranks_an_override() -> None:
    """Until it is lifted nothing else holds, whoever said it later."""
    later = order(OrderKind.OVERRIDE, at=after(5), action=STOP)
    assert outcome(orders=(VETO, later)) == (NONE, R.VETOED)


@pytest.mark.parametrize(("cause", "given"), [(CERTAIN, RESTART_IT), (attribution(), STOP_IT)])
def test_an_override_turns_the_decision_round_at_once(cause: Any, given: Order) -> None:
    """A stop becomes a restart and a restart a stop, without waiting for slower facts, and it names whose it is."""
    before = world(cause=cause).decide()
    assert before.action is not given.action
    after_it = world(cause=cause, now=NOON, orders=(given,)).decide()
    assert (after_it.action, after_it.reason) == (given.action, R.OPERATOR)
    assert (after_it.ordered_by, after_it.free) == ("ada", False)
    assert "ordered by ada (told so)" in after_it.explanation


@pytest.mark.parametrize("given", [STOP_IT, RESTART_IT, END_AND_RESTART])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": S.COMPLETED}, R.COMPLETED),
        ({"state": S.CANCELLED}, R.USER_CANCELLED),
        ({"attempt": attempt(S.RUNNING, held=True), "state": S.RUNNING, "kind": K.NONE}, R.HELD_BY_OTHERS),
        ({"successor": successor()}, R.ALREADY_REQUEUED),
        ({"state": S.COMPLETING}, R.OUTCOME_NOT_VISIBLE),
    ],
)
def test_an_override_overrules_nobody_else(given: Order, changes: dict[str, Any], reason: Reason) -> None:
    """Neither a cancel nor a hold nor a requeue of others gives way to an operator's order to us."""
    assert outcome(orders=(given,), **changes) == (NONE, reason)


def test_an_override_stops_at_the_ceiling() -> None:
    """The last bound on restarts holds for people too, until they reset it by name."""
    many = tuple(past(n) for n in range(20))
    assert outcome(past=many, orders=(RESTART_IT,)) == (STOP, R.RESTART_CEILING)
    reset = order(OrderKind.RESET_BUDGET, attempt=20, ceiling=True)
    assert outcome(past=many, orders=(RESTART_IT, reset)) == (RESTART, R.OPERATOR)


@pytest.mark.parametrize("changes", [{"past": tuple(past(n) for n in range(20))}, {"job": job(requeueable=False)}])
def test_a_healthy_attempt_is_never_ended_for_a_restart_that_cannot_follow(changes: dict[str, Any]) -> None:
    """At the ceiling, or where the scheduler would not requeue it, a live attempt goes on."""
    live = world(S.RUNNING, K.NONE, orders=(END_AND_RESTART,), **changes).decide()
    assert (live.action, live.may_end_live_attempt) == (NONE, False)


@pytest.mark.parametrize(
    ("given", "expected", "ends"),
    [
        (STOP_IT, (STOP, R.OPERATOR), True),
        (END_AND_RESTART, (RESTART, R.OPERATOR), True),
        (RESTART_IT, (NONE, R.HEALTHY), False),
    ],
)
def test_a_live_attempt_is_ended_only_where_that_was_said(given: Order, expected: Any, ends: bool) -> None:
    """A restart ordered without it waits for the attempt's own end."""
    live = world(S.RUNNING, K.NONE, orders=(given,)).decide()
    assert ((live.action, live.reason), live.may_end_live_attempt) == (expected, ends)


def test_a_restart_of_ours_is_called_off_while_it_waits() -> None:
    """The accepted restart's successor still waits: an ordered stop takes its place, a veto leaves it as it is."""
    accepted = {"advice": advice(), "successor": successor(by_us=True)}
    assert outcome(**accepted)[0] is RESTART
    assert outcome(orders=(STOP_IT,), **accepted) == (STOP, R.OPERATOR)
    assert outcome(orders=(VETO,), **accepted) == (NONE, R.VETOED)
    running = {"advice": advice(), "successor": successor(S.RUNNING, by_us=True)}
    assert outcome(orders=(STOP_IT,), **running)[0] is not STOP


def test_advice_taken_back_is_not_said_again() -> None:
    """The same action for the same cause stays away; another cause, or another action, is new advice."""
    back = withdrawn(RESTART, Category.GPU_HARDWARE)
    cause = bad_gpu("node2")
    assert outcome(cause=cause, exclude=("node2",), orders=(back,)) == (NONE, R.WITHDRAWN)
    assert outcome(cause=cause, exclude=("node2", "node3"), orders=(back,)) == (NONE, R.WITHDRAWN)
    assert outcome(orders=(back,))[0] is RESTART
    assert outcome(cause=CERTAIN, orders=(withdrawn(RESTART, Category.APPLICATION),))[0] is STOP
    assert outcome(cause=cause, exclude=("node2",), orders=(back, RESTART_IT)) == (RESTART, R.OPERATOR)


def test_a_reset_budget_counts_anew() -> None:
    """What was spent before the attempt counts no more; the ceiling stays unless it was named."""
    spent = tuple(past(n) for n in range(3))
    assert outcome(past=spent, attempt=attempt(number=3)) == (STOP, R.BUDGET_EXHAUSTED)
    reset = order(OrderKind.RESET_BUDGET, attempt=3)
    assert outcome(past=spent, attempt=attempt(number=3), orders=(reset,)) == (RESTART, R.WITHIN_BUDGET)
    later = tuple(past(n) for n in range(6))
    assert outcome(past=later, attempt=attempt(number=6), orders=(reset,)) == (STOP, R.BUDGET_EXHAUSTED)
    many = tuple(past(n) for n in range(20))
    assert outcome(past=many, orders=(order(OrderKind.RESET_BUDGET, attempt=20),)) == (STOP, R.RESTART_CEILING)


def test_a_reset_budget_forgets_what_failed_alike() -> None:
    """A confirmation retry is given once more."""
    alike = {
        "cause": attribution(Category.APPLICATION, deterministic=True),
        "past": (past(0, Category.APPLICATION, last_step=9, reason=R.CONFIRMATION_RETRY),),
        "progress": progress(9),
    }
    assert outcome(**alike) == (STOP, R.SAME_FAILURE_SAME_PROGRESS)
    reset = order(OrderKind.RESET_BUDGET, attempt=1)
    assert outcome(orders=(reset,), **alike) == (RESTART, R.CONFIRMATION_RETRY)


def exclusions(*given: Order, cause: Any = None, policy: Policy | None = None, **changes: Any) -> Any:
    about = snapshot(orders=given, **changes)
    return isolate(about, incident(), cause or attribution(), policy or Policy(), LATER)


def test_an_exclusion_by_hand_comes_first_and_is_bounded_like_all() -> None:
    """It may name a node outside the allocation, it is never cut before evidence is, and capacity binds it too."""
    hand = order(OrderKind.EXCLUDE, node="node9")
    assert exclusions(hand, cause=bad_gpu("node2")).exclude_for_job == ("node9", "node2")
    few = exclusions(hand, cause=bad_gpu("node2"), policy=Policy(exclusions_per_job_max=1))
    assert few.exclude_for_job == ("node9",)
    none_left = exclusions(hand, nodes_fitting=4)
    assert (none_left.exclude_for_job, none_left.withheld[0].reason) == ((), WithheldReason.CAPACITY)
    assert exclusions(hand, user_excluded=("node9",)).exclude_for_job == ()


def test_a_node_that_was_spared_is_not_excluded_again() -> None:
    """Neither by this attempt's evidence nor by what earlier attempts excluded; and it is visible."""
    spare = order(OrderKind.SPARE, node="node2")
    earlier = (past(0, excluded_nodes=("node2", "node3")),)
    found = exclusions(spare, cause=bad_gpu("node2"), past=earlier)
    assert found.exclude_for_job == ("node3",)
    assert [(item.node, item.reason) for item in found.withheld] == [("node2", WithheldReason.OPERATOR)]


def test_of_two_orders_about_one_node_the_last_holds() -> None:
    """Excluded, spared, excluded again."""
    orders = [
        order(OrderKind.EXCLUDE, node="node2"),
        order(OrderKind.SPARE, node="node2", at=after(1)),
        order(OrderKind.EXCLUDE, node="node2", at=after(2)),
    ]
    assert exclusions(*orders).exclude_for_job == ("node2",)
    assert exclusions(*orders[:2]).exclude_for_job == ()


def test_what_was_spared_is_given_back_by_a_waiting_successor() -> None:
    """Others requeued it with our exclusion on it: with nothing else to exclude, the update still goes out."""
    waiting = successor(excluded_nodes=("node2",))
    spare = order(OrderKind.SPARE, node="node2")
    assert outcome(successor=waiting, orders=(spare,)) == (RESTART, R.ALREADY_REQUEUED)
    assert outcome(successor=waiting, orders=(spare,), user_excluded=("node2",)) == (NONE, R.ALREADY_REQUEUED)


def test_a_decision_by_order_is_replayed_bit_for_bit() -> None:
    """Orders are in the stored inputs; those of a build that knew of none still read."""
    given = (RESTART_IT, order(OrderKind.EXCLUDE, node="node9"))
    asked: tuple[Snapshot, RuleSet, Policy, datetime] = (snapshot(orders=given), RuleSet(rules=()), Policy(), LATER)
    decision = decide(*asked)
    again = decide(decode(Snapshot, encode(asked[0])), *asked[1:])
    assert (encode(again), again.order) == (encode(decision), RESTART_IT.id)
    old = encode(snapshot()).replace(b'"orders":[],', b"")
    assert decode(Snapshot, old) == snapshot()
    assert decode(Snapshot, encode(asked[0])).orders == given


def test_text_of_an_order_is_made_harmless() -> None:
    """What somebody wrote as a reason reaches a terminal as one plain line."""
    hostile = order(OrderKind.VETO, why="a\x1b[2Jb\nc", at=NOON + timedelta(seconds=1))
    explanation = world(orders=(hostile,)).decide().explanation
    assert set("\x1b\n").isdisjoint(explanation)
