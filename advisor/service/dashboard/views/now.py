"""The first page: what is open, what waits, what is broken, and what the advisor may do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from advisor.client import mode_name
from advisor.service.dashboard.views.decisions import ListedDecision, listed
from advisor.service.dashboard.views.incidents import ListedIncident, listed_incident
from advisor.service.dashboard.views.nodes import IsolationLine, isolation_line
from advisor.service.dashboard.views.shown import Chip, plural, sentence, span_text, time_of, words
from advisor.v1 import audit_pb2, operator_pb2
from advisor.wording import TO_DO_ABOUT, own_tick_age, setting_fields, settled, stop_file_text

TICK_LATE = timedelta(seconds=30)
AGENT_SILENT = timedelta(seconds=90)
DECISIONS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    name: str
    kind: str
    state: Chip
    detail: str
    to_do: str
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    cluster: str
    host: str
    scheduler: str
    state: Chip
    mode: Chip
    last_seen_at: datetime | None
    delay: str
    missing_rights: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeLine:
    mode: Chip
    where: str
    set_by: str
    set_at: datetime | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseLine:
    cluster: str  # "" for all
    until: datetime | None
    set_by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLine:
    cluster: str
    tripped_at: datetime | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLine:
    name: str
    state: Chip
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NowPage:
    summary: str
    alarms: tuple[str, ...]  # what keeps the advisor from working, worst first
    open_count: int
    incidents: tuple[ListedIncident, ...]
    waiting: tuple[ListedDecision, ...]
    recent: tuple[ListedDecision, ...]
    sources: tuple[SourceHealth, ...]
    agents: tuple[AgentLine, ...]
    modes: tuple[ModeLine, ...]
    pauses: tuple[PauseLine, ...]
    breakers: tuple[BreakerLine, ...]
    isolations: tuple[IsolationLine, ...]
    version: str
    watched: str
    tick: str
    replicas: tuple[ReplicaLine, ...] = ()  # of several


def now_page(
    *,
    status: operator_pb2.Status,
    incidents: Sequence[audit_pb2.Incident],
    decisions: Sequence[audit_pb2.Decision],
    modes: operator_pb2.ListModesResponse,
    pauses: Sequence[operator_pb2.PauseInForce],
    nodes: operator_pb2.ListIsolationsResponse,
    now: datetime,
) -> NowPage:
    """`incidents` are the open ones, `decisions` the newest, both newest first."""
    rows = [listed(item) for item in decisions]
    waiting = tuple(row for row in rows if row.waits)
    sources = tuple(_source(item) for item in status.sources)
    agents = tuple(_agent(item, now) for item in status.agents)
    return NowPage(
        summary=_summary(status.open_incidents, len(waiting)),
        alarms=tuple(_alarms(status, agents, sources, now)),
        open_count=status.open_incidents,
        incidents=tuple(listed_incident(item) for item in incidents),
        waiting=waiting,
        recent=tuple(rows[:DECISIONS_SHOWN]),
        sources=sources,
        agents=agents,
        modes=mode_lines(modes),
        pauses=pause_lines(pauses),
        breakers=tuple(
            BreakerLine(cluster=item.cluster, tripped_at=time_of(item, "tripped_at"), why=item.why)
            for item in nodes.tripped
        ),
        isolations=tuple(isolation_line(item) for item in nodes.isolations),
        version=status.version,
        watched=f"{plural(status.watched_jobs, 'job')} watched"
        + (" by this replica" if len(status.replicas) > 1 else ""),
        tick=f"{plural(status.ticks, 'tick')}, the last {span_text(own_tick_age(status))} ago "
        f"in {span_text(status.tick_took.ToTimedelta())}",
        replicas=tuple(map(_replica, status.replicas)) if len(status.replicas) > 1 else (),
    )


def _replica(item: operator_pb2.ReplicaStatus) -> ReplicaLine:
    return ReplicaLine(
        name=f"{item.host}, pid {item.pid}",
        state=Chip(text=plural(item.jobs, "job")) if item.alive else Chip(text="dead", tone="bad"),
        detail=f"{f'{item.address}, ' if item.address else ''}version {item.version}, "
        f"last tick {span_text(item.tick_age.ToTimedelta())} ago",
    )


def mode_lines(modes: operator_pb2.ListModesResponse) -> tuple[ModeLine, ...]:
    """What operators set and categories have earned, the widest first; then what holds for the rest."""
    given = [*modes.settings, *modes.earned]
    lines = [
        ModeLine(
            mode=_mode_chip(item), where=_where(item), set_by=item.set_by, set_at=time_of(item, "set_at"), why=item.why
        )
        for item in sorted(given, key=lambda item: (len(setting_fields(item)), _where(item)))
    ]
    if not settled(modes) and modes.default_mode:
        rest = "everything else" if lines else "everything"
        chip = _mode_chip(operator_pb2.ModeSetting(mode=modes.default_mode))
        lines.append(ModeLine(mode=chip, where=rest, set_by="default_mode", set_at=None, why=""))
    return tuple(lines)


def pause_lines(pauses: Sequence[operator_pb2.PauseInForce]) -> tuple[PauseLine, ...]:
    return tuple(
        PauseLine(cluster=item.cluster, until=time_of(item, "until"), set_by=item.set_by, why=item.why)
        for item in pauses
    )


def mode_in_short(modes: operator_pb2.ListModesResponse) -> Chip:
    """The mode in one word, for the head of every page."""
    said = [mode_name(item.mode) for item in (*modes.settings, *modes.earned)]
    if not settled(modes):
        said.append(mode_name(modes.default_mode))
    if "autonomous" not in said:
        return Chip(text="monitor mode", title="Advice is recorded; nothing is touched.")
    if set(said) == {"autonomous"} and not any(item.HasField("percent") for item in modes.settings):
        return Chip(text="autonomous", tone="info", title="The agent acts on advice.")
    return Chip(text="partly autonomous", tone="info", title="The agent acts where a setting says so.")


def _where(item: operator_pb2.ModeSetting) -> str:
    named = ((word, words(value) if word == "category" else value) for word, value in setting_fields(item))
    where = ", ".join(f"{word} {value}" for word, value in named) or "everything"
    return f"{where}, for {item.percent} % of jobs" if item.HasField("percent") else where


def _mode_chip(item: operator_pb2.ModeSetting) -> Chip:
    name = mode_name(item.mode)
    return Chip(text=name, tone="info" if name == "autonomous" else "plain")


def _summary(open_count: int, waiting: int) -> str:
    incidents = f"{plural(open_count, 'incident is', 'incidents are')} open" if open_count else "no incident is open"
    advice = f"{plural(waiting, 'piece of advice waits', 'pieces of advice wait')}" if waiting else "no advice waits"
    return f"{sentence(incidents)}, {advice}."


def _alarms(
    status: operator_pb2.Status, agents: Sequence[AgentLine], sources: Sequence[SourceHealth], now: datetime
) -> list[str]:
    told = []
    age = status.tick_age.ToTimedelta()
    if age > TICK_LATE:
        told.append(f"No tick was completed for {span_text(age)}: nothing is being decided. See the service's log.")
    if not agents:
        told.append("No agent has ever reported: no job is watched until one runs beside slurmctld.")
    told += [
        f"The agent of {agent.cluster} on {agent.host} has been silent for "
        f"{span_text(now - agent.last_seen_at)}: nothing is reported or carried out there."
        for agent in agents
        if agent.last_seen_at is not None and now - agent.last_seen_at > AGENT_SILENT
    ]
    told += [f"{sentence(text)}. Nothing is done there." for text in map(stop_file_text, status.agents) if text]
    broken = [source.name for source in sources if source.state.tone == "bad"]
    if broken:
        told.append(f"{plural(len(broken), 'source')} cannot be read: {', '.join(broken)}.")
    return told


def _source(item: operator_pb2.SourceStatus) -> SourceHealth:
    if not item.available:
        state = Chip(text=words(item.reason) or "unavailable", tone="bad")
    elif item.reason:
        state = Chip(text=f"partly: {words(item.reason)}", tone="warn")
    else:
        state = Chip(text="ok", tone="good")
    return SourceHealth(
        name=item.name,
        kind=item.kind,
        state=state,
        detail=item.detail,
        # What helps against a file that cannot be read helps nobody whose exporter is silent.
        to_do="" if item.kind.startswith("telemetry") else TO_DO_ABOUT.get(item.reason, ""),
        newest_at=time_of(item, "newest_at"),
    )


def _agent(item: operator_pb2.AgentStatus, now: datetime) -> AgentLine:
    seen = item.last_seen_at.ToDatetime(UTC)
    silent = now - seen > AGENT_SILENT
    acts = item.mode == "act"
    return AgentLine(
        cluster=item.cluster,
        host=item.host,
        scheduler=item.scheduler,
        state=Chip(text="silent", tone="bad") if silent else Chip(text="ok", tone="good"),
        mode=Chip(text="stopped", tone="bad", title=stop_file_text(item))
        if item.HasField("stop_file")
        else Chip(text="acts" if acts else "observes", tone="info" if acts else "plain"),
        last_seen_at=seen,
        delay=span_text(item.requeue_delay.ToTimedelta()) if item.HasField("requeue_delay") else "",
        missing_rights=tuple(item.missing_rights),
    )
