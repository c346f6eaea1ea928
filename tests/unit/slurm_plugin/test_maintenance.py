"""Maintenance as Slurm shows it, and which jobs it concerns."""

import pytest

from slurm_plugin.maintenance import Maintenance, Reservation, parse_partitions, parse_reservations
from slurm_plugin.records import RECORD, UNIT, JobRow, SlurmError

ACTIVE = (
    "ReservationName=fw StartTime=1 EndTime=2 Duration=01:00:00 Nodes=node[1-2] NodeCnt=2 CoreCnt=2 Features=(null) "
    "PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=2 Users=root State=ACTIVE BurstBuffer=(null)\n"
)


def row(state: str = "FAILED", nodes: tuple[str, ...] = ("node2", "node3"), partition: str = "main") -> JobRow:
    return JobRow(
        job_id="7",
        shown_id="7",
        state=state,
        restarts=0,
        submit=1,
        user="alice",
        user_id=1,
        partition=partition,
        nodes=nodes,
    )


def test_only_active_maintenance_reservations_count() -> None:
    """Neither one that is yet to come nor one for a course; and none at all is told in words."""
    course = ACTIVE.replace("MAINT,", "")
    later = ACTIVE.replace("State=ACTIVE", "State=INACTIVE")
    (found,) = parse_reservations((course + later + ACTIVE).encode())
    assert found == Reservation(name="fw", nodes=frozenset({"node1", "node2"}))
    assert parse_reservations(b"No reservations in the system\n") == ()


def test_partitions_that_are_not_up() -> None:
    """By name with their state; a cut answer is garbled, never "all are up"."""
    raw = "".join(f"{name}{UNIT}{state}{RECORD}\n" for name, state in (("main", "up"), ("old", "drain"))).encode()
    assert parse_partitions(raw) == {"old": "drain"}
    with pytest.raises(SlurmError, match="cut"):
        parse_partitions(raw[:-2])


def test_who_is_in_maintenance() -> None:
    """A job on a reserved node, or whose every partition is closed; one that waits elsewhere is not."""
    now = Maintenance(partitions={"old": "drain"}, reservations=(Reservation(name="fw", nodes=frozenset({"node2"})),))
    assert now.reason(row()) == "node2 is in the maintenance reservation fw"
    assert now.reason(row(nodes=("node5",))) == ""
    assert now.reason(row(state="PENDING")) == ""
    assert now.reason(row(nodes=(), partition="old")) == "partition old is drain"
    assert now.reason(row(nodes=(), partition="old,main")) == ""
