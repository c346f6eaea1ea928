"""Figures with their intervals, as the report pages show them."""

from dataclasses import dataclass

from advisor.service.dashboard.views.shown import percent_text
from advisor.v1 import report_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share with its interval, as text and as places on a line of 0 to 100."""

    told: str
    interval: str
    value: float | None
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    value: str
    note: str


def share_of(item: report_pb2.Estimate) -> Share:
    value = item.value if item.HasField("value") else None
    low = item.low if item.HasField("low") else None
    high = item.high if item.HasField("high") else None
    return Share(
        told=percent_text(value),
        interval=f"{percent_text(low)} to {percent_text(high)}" if low is not None and high is not None else "",
        value=_place(value),
        low=_place(low),
        high=_place(high),
        count=item.count,
    )


def _place(share: float | None) -> float | None:
    return None if share is None else round(100 * min(max(share, 0.0), 1.0), 1)
