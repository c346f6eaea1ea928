"""From what a line says about its place to a global rank, nodes of the allocation, and peers.

The allocation is the judge: a name outside it is no node of this attempt, whatever printed it.
"""

from collections.abc import Mapping
from functools import lru_cache

from advisor.core.hostlist import HostlistError, expand, short
from advisor.core.places import RANK_MAX, Place
from advisor.core.scan_state import FileContext
from advisor.core.words import Trust


@lru_cache(maxsize=1_024)
def _shorts(nodes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(short(node) for node in nodes)


@lru_cache(maxsize=1_024)
def _allocation(nodes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_shorts(nodes))


class Placer:
    """Places hits of one file."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.ordered = _shorts(context.nodes or ())
        self.allocation = _allocation(context.nodes) if context.nodes is not None else None
        # The node that the file, or the stream, is of, where it tells; and whether it is one of the attempt's.
        self._of_file = short(context.node) if context.node else None
        self._of_ours = self.allocation is not None and self._of_file in self.allocation

    @property
    def known(self) -> tuple[object, ...]:
        """All that `resolve` depends on besides the line."""
        context = self.context
        return (
            context.trust,
            context.node,
            context.rank,
            context.nodes,
            context.tasks_per_node,
            context.world_size,
            context.rank_nodes,
        )

    def resolve(
        self, captures: Mapping[str, str], place: Place
    ) -> tuple[int | None, tuple[str, ...], tuple[str, ...]] | None:
        """Rank, nodes and peers of a hit. None: the line is about nodes that this attempt does not have."""
        context = self.context
        named = named_nodes(captures)
        if context.trust is not Trust.LOG:
            return None, (short(context.node),) if context.node else (), ()
        if named:
            kept = tuple(node for node in named if self.allocation is None or node in self.allocation)
            if not kept:
                return None
            return self._rank(captures, place), kept, ()
        if (
            place.kernel
            and place.node is not None
            and self.allocation is not None
            and place.node not in self.allocation
        ):
            return None
        rank = self._rank(captures, place)
        node = place.node
        if node is not None and self.allocation is not None and node not in self.allocation:
            node = None
        if node is None:
            # Whose file it is was seen; that ranks follow the order of nodes is only usual.
            node = self._of_file if self._of_ours else self._node_of(rank, place) or self._of_file
        peers = tuple(short(peer) for peer in (captures.get("peer", ""),) if peer)
        return rank, (node,) if node else (), peers

    def _rank(self, captures: Mapping[str, str], place: Place) -> int | None:
        context = self.context
        per_node = self._ranks_per_node()
        rank: int | None = None
        for name in ("rank", "task"):
            value = captures.get(name, "")
            if value.isdigit():
                rank = int(value)
                break
        if rank is None:
            rank = place.rank
        told = captures.get("local", "")
        local = place.local if place.local is not None or not told.isdigit() else int(told)
        if rank is None and local is not None:
            node_index = place.replica
            if node_index is None and place.node in self.ordered:
                node_index = self.ordered.index(place.node)
            if node_index is None and place.task is not None:
                node_index = place.task
            if node_index is None and self._of_ours and self._of_file is not None:
                node_index = self.ordered.index(self._of_file)
            if node_index == 0 or len(self.ordered) == 1:
                rank = local
            elif node_index and per_node:
                rank = node_index * per_node + local
        if rank is None and local is None and place.task is not None and not self.label_is_node():
            rank = place.task
        if rank is None:
            rank = context.rank
        return rank if rank is not None and rank < RANK_MAX else None

    def _ranks_per_node(self) -> int | None:
        context = self.context
        if context.world_size and self.ordered and context.world_size % len(self.ordered) == 0:
            return context.world_size // len(self.ordered)
        return context.tasks_per_node

    def label_is_node(self) -> bool:
        """srun labels count launchers, one per node, where each launcher has several ranks."""
        context = self.context
        return context.tasks_per_node == 1 and bool(context.world_size) and context.world_size != len(self.ordered)

    def _node_of(self, rank: int | None, place: Place) -> str | None:
        context = self.context
        if place.task is not None and self.label_is_node() and place.task < len(self.ordered):
            return self.ordered[place.task]
        if rank is None:
            return None
        if rank in context.rank_nodes:
            node = short(context.rank_nodes[rank])
            return node if self.allocation is None or node in self.allocation else None
        per_node = self._ranks_per_node()
        if len(self.ordered) == 1:
            return self.ordered[0]
        if per_node and rank // per_node < len(self.ordered):
            return self.ordered[rank // per_node]
        return None


def named_nodes(captures: Mapping[str, str]) -> tuple[str, ...]:
    """Nodes that the line itself is about: the groups `node`, `failed` and `nodes` (a hostlist)."""
    text = next((captures[key] for key in ("node", "nodes", "failed") if captures.get(key)), "")
    try:
        return tuple(short(node) for node in expand(text, nodes_max=4_096)) if text else ()
    except HostlistError:
        return (short(text.strip("[]{}(),;:'\"")),)
