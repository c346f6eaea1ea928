"""Maintenance as Slurm shows it, and which jobs it concerns."""

import asyncio
from collections.abc import Sequence

import pytest

from slurm_plugin.config import decode
from slurm_plugin.looks import Looks
from slurm_plugin.maintenance import Maintenance, Reservation, parse_partitions, parse_reservations
from slurm_plugin.records import RECORD, UNIT, JobRow, SlurmError
from slurm_plugin.squeue import Slurm
from tests.unit.slurm_plugin.fake_slurm import FakeSlurm

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


class Hands:
    at = 100.0

    def monotonic(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def boot(self) -> float:
        return self.at


async def test_whoever_is_about_to_act_asks_for_what_is_hardly_old() -> None:
    """A closing partition is seen within a second by those who act, who look once together; silence changes nothing."""
    slurm, clock = FakeSlurm(), Hands()
    asked: list[str] = []
    slurm.before = lambda argv: asked.append(argv[0])
    looks = Looks(Slurm(run=slurm), decode({"cluster": "c"}, {}), clock)
    await looks.read_maintenance(5.0)
    slurm.partition_state = "drain"
    clock.at += 1.5
    await looks.read_maintenance(5.0)
    assert not looks.maintenance.partitions
    await asyncio.gather(*(looks.read_maintenance(1.0) for _ in range(8)))
    assert looks.maintenance.partitions == {"main": "drain"}
    assert asked == ["sinfo", "scontrol"] * 2
    clock.at += 2.0
    slurm.before = _no_answer
    await looks.read_maintenance(1.0)
    assert looks.maintenance.partitions == {"main": "drain"}
    assert "maintenance" in looks.unavailable


def _no_answer(argv: Sequence[str]) -> None:
    raise SlurmError("timeout", "no answer")
