"""Who did not arrive: suspects of a stalled collective, and which end of a broken link."""

from collections.abc import Sequence

from advisor.core.collectives import arrival
from advisor.core.model import Signal
from advisor.core.places_of_signals import PlaceMap, ranks_of
from advisor.core.ranks import parse_ranks

# Made from flight-recorder dumps: they say who, and not why.
RECORDED = frozenset({"flight_recorder.missing_rank", "flight_recorder.unfinished"})
IDLE = "telemetry.idle_while_others_spin"


def missing_ranks(hang: Sequence[Signal], world_size: int | None) -> tuple[tuple[int, ...], str]:
    """Ranks that kept the others waiting, and how that is known. Empty when it is not.

    What the flight recorder shows outranks all that is printed. Lists of *missing* ranks are taken as they are, lists
    of *ready* ranks complemented; else it is for the watchdogs' lines to tell (`collectives`).
    """
    recorded = next((s for s in hang if s.rule in RECORDED), None)
    if recorded is not None:
        return tuple(sorted(ranks_of(recorded))), recorded.fields.get("how", "")
    listed = {
        rank
        for s in hang
        if s.rule != IDLE
        for key in ("missing", "slow")
        for rank in parse_ranks(s.fields.get(key, ""))
    }
    if listed:
        return tuple(sorted(listed)), "did not submit"
    ready = [parse_ranks(s.fields["ready"]) for s in hang if s.fields.get("ready")]
    if ready and world_size:
        return tuple(sorted(set(range(world_size)) - set(ready[0]))), "did not submit"
    idle = {rank for s in hang if s.rule == IDLE for rank in parse_ranks(s.fields.get("missing", ""))}
    if idle:
        return tuple(sorted(idle)), "was idle while the others waited"
    found = arrival(hang, world_size)
    return found.ranks, found.how


def peer_nodes(signals: Sequence[Signal], places: PlaceMap) -> tuple[str, ...]:
    """The node at fault among the ends of failed transfers, only when the pattern settles it.

    One peer that several nodes name, and that is in the allocation, is that peer; one node that fails towards three or
    more peers is itself. A single pair cannot be told apart.
    """
    reporters: dict[str, set[str]] = {}
    for signal in signals:
        for node in places.nodes(signal):
            reporters.setdefault(node, set()).update(signal.peers)
    by_peer: dict[str, set[str]] = {}
    for node, peers in reporters.items():
        for peer in peers:
            by_peer.setdefault(peer, set()).add(node)
    allocation = places.allocation or ()
    named = [peer for peer, nodes in by_peer.items() if len(nodes) >= 2 and peer in allocation]
    if len(named) == 1:
        return (named[0],)
    if len(reporters) == 1:
        node, peers = next(iter(reporters.items()))
        if len(peers) >= 3:
            return (node,)
    return ()
