"""Logs to scan: what tests of the scanner, detection and attribution share."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from advisor.core.attribution import attribute
from advisor.core.detection import detect
from advisor.core.model import Attempt, Attribution, Incident, Job, Progress, Signal, Snapshot, SourceReport
from advisor.core.policy import Policy
from advisor.core.progress import combine
from advisor.core.scan import FileContext, FileState, Scanned, Scanner, fold_signals
from advisor.core.words import AttemptState, Trust
from advisor.rules.loader import load_rules

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
RULES = load_rules()
SCANNER = Scanner(RULES)
NODES = ("node1", "node2", "node3", "node4")


def context(**changes: Any) -> FileContext:
    """A job's log on four nodes with eight ranks each."""
    plain = FileContext(
        source="logs", trust=Trust.LOG, file="job.log", nodes=NODES, tasks_per_node=8, world_size=32, live=True
    )
    return replace(plain, **changes)


def kernel(node: str, **changes: Any) -> FileContext:
    """A node's kernel log, as its transport names it."""
    return context(source="kernel", trust=Trust.KERNEL, file=f"{node}.kern", node=node, **changes)


def scan(text: str | bytes, where: FileContext | None = None, **options: Any) -> Scanned:
    data = text.encode() if isinstance(text, str) else text
    options = {"fresh": False, "final": True, "seen_at": NOON, **options}
    return SCANNER.scan(where or context(), options.pop("state", FileState()), data, **options)


def one(text: str, where: FileContext | None = None) -> Signal:
    """The only signal of a text."""
    signals = scan(text, where).signals
    assert len(signals) == 1, [signal.rule for signal in signals]
    return signals[0]


def snapshot(*parts: tuple[FileContext, str], state: AttemptState = AttemptState.FAILED, **changes: Any) -> Snapshot:
    """A snapshot of an attempt whose sources hold these texts. `changes` go to the attempt or the snapshot."""
    signals: tuple[Signal, ...] = ()
    states = {}
    for where, text in parts:
        scanned = scan(text, where)
        signals = fold_signals(signals, scanned, 200)
        states[where.file] = scanned.state.progress
    attempt = Attempt(
        number=0,
        state=state,
        nodes=NODES,
        started_at=NOON - timedelta(hours=1),
        ended_at=NOON if state.ended else None,
        world_size=32,
        tasks_per_node=8,
    )
    of_attempt = {key: value for key, value in changes.items() if key in Attempt.__dataclass_fields__}
    of_snapshot = {key: value for key, value in changes.items() if key not in of_attempt}
    plain = Snapshot(
        job=Job(key="j", cluster="c", job_id="7", user="u"),
        attempt=replace(attempt, **of_attempt),
        signals=signals,
        progress=combine(states) if states else Progress(),
        sources=(SourceReport(source="logs", trust=Trust.LOG),),
    )
    return replace(plain, **of_snapshot)


def judge(world: Snapshot, now: datetime = NOON) -> tuple[Incident, Attribution]:
    """Detection and attribution with the shipped rules."""
    incident = detect(world, RULES, Policy(), now)
    return incident, attribute(world, incident, RULES, Policy(), now)
