"""Reading reports: what is remembered of earlier messages is what reading them anew would give."""

from datetime import UTC, datetime, timedelta

from advisor.service import wire
from advisor.service.reported import Report, Reported, Told
from advisor.v1 import agent_pb2, common_pb2

T0 = datetime(2026, 11, 1, 12, tzinfo=UTC)


def job(second: int, **changes: object) -> agent_pb2.JobObservation:
    made = agent_pb2.JobObservation(
        attempt=common_pb2.AttemptRef(job_id="7", user="ada", submitted_at=wire.stamp(T0)),
        state=common_pb2.ATTEMPT_STATE_RUNNING,
        observed_at=wire.stamp(T0 + timedelta(seconds=second, microseconds=5)),
        nodes=["n1", "n2"],
        partition="gpu",
    )
    made.MergeFrom(agent_pb2.JobObservation(**changes))  # type: ignore[arg-type]  # fields by name
    return made


def node(second: int, reason: str = "") -> agent_pb2.NodeObservation:
    return agent_pb2.NodeObservation(
        name="n1",
        state=agent_pb2.NODE_STATE_UP,
        reason=reason,
        observed_at=wire.stamp(T0 + timedelta(seconds=second)),
        partitions=["gpu"],
    )


async def read(
    reader: Reported, jobs: list[agent_pb2.JobObservation], nodes: list[agent_pb2.NodeObservation], now: int = 1000
) -> Report:
    request = agent_pb2.ReportObservationsRequest(jobs=jobs, nodes=nodes, complete=True)
    return await reader.read(request, "c", T0 + timedelta(seconds=now))


async def test_remembered_is_what_reading_gives() -> None:
    """The same again, at another time or with another word, gives what the wire's own functions give of it."""
    reader = Reported()
    for second, changes in ((1, {}), (2, {}), (3, {"held": True}), (3, {}), (4, {"nodes": ["n3"]}), (5, {})):
        told = await read(reader, [job(second, **changes)], [node(second), node(second, "worn")])
        assert told.jobs == [wire.observed_job(job(second, **changes), "c", "jobs[0]")]
        now = T0 + timedelta(seconds=1000)
        assert told.nodes == [wire.observed_node(item, "", now) for item in (node(second), node(second, "worn"))]


async def test_nothing_was_seen_later_than_now() -> None:
    """A node's time that is still to come is taken for now, also of a message that is known."""
    reader = Reported()
    for second in (1, 2, 2000):
        told = await read(reader, [], [node(second)])
        assert told.nodes[0].observed_at == T0 + timedelta(seconds=min(second, 1000))


async def test_bad_messages_stay_bad() -> None:
    """What cannot be read is refused by its place every time, and the others count; so is what has no time."""
    reader = Reported()
    nameless = node(1)
    nameless.name = "../n"
    for _ in range(2):
        timeless = job(1)
        timeless.ClearField("observed_at")
        told = await read(reader, [timeless, job(1)], [node(1), nameless])
        assert told.refused == ["jobs[0].observed_at: must be set", "nodes[1].name: '../n' is not a node name"]
        assert (len(told.jobs), len(told.nodes)) == (1, 1)


async def test_clusters_are_kept_apart() -> None:
    """A job that names another cluster is refused there though its own cluster has told the same."""
    reader, mine = Reported(), job(1)
    mine.attempt.cluster = "c"
    assert len((await read(reader, [mine], [])).jobs) == 1
    request = agent_pb2.ReportObservationsRequest(jobs=[mine])
    assert (await reader.read(request, "d", T0)).refused


def test_what_is_told_no_more_is_forgotten() -> None:
    """Memory holds what two listings told."""
    told: Told[int] = Told()
    for number in range(10):
        told.find(job(1, name=f"train-{number}"), T0, lambda: 0)
    told.turn_over()
    assert told.find(job(1, name="train-0"), T0, lambda: 1) == 0
    assert told.held() == 11
    told.turn_over()
    assert told.held() == 1


def test_memory_is_bounded() -> None:
    """Where no listing ever comes to its end, no more than the bytes that are allowed are kept, twice."""
    told: Told[int] = Told(bytes_max=1000)
    for number in range(100):
        told.find(job(1, name=f"train-{number}"), T0, lambda: 0)
    assert 0 < told.held() < 60
