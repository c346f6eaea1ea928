"""Agents, modes, and what the store says in logs and errors."""

from datetime import timedelta

import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.modes import ModeSetting, Subject, effective_mode
from advisor.core.words import Mode
from advisor.store.errors import NotFound
from advisor.store.records import AgentMode, AuditEvent, StopFile, StoredAgent
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, noted, running, seen

pytestmark = pytest.mark.postgres


async def registered(store: Store, host: str = "ctl1") -> StoredAgent:
    return await store.register_agent(
        cluster=CLUSTER,
        host=host,
        version="0.1.0",
        mode=AgentMode.OBSERVE,
        scheduler="slurm 22.05.8",
        requeue_delay=timedelta(seconds=121),
        job_memory=None,
        missing_rights=("admin_comment",),
        now=at(0),
    )


async def test_agent_registers_and_beats(store: Store) -> None:
    """A registered agent is listed as it described itself, and its heartbeat tells when it was last alive."""
    agent = await registered(store)
    assert await store.heartbeat(cluster=CLUSTER, session=agent.session, mode=AgentMode.ACT, now=at(5))
    (listed,) = await store.agents()
    assert (listed.requeue_delay, listed.job_memory) == (timedelta(seconds=121), None)
    assert (listed.mode, listed.registered_at, listed.last_seen_at) == (AgentMode.ACT, at(0), at(5))
    assert listed.missing_rights == ("admin_comment",)


async def test_a_heartbeat_says_whether_the_stop_file_is_there(store: Store) -> None:
    """Why and since when, if that is known; gone with the next one that does not name it."""
    agent = await registered(store)
    for said in (StopFile(why="/etc/stop is there", since=at(1)), StopFile(why="/etc/stop: noon"), None):
        beat = {"cluster": CLUSTER, "session": agent.session, "mode": AgentMode.ACT}
        assert await store.heartbeat(**beat, now=at(5), stop_file=said)
        (listed,) = await store.agents()
        assert listed.stop_file == said


async def test_new_session_replaces_the_old_one(store: Store) -> None:
    """After an agent registered again its former session is not known, and it is listed once."""
    first = await registered(store)
    second = await registered(store)
    assert not await store.heartbeat(cluster=CLUSTER, session=first.session, mode=AgentMode.ACT, now=at(5))
    assert await store.heartbeat(cluster=CLUSTER, session=second.session, mode=AgentMode.ACT, now=at(5))
    assert not await store.heartbeat(cluster="other", session=second.session, mode=AgentMode.ACT, now=at(5))
    assert not await store.heartbeat(cluster=CLUSTER, session="junk", mode=AgentMode.ACT, now=at(5))
    assert len(await store.agents()) == 1


async def test_mode_is_set_and_replaced(store: Store, url: str) -> None:
    """A setting for the same fields replaces the former one; the audit keeps both, with who and why."""
    setting = ModeSetting(mode=Mode.AUTONOMOUS, cluster=CLUSTER, category="gpu_hardware")
    made = (await store.set_mode(setting, who="root", why="trial", origin="unix socket", now=at(1))).setting
    assert (made.set_by, made.why, made.set_at) == ("root", "trial", at(1))
    back = ModeSetting(mode=Mode.MONITOR, cluster=CLUSTER, category="gpu_hardware")
    replaced = (await store.set_mode(back, who="eve", why="stop it", origin="unix socket", now=at(2))).setting
    assert await store.modes() == (replaced,)
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        rows = await connection.execute(
            text("SELECT who, why, origin, detail FROM audit WHERE what = 'mode_set' ORDER BY seq")
        )
        assert [tuple(row) for row in rows] == [
            ("root", "trial", "unix socket", '{"mode": "autonomous"}'),
            ("eve", "stop it", "unix socket", '{"mode": "monitor"}'),
        ]
    await engine.dispose()


def _mode(settings: tuple[ModeSetting, ...], cluster: str, partition: str, category: str) -> Mode:
    return effective_mode(settings, Subject(cluster=cluster, partition=partition, job_id="7", category=category))


async def test_narrow_settings_win(store: Store) -> None:
    """What is stored is what `effective_mode` chooses from: the narrowest setting, monitor at a tie."""
    for mode, fields in (
        (Mode.AUTONOMOUS, {"cluster": CLUSTER}),
        (Mode.MONITOR, {"cluster": CLUSTER, "partition": "gpu"}),
        (Mode.AUTONOMOUS, {"cluster": CLUSTER, "category": "storage"}),
    ):
        setting = ModeSetting(mode=mode, **fields)
        await store.set_mode(setting, who="root", why="", origin="", now=at(1))
    settings = await store.modes()
    assert _mode(settings, CLUSTER, "cpu", "numerics") is Mode.AUTONOMOUS
    assert _mode(settings, CLUSTER, "gpu", "numerics") is Mode.MONITOR
    assert _mode(settings, CLUSTER, "gpu", "storage") is Mode.MONITOR
    assert _mode(settings, CLUSTER, "cpu", "storage") is Mode.AUTONOMOUS
    assert _mode(settings, "other", "cpu", "storage") is Mode.MONITOR


async def test_monitor_for_everything_is_a_stop(store: Store, url: str) -> None:
    """It removes every narrower autonomous setting, with an audit row for each; narrower monitors stay."""
    for mode, fields in (
        (Mode.AUTONOMOUS, {"partition": "train"}),
        (Mode.AUTONOMOUS, {"cluster": CLUSTER, "partition": "gpu", "job_id": "7", "category": "storage"}),
        (Mode.MONITOR, {"cluster": CLUSTER, "partition": "gpu"}),
    ):
        await store.set_mode(ModeSetting(mode=mode, **fields), who="root", why="", origin="", now=at(1))
    change = await store.set_mode(ModeSetting(mode=Mode.MONITOR), who="eve", why="smoke", origin="socket", now=at(2))
    assert [item.where for item in change.no_longer_autonomous] == [
        "partition train",
        f"cluster {CLUSTER}, partition gpu, job 7, category storage",
    ]
    assert {(item.mode, item.where) for item in await store.modes()} == {
        (Mode.MONITOR, "everything"),
        (Mode.MONITOR, f"cluster {CLUSTER}, partition gpu"),
    }
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        rows = await connection.execute(
            text("SELECT who, why, subject FROM audit WHERE what = 'mode_removed' ORDER BY seq")
        )
        assert [tuple(row) for row in rows] == [
            ("eve", "smoke", "*/train/*/*"),
            ("eve", "smoke", f"{CLUSTER}/gpu/7/storage"),
        ]
    await engine.dispose()


async def test_a_narrow_monitor_names_what_stays_autonomous_within_it(store: Store) -> None:
    """Narrower settings that overlap win over it and are told; wider and distinct ones are not."""
    for fields in ({"job_id": "7", "category": "storage"}, {"partition": "cpu", "job_id": "8"}, {"cluster": CLUSTER}):
        setting = ModeSetting(mode=Mode.AUTONOMOUS, **fields)
        await store.set_mode(setting, who="root", why="", origin="", now=at(1))
    monitor = ModeSetting(mode=Mode.MONITOR, partition="train")
    change = await store.set_mode(monitor, who="root", why="", origin="", now=at(2))
    assert [item.where for item in change.still_autonomous] == ["job 7, category storage"]
    assert change.no_longer_autonomous == ()


async def test_one_setting_is_removed_by_its_exact_fields(store: Store) -> None:
    """A wider or narrower one stays; without such a setting nothing is removed."""
    for fields in ({"partition": "train"}, {"partition": "train", "job_id": "7"}):
        setting = ModeSetting(mode=Mode.AUTONOMOUS, **fields)
        await store.set_mode(setting, who="root", why="", origin="", now=at(1))
    place = ModeSetting(mode=Mode.MONITOR, partition="train")
    change = await store.unset_mode(place, who="eve", why="over", origin="", now=at(2))
    assert change.setting.mode is Mode.AUTONOMOUS
    assert [item.where for item in await store.modes()] == ["partition train, job 7"]
    with pytest.raises(NotFound, match="partition train"):
        await store.unset_mode(place, who="eve", why="over", origin="", now=at(3))


async def test_what_an_agent_has_reported_is_known(store: Store) -> None:
    """Jobs by id and partition, per cluster; a name that was never seen is not known."""
    await running(store)
    (job,) = (await store.load(await store.watched(at(5)), now=at(5))).values()
    known = {"cluster": CLUSTER, "partition": job.job.partition, "job_id": job.job.job_id}
    assert await store.ever_reported(**known)
    for name in known:
        assert not await store.ever_reported(**(known | {name: "nonsense"}))
    assert not await store.ever_reported(partition="nonsense")


async def test_events_of_others_are_kept(url: str) -> None:
    """Whatever the service does on somebody's behalf can be written to the audit log."""
    engine = create_async_engine(url)
    await noted(engine, AuditEvent(at=at(0), who="root", what="paused", detail={"until": "noon"}))
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT detail FROM audit WHERE what = 'paused'"))
        assert found.scalar_one() == '{"until": "noon"}'
    await engine.dispose()


async def test_password_is_not_logged(url: str) -> None:
    """Neither the log nor an error shows the password of a DSN."""
    secret = url.replace("advisor@", "advisor:hunter2@")
    with structlog.testing.capture_logs() as logs:
        await (await Store.open(secret)).close()
    assert "hunter2" not in repr(logs)
    assert [entry["event"] for entry in logs] == ["store_opened"]
    with pytest.raises(OperationalError) as caught:
        await Store.open(secret.replace("test_", "no_such_"))
    assert "hunter2" not in str(caught.value)


async def test_users_text_is_not_in_errors(store: Store) -> None:
    """A database error shows the statement and not what was to be stored."""
    await running(store)
    with pytest.raises(DBAPIError) as caught:
        await store.record_observations(
            CLUSTER, [seen(job_id="8", attempt=2**40, name="top secret")], (), complete=False, now=at(20)
        )
    assert "top secret" not in str(caught.value)
