"""The map of nodes, and one node."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from advisor.client import reason_name, status_name
from advisor.service.dashboard.views.decisions import JobName, job_name
from advisor.service.dashboard.views.jobs import ListedEvent, listed_event
from advisor.service.dashboard.views.shown import Chip, few, plural, time_of, words
from advisor.store.node_map import MappedNode
from advisor.v1 import audit_pb2, operator_pb2
from advisor.wording import isolation_state

BLOCK_NODES = 100
WORST_SHOWN = 15
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How a node looks on the map: a step of the scale, with a letter or sign that says the same without colour."""

    name: str
    sign: str
    meaning: str


# From calm to loud. A node has the last one that fits.
FINE = Level(name="fine", sign="", meaning="no incident within the history window")
TRACE = Level(name="trace", sign="·", meaning="named by an incident, little weight left")
WATCH = Level(name="watch", sign="▪", meaning="at least half of what makes a suspect")
SUSPECT = Level(name="suspect", sign="S", meaning="suspect: ranked, never isolated by that alone")
WORSE = Level(name="worse", sign="!", meaning="at least three times what makes a suspect")
DOWN = Level(name="down", sign="×", meaning="down, drained or not answering, by the scheduler")
ISOLATED = Level(name="isolated", sign="I", meaning="isolated by the advisor")
LEVELS = (FINE, TRACE, WATCH, SUSPECT, WORSE, DOWN, ISOLATED)
_TONE_OF_ISOLATION = {"on paper": "info", "drained": "bad", "wanted": "warn"}
_AWAY = frozenset({"down", "drained", "draining", "not_responding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    name: str
    cluster: str
    level: Level
    title: str
    row: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Nodes that belong together by name, at most a hundred."""

    label: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstNode:
    name: str
    cluster: str
    level: Level
    score: float
    state: str
    reason: str
    incidents: int
    partitions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPage:
    clusters: tuple[str, ...]
    chosen: str
    blocks: tuple[Block, ...]
    worst: tuple[WorstNode, ...]
    counts: tuple[tuple[Level, int], ...]
    summary: str
    capped: bool


def level_of(node: MappedNode, suspect_score: float) -> Level:
    if node.isolated:
        return ISOLATED
    if node.state in _AWAY:
        return DOWN
    if node.score >= 3 * suspect_score:
        return WORSE
    if node.score >= suspect_score:
        return SUSPECT
    if node.score >= suspect_score / 2:
        return WATCH
    return TRACE if node.score > 0 else FINE


def map_page(
    nodes: Sequence[MappedNode], *, capped: bool, chosen: str, suspect_score: float, query: str = ""
) -> MapPage:
    """`query`: only nodes whose name holds it. `chosen`: the cluster, "" for all."""
    clusters = tuple(sorted({node.cluster for node in nodes}))
    shown = [node for node in nodes if (not chosen or node.cluster == chosen) and query.lower() in node.name.lower()]
    levels = {id(node): level_of(node, suspect_score) for node in shown}
    counted = [(level, sum(levels[id(node)] is level for node in shown)) for level in LEVELS]
    worst = sorted(
        (node for node in shown if node.isolated or node.score >= suspect_score / 2),
        key=lambda node: (not node.isolated, -node.score, _natural(node.name)),
    )
    return MapPage(
        clusters=clusters,
        chosen=chosen,
        blocks=tuple(_blocks(shown, levels)),
        worst=tuple(_worst(node, levels[id(node)]) for node in worst[:WORST_SHOWN]),
        counts=tuple(counted),
        summary=_summary(len(shown), {level.name: count for level, count in counted}),
        capped=capped,
    )


def _summary(total: int, counts: dict[str, int]) -> str:
    loud = counts["suspect"] + counts["worse"]
    parts = [plural(total, "node")]
    for count, text in ((counts["isolated"], "isolated"), (loud, "suspect"), (counts["down"], "down or drained")):
        if count:
            parts.append(f"{count} {text}")
    return ", ".join(parts) if len(parts) > 1 else f"{parts[0]}, none suspect, isolated or down"


def _blocks(nodes: Iterable[MappedNode], levels: dict[int, Level]) -> Iterable[Block]:
    """By cluster and the text before the last number of the name; each block ends at a round hundred."""
    groups: dict[tuple[str, str, int], list[MappedNode]] = {}
    for node in sorted(nodes, key=lambda node: (node.cluster, _natural(node.name))):
        groups.setdefault((node.cluster, *_place(node.name)), []).append(node)
    several = len({key[0] for key in groups}) > 1
    for (cluster, _, _), members in groups.items():
        for start in range(0, len(members), BLOCK_NODES):
            part = members[start : start + BLOCK_NODES]
            label = part[0].name if len(part) == 1 else f"{part[0].name} – {part[-1].name}"
            yield Block(
                label=f"{cluster}: {label}" if several else label,
                tiles=tuple(
                    Tile(
                        name=node.name,
                        cluster=node.cluster,
                        level=levels[id(node)],
                        title=_title(node, levels[id(node)]),
                        row=at // 10,
                        column=at % 10,
                    )
                    for at, node in enumerate(part)
                ),
            )


def _place(name: str) -> tuple[str, int]:
    """What a block is made by: the stem of the name, and which hundred of it."""
    parts = _NUMBER.split(name)
    if len(parts) < 3:
        return "", 0
    return "".join(parts[:-2]), max(int(parts[-2][:18]) - 1, 0) // BLOCK_NODES


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """node2 before node10."""
    return tuple((1, int(part[:18]), part) if part.isdecimal() else (0, 0, part) for part in _NUMBER.split(name))


def _title(node: MappedNode, level: Level) -> str:
    told = f"{node.name}: {level.name}, score {node.score:.2f}"
    if node.incidents:
        told += f", {plural(node.incidents, 'incident')}"
    return f"{told}, {words(node.state)}"


def _worst(node: MappedNode, level: Level) -> WorstNode:
    return WorstNode(
        name=node.name,
        cluster=node.cluster,
        level=level,
        score=node.score,
        state=words(node.state),
        reason=node.reason,
        incidents=node.incidents,
        partitions=few(node.partitions, 3),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicationLine:
    at: datetime
    job: JobName
    category: str
    rule: str
    role: str
    trust: str
    weight: float
    incident_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationLine:
    node: str
    cluster: str
    state: Chip
    category: str
    why: str
    job_id: str
    opened_at: datetime | None
    expires_at: datetime | None
    ended_at: datetime | None
    ended: str
    agent: str
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    name: str
    cluster: str
    score: float
    suspect: bool
    last_at: datetime | None
    implications: tuple[ImplicationLine, ...]
    isolations: tuple[IsolationLine, ...]
    events: tuple[ListedEvent, ...]
    isolated: bool


def isolation_line(item: operator_pb2.NodeIsolation) -> IsolationLine:
    said = isolation_state(item)
    state = Chip(text=said, tone=_TONE_OF_ISOLATION.get(said, "plain"))
    return IsolationLine(
        node=item.node,
        cluster=item.cluster,
        state=state,
        category=words(item.category),
        why=item.why,
        job_id=item.job_id,
        opened_at=time_of(item, "opened_at"),
        expires_at=time_of(item, "expires_at"),
        ended_at=time_of(item, "ended_at"),
        ended=f"{words(item.ended_by)}: {item.ended_why}".rstrip(": ") if item.ended_by else "",
        agent=f"{words(status_name(item.status))} {words(reason_name(item.reason))}".strip(),
        open=not item.ended_by,
    )


def node_page(
    node: audit_pb2.Node, isolations: Sequence[operator_pb2.NodeIsolation], events: Sequence[audit_pb2.Event]
) -> NodePage:
    lines = tuple(isolation_line(item) for item in isolations)
    return NodePage(
        name=node.name,
        cluster=node.cluster,
        score=node.score,
        suspect=node.suspect,
        last_at=time_of(node, "last_implicated_at"),
        implications=tuple(
            ImplicationLine(
                at=item.at.ToDatetime(UTC),
                job=job_name(item.attempt),
                category=words(item.category),
                rule=item.rule,
                role=item.role,
                trust=item.trust,
                weight=item.weight,
                incident_id=item.incident_id,
            )
            for item in node.implications
        ),
        isolations=lines,
        events=tuple(listed_event(item) for item in events),
        isolated=any(line.open for line in lines),
    )
