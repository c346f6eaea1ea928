"""What operators ordered about jobs, and what they said the right verdict would have been."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.client import action_name
from advisor.service.dashboard.views.decisions import JobName, job_name
from advisor.service.dashboard.views.shown import few, time_of, words
from advisor.v1 import operator_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderLine:
    order_id: str
    told: str
    job: JobName
    set_by: str
    set_at: datetime | None
    why: str
    lifted_at: datetime | None
    lifted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionLine:
    told: str
    who: str
    at: datetime | None
    why: str


def order_lines(orders: Sequence[operator_pb2.Order]) -> tuple[OrderLine, ...]:
    return tuple(
        OrderLine(
            order_id=item.order_id,
            told=_told(item),
            job=job_name(item.attempt),
            set_by=item.set_by,
            set_at=time_of(item, "set_at"),
            why=item.why,
            lifted_at=time_of(item, "lifted_at"),
            lifted=f"by {item.lifted_by}: {item.lifted_why}" if item.HasField("lifted_at") else "",
        )
        for item in orders
    )


def _told(item: operator_pb2.Order) -> str:
    parts = [words(item.kind)]
    if item.node:
        parts.append(item.node)
    if action_name(item.action):
        parts.append(f"to {action_name(item.action)}" if item.kind == "override" else action_name(item.action))
    if item.ends_live:
        parts.append("(may end a live attempt)")
    if item.ceiling:
        parts.append("(with its ceiling)")
    return " ".join(parts)


def correction_lines(items: Sequence[operator_pb2.Correction]) -> tuple[CorrectionLine, ...]:
    return tuple(
        CorrectionLine(told=_corrected(item), who=item.who, at=time_of(item, "at"), why=item.why) for item in items
    )


def _corrected(item: operator_pb2.Correction) -> str:
    parts = []
    if item.HasField("category"):
        parts.append(f"{words(item.category)} and not {words(item.was_category) or 'unknown'}")
    if action_name(item.action):
        parts.append(f"{action_name(item.action)} and not {action_name(item.was_action) or 'none'}")
    if item.HasField("nodes"):
        parts.append(f"{few(item.nodes.names) or 'no node'} and not {few(item.was_nodes) or 'no node'}")
    return "; ".join(parts) or "it was right"
