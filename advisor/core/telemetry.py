"""Telemetry of GPUs and nodes to signals: changes of counters, and GPUs that differ from their peers (`peers`).

Gauges stick: a GPU shows its last Xid for weeks, so that only a change while the attempt ran is an event. Counters
count from their first sample, and a counter that fell was reset. A sample says that something happened, not when: after
the sample before it (field `after` of the signal).
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime

import numpy as np

from advisor.core import peers
from advisor.core.columns import Columns, Sample, moment, names_in_order
from advisor.core.measured import (
    BLANK_FROM,
    BLANKS,
    COUNTERS,
    FIELDS,
    HOST,
    HOST_COUNTERS,
    PEER_FACTOR,
    PEERS_MIN,
    RELATIVE,
    SIGNALS_MAX,
    SPINNING,
    STATES,
    XID,
    Event,
    Gpu,
    Span,
    follows,
    increases,
    place,
)
from advisor.core.model import Signal
from advisor.core.rules import Rule, XidEntry, effective
from advisor.core.words import Trust

__all__ = ["FIELDS", "HOST", "SPINNING", "Sample", "Span", "signals_in", "taken", "telemetry_signals"]


def taken(known: Columns, samples: Iterable[Sample], span: Span) -> tuple[Columns, int]:
    """Together with those samples that matter, and how many were of nodes outside the allocation.

    DCGM has several ways to say that a field has no value: those are left out.
    """
    nodes = frozenset(span.nodes) if span.nodes is not None else None
    own: list[Sample] = []
    foreign = 0
    for sample in samples:
        if sample.field in FIELDS and 0 <= sample.value < BLANK_FROM and sample.value not in BLANKS:
            if nodes is None or sample.node in nodes:
                own.append(sample)
            else:
                foreign += 1
    return known.with_samples(own), foreign


def telemetry_signals(
    samples: Iterable[Sample],
    rules: Mapping[str, Rule],
    xids: Mapping[int, XidEntry],
    span: Span,
    *,
    source: str,
    seen_at: datetime,
) -> tuple[tuple[Signal, ...], int]:
    """Events and differences, earliest first, and how many samples were of nodes outside the allocation."""
    columns, foreign = taken(Columns(), samples, span)
    return signals_in(columns, rules, xids, span, source=source, seen_at=seen_at), foreign


def signals_in(
    columns: Columns,
    rules: Mapping[str, Rule],
    xids: Mapping[int, XidEntry],
    span: Span,
    *,
    source: str,
    seen_at: datetime,
    more: Iterable[Event] = (),
) -> tuple[Signal, ...]:
    """The same of samples that are columns already. `more`: events that were found elsewhere."""
    events = [*_xids(columns, span), *_counted(columns, span), *_states(columns, span), *peers.events(columns, span)]
    events += more
    events.sort(key=lambda event: (event.at, event.rule, event.gpu or ("", 0)))
    return tuple(
        _signal(event, rules[event.rule], xids, span, source=source, seen_at=seen_at, order=order)
        for order, event in enumerate(events[:SIGNALS_MAX])
        if event.rule in rules
    )


def _xids(columns: Columns, span: Span) -> list[Event]:
    """A new last Xid is an event; the one that the first sample shows may be weeks old."""
    column = columns.fields.get(XID)
    if column is None:
        return []
    changed = follows(column) & (column.value >= 1) & span.covers(column.at)
    changed[1:] &= column.value[1:] != column.value[:-1]
    events: dict[tuple[Gpu, int], Event] = {}
    for at in np.flatnonzero(changed):
        gpu, code = columns.place(column.unit[at]), int(column.value[at])
        known = events.get((gpu, code))
        events[gpu, code] = Event(
            rule="telemetry.xid",
            at=known.at if known is not None else moment(column.at[at]),
            text=f"{place(gpu)} shows Xid {code}, before it {int(column.value[at - 1])} ({XID})",
            gpu=gpu,
            fields=known.fields
            if known is not None
            else {"xid": str(code), "after": span.after(moment(column.at[at - 1]))},
            count=known.count + 1 if known is not None else 1,
        )
    return list(events.values())


def _counted(columns: Columns, span: Span) -> list[Event]:
    events: list[Event] = []
    for name, (rule, least) in (COUNTERS | HOST_COUNTERS).items():
        column = columns.fields.get(name)
        if column is None:
            continue
        places, grown = increases(column, span)
        if not len(places):
            continue
        most = np.maximum.reduceat(grown.value, grown.starts)
        usual = float(np.median(most)) if len(most) >= PEERS_MIN else 0.0
        floor = max(least, PEER_FACTOR * usual) if name in RELATIVE else least
        places = places[grown.value[places] >= floor]
        for unit in names_in_order(columns, np.unique(column.unit[places])):
            gpu, mine = columns.place(unit), places[column.unit[places] == unit]
            total = float(grown.value[mine].sum())
            events.append(
                Event(
                    rule=rule,
                    at=moment(column.at[mine[0]]),
                    text=f"{place(gpu)}: {name} grew by {total:.0f}",
                    gpu=gpu,
                    fields={
                        "field": name,
                        "by": f"{total:.0f}",
                        "after": span.after(moment(column.at[mine[0] - 1])),
                    },
                    count=len(mine),
                )
            )
    return events


def _states(columns: Columns, span: Span) -> list[Event]:
    events = []
    for name, rule in STATES.items():
        column = columns.fields.get(name)
        if column is None:
            continue
        set_already = (column.value[column.starts] >= 1) & span.covers(column.at[column.ends - 1])
        for unit in names_in_order(columns, column.units[set_already]):
            gpu, first = columns.place(unit), int(np.searchsorted(column.unit, unit))
            events.append(
                Event(
                    rule=rule,
                    at=moment(column.at[first]),
                    text=f"{place(gpu)}: {name} was {column.value[first]:.0f} in the first sample already",
                    gpu=gpu,
                    fields={"field": name},
                )
            )
    return events


def _signal(
    event: Event,
    rule: Rule,
    xids: Mapping[int, XidEntry],
    span: Span,
    *,
    source: str,
    seen_at: datetime,
    order: int,
) -> Signal:
    actual = effective(rule, event.fields, xids)
    return Signal(
        id=hashlib.sha256(f"{source}|{event.rule}|{event.at.isoformat()}|{event.text}".encode()).hexdigest()[:24],
        rule=event.rule,
        trust=Trust.TELEMETRY,
        source=source,
        seen_at=seen_at,
        at=event.at,
        rank=span.rank(event.gpu) if event.gpu is not None else None,
        gpu=event.gpu[1] if event.gpu is not None and event.gpu[1] != HOST else None,
        nodes=(event.gpu[0],) if event.gpu is not None else (),
        file=source,
        text=event.text,
        role=actual.role,
        category=actual.category,
        fields=dict(sorted(event.fields.items())),
        count=event.count,
        order=order,
    )
