"""Whom a hypothesis implicates: nodes by evidence about themselves, ranks that printed it, and with what weight."""

from collections.abc import Sequence

from advisor.core.detection import OUTPUT_NOT_OPENED
from advisor.core.history import implication_weight, same_unit
from advisor.core.hypotheses import Scored
from advisor.core.model import Implication, Snapshot
from advisor.core.places_of_signals import PlaceMap, ranks_of
from advisor.core.policy import Policy
from advisor.core.rules import XID_LOG_RULES, Rule
from advisor.core.suspects import peer_nodes
from advisor.core.words import Category, Implicates

# States of a node's GPUs that name nobody by themselves and support what does.
SUPPORTING = frozenset(
    {
        "telemetry.row_remap_pending",
        "telemetry.pcie_replays",
        "telemetry.low_clock",
        "telemetry.low_power",
        "telemetry.throttled",
    }
)
# A GPU's contained error ends whoever uses its memory, on every node of the link's domain.
_SEEN_BY_PEERS = frozenset({"cuda.nvlink_peer_access"})
# What any user brings about on any node by a path that is nowhere: the job avoids the node, others hear nothing of it.
_OF_NO_CONCERN = frozenset({OUTPUT_NOT_OPENED})
HARDWARE = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT, Category.SYSTEM_SOFTWARE})


def implicated_nodes(
    snapshot: Snapshot, group: Sequence[Scored], places: PlaceMap, policy: Policy
) -> tuple[tuple[str, ...], str]:
    """Nodes that the hypothesis implicates, surest first, and a note where the evidence names too many."""
    lead = group[0]
    named: dict[str, float] = {}
    echoes = _echoes(group, places)
    for item in group:
        if item.score < lead.score - 0.35 or item.signal.id in echoes:
            continue
        found = places.nodes(item.signal)
        match item.rule.implicates:
            case Implicates.NODE:
                pass
            case Implicates.CONDITIONAL:
                found = tuple(node for node in found if _corroborated(node, item, group, snapshot, places, policy))
            case Implicates.PEER:
                found = peer_nodes([g.signal for g in group if g.rule.implicates is Implicates.PEER], places)
            case Implicates.NOBODY | Implicates.RANK:
                found = ()
        for node in found:
            named.setdefault(node, item.score)
    blaming = any(
        item.rule.implicates is Implicates.NODE and item.score >= lead.score - 0.35 and not places.nodes(item.signal)
        for item in group
    )
    if not named and blaming and lead.rule.category in HARDWARE:
        only = places.only_exit_node()
        if only is not None:
            named[only] = lead.score
    allocation = snapshot.attempt.nodes
    if allocation is not None:
        named = {node: score for node, score in named.items() if node in allocation}
    elif not snapshot.offline:
        named = {}
    ordered = tuple(sorted(named, key=lambda node: -named[node]))
    if _too_many(ordered, lead.rule, snapshot, policy):
        return (), f"{len(ordered)} nodes report it at once: not the nodes' fault"
    return ordered, ""


def _echoes(group: Sequence[Scored], places: PlaceMap) -> frozenset[str]:
    """Reports of an error that one GPU had and its peers on other nodes see too: all but the first node's, all where
    no times tell which that was, and all where a trusted source names the node.
    """
    said = [item.signal for item in group if item.rule.id in _SEEN_BY_PEERS and not item.signal.trust.trusted]
    if len({node for signal in said for node in places.nodes(signal)}) < 2:
        return frozenset()
    at = {signal.id: signal.at for signal in said if signal.at is not None}
    known = any(item.signal.trust.trusted and places.nodes(item.signal) for item in group)
    first = min(said, key=lambda signal: (at[signal.id], signal.order)) if len(at) == len(said) and not known else None
    origin = frozenset(places.nodes(first)) if first is not None else frozenset()
    return frozenset(signal.id for signal in said if not origin & set(places.nodes(signal)))


def _too_many(nodes: Sequence[str], rule: Rule, snapshot: Snapshot, policy: Policy) -> bool:
    if len(nodes) < 2:
        return False
    size = len(snapshot.attempt.nodes) if snapshot.attempt.nodes is not None else None
    if len(nodes) > policy.exclusions_per_incident_max:
        return True
    if size is not None and size > 2 and len(nodes) > policy.implicated_fraction_max * size:
        return True
    if size == len(nodes) and rule.deterministic:
        return True  # what every node lacks is asked for by the job
    if rule.id == "slurm.launch_failed":
        # Several launches that time out at once are the controller's congestion.
        return True
    return rule.category is Category.INTERCONNECT and len(nodes) > 2


def _corroborated(
    node: str, item: Scored, group: Sequence[Scored], snapshot: Snapshot, places: PlaceMap, policy: Policy
) -> bool:
    """A conditional implication counts with a second kind of evidence on the node, or with the node's history: when it
    repeats on the same GPU, for another job.
    """
    unit = _unit(item)
    if any(
        fact.name == node
        and (fact.other_jobs >= 1 or fact.score >= policy.suspect_score)
        and same_unit(unit, fact.units)
        for fact in snapshot.nodes
    ):
        return True
    if any(signal.rule in SUPPORTING and node in signal.nodes for signal in snapshot.signals):
        return True
    return any(
        _kind_of(other) != _kind_of(item) and other.rule.category in HARDWARE and node in places.nodes(other.signal)
        for other in group
    )


def _unit(item: Scored) -> str:
    """The GPU that a signal is about, "" where it names none. By its address where that is known: the index that
    belongs to it is known of some jobs only.
    """
    signal = item.signal
    return signal.fields.get("pci", "") or (f"gpu{signal.gpu}" if signal.gpu is not None else "")


def _kind_of(item: Scored) -> str:
    """What was observed, by whomever: an Xid that the kernel and the telemetry show is one kind of evidence."""
    return "xid" if item.rule.id in XID_LOG_RULES else item.rule.id


def implicated_ranks(
    snapshot: Snapshot, group: Sequence[Scored], lead: Scored, places: PlaceMap, nodes: Sequence[str]
) -> tuple[int, ...]:
    """Ranks that printed the cause; for an application error that many print, those of the first report only."""
    alike = [item for item in group if item.rule.id == lead.rule.id]
    ranks: list[int] = []
    for item in alike:
        ranks.extend(sorted(ranks_of(item.signal)))
        for name in ("rank2", "second"):
            value = item.signal.fields.get(name, "")
            if value.isdigit():
                ranks.append(int(value))
    if not ranks:
        for item in group:
            ranks.extend(sorted(ranks_of(item.signal)))
    if not ranks and lead.rule.implicates in {Implicates.NODE, Implicates.RANK}:
        ranks.extend(places.exit_ranks() or _only_child(snapshot, lead))
    return tuple(dict.fromkeys(ranks))


def _only_child(snapshot: Snapshot, lead: Scored) -> tuple[int, ...]:
    """The only worker that a launcher saw dying of a GPU's fault: on one node, its number there is its rank."""
    if lead.rule.category is not Category.GPU_HARDWARE or len(snapshot.attempt.nodes or ()) != 1:
        return ()
    died = {signal.fields["local"] for signal in snapshot.signals if "local" in signal.fields and signal.count == 1}
    return tuple(map(int, died)) if len(died) == 1 else ()


def ranks_on(
    snapshot: Snapshot, others: Sequence[Sequence[Scored]], places: PlaceMap, nodes: Sequence[str]
) -> tuple[int, ...]:
    """Ranks on the implicated nodes: those that failed there by another word of theirs, else all that run there."""
    failed = {
        rank
        for group in others
        for item in group
        for rank in ranks_of(item.signal)
        if places.rank_nodes.get(rank) in nodes or (rank == item.signal.rank and set(item.signal.nodes) & set(nodes))
    }
    there = [rank for rank, node in sorted(snapshot.attempt.rank_nodes.items()) if node in nodes]
    return tuple(sorted(failed) or there)


def implicated_gpus(group: Sequence[Scored], places: PlaceMap, nodes: Sequence[str]) -> tuple[str, ...]:
    found = [
        f"{node}:{item.signal.gpu if item.signal.gpu is not None else item.signal.fields['pci']}"
        for item in group
        if item.signal.gpu is not None or "pci" in item.signal.fields
        for node in places.nodes(item.signal)
        if node in nodes and item.rule.category is Category.GPU_HARDWARE
    ]
    return tuple(dict.fromkeys(found))


def implications(
    group: Sequence[Scored], nodes: Sequence[str], places: PlaceMap, confidence: float
) -> tuple[Implication, ...]:
    """One per node: those blamed, and with half the weight those that a conditional signal is about."""
    made: dict[str, Implication] = {}
    for item in group:
        if item.rule.id in _OF_NO_CONCERN:
            continue
        if item.rule.implicates not in {Implicates.NODE, Implicates.CONDITIONAL, Implicates.PEER}:
            continue
        about = places.nodes(item.signal) or (tuple(nodes) if item.rule.implicates is Implicates.NODE else ())
        for node in about:
            blamed = node in nodes
            if not blamed and item.rule.implicates is not Implicates.CONDITIONAL:
                continue
            weight = implication_weight(item.signal.trust, item.rule.role, confidence, blamed=blamed)
            if node not in made or made[node].weight < weight:
                made[node] = Implication(
                    node=node,
                    weight=weight,
                    trust=item.signal.trust,
                    role=item.rule.role,
                    category=item.rule.category,
                    rule=item.rule.id,
                    evidence=(item.signal.id,),
                    unit=_unit(item),
                )
    return tuple(made.values())
