"""GPUs compared with their peers: who waits, who did not come, who is slower than the others of the same job.

What all GPUs do alike says nothing about one: each finding is about few, and is silent where many are alike. Thousands
of GPUs are compared in array operations; only what stands out is looked at one by one.
"""

from datetime import datetime

import numpy as np

from advisor.core import measured
from advisor.core.columns import (
    Column,
    Columns,
    Mask,
    Real,
    Whole,
    at_places,
    at_same_time,
    micros,
    moment,
    names_in_order,
)
from advisor.core.measured import Event, Gpu, Span, increases, place
from advisor.core.ranks import fold_ranks

BUSY_PERCENT = 90
MEMORY_BYTES_MIN = 512 << 20  # of a GPU node: the next allocation ends somebody
NVLINK_SHARE = 0.25  # pipelines and experts talk unequally; a link that fell back to PCIe is far below that
TEXT_NAMES_MAX = 8


def events(columns: Columns, span: Span) -> list[Event]:
    """All differences between peers."""
    return [*_waiting(columns, span), *_slow(columns, span), *_throttled(columns, span), *_memory(columns, span)]


def _tails(column: Column | None, span: Span) -> tuple[Whole, Whole, Column]:
    """Per unit the places of its newest samples while the attempt still ran; units with too few or too close ones are
    left out.
    """
    if column is None:
        column = Column.of(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64))
    if span.ended_at is not None:
        column = column.where(column.at <= micros(span.ended_at))
    units, rows = column.tails(measured.TAIL)
    apart = column.at[rows[:, -1]] - column.at[rows[:, 0]] >= measured.TAIL_SPAN.total_seconds() * 1e6
    return units[apart], rows[apart], column


def _waiting(columns: Columns, span: Span) -> list[Event]:
    """The signature of a hang: GPUs busy without computing, and beside them those that do nothing at all.

    Busy and without tensor work and, where known, far below their own power: they spin in a collective. The few that
    are idle meanwhile did not come to it.
    """
    units, rows, used = _tails(columns.fields.get(measured.UTILISATION), span)
    if not len(units):
        return []
    share = _power_shares(columns, units)
    work, work_rows, tensor = _tails(columns.fields.get(measured.TENSOR), span)
    places, profiled = at_places(work, units)
    resting: Mask = np.zeros(len(units), np.bool_)
    if len(work):
        still: Mask = np.all(tensor.value[work_rows] <= 0.01, axis=1)
        resting = profiled & still[places]
    known_share = ~np.isnan(share)
    idle_pipe = resting & (~known_share | (share <= 0.75))
    # Profiling fields are often switched off: then a deep fall of its own power says that it computes nothing.
    fallen = ~profiled & known_share & (share <= measured.POWER_FALL)
    spins = (used.value[rows] >= 95).all(axis=1) & (idle_pipe | fallen)
    count = int(spins.sum())
    if count < 2 or 4 * count < 3 * len(units):
        return []
    since = moment(used.at[rows[spins, 0]].min())
    text = f"{count} of {len(units)} GPUs are busy without computing"
    spinning = Event(rule=measured.SPINNING, at=since, text=text, fields={"gpus": str(count)})
    idle = [columns.place(unit) for unit in names_in_order(columns, units[(used.value[rows] <= 5).all(axis=1)])]
    return [spinning, _idle(idle, since, span)] if idle else [spinning]


def _power_shares(columns: Columns, units: Whole) -> Real:
    """Each unit's power of late as a share of its own highest; NaN where too little is known."""
    shares: Real = np.full(len(units), np.nan)
    power = columns.fields.get(measured.POWER)
    if power is None:
        return shares
    found, rows = power.tails(3 * measured.TAIL)
    if not len(found):
        return shares
    highest = np.maximum.reduceat(power.value, power.starts)[at_places(power.units, found)[0]]
    late = np.median(power.value[rows[:, -measured.TAIL :]], axis=1)
    own = np.divide(late, highest, out=np.full(len(found), np.nan), where=highest > 0)
    places, there = at_places(found, units)
    shares[there] = own[places[there]]
    return shares


def _idle(idle: list[Gpu], since: datetime, span: Span) -> Event:
    ranks = [rank for gpu in idle if (rank := span.rank(gpu)) is not None]
    names = ", ".join(f"{node}:{index}" for node, index in idle[:TEXT_NAMES_MAX])
    return Event(
        rule="telemetry.idle_while_others_spin",
        at=since,
        text=f"{names}: idle while the others are busy without computing",
        gpu=idle[0] if len(idle) == 1 else None,
        fields={"missing": fold_ranks(ranks)} if ranks else {},
        count=len(idle),
    )


def _throttled(columns: Columns, span: Span) -> list[Event]:
    """GPUs that their hardware slows down, where most are not."""
    found: dict[int, tuple[int, int]] = {}
    seen: set[int] = set()
    for name in (measured.THROTTLE, measured.THROTTLE_NEW):
        units, rows, column = _tails(columns.fields.get(name), span)
        seen.update(units.tolist())
        for unit in units.tolist():
            found.pop(unit, None)  # the newer name of the same field
        slowed = (column.value[rows].astype(np.int64) & measured.SLOWED_BY_HARDWARE != 0).all(axis=1)
        for unit, row in zip(units[slowed].tolist(), rows[slowed], strict=True):
            found[unit] = int(column.at[row[0]]), int(column.value[row[-1]])
    if 2 * len(found) > max(len(seen), 2):
        return []
    return [
        Event(
            rule="telemetry.throttled",
            at=moment(found[unit][0]),
            text=f"{place(columns.place(unit))}: its hardware slows it down, reasons {found[unit][1]:#x}",
            gpu=columns.place(unit),
            fields={"reasons": f"{found[unit][1]:#x}"},
        )
        for unit in names_in_order(columns, list(found))
    ]


def _slow(columns: Columns, span: Span) -> list[Event]:
    """GPUs whose clock, power or NVLink traffic stays far below what is usual among their peers while they are busy."""
    used = columns.fields.get(measured.UTILISATION)
    if used is None:
        return []
    busy = used.where(used.value >= BUSY_PERCENT)
    found: list[Event] = []
    for name, share, rule, what in (
        (measured.CLOCK, 0.75, "telemetry.low_clock", "clock"),
        (measured.POWER, 0.6, "telemetry.low_power", "power"),
        (measured.NVLINK, NVLINK_SHARE, "telemetry.low_nvlink", "NVLink traffic"),
    ):
        column = columns.fields.get(name)
        if column is not None and name == measured.NVLINK:
            column = _rates(column, span)
        if column is not None:
            column = column.where(at_same_time(column, busy) & span.covers(column.at))
            found += _below(columns, column, share, rule, what)
    return found


def _rates(column: Column, span: Span) -> Column:
    """A counter as what it gained per second; moments at which it gained nothing, or was reset, are left out."""
    _, grown = increases(column, span)
    seconds = np.ones(len(column.at), np.float64)
    seconds[1:] = np.maximum(column.at[1:] - column.at[:-1], 1) / 1e6
    return Column(column.unit, column.at, grown.value / seconds, column.starts, column.units).where(grown.value > 0)


def _below(columns: Columns, column: Column, share: float, rule: str, what: str) -> list[Event]:
    units, usual = column.medians(measured.TAIL)
    if len(units) < measured.PEERS_MIN:
        return []
    middle = float(np.median(usual))
    low = usual < share * middle
    if 4 * int(low.sum()) > len(units):
        return []
    values = dict(zip(units[low].tolist(), usual[low].tolist(), strict=True))
    return [
        Event(
            rule=rule,
            at=moment(column.at[int(np.searchsorted(column.unit, unit))]),
            text=f"{place(columns.place(unit))}: {what} {values[unit]:.0f} while busy, its peers {middle:.0f}",
            gpu=columns.place(unit),
            fields={"value": f"{values[unit]:.0f}", "peers": f"{middle:.0f}"},
        )
        for unit in names_in_order(columns, units[low])
    ]


def _memory(columns: Columns, span: Span) -> list[Event]:
    """Nodes that are about to be out of memory, one by one: it is no matter of peers."""
    units, rows, column = _tails(columns.fields.get(measured.MEMORY), span)
    low = (column.value[rows] < MEMORY_BYTES_MIN).all(axis=1)
    values = dict(zip(units[low].tolist(), rows[low], strict=True))
    return [
        Event(
            rule="telemetry.memory_low",
            at=moment(column.at[values[unit][0]]),
            text=f"{columns.place(unit)[0]}: {column.value[values[unit][-1]] / 1048576:.0f} MiB of memory available",
            gpu=columns.place(unit),
            fields={"field": measured.MEMORY},
        )
        for unit in names_in_order(columns, units[low])
    ]
