"""Which jobs are in maintenance: their partitions are not up, or their nodes are in an active MAINT reservation. Pure.

Partitions and reservations are made by administrators only, so their names cannot forge a record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.hostlist import HostlistError, expand
from slurm_plugin.records import RECORD, UNIT, JobRow, SlurmError
from slurm_plugin.words import Phase, phase_of

PARTITION_FORMAT = UNIT.join(("%R", "%a"))
_WAITING = frozenset({Phase.PENDING, Phase.REQUEUE_HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    name: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """`partitions`: those that are not up, with their state. `reservations`: active ones for maintenance."""

    partitions: Mapping[str, str]
    reservations: tuple[Reservation, ...] = ()

    def reason(self, job: JobRow) -> str:
        """Why the job is in maintenance, "" when it is not. One partition that is up is enough for it to run."""
        named = [name for name in job.partition.split(",") if name]
        closed = [name for name in named if name in self.partitions]
        if named and len(closed) == len(named):
            return f"partition {closed[0]} is {self.partitions[closed[0]]}"
        if phase_of(job.state) in _WAITING:
            return ""
        for reservation in self.reservations:
            inside = sorted(reservation.nodes.intersection(job.nodes))
            if inside:
                return f"{inside[0]} is in the maintenance reservation {reservation.name}"
        return ""


NONE = Maintenance(partitions={})


def parse_partitions(raw: bytes, *, end: str = RECORD) -> dict[str, str]:
    """Partitions that are not up, from `sinfo -o PARTITION_FORMAT`, by name."""
    records = raw.decode("utf-8", "surrogateescape").split(end + "\n")
    if records.pop():
        raise SlurmError("garbled", "sinfo: the last record is cut")
    found = {}
    for record in records:
        name, separator, state = record.partition(UNIT)
        if not separator or not name:
            raise SlurmError("garbled", f"sinfo: not a partition record: {record[:80]!r}")
        if state != "up":
            found[name] = state
    return found


def parse_reservations(raw: bytes) -> tuple[Reservation, ...]:
    """Active reservations for maintenance, from `scontrol -o show reservation`."""
    found = []
    for line in raw.decode("utf-8", "surrogateescape").splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "ReservationName" not in values:
            continue
        if values.get("State") != "ACTIVE" or "MAINT" not in values.get("Flags", "").split(","):
            continue
        found.append(Reservation(name=values["ReservationName"], nodes=frozenset(_nodes(values.get("Nodes", "")))))
    return tuple(found)


def _nodes(text: str) -> Sequence[str]:
    try:
        return expand("" if text == "(null)" else text)
    except HostlistError as error:
        raise SlurmError("garbled", f"scontrol show reservation: {error}") from None
