"""The life of an isolation: which nodes the cluster is to drain, for how long, and when it ends.

`isolation.py` says for one attempt which nodes trusted evidence speaks against; here all such wants of a cluster meet
what is isolated already, the caps, and the breaker. More nodes at once than the caps allow are not the nodes' fault
(the fabric, the file system, a bad rule): then none of them is isolated and the breaker trips, until an operator has
looked and resets it. An isolation is never urgent, since the job that met the fault avoids the node anyway: evidence is
let settle first, so that an event that hits many nodes within a minute shows as one.

Evidence that is older than the last reinstatement of its node is spent: it speaks of the node before its repair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core.amounts import many
from advisor.core.model import Decision
from advisor.core.policy import Policy
from advisor.core.words import Category, Mode, Trust

# What the scheduler says of a node is no reason to drain it: it may be our own drain, or somebody else's.
_SPEAKS = frozenset({Trust.KERNEL, Trust.TELEMETRY})
RATE_WINDOW = timedelta(days=1)
NAMES_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One attempt's decision speaks against one node. `acts`: made in autonomous mode, under a policy that acts."""

    node: str
    category: Category
    why: str
    evidence_at: datetime
    job_key: str
    number: int
    job_id: str
    acts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A node that is isolated now. `releasing`: its isolation has ended and our drain is not yet undone."""

    node: str
    dry_run: bool
    releasing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a plan needs to know. `released`: when each node was last reinstated; `opened_today`: within RATE_WINDOW."""

    nodes: int
    held: tuple[Held, ...] = ()
    released: Mapping[str, datetime]
    opened_today: int = 0
    tripped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`opens` and `acts_now` (dry until now) are to be done. `trips`: why the breaker trips, "" if it does not.

    `refused` may be wanted again and is then judged anew; `young` is to be asked again, when it has
    settled or the node's last isolation is over.
    """

    opens: tuple[Want, ...] = ()
    acts_now: tuple[Want, ...] = ()
    refused: tuple[Want, ...] = ()
    young: tuple[Want, ...] = ()
    refused_why: str = ""
    trips: str = ""


def wants_of(decision: Decision, job_key: str, number: int, job_id: str, policy: Policy) -> tuple[Want, ...]:
    """What a settled decision wants of the cluster's nodes. Only trusted evidence ever gets into it."""
    if not policy.isolate or not decision.settled:
        return ()
    wants = []
    for node in decision.isolation.isolate_for_cluster:
        about = [item for item in decision.incident.signals if item.trust in _SPEAKS and node in item.nodes]
        times = [item.at or item.seen_at for item in about]
        if not times:
            continue
        wants.append(
            Want(
                node=node,
                category=decision.attribution.category,
                why=decision.attribution.root_cause,
                evidence_at=max(times),
                job_key=job_key,
                number=number,
                job_id=job_id,
                acts=not policy.isolate_dry_run and decision.mode is Mode.AUTONOMOUS,
            )
        )
    return tuple(wants)


def cap(nodes: int, policy: Policy) -> int:
    """How many nodes of a cluster may be isolated at once: the smaller of the two bounds."""
    return min(policy.isolations_max, int(nodes * policy.isolations_percent_max / 100))


def over_caps(cluster: Cluster, node: str, policy: Policy) -> str:
    """Which bound one more isolated node would break, "" for none. Held on paper counts, the node itself does not."""
    if cluster.tripped:
        return "the breaker has tripped"
    held = {item.node for item in cluster.held} - {node}
    most = cap(cluster.nodes, policy)
    return "" if len(held) < most else f"{many(len(held), 'node')} isolated already: at most {most} of {cluster.nodes}"


def plan(wants: Sequence[Want], cluster: Cluster, policy: Policy, now: datetime) -> Plan:
    """What to do about `wants`. At most `cap` nodes are ever held, those on paper included.

    Young wants count for the bounds like all others; only what has settled is opened.
    """
    held = {item.node: item for item in cluster.held}
    fresh: dict[str, Want] = {}
    acts_now: dict[str, Want] = {}
    waits: tuple[Want, ...] = ()  # for the end of the node's last isolation, which an agent is yet to carry out
    for want in wants:
        released = cluster.released.get(want.node)
        if released is not None and want.evidence_at <= released:
            continue
        known = held.get(want.node)
        if known is None:
            # Of several for one node one that acts speaks for all.
            if want.node not in fresh or (want.acts and not fresh[want.node].acts):
                fresh[want.node] = want
        elif known.releasing:
            waits = (*waits, want)
        elif known.dry_run and want.acts:
            acts_now[want.node] = want
    new, changed = tuple(fresh.values()), tuple(acts_now.values())
    if not new and not changed:
        return Plan(young=waits)
    if cluster.tripped:
        return Plan(refused=(*new, *changed), refused_why="the breaker has tripped", young=waits)
    most = cap(cluster.nodes, policy)
    if new and len(held) + len(new) > most:
        names = " ".join(sorted(fresh)[:NAMES_MAX])
        wanted = f"{many(len(held), 'node')} isolated already and {len(new)} more wanted ({names})"
        why = f"{wanted}: at most {most} of {cluster.nodes}"
        # Where the bounds allow none at all there is nothing to break.
        return Plan(acts_now=changed, refused=new, refused_why=why, trips=why if most else "", young=waits)
    if cluster.opened_today + len(new) > policy.isolations_per_day_max:
        why = f"{many(cluster.opened_today, 'isolation')} within a day and {len(new)} more wanted: at most " + str(
            policy.isolations_per_day_max
        )
        return Plan(acts_now=changed, refused=new, refused_why=why, trips=why, young=waits)
    settled = now - timedelta(seconds=policy.isolation_settle_seconds)
    old = tuple(want for want in new if want.evidence_at <= settled)
    young = tuple(want for want in new if want.evidence_at > settled)
    return Plan(opens=old, acts_now=changed, young=(*young, *waits))


def expires_at(now: datetime, policy: Policy) -> datetime:
    """When an isolation ends by itself: from its beginning, or from the last probe that failed."""
    return now + timedelta(hours=policy.isolation_time_to_live_hours)
