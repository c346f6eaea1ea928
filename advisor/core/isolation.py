"""Which nodes the next attempt must avoid, and which the cluster must.

Evidence can only name nodes of the attempt's own allocation. What log lines say counts for this job alone. What
earlier attempts excluded stays excluded. What an operator excludes comes first, and what one spares is left out, within
the same bounds. Bounds cut from the least certain end, and whatever is left out is reported as withheld, with its
reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.core import orders
from advisor.core.budgets import since_progress
from advisor.core.everywhere import exited_by_themselves, met_by_one
from advisor.core.history import is_suspect
from advisor.core.model import Attribution, Incident, Isolation, Snapshot, Withheld
from advisor.core.policy import Policy
from advisor.core.traceless import cleared, suspected
from advisor.core.words import Action, Category, IncidentKind, NodeState, WithheldReason

# Nodes in these states are not among those that fit a job, so that avoiding them costs no capacity.
_OUT_OF_SERVICE = frozenset({NodeState.NOT_RESPONDING, NodeState.DOWN, NodeState.DRAINING, NodeState.DRAINED})
_HARDWARE = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    nodes: tuple[str, ...]
    withheld: tuple[Withheld, ...] = ()


def isolate(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime
) -> Isolation:
    """Exclusions for the job's next attempt, isolations for the cluster, suspects, and what was withheld and why.

    Invariants: `exclude_for_job` is within the attempt's allocation, the exclusions of earlier attempts and operators';
    `isolate_for_cluster` holds only nodes with trusted evidence. `now` keeps the four steps alike.
    """
    trusted = _trusted_nodes(attribution)
    blamed = _blamed(snapshot, incident, attribution, policy, trusted)
    tried = _tried(snapshot, incident, attribution, policy, now)
    ranked = _ordered(snapshot, _ranked(snapshot, blamed.nodes, trusted, tried))
    within_cap = _capped(ranked.nodes, policy)
    affordable = _affordable(snapshot, within_cap.nodes)
    isolated = _for_cluster(snapshot, attribution, blamed.nodes, trusted, policy)
    return Isolation(
        exclude_for_job=affordable.nodes,
        isolate_for_cluster=isolated.nodes,
        suspects=_suspects(snapshot, attribution, policy),
        withheld=blamed.withheld + ranked.withheld + within_cap.withheld + affordable.withheld + isolated.withheld,
    )


def without_room(snapshot: Snapshot, policy: Policy) -> tuple[Withheld, ...]:
    """Nodes that the job should avoid, by advice, earlier attempts and orders, and that bounds leave no room for."""
    advised = snapshot.advice.exclude_nodes if snapshot.advice is not None else ()
    ranked = _ordered(snapshot, tuple(dict.fromkeys((*advised, *_ranked(snapshot, (), frozenset())))))
    within_cap = _capped(ranked.nodes, policy)
    return within_cap.withheld + _affordable(snapshot, within_cap.nodes).withheld


def _trusted_nodes(attribution: Attribution) -> frozenset[str]:
    """Nodes that trusted evidence itself names. Beside one of them a node that only a log names gains no trust."""
    named = {item.node for item in attribution.implications}
    unnamed = {node for node in attribution.nodes if node not in named} if attribution.trusted else set()
    return frozenset(
        {item.node for item in attribution.implications if item.trust.trusted and item.weight > 0} | unnamed
    )


def _blamed(
    snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, trusted: frozenset[str]
) -> _Chosen:
    """The nodes that this incident blames and that may be blamed."""
    named = tuple(dict.fromkeys(attribution.nodes))
    withheld = [
        Withheld(node=node, reason=WithheldReason.NEEDS_REPEAT)
        for node in dict.fromkeys(item.node for item in attribution.implications if item.weight > 0)
        if node not in named
    ]
    if incident.kind is IncidentKind.NONE:
        return _Chosen(nodes=(), withheld=tuple(withheld))
    allocation = snapshot.attempt.nodes
    if allocation is None and not snapshot.offline:
        withheld += (Withheld(node=node, reason=WithheldReason.ALLOCATION_UNKNOWN) for node in named)
        return _Chosen(nodes=(), withheld=tuple(withheld))
    if allocation is not None:
        withheld += (
            Withheld(node=node, reason=WithheldReason.NOT_IN_ALLOCATION) for node in named if node not in allocation
        )
        named = tuple(node for node in named if node in allocation)
    if attribution.transient_storage:
        withheld += _many(named, "shared storage is the cause")
        return _Chosen(nodes=(), withheld=tuple(withheld))
    for candidates in (named, tuple(node for node in named if node in trusted)):
        # Many log-only names beside a few trusted ones must not hide the trusted ones.
        excess = _too_many(len(candidates), len(allocation) if allocation is not None else None, policy)
        if excess is None:
            withheld += _many((node for node in named if node not in candidates), "many others were named at once")
            return _Chosen(nodes=candidates, withheld=tuple(withheld))
    withheld += _many(named, excess or "")
    return _Chosen(nodes=(), withheld=tuple(withheld))


def _many(nodes: Iterable[str], detail: str) -> list[Withheld]:
    return [Withheld(node=node, reason=WithheldReason.MANY_NODES, detail=detail) for node in nodes]


def _too_many(count: int, allocated: int | None, policy: Policy) -> str | None:
    if count > policy.exclusions_per_incident_max:
        return f"{count} nodes at once, at most {policy.exclusions_per_incident_max} per incident"
    if allocated is not None and allocated > 2 and count > policy.implicated_fraction_max * allocated:
        return f"{count} of {allocated} nodes at once"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """`nodes`: unnamed, and there each time, or alone in what they met. `spared`: it came without them, too."""

    nodes: tuple[str, ...] = ()
    spared: frozenset[str] = frozenset()


def _tried(snapshot: Snapshot, incident: Incident, attribution: Attribution, policy: Policy, now: datetime) -> _Tried:
    """What a row of failures that named nobody says about nodes, and a first one of the job's own that only one of them
    met: the retry that is to confirm it proves more elsewhere. Only where it is known that others fit the job.
    """
    if incident.kind is IncidentKind.NONE or snapshot.offline or snapshot.nodes_fitting is None:
        return _Tried()
    window, _ = since_progress(snapshot, now)
    nodes = suspected(snapshot, attribution, window, policy, exited_by_themselves(incident.signals))
    if not nodes and (alone := _alone(snapshot, incident, attribution)) is not None:
        nodes = (alone,)
    unwanted = (node for node in nodes if node not in snapshot.user_excluded)
    return _Tried(nodes=tuple(unwanted), spared=cleared(snapshot, attribution, window))


def _alone(snapshot: Snapshot, incident: Incident, attribution: Attribution) -> str | None:
    """The only node that met what looks as if it would come again, the first time that it came. Not while another one
    is tried without: failures of ever other kinds are the job's, and would cost it a node each.
    """
    first = attribution.fingerprint and all(past.fingerprint != attribution.fingerprint for past in snapshot.past)
    if not first or not attribution.deterministic or attribution.nodes or _tried_before(snapshot):
        return None
    return met_by_one(snapshot, incident, attribution)


def _ranked(
    snapshot: Snapshot, blamed: Sequence[str], trusted: frozenset[str], tried: _Tried | None = None
) -> tuple[str, ...]:
    """All nodes to avoid, most certain first: trusted before log-only, then what nobody named and is only tried
    without, and the recent before the old.

    Exclusions of earlier attempts survive every requeue, but what is tried without only until it is given back: now, as
    spared, or by the newest restart. Nodes that the user excludes need no exclusion of ours.
    """
    tried = tried or _Tried()
    before = _tried_before(snapshot)
    newest = next((past for past in reversed(snapshot.past) if past.action is Action.RESTART), None)
    kept = before & set(newest.excluded_nodes) if newest is not None else before
    given_back = tried.spared | (before - kept)
    recent_first: list[tuple[str, bool]] = [(node, node in trusted) for node in blamed]
    for past in reversed(snapshot.past):
        avoided = (node for node in past.excluded_nodes if node not in given_back)
        recent_first += ((node, past.trusted and node in past.implicated_nodes) for node in avoided)
    believed = {node for node, is_trusted in recent_first if is_trusted}
    order = tuple(dict.fromkeys(node for node, _ in recent_first if node not in snapshot.user_excluded))
    guesses = (before | set(tried.nodes)) - set(blamed)
    by_log = (node for node in order if node not in believed and node not in guesses)
    older = (node for node in order if node in guesses)
    return tuple(dict.fromkeys((*(node for node in order if node in believed), *by_log, *tried.nodes, *older)))


def _tried_before(snapshot: Snapshot) -> frozenset[str]:
    """Nodes that restarts were to avoid after failures on them that nobody had named them for."""
    named = {node for past in snapshot.past for node in past.implicated_nodes}
    return frozenset({node for past in snapshot.past for node in past.excluded_nodes if node in past.nodes} - named)


def _ordered(snapshot: Snapshot, ranked: tuple[str, ...]) -> _Chosen:
    """What operators say about the job's nodes outranks evidence, in both directions."""
    spared = orders.spared(snapshot.orders)
    added = (node for node in orders.excluded(snapshot.orders) if node not in snapshot.user_excluded)
    left_out = tuple(Withheld(node=node, reason=WithheldReason.OPERATOR) for node in ranked if node in spared)
    kept = tuple(node for node in ranked if node not in spared)
    return _Chosen(nodes=tuple(dict.fromkeys((*added, *kept))), withheld=left_out)


def _capped(ranked: tuple[str, ...], policy: Policy) -> _Chosen:
    most = policy.exclusions_per_job_max
    over = tuple(
        Withheld(node=node, reason=WithheldReason.CAP_PER_JOB, detail=f"at most {most} per job")
        for node in ranked[most:]
    )
    return _Chosen(nodes=ranked[:most], withheld=over)


def _affordable(snapshot: Snapshot, ranked: tuple[str, ...]) -> _Chosen:
    """`ranked` without the least certain nodes that would leave the job too few to start on.

    Counts every exclusion, the user's too, as one of the nodes that fit, unless the scheduler shows that it is out
    of service: erring this way costs an exclusion, erring the other way a job that cannot start.
    """
    attempt = snapshot.attempt
    needed = snapshot.job.nodes_requested or (len(attempt.nodes) if attempt.nodes else None)
    if snapshot.nodes_fitting is None or needed is None:
        return _Chosen(nodes=ranked)
    shown = (*snapshot.nodes, *snapshot.other_nodes)
    out_of_service = {fact.name for fact in shown if fact.state in _OUT_OF_SERVICE}
    users = len(set(snapshot.user_excluded) - out_of_service)
    spare = snapshot.nodes_fitting - needed - users
    kept: list[str] = []
    withheld: list[Withheld] = []
    for node in ranked:
        if node in out_of_service:
            kept.append(node)
        elif spare > 0:
            kept.append(node)
            spare -= 1
        else:
            beside = " beside those that it excludes itself" if users else ""
            own = ", so its own list leaves no other" if users and spare + users > 0 else ""
            detail = f"nodes that fit the job{beside}: {max(snapshot.nodes_fitting - users, 0)}; it needs {needed}{own}"
            withheld.append(Withheld(node=node, reason=WithheldReason.CAPACITY, detail=detail))
    return _Chosen(nodes=tuple(kept), withheld=tuple(withheld))


def _for_cluster(
    snapshot: Snapshot, attribution: Attribution, blamed: Sequence[str], trusted: frozenset[str], policy: Policy
) -> _Chosen:
    """Nodes that nobody should use: trusted hardware evidence only, within an absolute and a relative bound."""
    if not policy.isolate or attribution.category not in _HARDWARE:
        return _Chosen(nodes=())
    by_log = tuple(
        Withheld(node=node, reason=WithheldReason.UNTRUSTED_EVIDENCE) for node in blamed if node not in trusted
    )
    candidates = tuple(node for node in blamed if node in trusted)
    # How many nodes there are is known only as far as the scheduler told how many fit; unknown spares none.
    share = int((snapshot.nodes_fitting or 0) * policy.isolations_percent_max / 100)
    most = min(policy.isolations_max, share)
    over = tuple(
        Withheld(node=node, reason=WithheldReason.CAP_CLUSTER, detail=f"at most {most} here")
        for node in candidates[most:]
    )
    return _Chosen(nodes=candidates[:most], withheld=by_log + over)


def _suspects(snapshot: Snapshot, attribution: Attribution, policy: Policy) -> tuple[str, ...]:
    """Nodes that this incident names and whose history with other jobs adds up, worst first."""
    allocation = snapshot.attempt.nodes or ()
    history = {fact.name: fact.score for fact in snapshot.nodes}
    total: dict[str, float] = {}
    for item in attribution.implications:
        if item.node in allocation:
            total[item.node] = max(total.get(item.node, 0.0), item.weight)
    scores = {node: weight + history.get(node, 0.0) for node, weight in total.items()}
    return tuple(sorted((n for n, s in scores.items() if is_suspect(s, policy)), key=lambda n: (-scores[n], n)))
