"""What operators' orders come to for one attempt.

People outrank the table, and nobody outranks what keeps jobs safe: an override is bound by the ceiling, by what the
scheduler can restart, and by other people's cancels and holds, as any advice is. Orders are values of the snapshot, so
that a decision that follows one is replayed bit for bit.
"""

from collections.abc import Iterable, Sequence

from advisor.core.model import Order
from advisor.core.words import Action, Category, OrderKind


def newest(orders: Iterable[Order], kind: OrderKind) -> Order | None:
    found = [order for order in orders if order.kind is kind]
    return max(found, key=lambda order: (order.at, order.id), default=None)


def taken_back(orders: Iterable[Order], action: Action, category: Category) -> Order | None:
    """The withdrawal that speaks against this action for this cause. Of another cause or action it says nothing."""
    withdrawals = (order for order in orders if order.kind is OrderKind.WITHDRAW)
    return newest((o for o in withdrawals if o.action is action and o.category is category), OrderKind.WITHDRAW)


def excluded(orders: Sequence[Order]) -> tuple[str, ...]:
    """Nodes that operators want the job to avoid, the first asked for first."""
    return tuple(dict.fromkeys(o.node for o in orders if o.kind is OrderKind.EXCLUDE and _holds(o, orders)))


def spared(orders: Sequence[Order]) -> tuple[str, ...]:
    """Nodes that the job is not to avoid, whatever evidence says."""
    return tuple(dict.fromkeys(o.node for o in orders if o.kind is OrderKind.SPARE and _holds(o, orders)))


def _holds(order: Order, orders: Iterable[Order]) -> bool:
    """Of several about one node the last one holds."""
    about = (o for o in orders if o.node == order.node and o.kind in {OrderKind.EXCLUDE, OrderKind.SPARE})
    return max(about, key=lambda o: (o.at, o.id)) is order


def counts_from(orders: Iterable[Order], *, ceiling: bool) -> int:
    """The first attempt whose spending counts, after budgets were reset. Of the ceiling only where that was said."""
    resets = (o for o in orders if o.kind is OrderKind.RESET_BUDGET and (o.ceiling or not ceiling))
    return max((order.attempt for order in resets), default=0)
