"""How a made history is written into a real store: moments are seconds before NOW."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from advisor.core.document import analysis_document
from advisor.core.model import (
    Attempt,
    Attribution,
    Decision,
    Hypothesis,
    Implication,
    Incident,
    Isolation,
    Job,
    Progress,
    Signal,
    Snapshot,
    SourceReport,
    Unavailable,
)
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    IncidentKind,
    Mode,
    Reason,
    Role,
    Trust,
    UnavailableReason,
)
from advisor.store.records import (
    AttemptKey,
    DecisionRecord,
    DetectorState,
    ObservedJob,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.store import Store

NOW = datetime(2026, 11, 29, 3, 12, 20, tzinfo=UTC)
CLUSTER = "alps"
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SAID = ReconciliationStatus
WHY = ReconciliationReason


def before(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def node_name(number: int) -> str:
    return f"gpu{number:04d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One failure and what was made of it."""

    category: Category
    cause: str
    kind: IncidentKind = IncidentKind.CRASH
    action: Action = Action.RESTART
    reason: Reason = Reason.NODES_IMPLICATED
    mode: Mode = Mode.MONITOR
    nodes: tuple[str, ...] = ()
    lines: tuple[tuple[Role, Trust, str], ...] = ()
    why: str = ""
    confidence: float = 0.97
    alternatives: tuple[Hypothesis, ...] = ()


async def observe(store: Store, *jobs: ObservedJob) -> AttemptKey:
    at = max(job.observed_at for job in jobs)
    recorded = await store.record_observations(CLUSTER, jobs, (), complete=False, now=at)
    return recorded.changed[0]


def job(
    job_id: str,
    user: str,
    name: str,
    *,
    attempt: int = 0,
    state: AttemptState,
    since: float,
    until: float | None = None,
    nodes: Sequence[str],
    partition: str = "train",
) -> ObservedJob:
    """One attempt that started `since` seconds before NOW, and ended `until` before it."""
    return ObservedJob(
        job_id=job_id,
        attempt=attempt,
        submitted_at=before(since + 30),
        user=user,
        state=state,
        observed_at=before(until if until is not None else since - 1),
        started_at=before(since),
        ended_at=before(until) if until is not None else None,
        nodes=tuple(nodes),
        nodes_requested=len(nodes),
        tasks=8 * len(nodes),
        partition=partition,
        account="research",
        name=name,
        stdout_path=f"/scratch/{user}/{job_id}.out",
        in_scope=True,
        requeueable=True,
        batch=True,
        user_id=1001,
    )


async def progressed(
    store: Store, key: AttemptKey, *, first: int, last: int, since: float, until: float, every: int = 500
) -> None:
    """Steps from `first` to `last`, with checkpoints on the way."""
    saved = tuple(step for step in range(first - first % every + every, last + 1, every))
    progress = Progress(
        first_step=first,
        last_step=last,
        first_at=before(since),
        last_at=before(until),
        checkpoint_step=saved[-1] if saved else first,
        checkpoints=saved[-12:],
        interval_seconds=(since - until) / max(last - first, 1),
    )
    await store.save_states({key: DetectorState(state=b"{}", progress=progress)})


def signals_of(told: Told, at: float) -> tuple[Signal, ...]:
    found = []
    for number, (role, trust, text) in enumerate(told.lines):
        trusted = trust is not Trust.LOG
        found.append(
            Signal(
                id=f"s{number}",
                rule="nvidia.xid.79"
                if trusted
                else "torch.nccl.timeout"
                if role is Role.SYMPTOM
                else "python.traceback",
                trust=trust,
                source="kernel" if trusted else "job-output",
                seen_at=before(at - number),
                at=before(at - number),
                rank=None if trusted else 3 + number,
                nodes=told.nodes[:1] if trusted or role is Role.INITIATING else (),
                file=f"/var/log/kernel/{told.nodes[0]}.log" if trusted and told.nodes else "/scratch/alice/4711.out",
                line=812 + 7 * number,
                text=text,
                role=role,
                category=told.category,
                count=1 if number == 0 else 14,
            )
        )
    return tuple(found)


def decision_of(told: Told, at: float) -> Decision:
    signals = signals_of(told, at)
    trusted = any(signal.trust is not Trust.LOG for signal in signals)
    return Decision(
        action=told.action,
        reason=told.reason,
        mode=told.mode,
        incident=Incident(
            kind=told.kind,
            signals=signals,
            visible_at=before(at),
            detected_at=before(at - 1),
            ended=True,
            summary=told.cause,
        ),
        attribution=Attribution(
            category=told.category,
            root_cause=told.cause,
            confidence=told.confidence,
            nodes=told.nodes,
            ranks=(3,) if told.nodes else (),
            evidence=tuple(signal.id for signal in signals),
            alternatives=told.alternatives,
            implications=tuple(
                Implication(
                    node=node,
                    weight=0.95 if trusted else 0.4,
                    trust=signals[0].trust if signals else Trust.LOG,
                    role=Role.INITIATING,
                    category=told.category,
                    rule=signals[0].rule if signals else "",
                )
                for node in told.nodes
            ),
            trusted=trusted,
            fingerprint="seen",
        ),
        isolation=Isolation(exclude_for_job=told.nodes if told.action is Action.RESTART else ()),
        explanation=told.why or f"{told.action.value.capitalize()}: {told.cause}.",
    )


async def decide(store: Store, key: AttemptKey, told: Told, *, at: float, progress: Progress | None = None) -> str:
    """A decision `at` seconds before NOW; its id."""
    return (await store.commit_decision(decision_record(key, told, at=at, progress=progress))).decision_id


def decision_record(key: AttemptKey, told: Told, *, at: float, progress: Progress | None = None) -> DecisionRecord:
    decision = decision_of(told, at + 4)
    snapshot = Snapshot(
        job=Job(key=key.job_key, cluster=CLUSTER, job_id="", user=""),
        attempt=Attempt(number=key.number, state=AttemptState.FAILED),
        signals=decision.incident.signals,
        progress=progress or Progress(),
        sources=(
            SourceReport(source="job-output", trust=Trust.LOG, lines=48_211, newest_at=before(at)),
            SourceReport(source="kernel", trust=Trust.KERNEL, lines=310, foreign=2, newest_at=before(at)),
            SourceReport(
                source="dcgm",
                trust=Trust.TELEMETRY,
                unavailable=Unavailable(
                    source="dcgm", reason=UnavailableReason.TIMEOUT, detail="prometheus:9090 did not answer within 5 s"
                ),
            ),
        ),
    )
    return DecisionRecord(
        key=key,
        seen_generation=0,
        decision=decision,
        analysis_json=json.dumps(analysis_document(decision, snapshot)),
        inputs=b'{"snapshot":1}',
        rules=b'{"rules":1}',
        policy=b'{"policy":1}',
        build="0.1.0+4f1c2a9d",
        created_at=before(at),
        time_to_live=timedelta(hours=12),
    )


async def answer(
    store: Store,
    decision_id: str,
    status: ReconciliationStatus,
    reason: ReconciliationReason,
    *,
    at: float,
    detail: str = "",
) -> None:
    news = Reconciliation(status=status, reason=reason, at=before(at), detail=detail)
    await store.record_reconciliation(decision_id, news, who="agent@ctl1")
