"""A store that may have forgotten something begins anew by itself, whatever way it came to that."""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from advisor.clock import SystemClock
from advisor.commands import store as commands
from advisor.core.modes import Pause
from advisor.store.errors import Conflict, NotPrimary
from advisor.store.hints import Hints
from advisor.store.ids import new_id
from advisor.store.leases import Newcomer
from advisor.store.migrate import migrate, newest_revision
from advisor.store.records import Reconciliation, ReconciliationReason, ReconciliationStatus
from advisor.store.store import Store
from tests.integration.postgres_trouble.servers import Server
from tests.integration.store.worlds import CLUSTER, at, record, register, running

pytestmark = pytest.mark.postgres

NEWCOMER = new_id(at(0))


def _both(first: Server, second: Server) -> str:
    hosts = f"host=127.0.0.1:{first.port}&host=127.0.0.1:{second.port}"
    return f"postgresql+psycopg://advisor@/advisor?{hosts}&target_session_attrs=read-write"


def _dsn(server: Server) -> Path:
    """A file that names the server's database, as the commands take it."""
    file = server.folder / "dsn"
    file.write_text(server.url())
    file.chmod(0o600)
    return file


async def _retried(store: Store, seconds: float = 20.0) -> float:
    """How long it took until the store answered again."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(seconds):
        while True:
            try:
                await store.expire_advice(at(0))
            except OperationalError:
                await asyncio.sleep(0.05)
            else:
                return asyncio.get_running_loop().time() - began


async def test_a_promoted_standby_is_another_incarnation(primary: Server, standby: Server) -> None:
    """The open store finds the promoted standby, begins anew, and leaves nothing open that was decided before."""
    store = await Store.open(_both(primary, standby))
    try:
        before = store.incarnation
        key = await running(store)
        await store.commit_decision(record(key))
        primary.wait(
            lambda: primary.query("SELECT pg_current_wal_lsn() = replay_lsn FROM pg_stat_replication") == [(True,)]
        )
        assert [row.generation for row in await store.open_advice(CLUSTER, at(30))] == [1]
        primary.kill()
        standby.promote()
        seconds = await _retried(store)
        assert seconds < 15
        assert store.incarnation != before
        assert await store.open_advice(CLUSTER, at(30)) == ()
        with pytest.raises(Conflict):
            await store.commit_decision(record(key, 1))
        stored = await store.load([key], now=at(31))
        assert stored[key].ordered
        again = record(key, 1, seen_orders=stored[key].orders_count, created_at=at(31))
        assert (await store.commit_decision(again)).generation == 2
        assert standby.query("SELECT count(*) FROM incarnations") == [(2,)]
        assert await store.pauses(at(31)) == ()
    finally:
        await store.close()


async def test_forgotten_content_is_written_again(primary: Server, standby: Server) -> None:
    """What only the lost primary had of rules and policy is stored again with the next decision."""
    store = await Store.open(_both(primary, standby))
    try:
        standby.kill()  # it hears nothing of what follows
        await store.commit_decision(record(await running(store)))
        primary.kill()
        standby.start()
        standby.promote()
        await _retried(store)
        assert standby.query("SELECT count(*) FROM blobs") == [(0,)]
        await store.commit_decision(record(await running(store, job_id="9")))
        assert standby.query("SELECT count(*) FROM blobs") == [(3,)]
    finally:
        await store.close()


async def test_a_standby_is_refused_in_one_sentence(primary: Server, standby: Server) -> None:
    """Somebody who names the standby by mistake is told so, and nothing is written or waited for."""
    for opening in (Store.open(standby.url()), migrate(standby.url())):
        with pytest.raises((NotPrimary, OperationalError), match="target_session_attrs=read-write"):
            await opening


@pytest.mark.long
async def test_a_primary_that_is_frozen_is_left(primary: Server, standby: Server) -> None:
    """A server that neither answers nor ends its connections holds nobody up for longer than one unit of work."""
    store = await Store.open(_both(primary, standby), unit_seconds=1.0)
    key = await running(store)
    primary.wait(
        lambda: primary.query("SELECT pg_current_wal_lsn() = replay_lsn FROM pg_stat_replication") == [(True,)]
    )
    primary.freeze()
    with pytest.raises(OperationalError):
        await store.expire_advice(at(0))
    standby.promote()
    assert await _retried(store) < 20
    primary.kill()
    assert (await store.load([key], now=at(20))).keys() == {key}
    await store.close()


async def test_a_dump_in_the_same_server_begins_anew_and_paused(primary: Server) -> None:
    """A restored dump is another database: nothing of it is acted on before somebody has looked."""
    store = await Store.open(primary.url())
    key = await running(store)
    await store.commit_decision(record(key))
    before = store.incarnation
    await register(store, now=at(22))
    await store.close()
    dump = str(primary.data / "advisor.dump")
    primary.run("pg_dump", *primary.address, "-Fc", "-f", dump, "advisor")
    primary.query("CREATE DATABASE restored", database="postgres")
    primary.run("pg_restore", *primary.address, "-d", "restored", dump)
    restored = await Store.open(primary.url("restored"))
    try:
        assert restored.incarnation != before
        assert await restored.open_advice(CLUSTER, at(30)) == ()
        (paused,) = await restored.pauses(at(30))
        assert (paused.cluster, paused.set_by) == ("", "advisor")
        assert "restored" in paused.why
    finally:
        await restored.close()


async def test_a_dump_restored_in_place_begins_anew_and_paused_while_the_service_runs(primary: Server) -> None:
    """The command empties the open store's own database: the next tick finds the backup there, and stands still."""
    store = await Store.open(primary.url())
    try:
        key = await running(store)
        await store.commit_decision(record(key))
        dump = primary.folder / "advisor.dump"
        commands.dump(dump, dsn_file=_dsn(primary), configuration=None)
        before = store.incarnation
        restored = before
        for again in (1, 2):
            commands.restore(dump, yes=True, dsn_file=_dsn(primary), configuration=None)
            await store.expire_advice(at(25))
            assert store.incarnation not in {before, restored}
            restored = store.incarnation
            assert await store.open_advice(CLUSTER, at(30)) == ()
            (paused,) = await store.pauses(at(30))
            assert (paused.cluster, paused.set_by) == ("", "advisor")
            assert "restored in place" in paused.why
            await store.expire_advice(at(26 + again))
            assert store.incarnation == restored
            assert primary.query("SELECT count(*) FROM incarnations") == [(2,)]
    finally:
        await store.close()


async def test_the_pause_names_the_backups_age(primary: Server) -> None:
    """What was ordered after the dump is forgotten: agents that were heard since do not make it newer."""
    store = await Store.open(primary.url())
    try:
        await register(store, now=_now())
        (agent,) = await store.agents()
        await store.replicas.join(_newcomer(), lease=timedelta(seconds=10))
        assert await store.replicas.renew(NEWCOMER, lease=timedelta(seconds=10), tick_age=timedelta(), stuck=False)
        dump = primary.folder / "advisor.dump"
        commands.dump(dump, dsn_file=_aged(primary, minutes=125), configuration=None)
        await store.expire_advice(_now())
        began = _now()
        commands.restore(dump, yes=True, dsn_file=_dsn(primary), configuration=None)
        assert await store.heartbeat(cluster=CLUSTER, session=agent.session, mode=agent.mode, now=_now())
        assert await store.replicas.renew(NEWCOMER, lease=timedelta(seconds=10), tick_age=timedelta(), stuck=False)
        await store.expire_advice(_now())
        (paused,) = await store.pauses(_now())
        assert began - timedelta(minutes=126) < _named(paused.why) < began - timedelta(minutes=124)
    finally:
        await store.close()


async def test_the_pause_names_the_age_of_a_folder_that_was_copied_back(primary: Server) -> None:
    """Whoever says so, or an agent that knows better, comes when the service has heard agents since."""
    store = await Store.open(primary.url())
    key = await running(store)
    first = await store.commit_decision(record(key))
    await register(store, now=_now())
    await store.close()
    _aged(primary, minutes=125)
    primary.stop()
    primary.start()
    began = _now()
    store = await Store.open(primary.url())
    try:
        await register(store, now=_now())
        said = Reconciliation(
            status=ReconciliationStatus.SUPERSEDED,
            reason=ReconciliationReason.NEWER_GENERATION,
            detail="generation 5",
            at=_now(),
        )
        await store.record_reconciliation(first.decision_id, said, who="agent alps")
        (paused,) = await store.pauses(_now())
        assert began - timedelta(minutes=126) < _named(paused.why) < began - timedelta(minutes=124)
    finally:
        await store.close()


async def test_replicas_of_before_the_restore_are_not_missed(primary: Server) -> None:
    """Those of the dump ended long ago, somewhere: nobody looks for them, their jobs are free, and who lives lives."""
    store = await Store.open(primary.url())
    try:
        key = await running(store)
        former = _newcomer()
        await store.replicas.join(former, lease=timedelta(seconds=10))
        turn = await store.replicas.take_turn(former.replica_id, {}, now=at(25), lease=timedelta(seconds=10))
        assert turn.keys == (key,)
        dump = primary.folder / "advisor.dump"
        commands.dump(dump, dsn_file=_aged(primary, minutes=125), configuration=None)
        commands.restore(dump, yes=True, dsn_file=_dsn(primary), configuration=None)
        living = replace(former, replica_id=new_id(at(0)), host="elsewhere")
        await store.replicas.join(living, lease=timedelta(seconds=10))
        await store.expire_advice(at(26))
        turn = await store.replicas.take_turn(living.replica_id, {}, now=at(27), lease=timedelta(seconds=10))
        assert turn.keys == (key,)
        found = {item.replica_id: item for item in await store.replicas.known()}
        assert found[living.replica_id].alive
        assert found[former.replica_id].ended_at is not None
        assert [item.lost_since for item in found.values()] == [None, None]
    finally:
        await store.close()


def _now() -> datetime:
    return SystemClock().now()


def _newcomer() -> Newcomer:
    return Newcomer(replica_id=NEWCOMER, host="ctl1", pid=1, place="", version="1", build="b", schema=newest_revision())


def _aged(server: Server, *, minutes: int) -> Path:
    """All that it tells was so long ago."""
    ago = f"- interval '{minutes} min'"
    server.query(f"UPDATE agents SET last_seen_at = now() {ago}, registered_at = now() {ago}")
    server.query(f"UPDATE replicas SET ticked_at = now() {ago}, until = now() {ago}, started_at = now() {ago}")
    server.query(
        "SET session_replication_role = replica; "
        f"UPDATE audit SET at = now() {ago}; UPDATE incarnations SET created_at = now() {ago}"
    )
    return _dsn(server)


def _named(why: str) -> datetime:
    """The moment that a pause tells of."""
    found = re.search(r"[0-9-]{10} [0-9:]{8} UTC", why)
    assert found is not None, why
    return datetime.strptime(found[0], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)


async def test_a_new_incarnation_by_hand_is_paused_unless_somebody_knows_better(server: Server) -> None:
    """Whoever says that a disk was copied back gets the pause of every other restore, and may decline it."""
    store = await Store.open(server.url())
    try:
        for paused in (False, True):
            await asyncio.to_thread(
                commands.new_incarnation, why="disk of Tuesday", pause=paused, dsn_file=_dsn(server), configuration=None
            )
            before = store.incarnation
            await store.expire_advice(at(25))
            assert store.incarnation != before
            assert ["disk of Tuesday" in held.why for held in await store.pauses(at(30))] == [True] * paused
    finally:
        await store.close()


async def test_an_agent_that_knows_better_gives_a_copied_folder_away(primary: Server) -> None:
    """A data folder that was copied back looks untouched; the mark on a job shows a generation that is not there."""
    store = await Store.open(primary.url())
    try:
        key = await running(store)
        first = await store.commit_decision(record(key))
        before = store.incarnation
        said = Reconciliation(
            status=ReconciliationStatus.SUPERSEDED,
            reason=ReconciliationReason.NEWER_GENERATION,
            detail="generation 5",
            at=at(40),
        )
        await store.record_reconciliation(first.decision_id, said, who="agent alps")
        assert store.incarnation != before
        (paused,) = await store.pauses(at(41))
        assert "generation 5" in paused.why
    finally:
        await store.close()


async def test_what_an_agent_says_of_many_jobs_begins_one_incarnation(primary: Server) -> None:
    """It knows better about each job that it holds, all at once, while they are decided on: one proof is enough, and
    none waits in a circle with a commit."""
    store, other = await Store.open(primary.url()), await Store.open(primary.url())
    try:
        keys = [await running(store, job_id=str(100 + number)) for number in range(6)]
        made = [await store.commit_decision(record(key)) for key in keys]
        said = Reconciliation(
            status=ReconciliationStatus.SUPERSEDED,
            reason=ReconciliationReason.NEWER_GENERATION,
            detail="generation 5",
            at=at(40),
        )
        again = [record(key, 1, inputs=b"{}") for key in keys]
        await asyncio.gather(
            *(store.record_reconciliation(item.decision_id, said, who="agent alps") for item in made),
            *(other.commit_decisions([one]) for one in again),
        )
        assert primary.query("SELECT count(*) FROM incarnations") == [(2,)]
    finally:
        await store.close()
        await other.close()


async def test_a_dsn_that_names_another_server_is_followed(primary: Server, standby: Server) -> None:
    """Whoever fails over writes another DSN: the next connection goes there, and a standby is not written to."""
    named = [primary.url()]
    store = await Store.open(primary.url(), read_url=lambda: named[0])
    try:
        before = store.incarnation
        await store.expire_advice(at(0))
        primary.kill()
        named[0] = standby.url()
        with pytest.raises(OperationalError):
            await store.expire_advice(at(0))
        with pytest.raises(OperationalError, match="a standby answers, and it is read-only"):
            await store.expire_advice(at(0))
        standby.promote()
        assert await _retried(store) < 20
        assert store.incarnation != before
    finally:
        await store.close()


async def test_a_dsn_is_followed_though_the_former_server_lives(primary: Server, standby: Server) -> None:
    """A backup was restored elsewhere: what is decided in the former database is in no audit, and no pause holds there.
    Within a second nothing goes there any more, whatever connections there are, nor is a hint awaited there."""
    standby.promote()
    named, heard = [primary.url()], asyncio.Queue[str]()
    store = await Store.open(primary.url(), read_url=lambda: named[0])
    hints = Hints(lambda: named[0].replace("+psycopg", ""), "one", store.replicas.hint)
    listening = asyncio.create_task(hints.listen(heard.put_nowait))
    try:
        before = store.incarnation
        await asyncio.gather(*(store.pauses(at(0)) for _ in range(4)))
        named[0] = standby.url()
        await asyncio.sleep(1.1)
        for _ in range(4):
            await store.pause(_everywhere(), who="eve", origin="", now=at(1))
        assert primary.query("SELECT count(*) FROM pauses WHERE set_by = 'eve'") == [(0,)]
        assert standby.query("SELECT count(*) FROM pauses WHERE set_by = 'eve'") == [(1,)]
        await store.due(at(2))
        assert store.incarnation != before
        async with asyncio.timeout(20):
            while heard.empty():
                standby.query("SELECT pg_notify('advisor_hints', 'tick two')")
                await asyncio.sleep(0.2)
    finally:
        listening.cancel()
        await store.close()


def _everywhere() -> Pause:
    return Pause(cluster="", until=at(9_000), set_by="eve", why="so", set_at=at(1))
