"""Arbitrary worlds for decisions: plausible names and times in every combination, impossible ones included."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from hypothesis import strategies as st

from advisor.core.course import Pace, Phase
from advisor.core.model import (
    Attempt,
    Attribution,
    ExitStatus,
    Hypothesis,
    Implication,
    Incident,
    Job,
    NodeFact,
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
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    IncidentKind,
    Mode,
    NodeState,
    OrderKind,
    Reason,
    Role,
    Trust,
    UnavailableReason,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

# Few names and few moments, so that values meet: most mistakes need two facts about the same node or second.
names = st.sampled_from(["n1", "n2", "n3", "n4", "n5", "n6", "x1", "x2"])
node_lists = st.lists(names, unique=True, max_size=8).map(tuple)
moments = st.integers(-4000, 4000).map(lambda tenths: NOON + timedelta(seconds=tenths / 10))
steps = st.none() | st.integers(0, 3)
fingerprints = st.sampled_from(["", "f1", "f2"])
# What a line may hold after decoding with surrogate escapes.
texts = st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape")) | st.text(max_size=6)
numbers = st.floats(0, 2000, allow_nan=False) | st.integers(0, 2000).map(float)


def _of(kind: type[StrEnum]) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(kind))


def maybe(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | inner


signals = st.builds(
    Signal,
    id=st.sampled_from(["s1", "s2", "s3"]),
    rule=st.just("r"),
    trust=_of(Trust),
    source=st.just("files"),
    seen_at=moments,
    at=maybe(moments),
    rank=maybe(st.integers(0, 9)),
    gpu=maybe(st.integers(0, 7)),
    nodes=node_lists,
    peers=node_lists,
    text=texts,
    role=_of(Role),
    category=_of(Category),
    fields=st.dictionaries(texts, texts, max_size=2),
)
progresses = st.builds(
    Progress,
    first_step=steps,
    last_step=steps,
    last_at=maybe(moments),
    interval_seconds=maybe(numbers),
    checkpoint_step=steps,
    in_job_restarts=st.integers(0, 2),
    last_line_at=maybe(moments),
    news_at=maybe(moments),
    pace=st.builds(Pace, phase=st.sampled_from([Phase.STEP, Phase.START]), sign_at=maybe(moments)),
    finished=st.booleans(),
    cleared_lines=st.dictionaries(texts, st.integers(0, 9), max_size=2),
)
jobs = st.builds(
    Job,
    key=st.just("job-1"),
    cluster=st.just("c"),
    job_id=st.just("7"),
    user=st.just("alice"),
    batch=maybe(st.booleans()),
    requeueable=maybe(st.booleans()),
    restarts_max=maybe(st.integers(0, 4)),
    mode=_of(Mode),
    nodes_requested=maybe(st.integers(1, 6)),
)
attempts = st.builds(
    Attempt,
    number=st.integers(0, 5),
    state=_of(AttemptState),
    nodes=maybe(node_lists),
    exit=maybe(st.builds(ExitStatus, code=st.integers(0, 255), signal=st.integers(0, 15))),
    started_at=maybe(moments),
    ended_at=maybe(moments),
    rank_nodes=st.dictionaries(st.integers(0, 20), names, max_size=3),
    silent_seconds=maybe(numbers),
    held=st.booleans(),
)
successors = st.builds(
    Successor,
    number=st.just(1),
    state=_of(AttemptState),
    by_us=st.booleans(),
    eligible_at=maybe(moments),
    held=st.booleans(),
    stopped=st.booleans(),
)
pasts = st.builds(
    PastAttempt,
    number=st.integers(0, 5),
    category=_of(Category),
    fingerprint=fingerprints,
    reason=maybe(_of(Reason)),
    action=maybe(_of(Action)),
    implicated_nodes=node_lists,
    excluded_nodes=node_lists,
    trusted=st.booleans(),
    first_step=steps,
    last_step=steps,
    checkpoint_step=steps,
)
node_facts = st.builds(
    NodeFact,
    name=names,
    state=_of(NodeState),
    score=st.floats(0, 3),
    other_jobs=st.integers(0, 3),
    since=maybe(moments),
)
advices = st.builds(
    OpenAdvice,
    generation=st.integers(1, 3),
    action=_of(Action),
    exclude_nodes=node_lists,
    category=_of(Category),
    reason=_of(Reason),
    created_at=moments,
    applied=st.booleans(),
)
orders = st.builds(
    Order,
    id=st.sampled_from(["o1", "o2", "o3"]),
    kind=_of(OrderKind),
    who=st.just("ada"),
    at=moments,
    attempt=st.integers(0, 5),
    why=texts,
    action=maybe(st.sampled_from([Action.RESTART, Action.STOP])),
    category=maybe(_of(Category)),
    node=names,
    ends_live=st.booleans(),
    ceiling=st.booleans(),
)
stops = st.builds(
    OurStop,
    attempt=st.integers(0, 2),
    reason=_of(Reason),
    applied=st.booleans(),
    order=maybe(orders),
    unreported=st.booleans(),
)
source_reports = st.builds(
    SourceReport,
    source=st.just("files"),
    trust=_of(Trust),
    unavailable=maybe(st.builds(Unavailable, source=st.just("files"), reason=_of(UnavailableReason), detail=texts)),
    newest_at=maybe(moments),
    capped=st.booleans(),
)
snapshots = st.builds(
    Snapshot,
    job=jobs,
    attempt=attempts,
    signals=st.lists(signals, max_size=2).map(tuple),
    progress=progresses,
    sources=st.lists(source_reports, max_size=2).map(tuple),
    successor=maybe(successors),
    past=st.lists(pasts, max_size=4).map(tuple),
    nodes=st.lists(node_facts, max_size=4, unique_by=lambda fact: fact.name).map(tuple),
    advice=maybe(advices),
    nodes_fitting=maybe(st.integers(0, 12)),
    user_excluded=node_lists,
    other_nodes=st.lists(node_facts, max_size=2, unique_by=lambda fact: fact.name).map(tuple),
    dependents_running=st.booleans(),
    orders=st.one_of(st.just(()), st.lists(orders, max_size=3, unique_by=lambda order: order.id).map(tuple)),
    offline=st.booleans(),
    stop=st.one_of(st.none(), st.none(), stops),
)
incidents = st.builds(
    Incident,
    kind=_of(IncidentKind),
    signals=st.lists(signals, max_size=3).map(tuple),
    visible_at=maybe(moments),
    detected_at=maybe(moments),
    ended=st.booleans(),
    summary=texts,
    trusted_fatal=st.booleans(),
)
implications = st.builds(
    Implication,
    node=names,
    weight=st.floats(0, 1),
    trust=_of(Trust),
    role=_of(Role),
    category=_of(Category),
    rule=texts,
)
attributions = st.builds(
    Attribution,
    category=_of(Category),
    root_cause=texts,
    confidence=st.floats(0, 1),
    nodes=node_lists,
    evidence=st.lists(st.sampled_from(["s1", "s2", "s3"]), unique=True).map(tuple),
    alternatives=st.lists(
        st.builds(Hypothesis, category=_of(Category), root_cause=texts, confidence=st.floats(0, 1)), max_size=1
    ).map(tuple),
    implications=st.lists(implications, max_size=5).map(tuple),
    trusted=st.booleans(),
    certain=st.booleans(),
    deterministic=st.booleans(),
    transient_storage=st.booleans(),
    fingerprint=fingerprints,
)
policies = st.builds(
    Policy,
    settle_seconds=st.dictionaries(_of(Category), st.floats(0, 120), max_size=3),
    decision_deadline_seconds=st.floats(1, 120),
    restarts_per_root_cause=st.integers(0, 4),
    restarts_ceiling=st.integers(0, 6),
    confirmation_retries=st.integers(0, 2),
    exclusions_per_job_max=st.integers(0, 6),
    exclusions_per_incident_max=st.integers(0, 4),
    isolations_max=st.integers(0, 3),
    isolations_percent_max=st.floats(0, 100),
    isolate=st.booleans(),
)
