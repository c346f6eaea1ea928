"""Operators' orders as they go into the store and come out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from advisor.core.model import Order
from advisor.core.words import Action, Category, OrderKind
from advisor.store.records import AttemptKey, AttemptRef, ReconciliationReason, ReconciliationStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderWanted:
    """What an operator orders about a job, said at one of its attempts. See `advisor.core.model.Order`."""

    kind: OrderKind
    key: AttemptKey
    action: Action | None = None
    category: Category | None = None
    node: str = ""
    ends_live: bool = False
    ceiling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOrder:
    """An order and, where it holds no longer, who took it back."""

    order: Order
    key: AttemptKey
    ref: AttemptRef
    origin: str
    decision_id: str = ""  # the advice that it was said about
    lifted_at: datetime | None = None
    lifted_by: str = ""
    lifted_why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderGiven:
    """`changed`: False where it was so already. `orders`: how many a decision must have seen to follow it."""

    order: StoredOrder
    changed: bool
    orders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceOrder:
    """What became of an attempt since an order.

    `decided`: its newest decision has seen the order. `told`: what an agent said last about that decision.
    `accepted`: what the scheduler had accepted of any generation, and when.
    """

    decided: bool
    decision_id: str = ""
    generation: int = 0
    action: str = ""
    reason: str = ""
    mode: str = ""
    told: tuple[ReconciliationStatus, ReconciliationReason] | None = None
    accepted: Mapping[Action, datetime]
