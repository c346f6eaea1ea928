"""Connections that end in the middle: nothing is half done, nothing twice, and nothing is left waiting."""

import asyncio

import pytest
from sqlalchemy.exc import OperationalError

from advisor.core.words import AttemptState
from advisor.store.records import CommittedDecision
from advisor.store.store import Store
from tests.integration.postgres_trouble.servers import Gate, Server
from tests.integration.store.worlds import CLUSTER, at, record, report, running, seen

pytestmark = pytest.mark.postgres

_WRITES = (
    b"attempts",
    b"INSERT INTO blobs",
    b"INSERT INTO decisions",
    b"INSERT INTO advice",
    b"INSERT INTO audit",
    b"COMMIT",
)


def _rows(server: Server) -> tuple[object, ...]:
    """Of decisions, their advice, their place in the audit, and the attempt's generation."""
    (row,) = server.query(
        "SELECT (SELECT count(*) FROM decisions), (SELECT count(*) FROM advice), "
        "(SELECT count(*) FROM audit WHERE what = 'decision_committed'), (SELECT max(generation) FROM attempts)"
    )
    return row


@pytest.mark.parametrize("words", _WRITES)
async def test_a_connection_that_ends_within_a_commit_leaves_nothing_of_it(server: Server, words: bytes) -> None:
    """Wherever it is cut, there is no part of the decision; said again, there is one."""
    async with Gate(server.port) as gate:
        store = await Store.open(server.url(port=gate.port))
        key = await running(store)
        gate.cut_at(b"FOR UPDATE", *((words,) if words != b"attempts" else ()), heard=False)
        with pytest.raises(OperationalError):
            await store.commit_decision(record(key))
        assert gate.cuts == 1
        server.wait(lambda: _rows(server) == (0, 0, 0, 0))
        assert (await store.commit_decision(record(key))).generation == 1
        assert _rows(server) == (1, 1, 1, 1)
        await store.close()


async def test_a_commit_whose_answer_is_lost_is_one_decision(server: Server) -> None:
    """COMMIT was sent and nobody knows what became of it: the same again finds it done, and does it once."""
    async with Gate(server.port) as gate:
        store = await Store.open(server.url(port=gate.port))
        key = await running(store)
        gate.cut_at(b"INSERT INTO decisions", b"COMMIT", heard=True)
        with pytest.raises(OperationalError):
            await store.commit_decision(record(key))
        server.wait(lambda: _rows(server) == (1, 1, 1, 1))
        (again,) = await store.commit_decisions([record(key)])
        assert isinstance(again, CommittedDecision)
        assert (again.generation, _rows(server)) == (1, (1, 1, 1, 1))
        await store.close()


async def test_reports_and_acknowledgements_whose_answers_are_lost_count_once(server: Server) -> None:
    """An agent that hears nothing says it again: no second job, no second change of state."""
    async with Gate(server.port) as gate:
        store = await Store.open(server.url(port=gate.port))
        gate.cut_at(b"INSERT INTO attempts", b"COMMIT", heard=True)
        with pytest.raises(OperationalError):
            await running(store)
        await report(store, seen(), complete=False)
        gate.cut_at(b"UPDATE attempts", b"COMMIT", heard=True)
        ended = seen(AttemptState.FAILED, observed_at=at(20), ended_at=at(20))
        with pytest.raises(OperationalError):
            await report(store, ended, complete=False)
        await report(store, ended, complete=False)
        assert server.query("SELECT count(*) FROM jobs") == [(1,)]
        assert server.query("SELECT state FROM attempt_states ORDER BY seq") == [("running",), ("failed",)]
        await store.close()


async def test_a_server_that_ends_all_connections_is_used_again_at_once(server: Server) -> None:
    """Connections that wait in the pool are dead without a word: whoever comes next does not notice."""
    store = await Store.open(server.url())
    try:
        await asyncio.gather(*(store.open_advice(CLUSTER, at(0)) for _ in range(8)))
        server.end_all_connections()
        await asyncio.sleep(1.2)
        assert await asyncio.gather(*(store.open_advice(CLUSTER, at(0)) for _ in range(8))) == [()] * 8
    finally:
        await store.close()


async def test_a_database_that_turned_read_only_is_absent_and_left(server: Server) -> None:
    """As clouds do with a full disk: it is absent for whoever writes, reading goes on, and it is found again."""
    store = await Store.open(server.url())
    try:
        key = await running(store)
        server.query(f"ALTER DATABASE {server.database} SET default_transaction_read_only = on")
        server.end_all_connections()
        with pytest.raises(OperationalError, match="administrator command"):
            await store.commit_decision(record(key))
        for _ in range(2):
            with pytest.raises(OperationalError, match="read-only"):
                await store.commit_decision(record(key))
        assert (await store.load([key], now=at(20))).keys() == {key}
        server.query(f"ALTER DATABASE {server.database} RESET default_transaction_read_only", database="postgres")
        with pytest.raises(OperationalError):  # of a connection that was made meanwhile: the last one
            await store.commit_decision(record(key))
        assert (await store.commit_decision(record(key))).generation == 1
    finally:
        await store.close()
