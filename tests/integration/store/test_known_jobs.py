"""Reports that say what was said before: skipped where nothing else has changed, and never believed beyond that."""

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.core.model import ExitStatus
from advisor.core.words import AttemptState, NodeState
from advisor.store.known_jobs import JobBook, compared
from advisor.store.node_states import node_rows
from advisor.store.observations import record_observations
from advisor.store.records import Notice, ObservedJob, ObservedNode
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, pending, report, running, seen

pytestmark = pytest.mark.postgres


async def rows(url: str, cluster: str = CLUSTER) -> list[Any]:
    """What is stored of jobs and attempts, apart from keys."""
    engine = create_async_engine(url)
    statement = text(
        "SELECT j.slot, j.name, j.last_number, j.last_seen_at, j.forgotten_at, a.number, a.state, a.submitted_at,"
        " a.observed_at, a.held, a.pending_reason, a.ended_at, a.exit_code, a.over_seen_at, a.nodes, i.restarts"
        " FROM jobs j JOIN attempts a ON a.job_key = j.key"
        " LEFT JOIN identities i ON i.job_key = a.job_key AND i.number = a.number"
        " WHERE j.cluster = :cluster ORDER BY j.slot, j.first_seen_at, j.key, a.number, i.restarts, i.submitted_at"
    )
    async with engine.connect() as connection:
        found = [tuple(row) for row in await connection.execute(statement, {"cluster": cluster})]
    await engine.dispose()
    return found


async def test_what_was_said_before_is_skipped(url: str, store: Store) -> None:
    """An observation that has changed nothing is not worked in again, until its sighting is due or it says more."""
    book, engine, job = JobBook(), create_async_engine(url), seen()
    for second in (10, 11):
        async with engine.begin() as connection:
            now = at(second)
            jobs = [replace(job, observed_at=now)]
            _, learned = await record_observations(
                connection, CLUSTER, jobs, (), complete=True, now=now, nodes_known=node_rows(), jobs_known=book
            )
        book.keep(learned)

    async def worked_in(job: ObservedJob) -> int:
        async with engine.begin() as connection:
            return len((await compared(connection, CLUSTER, [job], book, job.observed_at)).others)

    assert await worked_in(replace(job, observed_at=at(12))) == 0
    assert await worked_in(replace(job, observed_at=at(12), held=True)) == 1
    assert await worked_in(replace(job, observed_at=at(9))) == 1
    assert await worked_in(replace(job, observed_at=at(12 + 30))) == 1
    async with engine.begin() as connection:
        assert len((await compared(connection, CLUSTER, [job, job], book, at(12))).others) == 2
        await connection.execute(text("UPDATE attempts SET last_step = 7"))  # a tick's own word is not compared with
    assert await worked_in(replace(job, observed_at=at(12))) == 0
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE attempts SET pending_reason = 'by somebody'"))
    assert await worked_in(replace(job, observed_at=at(12))) == 1
    await engine.dispose()


async def test_another_replica_reported_meanwhile(store: Store, other: Store) -> None:
    """What another replica has stored since is corrected by a report that says the same as our last one."""
    key = await running(store)
    for second in (11, 12, 13):
        await report(store, seen(observed_at=at(second)))
    await report(other, seen(observed_at=at(14), held=True))
    assert (await report(store, seen(observed_at=at(15)))).changed == (key,)
    assert not (await store.load([key], now=at(15)))[key].attempt.held


async def test_skipped_jobs_are_still_there(store: Store, other: Store) -> None:
    """A complete listing forgets what it does not name, not what it names like before; what comes back is known."""
    key = await running(store)
    for second in (11, 12, 13):
        await report(store, seen(observed_at=at(second)))
        assert not (await store.load([key], now=at(15)))[key].forgotten
    assert (await report(other, now=at(16))).changed == (key,)
    await report(store, seen(observed_at=at(17)))
    assert not (await store.load([key], now=at(17)))[key].forgotten


async def test_dropped_transaction_is_not_believed(url: str, store: Store) -> None:
    """A report whose transaction came to nothing leaves no memory of what it would have written."""
    await running(store)
    for second in (11, 12):
        await report(store, seen(observed_at=at(second)))
    bad = ObservedNode(name="n", state=NodeState.UP, observed_at=at(60), partitions=cast("tuple[str]", (None,)))
    later = seen(observed_at=at(60))  # its sighting is due
    with pytest.raises(AttributeError):
        await store.record_observations(CLUSTER, [later], [bad], complete=True, now=at(60))
    await report(store, replace(later, observed_at=at(61)))
    assert [(row.last_seen_at, row.observed_at) for row in await _sightings(url)] == [(at(61), at(61))]


async def _sightings(url: str) -> list[Any]:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = await connection.execute(
            text("SELECT j.last_seen_at, a.observed_at FROM jobs j JOIN attempts a ON a.job_key = j.key ORDER BY slot")
        )
        made = list(found)
    await engine.dispose()
    return made


async def test_sightings_go_on(url: str, store: Store) -> None:
    """However often the same is said, the stored sighting is never older than a span and a report; and of many jobs
    only a part is written by each report."""
    written = []
    before: list[Any] = []
    for second in range(10, 80, 5):
        jobs = [seen(job_id=str(number), observed_at=at(second)) for number in range(40)]
        await report(store, *jobs)
        found = await _sightings(url)
        assert all(at(second) - moment <= timedelta(seconds=35) for row in found for moment in row)
        written.append(sum(row not in before for row in found))
        before = found
    assert max(written[1:]) < 20
    assert min(written[7:]) > 0


def _story(chance: random.Random) -> list[tuple[list[ObservedJob], bool, int, int]]:
    """Reports of a few jobs that mostly stay as they are: jobs, complete, second, replica."""
    made, second = [], 0
    state: dict[str, ObservedJob] = {str(number): pending(job_id=str(number)) for number in range(4)}
    for _ in range(40):
        second += chance.choice((1, 2, 5, 5, 12))
        for name, job in state.items():
            if chance.random() < 0.25:
                state[name] = chance.choice(
                    (
                        seen(job_id=name, attempt=job.attempt, submitted_at=job.submitted_at),
                        replace(job, held=not job.held),
                        replace(job, state=AttemptState.COMPLETING),
                        replace(job, state=AttemptState.FAILED, ended_at=at(second), exit=ExitStatus(code=1)),
                        pending(job_id=name, attempt=job.attempt + 1, submitted_at=at(second)),
                        replace(job, attempt=job.attempt + 1, state=AttemptState.COMPLETING),
                        pending(job_id=name, submitted_at=at(second), user=chance.choice(("ada", "eve"))),
                        replace(job, name="train2"),
                    )
                )
        jobs = [replace(job, observed_at=at(second)) for job in state.values() if chance.random() < 0.9]
        if chance.random() < 0.15 and jobs:
            jobs.append(replace(jobs[0], notice=Notice.HOOK, submitted_at=None, exit=ExitStatus(code=0, signal=9)))
        if chance.random() < 0.1 and jobs:
            jobs.append(replace(jobs[0], state=AttemptState.RUNNING))
        made.append((jobs, chance.random() < 0.6, second, chance.choice((0, 0, 1))))
    return made


@pytest.mark.parametrize("seed", range(2))
async def test_memory_changes_nothing(url: str, store: Store, other: Store, seed: int) -> None:
    """Two replicas that remember store, after every report, what one stores that remembers nothing."""
    replicas, forgetful = (store, other), await Store.open(url)
    for jobs, complete, second, which in _story(random.Random(seed)):
        told = await replicas[which].record_observations(CLUSTER, jobs, (), complete=complete, now=at(second))
        forgetful.forget()
        plain = await forgetful.record_observations("plain", jobs, (), complete=complete, now=at(second))
        assert (told.accepted, told.refused, len(told.changed)) == (plain.accepted, plain.refused, len(plain.changed))
        assert await rows(url) == await rows(url, "plain")
    await forgetful.close()
