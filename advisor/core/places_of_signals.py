"""Which node a signal is about, with what other signals say about ranks and nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor.core.model import Signal, Snapshot
from advisor.core.ranks import parse_ranks

_EXIT_RULES = frozenset({"slurm.task_exited", "slurm.task_signal", "slurm.task_oom", "mpi.exited_on_signal"})


def ranks_of(signal: Signal) -> frozenset[int]:
    """All ranks that a (counted) signal came from."""
    ranks = parse_ranks(signal.fields.get("ranks", ""))
    tasks = parse_ranks(signal.fields.get("tasks", ""))
    if ranks or tasks:
        return ranks | tasks
    return frozenset() if signal.rank is None else frozenset({signal.rank})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceMap:
    """Rank to node, from the attempt and from lines that carry both; and who Slurm saw ending.

    `stated`: of ranks that Slurm saw ending, where, if it named one node. It stands against what ranks in the order of
    nodes would give.
    """

    rank_nodes: Mapping[int, str]
    stated: Mapping[int, str]
    exits: tuple[tuple[str, frozenset[int]], ...]
    allocation: tuple[str, ...] | None

    @classmethod
    def of(cls, snapshot: Snapshot, signals: Iterable[Signal]) -> "PlaceMap":
        rank_nodes: dict[int, str] = {}
        exits: list[tuple[str, frozenset[int]]] = []
        together: set[str] = set()  # nodes told in one line: which of its ranks was on which it does not say
        for signal in signals:
            if signal.rule in _EXIT_RULES and signal.nodes:
                exits.extend((node, ranks_of(signal)) for node in signal.nodes)
                together.update(signal.nodes if len(signal.nodes) > 1 else ())
            elif signal.rank is not None and len(signal.nodes) == 1 and not signal.trust.trusted:
                rank_nodes.setdefault(signal.rank, signal.nodes[0])
        told = [item for item in exits if item[0] not in together] if _tasks_are_ranks(snapshot) else []
        stated = {rank: node for node, ranks in told for rank in ranks}
        return cls(
            rank_nodes={**rank_nodes, **stated, **snapshot.attempt.rank_nodes},
            stated=stated,
            exits=tuple(exits),
            allocation=snapshot.attempt.nodes,
        )

    def nodes(self, signal: Signal) -> tuple[str, ...]:
        """The nodes that the signal is about; through its rank where the line names none."""
        if signal.nodes:
            said = self.stated.get(signal.rank) if signal.rank is not None and not signal.trust.trusted else None
            return signal.nodes if said is None or len(signal.nodes) != 1 else (said,)
        if signal.trust.trusted:
            return ()
        found = dict.fromkeys(self.rank_nodes[rank] for rank in sorted(ranks_of(signal)) if rank in self.rank_nodes)
        if found:
            return tuple(found)
        if self.allocation is not None and len(self.allocation) == 1:
            return self.allocation
        return ()

    def exit_nodes(self) -> tuple[str, ...]:
        """Nodes whose tasks ended by themselves, in order."""
        return tuple(dict.fromkeys(node for node, _ in self.exits))

    def only_exit_node(self) -> str | None:
        """The node, when exactly one had tasks that ended by themselves."""
        nodes = self.exit_nodes()
        return nodes[0] if len(nodes) == 1 else None

    def exit_ranks(self) -> tuple[int, ...]:
        """Ranks of the first such line, when it names few."""
        if not self.exits:
            return ()
        ranks = tuple(sorted(self.exits[0][1]))
        return ranks if len(ranks) <= 4 else ()


def _tasks_are_ranks(snapshot: Snapshot) -> bool:
    """Slurm starts each rank itself, and not one launcher on each node."""
    attempt = snapshot.attempt
    tasks = (attempt.tasks_per_node or 0) * len(attempt.nodes or ())
    return tasks > 0 and attempt.world_size in {None, tasks} and (attempt.tasks_per_node or 0) > 1
