"""GPU telemetry of a running attempt, read again and again: what happened since, and what holds now.

Kept between two reads are the newest samples only, bounded by the number of its GPUs. They need not be stored:
a service that takes over sees the next change one sample later.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from advisor.core.model import Signal
from advisor.core.rules import Rule, XidEntry
from advisor.core.telemetry import FIELDS, GAUGES, Sample, Span, blank, telemetry_signals

_HAPPENED = frozenset({"by", "xid"})  # a signal with such a field is of an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a read showed. `events` are added to the attempt's signals; `conditions` are those of the snapshot of this
    moment, in place of earlier ones. `recent`: for the next read.
    """

    recent: tuple[Sample, ...]
    events: tuple[Signal, ...]
    conditions: tuple[Signal, ...]
    foreign: int  # samples of nodes outside the allocation: dropped


def watch(
    recent: tuple[Sample, ...],
    samples: Iterable[Sample],
    rules: Mapping[str, Rule],
    xids: Mapping[int, XidEntry],
    span: Span,
    *,
    source: str,
    seen_at: datetime,
) -> Watched:
    """New samples of an attempt. One that comes again counts once; a counter that goes on growing is one signal."""
    new = [sample for sample in samples if sample.field in FIELDS and not blank(sample.value)]
    own = [sample for sample in new if span.nodes is None or sample.node in span.nodes]
    together = sorted({*recent, *own}, key=lambda sample: (sample.at, sample.node, sample.gpu, sample.field))
    made, _ = telemetry_signals(together, rules, xids, span, source=source, seen_at=seen_at)
    kept: dict[tuple[str, int, str], list[Sample]] = {}
    for sample in together:
        kept.setdefault((sample.node, sample.gpu, sample.field), []).append(sample)
    newest = [sample for (_, _, name), found in sorted(kept.items()) for sample in found[-GAUGES.get(name, 1) :]]
    return Watched(
        recent=tuple(newest),
        events=tuple(_lasting(signal) for signal in made if _HAPPENED & signal.fields.keys()),
        conditions=tuple(signal for signal in made if not _HAPPENED & signal.fields.keys()),
        foreign=len(new) - len(own),
    )


def _lasting(signal: Signal) -> Signal:
    """A counter's growth has the same id at every read; each Xid is an event of its own."""
    if "xid" in signal.fields:
        return signal
    place = (signal.source, signal.rule, *signal.nodes, str(signal.gpu), signal.fields.get("field", ""))
    return replace(signal, id=hashlib.sha256("|".join(place).encode()).hexdigest()[:24])
