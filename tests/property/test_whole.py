"""All four steps with the shipped rules: any signals, any scheduler facts, one reproducible decision."""

from dataclasses import replace
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from advisor.core import orders
from advisor.core.codec import decode, encode
from advisor.core.decide import decide
from advisor.core.model import Signal, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.words import Action, AttemptState, Trust
from advisor.rules.loader import load_rules
from tests.property.strategies import moments, policies, signals, snapshots

RULES = load_rules()
STORED = decode(RuleSet, encode(RULES))

real_signals = st.builds(
    lambda signal, rule, xid, name: replace(
        signal,
        rule=rule.id,
        role=rule.role,
        category=rule.category,
        id=name,
        fields={**signal.fields, "xid": str(xid)},
    ),
    signals,
    st.sampled_from(RULES.rules),
    st.sampled_from([*RULES.xids, 9999]),
    st.uuids().map(str),
)
worlds = st.builds(
    lambda snapshot, found: replace(snapshot, signals=tuple(found)), snapshots, st.lists(real_signals, max_size=5)
)


@given(worlds, policies, moments)
def test_a_stored_world_gives_the_same_decision(snapshot: Snapshot, policy: Policy, now: datetime) -> None:
    """There is always a decision, and what was stored of its inputs reproduces it bit for bit."""
    stored = encode(decide(snapshot, RULES, policy, now))
    replayed = decide(decode(Snapshot, encode(snapshot)), STORED, decode(Policy, encode(policy)), now)
    assert encode(replayed) == stored


@given(worlds, policies, moments)
def test_evidence_reaches_its_own_allocation_only(snapshot: Snapshot, policy: Policy, now: datetime) -> None:
    """Live, whatever lines say, only nodes of the allocation, earlier exclusions and an operator's are ever avoided."""
    isolation = decide(replace(snapshot, offline=False), RULES, policy, now).isolation
    others = {node for past in snapshot.past for node in past.excluded_nodes} | set(orders.excluded(snapshot.orders))
    assert set(isolation.exclude_for_job) <= set(snapshot.attempt.nodes or ()) | others
    assert set(isolation.isolate_for_cluster) <= set(snapshot.attempt.nodes or ())


@given(worlds, policies, moments)
def test_log_lines_alone_isolate_nobody(snapshot: Snapshot, policy: Policy, now: datetime) -> None:
    """With log evidence only, and no word of the scheduler about its nodes, the cluster loses no node."""
    by_log = replace(snapshot, nodes=(), signals=tuple(_untrusted(item) for item in snapshot.signals))
    assert decide(by_log, RULES, policy, now).isolation.isolate_for_cluster == ()


@given(worlds, policies, moments)
def test_a_cancel_is_left_alone(snapshot: Snapshot, policy: Policy, now: datetime) -> None:
    """No evidence and no earlier advice revives a cancelled job; what may have cancelled it, our own stop, is kept."""
    cancelled = replace(snapshot, attempt=replace(snapshot.attempt, state=AttemptState.CANCELLED))
    ours = snapshot.stop is not None and snapshot.stop.attempt == snapshot.attempt.number
    assert decide(cancelled, RULES, policy, now).action in {Action.NONE, *([Action.STOP] if ours else [])}


@given(worlds, policies, moments)
def test_log_lines_never_end_a_live_attempt_before_the_hang_limit(
    snapshot: Snapshot, policy: Policy, now: datetime
) -> None:
    """A live attempt that makes progress is not ended for what its log says."""
    live = replace(
        snapshot,
        attempt=replace(snapshot.attempt, state=AttemptState.RUNNING),
        nodes=(),
        signals=tuple(_untrusted(item) for item in snapshot.signals),
        progress=replace(snapshot.progress, last_at=now),
        offline=False,
    )
    decision = decide(live, RULES, policy, now)
    assert not decision.may_end_live_attempt


def _untrusted(signal: Signal) -> Signal:
    return replace(signal, trust=Trust.LOG)
