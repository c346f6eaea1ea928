"""Seals: what is written is sealed once, whoever commits when, and what is changed afterwards is found."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from advisor.clock import SystemClock
from advisor.sealing import Sealer
from advisor.seals import documents
from advisor.seals.chain import Chain, Finding, Wrong, compare_copies
from advisor.seals.documents import StoredSeal
from advisor.seals.keys import PublicKey, SealKey
from advisor.store import seal_rows, seal_verify, seals
from advisor.store.records import AuditEvent
from advisor.store.store import Store
from tests.integration.store.worlds import at, healthy, noted, record, restored, running

pytestmark = pytest.mark.postgres

KEY = SealKey.new()
COLUMNS = "id, at, who, what, why, origin, cluster, subject, detail"
FORGED = "gen_random_uuid(), '2026-11-01', 'root', 'mode_set', '', '', '', '', '{}'"


def sealer(store: Store, key: SealKey | None = KEY) -> Sealer:
    return Sealer(history=store.history(), key=key, clock=SystemClock(), interval_seconds=60)


async def said(engine: AsyncEngine, *names: str) -> None:
    for name in names:
        await noted(engine, AuditEvent(at=at(0), who=name, what="mode_set", why="because"))


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url, connect_args={"options": "-c timezone=UTC"})
    yield made
    await made.dispose()


@pytest.fixture
async def sealed(store: Store, engine: AsyncEngine) -> Store:
    """A decision and three operators' rows, in three seals of which the last covers audit rows only."""
    await store.commit_decision(record(await running(store)))
    await sealer(store).once()
    await said(engine, "ada", "grace")
    await sealer(store).once()
    await said(engine, "joan")
    await sealer(store).once()
    return store


async def found(
    engine: AsyncEngine, *, trusted: tuple[PublicKey, ...] = (KEY.public,), late: bool = False
) -> list[Finding]:
    chain = Chain(trusted={key.fingerprint: key for key in trusted})
    async with engine.connect() as connection:
        wrong = [finding async for finding in seal_verify.read_chain(connection, chain)]
        wrong += [finding async for finding in seal_verify.check_rows(connection, chain, told=lambda *_: None)]
        if late:
            rows = await seal_verify.waiting(connection, chain)
            now, after = SystemClock().now(), timedelta(minutes=10)
            assert seal_verify.overdue(rows, chain, now=now, after=after) == []  # a seal was just written
            wrong += seal_verify.overdue(rows, chain, now=now + timedelta(hours=1), after=after)
    return wrong


async def tamper(engine: AsyncEngine, *statements: str, **values: object) -> None:
    """As the server's superuser, with triggers off."""
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in statements:
            await connection.execute(text(statement), values)


async def kept(engine: AsyncEngine) -> list[StoredSeal]:
    async with engine.connect() as connection:
        return [seal async for seal in seals.stored(connection)]


def kinds(wrong: list[Finding]) -> set[tuple[Wrong, int | None, str, int | None]]:
    return {(item.wrong, item.seal, item.table, item.row) for item in wrong}


async def test_what_was_sealed_is_found_unchanged(sealed: Store, engine: AsyncEngine) -> None:
    """Nothing is wrong with a chain that nobody touched, and every row of every table is in it."""
    assert await found(engine) == []
    chain = Chain()
    async with engine.connect() as connection:
        assert [item async for item in seal_verify.read_chain(connection, chain)] == []
        assert await seal_verify.waiting(connection, chain) == ()
    assert {"audit", "attempt_states", "blobs", "decisions", "incarnations"} <= set(chain.sealed)
    assert chain.signed == chain.seals == 3


async def test_changed_row(sealed: Store, engine: AsyncEngine) -> None:
    """Who did something is rewritten: the row is named."""
    await tamper(engine, "UPDATE audit SET who = 'nobody' WHERE who = 'ada'")
    (finding,) = await found(engine)
    assert (finding.wrong, finding.table, finding.seal) == (Wrong.ROW_CHANGED, "audit", 2)


async def test_every_column_counts(sealed: Store, engine: AsyncEngine) -> None:
    """No column of a decision can be changed unnoticed."""
    columns = {
        "account": "'x'",
        "nodes": "'{x}'",
        "settled": "NOT settled",
        "decision": "'\\x00'",
        "generation": "7",
        "expires_at": "expires_at + interval '1 microsecond'",
        "incident_id": "NULL",
    }
    for column, value in columns.items():
        async with engine.connect() as connection:
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            await connection.execute(text(f"UPDATE decisions SET {column} = {value}"))
            chain = Chain()
            wrong = [item async for item in seal_verify.read_chain(connection, chain)]
            wrong += [item async for item in seal_verify.check_rows(connection, chain, told=lambda *_: None)]
            assert kinds(wrong) == {(Wrong.ROW_CHANGED, 1, "decisions", 1)}, column
            await connection.rollback()


async def test_missing_row(sealed: Store, engine: AsyncEngine) -> None:
    """A row is deleted: its number and its seal are named."""
    await tamper(engine, "DELETE FROM audit WHERE who = 'grace'")
    (finding,) = await found(engine)
    assert (finding.wrong, finding.table, finding.seal) == (Wrong.ROW_MISSING, "audit", 2)


async def test_emptied_table(sealed: Store, engine: AsyncEngine) -> None:
    """All rows of a table are gone: each is missing."""
    await tamper(engine, "DELETE FROM blobs")
    assert {(item.wrong, item.table) for item in await found(engine)} == {(Wrong.ROW_MISSING, "blobs")}


@pytest.mark.parametrize("seq", [0, -5, 2])
async def test_inserted_row(sealed: Store, engine: AsyncEngine, seq: int) -> None:
    """A row is put among sealed ones: below the first, in a gap, or under the number of another."""
    insert = f"INSERT INTO audit (seq, {COLUMNS}) OVERRIDING SYSTEM VALUE VALUES ({seq}, {FORGED})"
    await tamper(engine, insert)
    assert (Wrong.ROW_INSERTED, None, "audit", seq) in kinds(await found(engine)) or seq == 2
    assert {item.row for item in await found(engine)} == {seq}


async def test_row_in_a_gap_of_a_rolled_back_write(store: Store, engine: AsyncEngine) -> None:
    """A number that a failed write left unused stays unused."""
    await said(engine, "ada")
    async with engine.connect() as connection:
        await connection.execute(text(f"INSERT INTO audit ({COLUMNS}) VALUES ({FORGED})"))
        await connection.rollback()
    await said(engine, "grace")
    await sealer(store).once()
    assert await found(engine) == []
    gap = "(SELECT max(seq) - 1 FROM audit)"
    await tamper(engine, f"INSERT INTO audit (seq, {COLUMNS}) OVERRIDING SYSTEM VALUE SELECT {gap}, {FORGED}")
    (finding,) = await found(engine)
    assert finding.wrong is Wrong.ROW_INSERTED


async def test_replaced_row_and_its_digest(sealed: Store, engine: AsyncEngine) -> None:
    """Whoever changes a row and the digests beside it is found by the seal."""
    await tamper(
        engine,
        "UPDATE audit SET who = 'nobody' WHERE who = 'joan'",
        "UPDATE seal_leaves SET leaves = substring(leaves for 8) || sha256('x') WHERE number = 3",
    )
    assert (Wrong.LEAVES_CHANGED, 3, "audit", None) in kinds(await found(engine))
    await tamper(engine, "DELETE FROM seal_leaves WHERE number = 3")
    assert kinds(await found(engine)) == {(Wrong.LEAVES_MISSING, 3, "audit", None)}


async def test_dropped_seal(sealed: Store, engine: AsyncEngine) -> None:
    """A seal in the middle is gone."""
    await tamper(engine, "DELETE FROM seals WHERE number = 2")
    assert (Wrong.SEAL_MISSING, 2, "", None) in kinds(await found(engine))


async def test_changed_seal(sealed: Store, engine: AsyncEngine) -> None:
    """A seal is rewritten, with the digest of what was changed in it: its signature and its follower do not fit."""
    first = documents.read((await kept(engine))[1].document)
    forged = documents.write(replace(first, incarnation="other"))
    await tamper(engine, "UPDATE seals SET document = :forged WHERE number = 2", forged=forged)
    assert kinds(await found(engine)) == {(Wrong.SEAL_CHANGED, 2, "", None), (Wrong.SEAL_CHANGED, 3, "", None)}


async def test_removed_signatures(sealed: Store, engine: AsyncEngine) -> None:
    """A signature that is gone is missed, and so are all of them when the key is given."""
    await tamper(engine, "UPDATE seals SET signature = NULL WHERE number = 3")
    assert kinds(await found(engine)) == {(Wrong.SEAL_CHANGED, 3, "", None)}


async def test_whole_history_rewritten_by_who_has_no_key(sealed: Store, engine: AsyncEngine) -> None:
    """An administrator who rewrites rows, digests and all seals, unsigned or with another key, is found by the key."""
    await tamper(
        engine, "UPDATE audit SET who = 'nobody' WHERE who = 'ada'", "DELETE FROM seals", "DELETE FROM seal_leaves"
    )
    await sealer(sealed, None).once()
    assert {item.wrong for item in await found(engine)} == {Wrong.SEAL_UNSIGNED}
    await tamper(engine, "DELETE FROM seals", "DELETE FROM seal_leaves")
    await sealer(sealed, SealKey.new()).once()
    assert {item.wrong for item in await found(engine)} == {Wrong.WRONG_KEY}


async def test_cut_off_end(sealed: Store, engine: AsyncEngine) -> None:
    """The last seal is gone, with its rows or without: the exported copy, or rows left unsealed, tell."""
    copy = await kept(engine)
    await tamper(engine, "DELETE FROM seals WHERE number = 3", "DELETE FROM seal_leaves WHERE number = 3")
    assert [item.wrong for item in await found(engine, late=True)] == [Wrong.ROWS_UNSEALED]
    await tamper(engine, "DELETE FROM audit WHERE who = 'joan'")
    assert await found(engine, late=True) == []
    (finding,) = compare_copies(await kept(engine), copy)
    assert (finding.wrong, finding.seal) == (Wrong.SEAL_MISSING, 3)


async def test_rewritten_with_the_key(sealed: Store, engine: AsyncEngine) -> None:
    """Who has the key, too, cannot rewrite what was exported before."""
    copy = await kept(engine)
    await tamper(
        engine, "UPDATE audit SET who = 'nobody' WHERE who = 'ada'", "DELETE FROM seals", "DELETE FROM seal_leaves"
    )
    for _ in range(3):
        await said(engine, "later")
        await sealer(sealed).once()
    assert await found(engine) == []
    wrong = list(compare_copies(await kept(engine), copy))
    assert {item.wrong for item in wrong} == {Wrong.COPY_DIFFERS}
    assert [item.seal for item in wrong] == [1, 2, 3]


async def test_keys_change(store: Store, engine: AsyncEngine) -> None:
    """Who trusts the first key trusts one that it vouches for, and no other."""
    second, stranger = SealKey.new(KEY), SealKey.new()
    for key in (KEY, second):
        await said(engine, "ada")
        await sealer(store, key).once()
    assert await found(engine) == []
    assert await found(engine, trusted=(second.public,)) == []
    await said(engine, "ada")
    await sealer(store, stranger).once()
    assert kinds(await found(engine)) == {(Wrong.WRONG_KEY, 3, "", None)}
    assert kinds(await found(engine, trusted=())) == {(Wrong.WRONG_KEY, 3, "", None)}


async def test_key_comes_later(store: Store, engine: AsyncEngine) -> None:
    """What was sealed before there was a key is protected by the first seal that is signed."""
    for key in (None, KEY):
        await said(engine, "ada")
        await sealer(store, key).once()
    assert await found(engine) == []
    await tamper(engine, "UPDATE audit SET who = 'nobody'")
    assert {item.wrong for item in await found(engine)} == {Wrong.ROW_CHANGED}


class Hurried(SystemClock):
    """A minute passes with every wait."""

    waited = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.waited

    async def sleep(self, seconds: float) -> None:
        self.waited += 60
        await super().sleep(0)


async def test_late_commits_are_sealed_once_and_wait_for_nobody(store: Store, engine: AsyncEngine) -> None:
    """While a row with a lower number is not committed, later ones are, and none is sealed; then all are, once."""
    one = Sealer(history=store.history(), key=KEY, clock=Hurried(), interval_seconds=60)
    async with engine.connect() as slow:
        await slow.execute(text(f"INSERT INTO audit ({COLUMNS}) VALUES ({FORGED})"))
        await said(engine, "ada")  # commits at once, with a higher number
        assert await one.once() == 0
        assert await kept(engine) == []
        await slow.commit()
    assert await one.once() > 2
    assert await found(engine) == []
    chain = Chain()
    async with engine.connect() as connection:
        assert [item async for item in seal_verify.read_chain(connection, chain)] == []
        assert await seal_verify.waiting(connection, chain) == ()
    assert sum(item.rows.rows for item in chain.sealed["audit"]) == 3  # with the incarnation's


async def test_many_sealers_and_writers(store: Store, engine: AsyncEngine) -> None:
    """Replicas that seal at once while rows are written leave one chain that covers each row once."""

    async def write(name: str) -> None:
        await said(engine, *(f"{name}{at}" for at in range(20)))

    async def seal() -> None:
        one = sealer(store)
        for _ in range(5):
            await one.once()

    await asyncio.gather(*(write(name) for name in "abc"), *(seal() for _ in range(3)))
    await sealer(store).once()
    assert await found(engine) == []
    chain = Chain()
    async with engine.connect() as connection:
        assert [item async for item in seal_verify.read_chain(connection, chain)] == []
    assert sum(item.rows.rows for item in chain.sealed["audit"]) == 61


async def test_more_rows_than_one_seal_takes(store: Store, engine: AsyncEngine) -> None:
    """A backlog is sealed in several seals."""
    await said(engine, *"abcdefg")
    history = store.history()
    bounds = await history.bounds()
    while (await history.seal(bounds.highest, key=KEY, now=at(0), rows_max=3)) is not None:
        pass
    assert await found(engine) == []
    assert len(await kept(engine)) == 3


async def test_restored_backup_goes_on(sealed: Store, engine: AsyncEngine, url: str) -> None:
    """After a restore the chain continues from the backup's end; the exported copy says what is missing."""
    copy = await kept(engine)
    await tamper(
        engine,
        "DELETE FROM seals WHERE number > 1",
        "DELETE FROM seal_leaves WHERE number > 1",
        "DELETE FROM audit WHERE who IN ('ada', 'grace', 'joan')",
    )
    await restored(sealed, url)
    await sealer(sealed).once()
    assert await found(engine) == []
    assert [item.wrong for item in compare_copies(await kept(engine), copy)] == [Wrong.COPY_DIFFERS, Wrong.SEAL_MISSING]


async def test_a_database_that_goes_away_is_no_end_of_the_sealer(store: Store, engine: AsyncEngine) -> None:
    """What Postgres refuses while rows are read is an error of the database like any other: it is tried again."""
    async with engine.connect() as connection:
        with pytest.raises(SQLAlchemyError):
            [leaf async for leaf in seal_rows.leaves(connection, "audit", ("seq", "nonsense"), after=0, upto=9)]


async def test_garbage_in_the_chain_ends_neither_sealer_nor_service(sealed: Store, engine: AsyncEngine) -> None:
    """Whoever overwrites the newest seal stops the sealing, which is told, and nothing else."""
    await tamper(engine, "UPDATE seals SET document = 'x' WHERE number = 3")
    await said(engine, "later")
    rounds = asyncio.Event()

    class Counting(SystemClock):
        async def sleep(self, seconds: float) -> None:
            rounds.set()
            await super().sleep(0.01)

    one = Sealer(history=sealed.history(), key=KEY, clock=Counting(), interval_seconds=1)
    running = asyncio.create_task(one.run())
    async with asyncio.timeout(10):
        await rounds.wait()
    assert not running.done()
    running.cancel()
    assert len(await kept(engine)) == 3


async def test_strange_text_has_one_spelling(store: Store, engine: AsyncEngine) -> None:
    """Tabs, line ends, backslashes and other scripts in a row neither break a line nor collide."""
    await noted(engine, AuditEvent(at=at(0), who="ada", what="mode_set", why="a\tb\nc\\.\\N\r\u2028ü"))
    await store.commit_decision(record(await running(store), decision=healthy()))
    await sealer(store).once()
    assert await found(engine) == []
    await tamper(engine, r"UPDATE audit SET why = E'a\tb\nc\\.\\N\r\n' WHERE who = 'ada'")
    assert {item.wrong for item in await found(engine)} == {Wrong.ROW_CHANGED}


async def test_a_row_with_a_number_that_was_never_given_out(sealed: Store, engine: AsyncEngine) -> None:
    """It would wait for ever to be sealed, and be shown by every list meanwhile: it is named at once."""
    await tamper(engine, f"INSERT INTO audit (seq, {COLUMNS}) OVERRIDING SYSTEM VALUE VALUES (900000, {FORGED})")
    await said(engine, "lise")
    await sealer(sealed).once()
    assert (Wrong.ROW_INSERTED, None, "audit", 900_000) in kinds(await found(engine))


async def test_a_clock_that_was_ahead_does_not_excuse_what_is_not_sealed(sealed: Store, engine: AsyncEngine) -> None:
    """A last seal from the future says nothing of whether seals are written now."""
    await Sealer(history=sealed.history(), key=KEY, clock=Ahead(), interval_seconds=60).once()
    await said(engine, "lise")
    await Sealer(history=sealed.history(), key=KEY, clock=Ahead(), interval_seconds=60).once()
    await said(engine, "emmy")
    chain = Chain()
    async with engine.connect() as connection:
        assert [item async for item in seal_verify.read_chain(connection, chain)] == []
        rows = await seal_verify.waiting(connection, chain)
    now = SystemClock().now() + timedelta(hours=1)
    (wrong,) = seal_verify.overdue(rows, chain, now=now, after=timedelta(minutes=10))
    assert (wrong.wrong, wrong.table) == (Wrong.ROWS_UNSEALED, "audit")


class Ahead(SystemClock):
    """A year."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=365)
