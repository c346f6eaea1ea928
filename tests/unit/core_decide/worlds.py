"""Values to decide on, with everything but what a test is about left at something plain."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from advisor.core.model import (
    Attempt,
    Attribution,
    Decision,
    ExitStatus,
    Implication,
    Incident,
    Isolation,
    Job,
    OpenAdvice,
    Order,
    OurStop,
    PastAttempt,
    Progress,
    Signal,
    Snapshot,
    SourceReport,
    Successor,
    Unavailable,
)
from advisor.core.policy import Policy
from advisor.core.remediation import conclude
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    IncidentKind,
    OrderKind,
    Reason,
    Role,
    Trust,
    UnavailableReason,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=30)  # settled, and before the decision deadline
NODES = ("node1", "node2", "node3", "node4")


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def job(**changes: Any) -> Job:
    return replace(
        Job(key="job-1", cluster="c", job_id="7", user="alice", batch=True, requeueable=True, nodes_requested=4),
        **changes,
    )


def attempt(state: AttemptState = AttemptState.FAILED, **changes: Any) -> Attempt:
    ended = NOON if state.ended else None
    return replace(
        Attempt(
            number=0,
            state=state,
            nodes=NODES,
            started_at=after(-3600),
            ended_at=ended,
            exit=ExitStatus(code=1) if state.ended else None,
        ),
        **changes,
    )


def snapshot(state: AttemptState = AttemptState.FAILED, **changes: Any) -> Snapshot:
    return replace(Snapshot(job=job(), attempt=attempt(state)), **changes)


def signal(name: str = "s1", trust: Trust = Trust.LOG, at: datetime = NOON, **changes: Any) -> Signal:
    return replace(
        Signal(
            id=name, rule="r", trust=trust, source="files", seen_at=at, at=at, role=Role.INITIATING, text="it broke"
        ),
        **changes,
    )


def incident(kind: IncidentKind = IncidentKind.CRASH, *signals: Signal, **changes: Any) -> Incident:
    return replace(
        Incident(kind=kind, signals=signals or (signal(),), visible_at=NOON, detected_at=NOON, ended=False), **changes
    )


def attribution(category: Category = Category.UNKNOWN, **changes: Any) -> Attribution:
    plain = Attribution(
        category=category, root_cause="it broke", confidence=0.8, evidence=("s1",), fingerprint=f"fp-{category.value}"
    )
    return replace(plain, **changes)


def implication(node: str, trust: Trust = Trust.KERNEL, weight: float = 0.9) -> Implication:
    return Implication(
        node=node, weight=weight, trust=trust, role=Role.INITIATING, category=Category.GPU_HARDWARE, rule="kernel.xid"
    )


def bad_gpu(*nodes: str, trust: Trust = Trust.KERNEL, **changes: Any) -> Attribution:
    """A GPU fault on `nodes`, seen by a transport of that trust."""
    named = tuple(implication(node, trust, 0.9 if trust.trusted else 0.3) for node in nodes)
    plain = attribution(Category.GPU_HARDWARE, nodes=nodes, trusted=trust.trusted, implications=named)
    return replace(plain, **changes)


def past(number: int = 0, category: Category = Category.UNKNOWN, **changes: Any) -> PastAttempt:
    """An attempt that failed like `attribution(category)` and was restarted within budget."""
    plain = PastAttempt(
        number=number,
        category=category,
        fingerprint=f"fp-{category.value}",
        reason=Reason.WITHIN_BUDGET,
        action=Action.RESTART,
        nodes=NODES,
    )
    return replace(plain, **changes)


def successor(state: AttemptState = AttemptState.PENDING, **changes: Any) -> Successor:
    return replace(Successor(number=1, state=state, by_us=False, eligible_at=after(121)), **changes)


def advice(**changes: Any) -> OpenAdvice:
    plain = OpenAdvice(
        generation=1,
        action=Action.RESTART,
        exclude_nodes=(),
        category=Category.UNKNOWN,
        reason=Reason.HANG,
        created_at=NOON,
        applied=True,
    )
    return replace(plain, **changes)


def our_stop(**changes: Any) -> OurStop:
    return replace(OurStop(attempt=0, reason=Reason.HANG, applied=True), **changes)


def order(kind: OrderKind, who: str = "ada", at: datetime = NOON, **changes: Any) -> Order:
    """What an operator said about the first attempt."""
    return replace(Order(id=f"{kind}-{who}-{at:%S}", kind=kind, who=who, at=at, attempt=0, why="told so"), **changes)


def unreadable(trust: Trust = Trust.LOG) -> SourceReport:
    return SourceReport(
        source="files", trust=trust, unavailable=Unavailable(source="files", reason=UnavailableReason.PERMISSION)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What `conclude` is asked about."""

    snapshot: Snapshot
    incident: Incident
    attribution: Attribution
    isolation: Isolation
    policy: Policy
    now: datetime

    def decide(self) -> Decision:
        return conclude(self.snapshot, self.incident, self.attribution, self.isolation, self.policy, self.now)


def world(
    state: AttemptState = AttemptState.FAILED,
    kind: IncidentKind = IncidentKind.CRASH,
    cause: Attribution | None = None,
    exclude: tuple[str, ...] = (),
    now: datetime = LATER,
    policy: Policy | None = None,
    signals: tuple[Signal, ...] = (),
    fatal: bool = True,
    **changes: Any,
) -> World:
    """A failed attempt of a restartable job, changed as told; `changes` are fields of its snapshot."""
    return World(
        snapshot=snapshot(state, **changes),
        incident=incident(kind, *signals, trusted_fatal=fatal and any(item.trust.trusted for item in signals)),
        attribution=cause or attribution(),
        isolation=Isolation(exclude_for_job=exclude),
        policy=policy or Policy(),
        now=now,
    )


def progress(last: int | None = None, first: int | None = None, **changes: Any) -> Progress:
    return replace(Progress(first_step=first, last_step=last), **changes)


def rank_nodes(count: int) -> Mapping[int, str]:
    return {rank: NODES[rank % len(NODES)] for rank in range(count)}
