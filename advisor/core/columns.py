"""Samples as columns: one array per field, so that thousands of GPUs are compared in a few operations.

A unit is one GPU of one node, or a node as a whole, as one number; times are whole microseconds since 1970. Within a
column samples are in the order of unit and time, and of two for one moment the one that was read last counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

UNITS = 1_001  # of a node: HOST, and indices below 1,000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Whole: TypeAlias = npt.NDArray[np.int64]
Real: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Sample(NamedTuple):
    """One value of one field of one GPU, or (`HOST`) of the whole node. `node` is a short name.

    A tuple, not a dataclass: hundreds of thousands are made of one answer, and a frozen dataclass takes five times as
    long.
    """

    at: datetime
    node: str
    gpu: int
    field: str
    value: float


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def moment(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=int(at))


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One field. `starts`: where each unit's samples begin; `units`: those units, ascending."""

    unit: Whole
    at: Whole
    value: Real
    starts: Whole
    units: Whole

    @classmethod
    def of(cls, unit: Whole, at: Whole, value: Real) -> "Column":
        """From samples in any order; later ones win over earlier ones for the same moment."""
        order = np.lexsort((at, unit))  # stable
        unit, at, value = unit[order], at[order], value[order]
        if len(unit) > 1:
            last = np.append((unit[1:] != unit[:-1]) | (at[1:] != at[:-1]), True)
            if not last.all():
                unit, at, value = unit[last], at[last], value[last]
        starts = np.flatnonzero(np.append(True, unit[1:] != unit[:-1])) if len(unit) else np.zeros(0, np.int64)
        return cls(unit, at, value, starts.astype(np.int64), unit[starts])

    @property
    def ends(self) -> Whole:
        """After each unit's last sample."""
        return np.append(self.starts[1:], len(self.unit)).astype(np.int64)

    def where(self, mask: Mask) -> "Column":
        return self if mask.all() else Column.of(self.unit[mask], self.at[mask], self.value[mask])

    def joined(self, later: "Column") -> "Column":
        return Column.of(
            np.concatenate((self.unit, later.unit)),
            np.concatenate((self.at, later.at)),
            np.concatenate((self.value, later.value)),
        )

    def newest(self, count: int) -> "Column":
        """The last samples of each unit."""
        left = np.repeat(self.ends, np.diff(np.append(self.starts, len(self.unit)))) - np.arange(len(self.unit))
        return self.where(left <= count)

    def tails(self, count: int) -> tuple[Whole, Whole]:
        """Of units with so many samples: the units, and a row each with the places of their last ones."""
        ends = self.ends
        long = ends - self.starts >= count
        rows = ends[long][:, None] + np.arange(-count, 0)[None, :]
        return self.units[long], rows

    def medians(self, least: int) -> tuple[Whole, Real]:
        """Of units with at least so many samples: the units, and their median values."""
        order = np.lexsort((self.value, self.unit))
        value, size = self.value[order], self.ends - self.starts
        enough = size >= least
        start, size = self.starts[enough], size[enough]
        return self.units[enough], (value[start + (size - 1) // 2] + value[start + size // 2]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Samples of many fields. `names`: nodes, in the order that numbers their units."""

    names: tuple[str, ...] = ()
    fields: Mapping[str, Column] = field(default_factory=dict)

    def place(self, unit: int) -> tuple[str, int]:
        """The node's name and the index of the GPU."""
        return self.names[int(unit) // UNITS], int(unit) % UNITS - 1

    @property
    def count(self) -> int:
        return sum(len(column.unit) for column in self.fields.values())

    def with_samples(self, samples: Iterable[Sample]) -> "Columns":
        """Together with further ones, which win for the same moment."""
        bases = {name: number * UNITS + 1 for number, name in enumerate(self.names)}
        lists: dict[str, tuple[list[int], list[int], list[float]]] = {}
        times: dict[datetime, int] = {}
        for sample in samples:
            base = bases.get(sample.node)
            if base is None:
                base = bases[sample.node] = len(bases) * UNITS + 1
            at = times.get(sample.at)
            if at is None:
                at = times[sample.at] = micros(sample.at)
            held = lists.get(sample.field)
            if held is None:
                held = lists[sample.field] = ([], [], [])
            held[0].append(base + sample.gpu)
            held[1].append(at)
            held[2].append(sample.value)
        fields = dict(self.fields)
        for name, (units, ats, values) in lists.items():
            column = Column.of(np.array(units, np.int64), np.array(ats, np.int64), np.array(values, np.float64))
            known = fields.get(name)
            fields[name] = column if known is None else known.joined(column)
        return Columns(tuple(bases), fields)

    def newest(self, counts: Mapping[str, int]) -> "Columns":
        """The last samples of each unit, by field; one where nothing is said."""
        return Columns(self.names, {name: held.newest(counts.get(name, 1)) for name, held in self.fields.items()})


def at_places(sorted_units: Whole, wanted: Whole) -> tuple[Whole, Mask]:
    """Where the wanted units are among sorted ones, and which of them are there."""
    if not len(sorted_units):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(sorted_units, wanted), len(sorted_units) - 1)
    return places, sorted_units[places] == wanted


def at_same_time(column: Column, other: Column) -> Mask:
    """Which samples of a column the other one has a sample of the same unit and moment for."""
    times = np.unique(np.concatenate((column.at, other.at)))
    mine = column.unit * len(times) + np.searchsorted(times, column.at)
    return np.isin(mine, other.unit * len(times) + np.searchsorted(times, other.at))


def names_in_order(columns: Columns, units: Sequence[int] | Whole) -> list[int]:
    """Units by name of their node and index: an order that does not depend on who was read first."""
    return sorted((int(unit) for unit in units), key=columns.place)
