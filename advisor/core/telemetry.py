"""Telemetry of GPUs and nodes to signals: changes of counters, and GPUs that differ from their peers.

Gauges stick: a GPU shows its last Xid for weeks, so that only a change while the attempt ran is an event. Counters
count from their first sample, and a counter that fell was reset. What all GPUs do alike says nothing about one.
A sample says that something happened, not when: after the sample before it (field `after` of the signal).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from advisor.core.model import Signal
from advisor.core.ranks import fold_ranks
from advisor.core.rules import Rule, XidEntry, effective
from advisor.core.words import Trust

XID = "DCGM_FI_DEV_XID_ERRORS"
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
POWER = "DCGM_FI_DEV_POWER_USAGE"
CLOCK = "DCGM_FI_DEV_SM_CLOCK"
THROTTLE = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"  # "…_CLOCKS_EVENT_REASONS" since DCGM 4, under the same number
THROTTLE_NEW = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
THERMAL = "DCGM_FI_DEV_THERMAL_VIOLATION"
PCIE_REPLAY = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
BEFORE = timedelta(seconds=5)  # clocks differ
AFTER = timedelta(minutes=5)  # what a scrape shows so long after the end may still be the cause
TAIL = 3  # samples at the end that must agree
POWER_FALL = 0.55  # of the highest: a GPU that spins draws about half of what it draws while it computes
TAIL_SPAN = timedelta(seconds=30)
PEERS_MIN = 4  # fewer GPUs have no usual value
SIGNALS_MAX = 200

# Field: the rule that an increase makes, and the smallest increase that counts.
_COUNTERS: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("telemetry.double_bit_error", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("telemetry.row_remap_failure", 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("telemetry.row_remap_pending", 1),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("telemetry.rows_remapped", 1),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 1),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 100),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 100),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 100),
    PCIE_REPLAY: ("telemetry.pcie_replays", 100),
    THERMAL: ("telemetry.throttled", 1_000_000),
}
# Fields whose increase means something only where most peers show nothing like it.
_LINKS = "node_infiniband_symbol_error_total"
_RELATIVE = frozenset({PCIE_REPLAY, THERMAL, _LINKS, *(name for name in _COUNTERS if "NVLINK" in name)})
_PEER_FACTOR = 10.0
# States of a GPU that the first sample shows already: they support other evidence, and began nothing.
_STATES: Mapping[str, str] = {
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "telemetry.row_remap_pending",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "telemetry.row_remap_pending",
}
_SLOWED_BY_HARDWARE = 0x08 | 0x40 | 0x80  # hardware slowdown, its thermal kind, the external power brake (nvml.h)
# How many of the newest samples say what holds now.
GAUGES: Mapping[str, int] = {
    UTILISATION: TAIL,
    TENSOR: TAIL,
    POWER: 3 * TAIL,
    CLOCK: TAIL,
    THROTTLE: TAIL,
    THROTTLE_NEW: TAIL,
}
# What node_exporter counts for a whole node; counters of several devices are added up.
HOST = -1  # in place of a GPU's index
_HOST_COUNTERS: dict[str, tuple[str, float]] = {
    "node_vmstat_oom_kill": ("telemetry.process_killed", 1),
    "node_edac_uncorrectable_errors_total": ("telemetry.memory_error", 1),
    "node_infiniband_link_downed_total": ("telemetry.link_down", 1),
    "node_infiniband_symbol_error_total": ("telemetry.link_errors", 100),
    "node_filesystem_readonly": ("telemetry.read_only", 1),
    "node_filesystem_device_error": ("telemetry.read_only", 1),
}
HOST_FIELDS = frozenset(_HOST_COUNTERS)
FIELDS = frozenset({XID, *GAUGES, *_COUNTERS, *HOST_FIELDS})
SPINNING = "telemetry.spinning"
# What DCGM writes where it has no value.
_BLANKS = frozenset(range(2_147_483_632, 2_147_483_648))
_BLANK_FROM = 1.4e14

Gpu = tuple[str, int]
Series = Mapping[Gpu, Sequence[tuple[datetime, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one field of one GPU, or (`HOST`) of the whole node. `node` is a short name."""

    at: datetime
    node: str
    gpu: int
    field: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Which samples are the attempt's business, and where its ranks are.

    `blur`: how much older than the time that it carries a value may be.
    """

    nodes: tuple[str, ...] | None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    ranks_per_node: int | None = None
    blur: timedelta = timedelta(0)

    def covers(self, at: datetime) -> bool:
        if self.started_at is not None and at < self.started_at - BEFORE:
            return False
        return self.ended_at is None or at <= self.ended_at + AFTER

    def after(self, before_at: datetime) -> str:
        """The earliest moment of what a sample shows and the one before it, taken at `before_at`, did not."""
        return (before_at - self.blur).isoformat()

    def rank(self, gpu: Gpu) -> int | None:
        node, index = gpu
        per_node = self.ranks_per_node
        if self.nodes is None or per_node is None or not 0 <= index < per_node or node not in self.nodes:
            return None
        return self.nodes.index(node) * per_node + index


def blank(value: float) -> bool:
    """DCGM's ways to say that a field has no value."""
    return not 0 <= value < _BLANK_FROM or value in _BLANKS


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
    series: dict[str, dict[Gpu, list[tuple[datetime, float]]]] = {}
    foreign = 0
    for sample in samples:
        if sample.field not in FIELDS or blank(sample.value):
            continue
        if span.nodes is not None and sample.node not in span.nodes:
            foreign += 1
            continue
        of_field = series.setdefault(sample.field, {})
        of_field.setdefault((sample.node, sample.gpu), []).append((sample.at, sample.value))
    for of_field in series.values():
        for points in of_field.values():
            points.sort()
    events = [*_xids(series.get(XID, {}), span), *_counted(series, span), *_states(series, span)]
    events += [*_waiting(series, span), *_slow(series, span), *_throttled(series, span)]
    events.sort(key=lambda event: (event.at, event.rule, event.gpu or ("", 0)))
    made = [
        _signal(event, rules[event.rule], xids, span, source=source, seen_at=seen_at, order=order)
        for order, event in enumerate(events[:SIGNALS_MAX])
        if event.rule in rules
    ]
    return tuple(made), foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    rule: str
    at: datetime
    text: str
    gpu: Gpu | None = None
    fields: Mapping[str, str]
    count: int = 1


def _xids(series: Series, span: Span) -> list[_Event]:
    """A new last Xid is an event; the one that the first sample shows may be weeks old."""
    events: dict[tuple[Gpu, int], _Event] = {}
    for gpu, points in sorted(series.items()):
        for (before_at, before), (at, value) in pairwise(points):
            code = int(value)
            if value == before or code <= 0 or not span.covers(at):
                continue
            known = events.get((gpu, code))
            events[gpu, code] = _Event(
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
        if value > before and span.covers(at)
    ]


def _place(gpu: Gpu) -> str:
    return gpu[0] if gpu[1] == HOST else f"{gpu[0]}: GPU {gpu[1]}"


def _counted(series: Mapping[str, Series], span: Span) -> list[_Event]:
    events: list[_Event] = []
    for name, (rule, least) in (_COUNTERS | _HOST_COUNTERS).items():
        grown = {gpu: _increases(points, span) for gpu, points in series.get(name, {}).items()}
        most = {gpu: max((by for _, by, _ in found), default=0.0) for gpu, found in grown.items()}
        usual = median(most.values()) if len(most) >= PEERS_MIN else 0.0
        floor = max(least, _PEER_FACTOR * usual) if name in _RELATIVE else least
        for gpu, found in sorted(grown.items()):
            counting = [item for item in found if item[1] >= floor]
            if counting:
                total = sum(by for _, by, _ in counting)
                events.append(
                    _Event(
                        rule=rule,
                        at=counting[0][0],
                        text=f"{_place(gpu)}: {name} grew by {total:.0f}",
                        gpu=gpu,
                        fields={"field": name, "by": f"{total:.0f}", "after": span.after(counting[0][2])},
                        count=len(counting),
                    )
                )
    return events


def _states(series: Mapping[str, Series], span: Span) -> list[_Event]:
    return [
        _Event(
            rule=rule,
            at=points[0][0],
            text=f"{gpu[0]}: GPU {gpu[1]}: {name} was {points[0][1]:.0f} in the first sample already",
            gpu=gpu,
            fields={"field": name},
        )
        for name, rule in _STATES.items()
        for gpu, points in sorted(series.get(name, {}).items())
        if points[0][1] >= 1 and span.covers(points[-1][0])
    ]


def _tail(points: Sequence[tuple[datetime, float]], span: Span) -> Sequence[tuple[datetime, float]]:
    """The newest samples while the attempt still ran; none where they are too few or too close."""
    ended = span.ended_at
    lived = [point for point in points if ended is None or point[0] <= ended][-TAIL:]
    return lived if len(lived) == TAIL and lived[-1][0] - lived[0][0] >= TAIL_SPAN else ()


def _waiting(series: Mapping[str, Series], span: Span) -> list[_Event]:
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
    events = [_Event(rule=SPINNING, at=since, text=text, fields={"gpus": str(len(spinning))})]
    if idle:
        ranks = [rank for gpu in idle if (rank := span.rank(gpu)) is not None]
        names = ", ".join(f"{node}:{index}" for node, index in idle[:8])
        fields = {"missing": fold_ranks(ranks)} if ranks else {}
        only = idle[0] if len(idle) == 1 else None
        events.append(
            _Event(
                rule="telemetry.idle_while_others_spin",
                at=since,
                text=f"{names}: idle while the others are busy without computing",
                gpu=only,
                fields=fields,
                count=len(idle),
            )
        )
    return events


def _throttled(series: Mapping[str, Series], span: Span) -> list[_Event]:
    """GPUs that their hardware slows down, where most are not."""
    points = {**series.get(THROTTLE, {}), **series.get(THROTTLE_NEW, {})}
    tails = {gpu: tail for gpu, found in points.items() if (tail := _tail(found, span))}
    slowed = sorted(gpu for gpu, tail in tails.items() if all(int(value) & _SLOWED_BY_HARDWARE for _, value in tail))
    if 2 * len(slowed) > max(len(tails), 2):
        return []
    return [
        _Event(
            rule="telemetry.throttled",
            at=tails[gpu][0][0],
            text=f"{gpu[0]}: GPU {gpu[1]}: its hardware slows it down, reasons {int(tails[gpu][-1][1]):#x}",
            gpu=gpu,
            fields={"reasons": f"{int(tails[gpu][-1][1]):#x}"},
        )
        for gpu in slowed
    ]


def _slow(series: Mapping[str, Series], span: Span) -> list[_Event]:
    """GPUs whose clock or power stays far below what is usual among their peers while they are busy."""
    events: list[_Event] = []
    utilisation = series.get(UTILISATION, {})
    for name, share, what in ((CLOCK, 0.75, "clock"), (POWER, 0.6, "power")):
        usual: dict[Gpu, float] = {}
        first: dict[Gpu, datetime] = {}
        for gpu, points in series.get(name, {}).items():
            busy = {at for at, value in utilisation.get(gpu, ()) if value >= 90}
            while_busy = [(at, value) for at, value in points if at in busy and span.covers(at)]
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
            _Event(
                rule=f"telemetry.low_{what}",
                at=first[gpu],
                text=f"{gpu[0]}: GPU {gpu[1]}: {what} {usual[gpu]:.0f} while busy, its peers {middle:.0f}",
                gpu=gpu,
                fields={"value": f"{usual[gpu]:.0f}", "peers": f"{middle:.0f}"},
            )
            for gpu in low
        )
    return events


def _signal(
    event: _Event,
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
