"""The one plain sentence that goes with a decision. Written for people; nothing ever reads it back."""

from advisor.core import orders
from advisor.core.amounts import many
from advisor.core.model import Order
from advisor.core.situation import Situation
from advisor.core.words import Action, Category, Reason, WithheldReason

_CAUSE_CHARACTERS_MAX = 200
_NODES_MAX = 8


def explain(
    situation: Situation, order: Order | None, *, wanted: Action, action: Action, reason: Reason, says: str
) -> str:
    """What happens and why, in one sentence. Text from logs is stripped of control characters and cut.

    `order`: of the operator who decided. `wanted` is what the table's row asks for, `action` what is advised now,
    `says` the row in words.
    """
    if action is not wanted:
        return _sentence(f"Waiting for slower evidence before a {wanted.value} is decided; so far: {_cause(situation)}")
    why = _why(situation, reason, says) if order is None else _ordered(order, reason)
    if reason is Reason.STOP_UNREPORTED and order is not None:
        why = f"{says}; {why}"
    if action is Action.NONE:
        return _sentence(f"Nothing to do: {why}")
    cause = _cause(situation)
    if action is Action.STOP:
        return _sentence(f"Stop: {why}; cause: {cause}")
    avoid = situation.isolation.exclude_for_job
    without = f" without {_names(avoid)}" if avoid else ""
    if reason is Reason.ALREADY_REQUEUED:
        return _sentence(f"Already requeued by others; the next attempt runs{without}: {cause}")
    return _sentence(f"Restart{without}: {why}{_tried(situation)}{_not_spared(situation)}; cause: {cause}")


def _why(situation: Situation, reason: Reason, says: str) -> str:
    spent = situation.spent
    match reason:
        case Reason.RESTART_CEILING:
            ran = f" after {spent.node_days:,.1f} node-days" if spent.node_days >= 0.05 else ""
            return f"{many(spent.total, 'restart')} reached the job's ceiling of {spent.ceiling}{ran}"
        case Reason.BUDGET_EXHAUSTED:
            return f"restarted {many(spent.root_cause, 'time')} for this root cause without progress"
        case Reason.SAME_FAILURE_SAME_PROGRESS:
            step = situation.snapshot.progress.last_step
            return f"the same failure again {'before the first step' if step is None else f'at step {step}'}"
        case Reason.CERTAIN_STARTUP_ERROR if situation.attribution.category is Category.STORAGE:
            return "it fails the same way again until somebody makes room, which no retry does"
        case Reason.HEALTHY if situation.attribution.category is Category.NONE:
            return _cause(situation)
        case _:
            return says


def _tried(situation: Situation) -> str:
    """Which of the nodes nobody has named: they are avoided to see what happens without them."""
    snapshot = situation.snapshot
    named = {*situation.attribution.nodes, *orders.excluded(snapshot.orders)}
    named.update(node for past in snapshot.past for node in past.implicated_nodes)
    there = snapshot.attempt.nodes or ()
    tried = [node for node in situation.isolation.exclude_for_job if node in there and node not in named]
    if not tried:
        return ""
    new = not any(set(tried) & set(past.excluded_nodes) for past in snapshot.past)
    alone = new and situation.attribution.deterministic
    return f"; tried without {_names(tuple(tried))}, {'alone in this' if alone else 'part of every such'} failure"


def _not_spared(situation: Situation) -> str:
    """Which nodes that should be avoided cannot be, for want of others."""
    withheld = [item for item in situation.isolation.withheld if item.reason is WithheldReason.CAPACITY]
    kept = tuple(dict.fromkeys(item.node for item in withheld))
    return f"; {_names(kept)} cannot be avoided ({withheld[0].detail})" if withheld else ""


def _ordered(order: Order, reason: Reason) -> str:
    words = {Reason.VETOED: "vetoed", Reason.WITHDRAWN: "taken back", Reason.STOPPED: "stopped by order"}
    done = words.get(reason, "ordered")
    why = _plain(order.why)
    return f"{done} {'of' if reason is Reason.STOPPED else 'by'} {_plain(order.who)}{f' ({why})' if why else ''}"


def _plain(text: str) -> str:
    """On one line, with nothing that a terminal would obey, and not too long."""
    printable = " ".join("".join(c if c.isprintable() else " " for c in text).split()).rstrip(".")
    if len(printable) > _CAUSE_CHARACTERS_MAX:
        return printable[: _CAUSE_CHARACTERS_MAX - 1] + "…"
    return printable


def _cause(situation: Situation) -> str:
    text = _plain(situation.attribution.root_cause)
    if text:
        return text
    category = situation.attribution.category
    return "not known" if category in {Category.NONE, Category.UNKNOWN} else category.value.replace("_", " ")


def _names(nodes: tuple[str, ...]) -> str:
    shown = ", ".join(nodes[:_NODES_MAX])
    return shown if len(nodes) <= _NODES_MAX else f"{shown} and {len(nodes) - _NODES_MAX} more"


def _sentence(text: str) -> str:
    return text + "."
