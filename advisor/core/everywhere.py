"""Did all nodes meet the same failure, or one of them? What all meet at start-up is the job's own fault."""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta

from advisor.core.hypotheses import Scored
from advisor.core.model import Attribution, Incident, Signal, Snapshot
from advisor.core.places_of_signals import PlaceMap, ranks_of
from advisor.core.words import Category

START_UP = timedelta(minutes=30)
_EXITED = "slurm.task_exited"
_BY_SIGNAL = 128
RIVAL = 0.4  # another explanation that strong: the error may be what it led to
# Exceptions that a program raises about itself. What the machine, a mount or the network can raise is not among them.
_OWN_EXCEPTIONS = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "ConfigAttributeError",
        "ConfigKeyError",
        "KeyError",
        "MissingMandatoryValue",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "TypeError",
        "UnboundLocalError",
        "ValidationError",
        "ValueError",
    }
)
# What starts the program, and fails alike wherever the job asks for what is not there.
_STARTERS = frozenset({"slurm.container_start", "slurm.exec_failed", "container.start_failed"})
# Such an exception can also be the program's own word for a machine that it finds wanting.
_MACHINE_WORDS = re.compile(
    r"(?i)cuda|gpu|devic|nccl|rccl|driver|memory|network|connect|socket|timed? ?out|host|node|mount|disk|file|"
    r"checkpoint|ckpt|load|read|download|http|nan|inf\b|bytes|corrupt|NoneType"
)


def everywhere(snapshot: Snapshot, group: Sequence[Scored], places: PlaceMap) -> bool:
    """Nothing shows that only one of several nodes met it: a start-up error of the job, not of a machine."""
    if on_several(snapshot, group, places):
        return True
    allocation = snapshot.attempt.nodes
    return not (
        allocation is not None and len(allocation) > 1 and len(_nodes_met(snapshot, _signals(group), places)) == 1
    )


def on_several(snapshot: Snapshot, group: Sequence[Scored], places: PlaceMap) -> bool:
    """At least two nodes said it, or ended by themselves."""
    return len(_nodes_met(snapshot, _signals(group), places) | set(places.exit_nodes())) >= 2


def at_start(snapshot: Snapshot, signal: Signal) -> bool:
    """It came while a job starts, as far as its time is known."""
    began, at = snapshot.attempt.started_at, signal.at or (None if snapshot.offline else signal.seen_at)
    return began is None or at is None or at <= began + START_UP


def met_by_one(snapshot: Snapshot, incident: Incident, attribution: Attribution) -> str | None:
    """The one of several nodes on which an attempt failed while it started, as it would where a mount, an image or a
    library is missing there. None where others met it too, or may have.

    What only rank 0 met is its part of the work more often than its node.
    """
    lead = next((item for item in incident.signals if item.id in attribution.evidence[:1]), None)
    if lead is None or lead.trust.trusted or snapshot.progress.first_step is not None or not at_start(snapshot, lead):
        return None
    places = PlaceMap.of(snapshot, incident.signals)
    alike = [item for item in incident.signals if item.rule == lead.rule]
    ranks = {rank for item in alike for rank in ranks_of(item)}
    met = _nodes_met(snapshot, alike, places)
    if not met:
        met = _exited_alone(incident.signals, ranks, sum(item.count for item in alike))
    elif not all(_is_placed(item, snapshot, places) for item in alike):
        return None  # some of them were printed nobody knows where
    if len(met) != 1 or not met < set(snapshot.attempt.nodes or ()) or ranks == {0}:
        return None
    return next(iter(met))


def _exited_alone(signals: Sequence[Signal], ranks: Collection[int], lines: int) -> set[str]:
    """Where the scheduler saw tasks exit by themselves, if that was on one node and they may be who printed the lines.

    Where a launcher runs on each node its tasks are no ranks, and say all the same which node it was.
    """
    nodes = set(exited_by_themselves(signals))
    tasks = {task for item in signals if _by_itself(item) for task in ranks_of(item)}
    if len(nodes) != 1 or tasks == {0} or not (tasks.issuperset(ranks) if ranks else lines <= len(tasks)):
        return set()
    return nodes


def exited_by_themselves(signals: Iterable[Signal]) -> tuple[str, ...]:
    """Nodes where the scheduler saw tasks exit, in the order of its lines; not where a signal ended the program."""
    return tuple(dict.fromkeys(node for item in signals if _by_itself(item) for node in item.nodes))


def _by_itself(signal: Signal) -> bool:
    """A shell tells by a code above 128 that a signal ended its program, as where others failed first."""
    code = signal.fields.get("code", "")
    return signal.rule == _EXITED and code.isdecimal() and 0 < int(code) < _BY_SIGNAL


def _is_placed(signal: Signal, snapshot: Snapshot, places: PlaceMap) -> bool:
    ranks = ranks_of(signal)
    return bool(places.nodes(signal) or (ranks and all(_node_of(rank, snapshot, places) for rank in ranks)))


def _signals(group: Sequence[Scored]) -> list[Signal]:
    return [item.signal for item in group]


def _nodes_met(snapshot: Snapshot, signals: Sequence[Signal], places: PlaceMap) -> set[str]:
    nodes = {node for signal in signals for node in places.nodes(signal)}
    return nodes | {n for signal in signals for rank in ranks_of(signal) if (n := _node_of(rank, snapshot, places))}


def same_on_all_nodes(snapshot: Snapshot, groups: Sequence[Sequence[Scored]], places: PlaceMap) -> bool:
    """The program, or what starts it, made the same complaint on several nodes, and nothing else is wrong.

    A job of one node proves less: there, half of its ranks must say it, and at least four of them.
    """
    lead = groups[0][0]
    signal = lead.signal
    message = signal.fields.get("message", "")
    if lead.rule.id not in _STARTERS:
        if lead.rule.category is not Category.APPLICATION or signal.fields.get("exception", "") not in _OWN_EXCEPTIONS:
            return False
        if not message or _MACHINE_WORDS.search(message):
            return False
    if any(group[0].score >= RIVAL for group in groups[1:]):
        return False
    alike = [item.signal for item in groups[0] if item.rule.id == lead.rule.id]
    if lead.rule.id in _STARTERS:
        return len({node for each in alike for node in places.nodes(each)} | set(places.exit_nodes())) >= 2
    ranks = {rank for each in alike if each.fields.get("message", "") == message for rank in ranks_of(each)}
    world = snapshot.attempt.world_size
    if world is None or not ranks:
        return False
    if len(snapshot.attempt.nodes or ()) <= 1:
        return len(ranks) >= max(4, world // 2)
    return len({_node_of(rank, snapshot, places) for rank in ranks} - {None}) >= 2


def _node_of(rank: int, snapshot: Snapshot, places: PlaceMap) -> str | None:
    """Where a rank runs: known, or by blocks of equal size."""
    if rank in places.rank_nodes:
        return places.rank_nodes[rank]
    nodes, world = snapshot.attempt.nodes or (), snapshot.attempt.world_size or 0
    if not nodes or world % len(nodes) or not 0 <= rank < world:
        return None
    return nodes[rank * len(nodes) // world]
