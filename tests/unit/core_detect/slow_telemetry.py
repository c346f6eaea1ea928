"""What telemetry says, found the slow and obvious way, GPU by GPU: the oracle of `telemetry` and `peers`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median

import numpy as np

from advisor.core.columns import Sample, micros
from advisor.core.measured import (
    BLANK_FROM,
    BLANKS,
    CLOCK,
    COUNTERS,
    FIELDS,
    HOST,
    HOST_COUNTERS,
    PEER_FACTOR,
    PEERS_MIN,
    POWER,
    POWER_FALL,
    RELATIVE,
    SLOWED_BY_HARDWARE,
    SPINNING,
    STATES,
    TAIL,
    TAIL_SPAN,
    TENSOR,
    THROTTLE,
    THROTTLE_NEW,
    UTILISATION,
    XID,
    Event,
    Gpu,
)
from advisor.core.measured import Span as RealSpan
from advisor.core.ranks import fold_ranks

Series = Mapping[Gpu, Sequence[tuple[datetime, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(RealSpan):
    """The same, asked moment by moment."""

    def within(self, at: datetime) -> bool:
        return bool(self.covers(np.array([micros(at)]))[0])


def events_of(samples: Iterable[Sample], span: Span) -> list[Event]:
    """All events, earliest first."""
    series: dict[str, dict[Gpu, list[tuple[datetime, float]]]] = {}
    for sample in samples:
        blank = not 0 <= sample.value < BLANK_FROM or sample.value in BLANKS
        if sample.field not in FIELDS or blank or (span.nodes is not None and sample.node not in span.nodes):
            continue
        of_field = series.setdefault(sample.field, {})
        of_field.setdefault((sample.node, sample.gpu), []).append((sample.at, sample.value))
    for of_field in series.values():
        for points in of_field.values():
            points.sort()
    events = [*_xids(series.get(XID, {}), span), *_counted(series, span), *_states(series, span)]
    events += [*_waiting(series, span), *_slow(series, span), *_throttled(series, span)]
    return sorted(events, key=lambda event: (event.at, event.rule, event.gpu or ("", 0)))


def _xids(series: Series, span: Span) -> list[Event]:
    """A new last Xid is an event; the one that the first sample shows may be weeks old."""
    events: dict[tuple[Gpu, int], Event] = {}
    for gpu, points in sorted(series.items()):
        for (before_at, before), (at, value) in pairwise(points):
            code = int(value)
            if value == before or code <= 0 or not span.within(at):
                continue
            known = events.get((gpu, code))
            events[gpu, code] = Event(
                rule="telemetry.xid",
                at=known.at if known is not None else at,
                text=f"{_place(gpu)} shows Xid {code}, before it {int(before)} ({XID})",
                gpu=gpu,
                fields=known.fields if known is not None else {"xid": str(code), "after": span.after(before_at)},
                count=known.count + 1 if known is not None else 1,
            )
    return list(events.values())


_Growth = tuple[datetime, float, datetime]  # seen when, by how much, and when it was looked at before


def _increases(points: Sequence[tuple[datetime, float]], span: Span) -> list[_Growth]:
    """How much a counter grew, and when, while the attempt ran. One that fell was reset and counts from there."""
    return [
        (at, value - before, before_at)
        for (before_at, before), (at, value) in pairwise(points)
        if value > before and span.within(at)
    ]


def _place(gpu: Gpu) -> str:
    return gpu[0] if gpu[1] == HOST else f"{gpu[0]}: GPU {gpu[1]}"


def _counted(series: Mapping[str, Series], span: Span) -> list[Event]:
    events: list[Event] = []
    for name, (rule, least) in (COUNTERS | HOST_COUNTERS).items():
        grown = {gpu: _increases(points, span) for gpu, points in series.get(name, {}).items()}
        most = {gpu: max((by for _, by, _ in found), default=0.0) for gpu, found in grown.items()}
        usual = median(most.values()) if len(most) >= PEERS_MIN else 0.0
        floor = max(least, PEER_FACTOR * usual) if name in RELATIVE else least
        for gpu, found in sorted(grown.items()):
            counting = [item for item in found if item[1] >= floor]
            if counting:
                total = sum(by for _, by, _ in counting)
                events.append(
                    Event(
                        rule=rule,
                        at=counting[0][0],
                        text=f"{_place(gpu)}: {name} grew by {total:.0f}",
                        gpu=gpu,
                        fields={"field": name, "by": f"{total:.0f}", "after": span.after(counting[0][2])},
                        count=len(counting),
                    )
                )
    return events


def _states(series: Mapping[str, Series], span: Span) -> list[Event]:
    return [
        Event(
            rule=rule,
            at=points[0][0],
            text=f"{gpu[0]}: GPU {gpu[1]}: {name} was {points[0][1]:.0f} in the first sample already",
            gpu=gpu,
            fields={"field": name},
        )
        for name, rule in STATES.items()
        for gpu, points in sorted(series.get(name, {}).items())
        if points[0][1] >= 1 and span.within(points[-1][0])
    ]


def _tail(points: Sequence[tuple[datetime, float]], span: Span) -> Sequence[tuple[datetime, float]]:
    """The newest samples while the attempt still ran; none where they are too few or too close."""
    ended = span.ended_at
    lived = [point for point in points if ended is None or point[0] <= ended][-TAIL:]
    return lived if len(lived) == TAIL and lived[-1][0] - lived[0][0] >= TAIL_SPAN else ()


def _waiting(series: Mapping[str, Series], span: Span) -> list[Event]:
    """The signature of a hang: GPUs busy without computing, and beside them those that do nothing at all.

    Busy and without tensor work and, where known, far below their own power: they spin in a collective. The few that
    are idle meanwhile did not come to it.
    """
    spinning: list[Gpu] = []
    idle: list[Gpu] = []
    since: datetime | None = None
    known = 0
    for gpu, points in sorted(series.get(UTILISATION, {}).items()):
        busy, work = _tail(points, span), _tail(series.get(TENSOR, {}).get(gpu, ()), span)
        if not busy:
            continue
        known += 1
        if all(value <= 5 for _, value in busy):
            idle.append(gpu)
        elif all(value >= 95 for _, value in busy):
            power = [value for _, value in series.get(POWER, {}).get(gpu, ())]
            share = median(power[-TAIL:]) / max(power) if len(power) >= 3 * TAIL and max(power) > 0 else None
            idle_pipe = bool(work) and all(value <= 0.01 for _, value in work) and (share is None or share <= 0.75)
            # Profiling fields are often switched off: then a deep fall of its own power says that it computes nothing.
            if idle_pipe or (not work and share is not None and share <= POWER_FALL):
                spinning.append(gpu)
                since = busy[0][0] if since is None else min(since, busy[0][0])
    if since is None or len(spinning) < 2 or 4 * len(spinning) < 3 * known:
        return []
    text = f"{len(spinning)} of {known} GPUs are busy without computing"
    events = [Event(rule=SPINNING, at=since, text=text, fields={"gpus": str(len(spinning))})]
    if idle:
        ranks = [rank for gpu in idle if (rank := span.rank(gpu)) is not None]
        names = ", ".join(f"{node}:{index}" for node, index in idle[:8])
        fields = {"missing": fold_ranks(ranks)} if ranks else {}
        only = idle[0] if len(idle) == 1 else None
        events.append(
            Event(
                rule="telemetry.idle_while_others_spin",
                at=since,
                text=f"{names}: idle while the others are busy without computing",
                gpu=only,
                fields=fields,
                count=len(idle),
            )
        )
    return events


def _throttled(series: Mapping[str, Series], span: Span) -> list[Event]:
    """GPUs that their hardware slows down, where most are not."""
    points = {**series.get(THROTTLE, {}), **series.get(THROTTLE_NEW, {})}
    tails = {gpu: tail for gpu, found in points.items() if (tail := _tail(found, span))}
    slowed = sorted(gpu for gpu, tail in tails.items() if all(int(value) & SLOWED_BY_HARDWARE for _, value in tail))
    if 2 * len(slowed) > max(len(tails), 2):
        return []
    return [
        Event(
            rule="telemetry.throttled",
            at=tails[gpu][0][0],
            text=f"{gpu[0]}: GPU {gpu[1]}: its hardware slows it down, reasons {int(tails[gpu][-1][1]):#x}",
            gpu=gpu,
            fields={"reasons": f"{int(tails[gpu][-1][1]):#x}"},
        )
        for gpu in slowed
    ]


def _slow(series: Mapping[str, Series], span: Span) -> list[Event]:
    """GPUs whose clock or power stays far below what is usual among their peers while they are busy."""
    events: list[Event] = []
    utilisation = series.get(UTILISATION, {})
    for name, share, what in ((CLOCK, 0.75, "clock"), (POWER, 0.6, "power")):
        usual: dict[Gpu, float] = {}
        first: dict[Gpu, datetime] = {}
        for gpu, points in series.get(name, {}).items():
            busy = {at for at, value in utilisation.get(gpu, ()) if value >= 90}
            while_busy = [(at, value) for at, value in points if at in busy and span.within(at)]
            if len(while_busy) >= TAIL:
                usual[gpu] = median(value for _, value in while_busy)
                first[gpu] = while_busy[0][0]
        if len(usual) < PEERS_MIN:
            continue
        middle = median(usual.values())
        low = sorted(gpu for gpu, value in usual.items() if value < share * middle)
        if 4 * len(low) > len(usual):
            continue
        events += (
            Event(
                rule=f"telemetry.low_{what}",
                at=first[gpu],
                text=f"{gpu[0]}: GPU {gpu[1]}: {what} {usual[gpu]:.0f} while busy, its peers {middle:.0f}",
                gpu=gpu,
                fields={"value": f"{usual[gpu]:.0f}", "peers": f"{middle:.0f}"},
            )
            for gpu in low
        )
    return events
