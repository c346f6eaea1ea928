"""The SDK against a real service, and the examples of docs/examples as they stand."""

import asyncio
import csv
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import pytest_asyncio

from advisor.client import Advisor, BadRequest, ClientError, NotFound, Unreachable, connect
from advisor.v1 import audit_pb2, audit_pb2_grpc, common_pb2
from tests.integration.service.world import CLUSTER, World, short_folder, world_of

pytestmark = pytest.mark.postgres

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
Found = TypeVar("Found")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    """A service that has seen one job fail on node2, and its agent say that nothing was touched."""
    with short_folder() as folder:
        async with world_of(folder) as made:
            await made.fail_on_node2()
            await made.advice_where(
                lambda found: any(
                    item.action == common_pb2.ACTION_RESTART and "node2" in item.exclude_nodes for item in found
                )
            )
            yield made


async def asked(world: World, what: Callable[[Advisor], Found]) -> Found:
    """As a program would, in a thread of its own: the service answers from this one."""

    def ask() -> Found:
        with connect(world.running.socket, patience_seconds=0) as advisor:
            return what(advisor)

    return await asyncio.to_thread(ask)


@pytest.mark.asyncio(loop_scope="module")
async def test_lists_are_values_with_aware_times(world: World) -> None:
    """Decisions, incidents, attempts, signals, nodes and histories, with words and UTC times."""
    decision = await asked(world, lambda advisor: advisor.decisions(node="node2", limit=1).first())
    assert decision is not None
    assert (decision.action, decision.category, decision.mode) == ("restart", "gpu_hardware", "monitor")
    assert decision.at.tzinfo is UTC
    assert decision.milestones["detected"] <= decision.at
    whole = await asked(world, lambda advisor: advisor.decision(decision.decision_id[:13]))
    assert whole == decision
    assert whole.analysis["schema"] == "advisor.analysis/1"
    assert any(item.trust == "kernel" for item in whole.evidence)
    with pytest.raises(AttributeError):
        decision.action = "stop"  # type: ignore[misc]
    incident = await asked(world, lambda advisor: advisor.incident(decision.incident_id))
    assert incident.implicated_nodes == ("node2",)
    attempts = await asked(world, lambda advisor: list(advisor.attempts(job_id="17")))
    assert [(row.state, row.nodes[0], row.last_step) for row in attempts] == [("failed", "node1", 19)]
    signals = await asked(world, lambda advisor: list(advisor.signals(trust="kernel")))
    assert {row.nodes for row in signals} == {("node2",)}
    nodes = await asked(world, lambda advisor: list(advisor.nodes()))
    assert [row.name for row in nodes] == ["node2"]
    history = await asked(world, lambda advisor: list(advisor.node_history(CLUSTER, "node2")))
    assert {"implicated", "excluded"} <= {event.kind for event in history}
    timeline = await asked(world, lambda advisor: advisor.timeline("17"))
    assert [row.attempt for row in timeline.attempts] == [0]
    assert timeline.events == tuple(sorted(timeline.events, key=lambda event: event.at))


@pytest.mark.asyncio(loop_scope="module")
async def test_walks_begin_anew_and_pages_are_fetched_as_needed(world: World) -> None:
    """One listing can be walked twice; a limit cuts it; filters by time take moments and durations."""

    def walk(advisor: Advisor) -> tuple[list[Any], list[Any], list[int], list[Any], list[Any]]:
        listing = advisor.decisions()
        return (
            list(listing),
            list(listing),
            [len(page) for page in listing.pages(size=1)],
            list(advisor.decisions(limit=1)),
            list(advisor.decisions(since=timedelta(hours=1), until=datetime(2099, 1, 1, tzinfo=UTC))),
        )

    once, again, sizes, one, since = await asked(world, walk)
    assert once == again == since
    assert sizes == [1] * len(once)
    assert one == once[:1]
    assert await asked(world, lambda advisor: list(advisor.decisions(since=datetime(2099, 1, 1, tzinfo=UTC)))) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_tables_have_a_column_for_each_field(world: World) -> None:
    """A table of decisions has UTC times and words; an empty one has the same columns."""
    frame = await asked(world, lambda advisor: advisor.decisions().to_pandas())
    assert str(frame["at"].dt.tz) == "UTC"
    assert "gpu_hardware" in set(frame["category"])
    assert "message" not in frame.columns
    empty = await asked(world, lambda advisor: advisor.decisions(user="nobody").to_pandas())
    assert list(empty.columns) == list(frame.columns)
    assert len(empty) == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_errors_say_what_to_do_and_have_a_kind(world: World) -> None:
    """Unknown things, words, fields and naive times are told before or after asking, each as what it is."""
    for wrong, kind, told in (
        (lambda advisor: advisor.decision("0" * 32), NotFound, "there is no decision"),
        (lambda advisor: advisor.decisions(action="explode"), ClientError, "action: 'explode' is not one of restart"),
        (lambda advisor: advisor.decisions(since=datetime(2026, 1, 1)), ClientError, "has no time zone"),  # noqa: DTZ001
        (lambda advisor: advisor.decisions(colour="red"), ClientError, "colour: there is no such filter"),
        (lambda advisor: list(advisor.attempts(category="storage")), BadRequest, "cannot be filtered by category"),
        (lambda advisor: advisor.decisions().to_file("x.xls"), ClientError, "'xls' is not one of jsonl, csv"),
    ):
        with pytest.raises(kind, match=told):
            await asked(world, wrong)
    with pytest.raises(ClientError, match="nothing listens"):
        connect("/nowhere/advisor.sock")
    with pytest.raises(ClientError, match="a token_file or a certificate"):
        connect("advisor.example:443")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("last_week", (), "restart without node2"),
        ("why", ("{decision}",), "root cause:"),
        ("failures", (), "gpu_hardware"),
        ("timeline", ("17",), "decided: restart"),
        ("nodes", (), "test/node2  score"),
        ("export", ("{folder}/actions.csv",), "rows in"),
    ],
)
async def test_examples_run_as_they_stand(world: World, name: str, arguments: tuple[str, ...], told: str) -> None:
    """Each example of docs/examples prints what it says, against a real service."""
    decision = (await world.decisions(node="node2"))[0]
    values = {"decision": decision.advice.advice_id, "folder": str(world.folder)}
    given = [argument.format(**values) for argument in arguments]
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / f"{name}.py"),
        *given,
        str(world.running.socket),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, error.decode()
    assert told in out.decode()
    if name == "export":
        with (world.folder / "actions.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["outcome.status"] for row in rows} <= {"superseded", "withheld", "verified", "pending"}


def test_every_example_is_run() -> None:
    """An example that no test runs would rot."""
    run = {"last_week", "why", "failures", "timeline", "nodes", "export"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == run


class _Empty(audit_pb2_grpc.AuditServiceServicer):
    def ListDecisions(self, request: Any, context: Any) -> audit_pb2.ListDecisionsResponse:  # noqa: N802
        return audit_pb2.ListDecisionsResponse()


@contextmanager
def answering(path: Path) -> Iterator[None]:
    """Somebody who has no decisions."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    audit_pb2_grpc.add_AuditServiceServicer_to_server(_Empty(), server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


def test_reads_wait_while_the_service_is_restarted() -> None:
    """A read that meets a service that is away is answered once it is back; without patience it is told at once."""
    with short_folder() as folder, ThreadPoolExecutor() as pool:
        path = folder / "advisor.sock"
        with answering(path):
            patient, hasty = connect(path, patience_seconds=30), connect(path, patience_seconds=0)
            assert list(patient.decisions()) == list(hasty.decisions()) == []
        with pytest.raises(Unreachable, match="is `advisor serve` running"):
            list(hasty.decisions())
        waiting = pool.submit(lambda: list(patient.decisions()))
        with answering(path):
            assert waiting.result(30) == []
        patient.close()
        hasty.close()
