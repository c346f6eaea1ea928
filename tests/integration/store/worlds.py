"""Small worlds for the store's tests: observations and decisions with everything that a test does not care about."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from advisor.core.model import (
    Attribution,
    Decision,
    Implication,
    Incident,
    Isolation,
    Signal,
)
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Reason, Role, Trust
from advisor.store.audit_log import append
from advisor.store.incarnation import begin_incarnation
from advisor.store.records import AgentMode, AttemptKey, AuditEvent, DecisionRecord, ObservedJob
from advisor.store.store import Store

T0 = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
CLUSTER = "alps"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def seen(state: AttemptState = AttemptState.RUNNING, **changes: Any) -> ObservedJob:
    """Job 7 of ada: attempt 0, submitted at T0, on four nodes, seen ten seconds later."""
    job = ObservedJob(
        job_id="7",
        attempt=0,
        submitted_at=T0,
        user="ada",
        state=state,
        observed_at=at(10),
        started_at=at(5),
        nodes=("node1", "node2", "node3", "node4"),
        nodes_requested=4,
        tasks=32,
        partition="gpu",
        account="physics",
        name="train",
        stdout_path="/home/ada/out.log",
        job_rules="/home/ada/rules.json",
        in_scope=True,
        requeueable=True,
        batch=True,
        user_id=1001,
        nodes_fitting=8,
    )
    return replace(job, **changes)


def pending(**changes: Any) -> ObservedJob:
    return seen(AttemptState.PENDING, nodes=(), started_at=None, **changes)


async def report(store: Store, *jobs: ObservedJob, complete: bool = True, now: datetime | None = None) -> Any:
    return await store.record_observations(
        CLUSTER, jobs, (), complete=complete, now=now or max((job.observed_at for job in jobs), default=at(0))
    )


async def register(store: Store, *, now: datetime, job_memory: timedelta | None = None) -> None:
    """An agent that may act, of whose scheduler nothing else is known."""
    await store.register_agent(
        cluster=CLUSTER,
        host="ctl",
        version="1",
        mode=AgentMode.ACT,
        scheduler="slurm",
        requeue_delay=None,
        job_memory=job_memory,
        missing_rights=(),
        now=now,
    )


async def noted(engine: AsyncEngine, event: AuditEvent) -> None:
    """As the log of who did what has it."""
    async with engine.begin() as connection:
        await append(connection, event)


async def restored(store: Store, url: str) -> str:
    """Somebody says that the database was put back, and the next tick sees it. Returns the incarnation that began."""
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        began = await begin_incarnation(connection, who="root", why="restored", now=at(0), paused=True)
    await engine.dispose()
    await store.due(at(0))
    return began.id


async def running(store: Store, **changes: Any) -> AttemptKey:
    """A running attempt's key."""
    recorded = await report(store, seen(**changes), complete=False)
    key: AttemptKey = recorded.changed[0]
    return key


def signal(name: str = "s1", **changes: Any) -> Signal:
    values: dict[str, Any] = {
        "id": name,
        "rule": "nvidia.xid",
        "trust": Trust.KERNEL,
        "source": "kernel",
        "seen_at": at(20),
        "at": at(19),
        "nodes": ("node2",),
        "text": "NVRM: Xid 79",
    }
    return Signal(**(values | changes))


def decision(**changes: Any) -> Decision:
    """Restart without node2, which trusted evidence names."""
    blamed = signal()
    made = Decision(
        action=Action.RESTART,
        reason=Reason.NODES_IMPLICATED,
        incident=Incident(
            kind=IncidentKind.CRASH,
            signals=(signal("s0", rule="nccl.timeout", trust=Trust.LOG), blamed),
            visible_at=at(19),
            detected_at=at(20),
            ended=True,
        ),
        attribution=Attribution(
            category=Category.GPU_HARDWARE,
            root_cause="GPU 3 of node2 fell off the bus",
            confidence=0.95,
            nodes=("node2",),
            evidence=(blamed.id,),
            implications=(implication("node2"),),
            trusted=True,
            fingerprint="xid79",
        ),
        isolation=Isolation(exclude_for_job=("node2",)),
        explanation="node2's GPU is gone",
    )
    return replace(made, **changes)


def healthy() -> Decision:
    return Decision(
        action=Action.NONE,
        reason=Reason.HEALTHY,
        incident=Incident(kind=IncidentKind.NONE),
        attribution=Attribution(category=Category.NONE, root_cause="", confidence=1.0),
        isolation=Isolation(),
    )


def implication(node: str, weight: float = 0.95) -> Implication:
    return Implication(
        node=node,
        weight=weight,
        trust=Trust.KERNEL,
        role=Role.INITIATING,
        category=Category.GPU_HARDWARE,
        rule="nvidia.xid",
    )


def record(key: AttemptKey, seen_generation: int = 0, **changes: Any) -> DecisionRecord:
    values: dict[str, Any] = {
        "decision": decision(),
        "analysis_json": '{"schema":"advisor.analysis/1"}',
        "inputs": b'{"snapshot":1}',
        "rules": b'{"rules":1}',
        "policy": b'{"policy":1}',
        "build": "test-1",
        "created_at": at(21),
        "time_to_live": timedelta(seconds=240),
    }
    return DecisionRecord(key=key, seen_generation=seen_generation, **(values | changes))


@contextlib.contextmanager
def begun_in_turn(url: str) -> Iterator[list[psycopg.Connection[Any]]]:
    """Four transactions that began one after the other: the numbers of the first and the last have the sum of those of
    the other two.
    """
    with contextlib.ExitStack() as stack:
        opened = (psycopg.connect(url.replace("+psycopg", ""), options="-c lock_timeout=5000") for _ in range(4))
        four = [stack.enter_context(connection) for connection in opened]
        for one in four:
            one.execute("SELECT pg_current_xact_id()")
        yield four
