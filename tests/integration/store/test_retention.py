"""Retention: months that are too old go, with what only they needed; the chain says so, and the rest stays verified."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from structlog.testing import capture_logs

from advisor.retaining import Retention, Went
from advisor.sealing import Sealer
from advisor.seals.chain import Chain, Finding, Wrong
from advisor.seals.keys import SealKey
from advisor.store import retention, seal_verify
from advisor.store.records import AttemptKey, AuditEvent, Milestone, MilestoneKind
from advisor.store.store import Store
from tests.integration.store.worlds import at, noted, record, report, seen

pytestmark = pytest.mark.postgres

KEY = SealKey.new()
NOW = datetime(2027, 4, 15, tzinfo=UTC)


class Then:
    """A clock that stands still, and a sleep that does not take any time."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.moment.timestamp()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url, connect_args={"options": "-c timezone=UTC"})
    yield made
    await made.dispose()


async def seal(store: Store, moment: datetime) -> None:
    await Sealer(history=store.history(), key=KEY, clock=Then(moment), interval_seconds=1).once()


async def decided(store: Store, job: str, moment: datetime, *, rules: bytes = b'{"rules":1}') -> AttemptKey:
    """A job that fails at that moment and is over: decision, audit, states, a milestone, content."""
    state = seen(job_id=job, submitted_at=moment, started_at=moment, observed_at=moment)
    recorded = await report(store, state, complete=False, now=moment)
    key: AttemptKey = recorded.changed[0]
    inputs = f'{{"snapshot":"{job}"}}'.encode()
    await store.commit_decision(record(key, created_at=moment, inputs=inputs, rules=rules))
    await store.record_milestones({key: [Milestone(kind=MilestoneKind.DETECTED, at=moment)]})
    return key


@pytest.fixture
async def old(store: Store, engine: AsyncEngine) -> Store:
    """Two jobs of November, one of January, one of March; all over; sealed as they came. Now it is April."""
    for job, moment in (
        ("1", at(0)),
        ("2", at(86_400)),
        ("3", datetime(2027, 1, 10, tzinfo=UTC)),
        ("4", datetime(2027, 3, 10, tzinfo=UTC)),
    ):
        await store.history().months_ahead(moment)
        await decided(store, job, moment)
        await seal(store, moment + timedelta(minutes=1))
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE attempts SET open = false"))
        await connection.execute(text("UPDATE advice SET open = false"))
    await store.history().months_ahead(NOW)
    return store


async def drop(store: Store, kept: int) -> list[Went]:
    one = Retention(history=store.history(), key=KEY, clock=Then(NOW), months=kept, who="root", origin="here")
    return [went async for went in one.once()]


async def verified(engine: AsyncEngine) -> tuple[list[Finding], Chain]:
    chain = Chain(trusted={KEY.public.fingerprint: KEY.public})
    async with engine.connect() as connection:
        wrong = [finding async for finding in seal_verify.read_chain(connection, chain)]
        wrong += [finding async for finding in seal_verify.check_rows(connection, chain, told=lambda *_: None)]
    return wrong, chain


async def count(engine: AsyncEngine, table: str) -> int:
    async with engine.connect() as connection:
        return int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


async def test_nothing_is_too_old_for_long_retention(old: Store, engine: AsyncEngine) -> None:
    """What the configuration keeps stays."""
    assert await drop(old, 12) == []
    assert await count(engine, "decisions") == 4


async def test_old_months_go_and_the_rest_is_verified(old: Store, engine: AsyncEngine) -> None:
    """Months before the kept ones are gone with their content; what is left is as it was sealed."""
    went = await drop(old, 2)
    assert {item.what for item in went} >= {"decisions_old", "decisions_2027_01", "audit_old", "blobs", "milestones"}
    assert not [item for item in went if item.refused]
    assert (await count(engine, "decisions"), await count(engine, "advice")) == (1, 1)
    # Its own inputs; rules and policy, which all four shared.
    assert (await count(engine, "blobs"), await count(engine, "milestones")) == (3, 1)
    wrong, chain = await verified(engine)
    assert wrong == []
    assert chain.dropped_rows == sum(item.rows for item in went)
    await seal(old, NOW)
    assert (await verified(engine))[0] == []
    async with engine.connect() as connection:
        kept = await connection.execute(text("SELECT who, origin, subject FROM audit WHERE what = 'history_dropped'"))
        assert {(row.who, row.origin) for row in kept} == {("root", "here")}
        leaves = await connection.execute(text("SELECT table_name FROM seal_leaves WHERE number = 1"))
        assert "decisions" not in leaves.scalars().all()


async def test_the_summary_says_what_went(old: Store, engine: AsyncEngine) -> None:
    """The seal over a dropped month counts what was in it, and from when to when it was."""
    await drop(old, 2)
    async with engine.connect() as connection:
        found = await connection.execute(
            text(
                "SELECT document->'dropped'->'decisions' AS dropped, document->'summary' AS summary FROM "
                "(SELECT convert_from(document, 'UTF8')::jsonb AS document FROM seals) AS s "
                "WHERE document->'dropped'->'decisions'->>'part' = 'decisions_old'"
            )
        )
        row = found.one()
    assert row.summary == {"gpu_hardware restart monitor": 2}
    assert (row.dropped["rows"], row.dropped["oldest"][:10], row.dropped["newest"][:10]) == (
        2,
        "2026-11-01",
        "2026-11-02",
    )


async def test_tampering_with_what_is_left_is_found_after_a_drop(old: Store, engine: AsyncEngine) -> None:
    """A row of a kept month that is changed or deleted, or a dropped one that comes back, is found as before."""
    await drop(old, 2)
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text("UPDATE decisions SET category = 'none'"))
        await connection.execute(text("DELETE FROM blobs WHERE hash = (SELECT inputs_hash FROM decisions)"))
        columns = "id, at, who, what, why, origin, cluster, subject, detail"
        await connection.execute(
            text(
                f"INSERT INTO audit (seq, {columns}) OVERRIDING SYSTEM VALUE "
                "VALUES (2, gen_random_uuid(), now(), 'root', '', '', '', '', '', '{}')"
            )
        )
    wrong, _ = await verified(engine)
    assert {(item.wrong, item.table) for item in wrong} == {
        (Wrong.ROW_CHANGED, "decisions"),
        (Wrong.ROW_MISSING, "blobs"),
        (Wrong.ROW_INSERTED, "audit"),
    }


async def test_a_month_that_was_tampered_with_is_kept(old: Store, engine: AsyncEngine) -> None:
    """Evidence of tampering is not dropped with its month."""
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text("UPDATE decisions_old SET category = 'none' WHERE seq = 1"))
    refused = [item for item in await drop(old, 2) if item.refused]
    assert [item.what for item in refused] == ["decisions_old"]
    assert "row 1 of decisions is not what was sealed" in refused[0].refused
    assert await count(engine, "decisions_old") == 2


async def test_what_is_not_sealed_or_still_watched_is_kept(old: Store, engine: AsyncEngine) -> None:
    """Rows that no seal covers, and decisions about jobs that still run, hold their month back."""
    await noted(engine, AuditEvent(at=at(5), who="ada", what="mode_set", why=""))
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE attempts SET open = true WHERE job_id = '3'"))
    held = {item.part.name: item.held_back for item in await old.history().too_old(months=2, now=NOW) if item.held_back}
    assert held.keys() == {"audit_old", "decisions_2027_01"}
    await drop(old, 2)
    assert await count(engine, "decisions") == 2
    assert (await verified(engine))[0] == []


async def test_a_month_that_another_replica_has_dropped_is_no_lack(old: Store) -> None:
    """Each looks once a day, at the same hour where they were started together: one of them comes second."""
    history = old.history()
    ground = history.ground(who="root", origin="", why="", key=KEY, now=NOW)
    chosen = [item for item in await history.too_old(months=2, now=NOW) if item.part.table == "decisions"]
    assert sum([await history.drop(item, ground) for item in chosen]) == 3
    with capture_logs() as told:
        assert [await history.drop(item, ground) for item in chosen] == [0] * len(chosen)
    assert told == []


@pytest.mark.parametrize(
    ("held", "dropped", "left"),
    [
        ("decisions_old", "decisions_old", ["decisions_2026_12", "decisions_2027_01"]),  # waits for its bounds
        ("attempts", "decisions_2027_01", ["decisions_old", "decisions_2026_12"]),  # knows them, and counts another
    ],
)
async def test_a_month_that_another_replica_drops_while_we_look_is_no_lack(
    old: Store, engine: AsyncEngine, held: str, dropped: str, left: list[str]
) -> None:
    """The others are told of, and no table is missed."""
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = cast(:name AS regclass)")
    with capture_logs() as told:
        async with engine.begin() as dropping:
            await dropping.execute(text(f"LOCK TABLE {held}"))
            looking = asyncio.create_task(old.history().too_old(months=2, now=NOW))
            async with asyncio.timeout(10), engine.connect() as seeing:
                while not await seeing.scalar(waits, {"name": held}):
                    assert not looking.done(), looking
                    await asyncio.sleep(0)
            await dropping.execute(text(f"DROP TABLE {dropped} CASCADE"))
        found = [item.part.name for item in await looking if item.part.table == "decisions"]
    assert found == left
    assert told == []


async def test_content_that_is_used_again_stays(old: Store, engine: AsyncEngine) -> None:
    """A decision that comes between the look and the deletion keeps its content, whoever commits first."""
    ground = old.history().ground(who="root", origin="", why="", key=KEY, now=NOW)
    for chosen in await old.history().too_old(months=2, now=NOW):
        await old.history().drop(chosen, ground)
    async with engine.connect() as connection:
        unused, decided_before = await retention.unreferred_blobs(connection, retention.horizon(2, NOW))
    assert len(unused) == 3
    again = await report(old, seen(job_id="9", submitted_at=NOW, started_at=NOW, observed_at=NOW), complete=False)
    await old.commit_decision(record(again.changed[0], created_at=NOW, inputs=b'{"snapshot":"1"}'))
    async with engine.begin() as connection:
        assert await retention.drop_blobs(connection, unused, decided_before, ground) == 0
    await drop(old, 2)
    assert await count(engine, "decisions d JOIN blobs b ON b.hash = d.inputs_hash") == 2


async def test_a_commit_during_the_deletion_writes_its_content_again(old: Store, engine: AsyncEngine) -> None:
    """A commit that waits for the deletion of the very content that it needs ends with it in place."""
    ground = old.history().ground(who="root", origin="", why="", key=KEY, now=NOW)
    for chosen in await old.history().too_old(months=2, now=NOW):
        await old.history().drop(chosen, ground)
    again = await report(old, seen(job_id="9", submitted_at=NOW, started_at=NOW, observed_at=NOW), complete=False)
    async with engine.begin() as connection:
        unused, decided_before = await retention.unreferred_blobs(connection, retention.horizon(2, NOW))
        assert await retention.drop_blobs(connection, unused, decided_before, ground) == 3
        commit = asyncio.create_task(
            old.commit_decision(record(again.changed[0], created_at=NOW, inputs=b'{"snapshot":"1"}'))
        )
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'blobs'::regclass AND NOT granted"
        async with asyncio.timeout(10):
            while not (await connection.execute(text(waiting))).scalar_one():  # noqa: ASYNC110 - only Postgres knows
                await asyncio.sleep(0.01)
    await commit
    assert await count(engine, "decisions d JOIN blobs b ON b.hash = d.inputs_hash") == 2


async def test_months_are_made_before_they_begin(store: Store, engine: AsyncEngine) -> None:
    """This month and the next two are there, once; rows of a month that nobody foresaw stay in the rest."""
    made = await store.history().months_ahead(NOW)
    assert "decisions_2027_06" in made
    assert await store.history().months_ahead(NOW) == ()
    far = datetime(2027, 8, 2, tzinfo=UTC)
    await noted(engine, AuditEvent(at=far, who="ada", what="mode_set", why=""))
    assert await count(engine, "audit_rest") == 1
    made = await store.history().months_ahead(far)
    assert "audit_2027_08" not in made
    assert "audit_2027_09" in made


@pytest.mark.parametrize("last", [False, True], ids=["beside a row that goes", "in a seal of which nothing is left"])
async def test_a_row_that_was_deleted_is_missed_after_its_month_has_gone(
    old: Store, engine: AsyncEngine, *, last: bool
) -> None:
    """Retention takes away what is there, and not the word of its seal that there was more."""
    await old.history().months_ahead(NOW)
    for who in ("ada", "grace"):
        await noted(engine, AuditEvent(at=at(7), who=who, what="mode_set", why=""))
    await seal(old, datetime(2027, 3, 11, tzinfo=UTC))
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        row = await connection.execute(text("DELETE FROM audit WHERE who = 'ada' RETURNING seq"))
        seq = row.scalar_one()
    if last:
        await drop(old, 2)
    await drop(old, 2)
    assert await count(engine, "audit WHERE who = 'grace'") == 0
    wrong, _ = await verified(engine)
    assert [(item.wrong, item.table, item.row) for item in wrong] == [(Wrong.ROW_MISSING, "audit", seq)]
