"""Telemetry of a running attempt, read again and again: what happened since, and what holds now.

Kept between two reads are the newest samples only, bounded by the number of its GPUs. They need not be stored: a
service that takes over asks for the last ones again.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from advisor.core.columns import UNITS, Columns, Sample, Whole, moment
from advisor.core.measured import GAUGES, HOST, Event, Span, place
from advisor.core.model import Signal
from advisor.core.rules import Rule, XidEntry
from advisor.core.telemetry import signals_in, taken

_HAPPENED = frozenset({"by", "xid"})  # a signal with such a field is of an event
VANISHED_SECONDS = 75.0  # without a sample, while others have some: several scrapes
VANISHED_SHARE = 0.25  # of all at once: then it is the monitoring, not they


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a read showed. `events` are added to the attempt's signals; `conditions` are those of the snapshot of this
    moment, in place of earlier ones. `recent`: for the next read.
    """

    recent: Columns
    events: tuple[Signal, ...]
    conditions: tuple[Signal, ...]
    foreign: int  # samples of nodes outside the allocation: dropped


def watch(
    recent: Columns,
    samples: Iterable[Sample],
    rules: Mapping[str, Rule],
    xids: Mapping[int, XidEntry],
    span: Span,
    *,
    source: str,
    seen_at: datetime,
) -> Watched:
    """New samples of an attempt. One that comes again counts once; a counter that goes on growing is one signal."""
    together, foreign = taken(recent, samples, span)
    gone = vanished(together, span)
    made = signals_in(together, rules, xids, span, source=source, seen_at=seen_at, more=gone)
    return Watched(
        recent=together.newest(GAUGES),
        events=tuple(_lasting(signal) for signal in made if _HAPPENED & signal.fields.keys()),
        conditions=tuple(signal for signal in made if not _HAPPENED & signal.fields.keys()),
        foreign=foreign,
    )


def _lasting(signal: Signal) -> Signal:
    """A counter's growth has the same id at every read; each Xid is an event of its own."""
    if "xid" in signal.fields:
        return signal
    at = (signal.source, signal.rule, *signal.nodes, str(signal.gpu), signal.fields.get("field", ""))
    return replace(signal, id=hashlib.sha256("|".join(at).encode()).hexdigest()[:24])


def vanished(columns: Columns, span: Span) -> list[Event]:
    """GPUs, and nodes with all that they have, of which nothing is told any more while their peers go on.

    A GPU that fell off its bus has no values and is left out of what is exported. Many at once say nothing about one.
    """
    newest = _newest(columns)
    if not newest:
        return []
    now = max(newest.values())
    gpus = {unit: at for unit, at in newest.items() if unit % UNITS != HOST + 1}
    late = {unit: at for unit, at in gpus.items() if now - at > VANISHED_SECONDS * 1e6}
    late = {unit: at for unit, at in late.items() if span.covers(np.array([at])).all()}
    if not late or len(late) > max(1, VANISHED_SHARE * len(gpus)):
        return []
    found = []
    for number in sorted({unit // UNITS for unit in late}):
        mine = [unit for unit in late if unit // UNITS == number]
        all_of_it = len(mine) == sum(unit // UNITS == number for unit in gpus)
        for unit in [number * UNITS + HOST + 1] if all_of_it else mine:
            gpu, at = columns.place(unit), moment(max(late[one] for one in mine))
            text = f"{place(gpu)}: no samples any more, its peers have some"
            found.append(Event(rule="telemetry.vanished", at=at, text=text, gpu=gpu, fields={"field": "none"}))
    return found


def _newest(columns: Columns) -> Mapping[int, int]:
    """When each unit was heard of last, whatever was said."""
    if not columns.fields:
        return {}
    units: Whole = np.concatenate([column.units for column in columns.fields.values()])
    times: Whole = np.concatenate([column.at[column.ends - 1] for column in columns.fields.values()])
    order = np.lexsort((times, units))
    units, times = units[order], times[order]
    last = np.append(units[1:] != units[:-1], True)
    return dict(zip(units[last].tolist(), times[last].tolist(), strict=True))
