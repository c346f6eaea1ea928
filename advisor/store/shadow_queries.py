"""What the shadow report is made from: attempts that something was wrong with, and all that followed.

Eight queries for one report, each bounded and served by an index, whatever the number of attempts. What bears on an
attempt is told apart in memory: by job, by user and name, by node.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import Select, Text, and_, case, cast, column, func, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.history import HARDWARE
from advisor.core.people import Advised, Correction, Did, NodeChange, Run, Said, ShadowRules, Watched
from advisor.core.shadow import NodeAftermath
from advisor.core.words import Action, AttemptState, Category, Mode, NodeState, Reason, Role, Trust
from advisor.store.records import AttemptKey
from advisor.store.sql import AnyRow, any_id, any_text, of_attempt, storable, text_array, wanted_attempts
from advisor.store.tables import (
    advice,
    attempts,
    corrections,
    decisions,
    implications,
    incidents,
    jobs,
    node_changes,
    shadow_records,
)

CASES_MAX = 5_000  # of one report: the newest
NAMESAKES_MAX = 50_000
CHANGES_MAX = 100_000
RUNS_MAX = 100_000

Place: TypeAlias = tuple[str, str]  # cluster, node


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowWanted:
    """Which attempts: by when their incident was opened. Empty = all."""

    since: datetime
    until: datetime
    cluster: str = ""
    partition: str = ""
    user: str = ""
    job_id: str = ""
    category: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEvidence:
    """`capped`: there were more attempts than are looked at; the oldest are left out."""

    watched: tuple[Watched, ...]
    capped: bool


def incidents_statement(wanted: ShadowWanted) -> Select[Any]:
    """The newest incidents of the window."""
    own = incidents.c
    query = select(own.job_key, own.number, own.opened_at).where(
        own.opened_at >= wanted.since, own.opened_at < wanted.until
    )
    for value, name in (
        (wanted.cluster, own.cluster),
        (wanted.partition, own.partition),
        (wanted.user, own.user_name),
        (wanted.job_id, own.job_id),
        (wanted.category, own.category),
    ):
        if value:
            query = query.where(name == storable(value))
    return query.order_by(own.opened_at.desc(), own.id.desc()).limit(CASES_MAX + 1)


async def load_watched(connection: AsyncConnection, wanted: ShadowWanted, rules: ShadowRules) -> ShadowEvidence:
    rows = (await connection.execute(incidents_statement(wanted))).all()
    opened = {AttemptKey(job_key=row.job_key, number=row.number): row.opened_at for row in rows[:CASES_MAX]}
    if not opened:
        return ShadowEvidence(watched=(), capped=False)
    keys = sorted({key.job_key for key in opened})
    advised = await _advised(connection, keys)
    chains, owners = await _chains(connection, keys, advised)
    namesakes = await _namesakes(connection, list(owners.values()), wanted, rules)
    clusters = {row.cluster for row in owners.values()}
    nodes = {node for key in opened for node in owners_nodes(chains, key)}
    since = wanted.since - timedelta(seconds=rules.node_down_seconds + 60)
    changes = await _changes(connection, clusters, nodes, since, wanted.until + timedelta(seconds=rules.window_seconds))
    said, corrected = await _said(connection, list(opened)), await _corrections(connection, list(opened))
    watched = []
    for key in opened:
        row = chains[key.job_key].get(key.number)
        if row is None:
            continue
        owner = owners[key.job_key]
        watched.append(
            Watched(
                run=_run(row, owner, advised),
                cluster=row.cluster,
                user=row.user_name,
                name=owner.name,
                advised=tuple(advised[key]),
                nodes=tuple(row.nodes or ()),
                exit_code=row.exit_code,
                exit_signal=row.exit_signal,
                fault_at=opened[key],
                forgotten=owner.forgotten_at is not None,
                followers=tuple(
                    _run(later, owner, advised)
                    for number, later in sorted(chains[key.job_key].items())
                    if number > key.number
                ),
                namesakes=tuple(
                    run for run in namesakes[owner.cluster, owner.user_name, owner.name] if run.job_key != key.job_key
                ),
                changes=tuple(change for node in row.nodes or () for change in changes.get((row.cluster, node), ())),
                said=said.get(key),
                correction=corrected.get(key),
            )
        )
    return ShadowEvidence(watched=tuple(watched), capped=len(rows) > CASES_MAX)


def owners_nodes(chains: Mapping[str, Mapping[int, AnyRow]], key: AttemptKey) -> Sequence[str]:
    row = chains[key.job_key].get(key.number)
    return () if row is None else row.nodes or ()


async def _advised(connection: AsyncConnection, keys: Sequence[str]) -> Mapping[AttemptKey, list[Advised]]:
    """All decisions about the jobs, oldest first."""
    own = decisions.c
    found = await connection.execute(
        select(
            own.id,
            own.job_key,
            own.number,
            own.created_at,
            own.action,
            own.category,
            own.reason,
            own.mode,
            own.excluded_nodes,
            own.implicated_nodes,
            own.fingerprint,
            and_(advice.c.applied, ~advice.c.undone).label("applied"),
        )
        .join(advice, advice.c.decision_id == own.id)
        .where(own.job_key == any_id(keys))
        .order_by(own.job_key, own.number, own.generation)
    )
    advised: dict[AttemptKey, list[Advised]] = defaultdict(list)
    for row in found:
        advised[AttemptKey(job_key=row.job_key, number=row.number)].append(
            Advised(
                decision_id=row.id,
                at=row.created_at,
                action=Action(row.action),
                category=Category(row.category),
                reason=Reason(row.reason),
                nodes=tuple(row.excluded_nodes),
                blamed=tuple(row.implicated_nodes),
                fingerprint=row.fingerprint,
                autonomous=row.mode == Mode.AUTONOMOUS.value,
                applied=row.applied,
            )
        )
    return advised


_RUN_COLUMNS = (
    *("job_key", "number", "cluster", "user_name", "job_id", "state", "submitted_at", "started_at", "ended_at"),
    *("excluded_nodes", "our_excluded_nodes", "marked_generation", "partition", "stdout_path", "gpus"),
)


async def _chains(
    connection: AsyncConnection, keys: Sequence[str], advised: Mapping[AttemptKey, list[Advised]]
) -> tuple[Mapping[str, Mapping[int, AnyRow]], Mapping[str, AnyRow]]:
    """All attempts of the jobs but those whose requeue the scheduler has forgotten, and the jobs."""
    own = attempts.c
    found = await connection.execute(
        select(*(own[name] for name in _RUN_COLUMNS), own.nodes, own.exit_code, own.exit_signal).where(
            own.job_key == any_id(keys), own.withdrawn_generation.is_(None)
        )
    )
    chains: dict[str, dict[int, AnyRow]] = defaultdict(dict)
    for row in found:
        chains[row.job_key][row.number] = row
    theirs = await connection.execute(select(*_owner_columns()).where(jobs.c.key == any_id(keys)))
    return chains, {row.key: row for row in theirs}


def _owner_columns() -> tuple[Any, ...]:
    names = ("key", "cluster", "user_name", "name", "nodes_requested", "array_job_id", "het_job_id", "forgotten_at")
    return tuple(jobs.c[name] for name in names)


def _run(row: AnyRow, owner: AnyRow, advised: Mapping[AttemptKey, list[Advised]]) -> Run:
    own = advised.get(AttemptKey(job_key=row.job_key, number=row.number), [])
    return Run(
        job_key=row.job_key,
        number=row.number,
        job_id=row.job_id,
        state=AttemptState(row.state),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        excluded=tuple(sorted(set(row.excluded_nodes) - set(row.our_excluded_nodes))),
        # A mark that inherits exclusions only is of generation 0: the job was not restarted by us.
        ours=row.marked_generation > 0,
        stopped=any(item.applied and item.autonomous and item.action is Action.STOP for item in own),
        unreported=bool(own) and own[-1].reason is Reason.STOP_UNREPORTED,
        fingerprint=next((item.fingerprint for item in reversed(own) if item.fingerprint), ""),
        partition=row.partition,
        nodes_requested=owner.nodes_requested,
        stdout=row.stdout_path,
        array_job_id=owner.array_job_id,
        het_job_id=owner.het_job_id,
        gpus=row.gpus,
    )


async def _namesakes(
    connection: AsyncConnection, owners: Sequence[AnyRow], wanted: ShadowWanted, rules: ShadowRules
) -> Mapping[tuple[str, str, str], list[Run]]:
    """Jobs of the same users and names around the window: their first attempts, ended when their last one did."""
    names = sorted({(row.cluster, row.user_name, row.name) for row in owners if row.name})
    if not names:
        return defaultdict(list)
    columns = (column("cluster", Text()), column("user_name", Text()), column("name", Text()))
    given = (
        func.unnest(*(cast([item[at] for item in names], ARRAY(Text())) for at in range(3)))
        .table_valued(*columns, name="named")
        .render_derived()
    )
    span = timedelta(seconds=rules.window_seconds)
    last = attempts.alias("last")
    found = await connection.execute(
        select(
            *(attempts.c[name] for name in _RUN_COLUMNS if name != "ended_at"),
            *(item for item in _owner_columns() if item.name not in {"cluster", "user_name"}),
            # Forgotten by the scheduler: it is over, whether or not its end was seen.
            case((last.c.state == AttemptState.RUNNING.value, jobs.c.forgotten_at), else_=last.c.ended_at).label(
                "ended_at"
            ),
        )
        .select_from(given)
        .join(jobs, and_(*(jobs.c[name.name] == given.c[name.name] for name in columns)))
        .join(attempts, and_(attempts.c.job_key == jobs.c.key, attempts.c.number == 0))
        .join(last, and_(last.c.job_key == jobs.c.key, last.c.number == jobs.c.last_number))
        .where(jobs.c.first_seen_at >= wanted.since - span, jobs.c.first_seen_at < wanted.until + span)
        .order_by(jobs.c.first_seen_at.desc())
        .limit(NAMESAKES_MAX)
    )
    rows = found.all()
    advised = await _advised(connection, [row.job_key for row in rows]) if rows else {}
    runs: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for row in rows:
        runs[row.cluster, row.user_name, row.name].append(_run(row, row, advised))
    return runs


async def _changes(
    connection: AsyncConnection, clusters: Iterable[str], nodes: Iterable[str], since: datetime, until: datetime
) -> Mapping[Place, list[NodeChange]]:
    own = node_changes.c
    found = await connection.execute(
        select(own.cluster, own.name, own.before, own.state, own.reason, own.at)
        .where(own.cluster == any_text(clusters), own.name == any_text(nodes), own.at >= since, own.at < until)
        .order_by(own.at, own.seq)
        .limit(CHANGES_MAX)
    )
    changes: dict[Place, list[NodeChange]] = defaultdict(list)
    for row in found:
        changes[row.cluster, row.name].append(
            NodeChange(
                node=row.name,
                at=row.at,
                before=None if row.before is None else NodeState(row.before),
                state=NodeState(row.state),
                reason=row.reason,
            )
        )
    return changes


async def _said(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, Said]:
    """The newest record about each attempt."""
    wanted = wanted_attempts(keys)
    found = await connection.execute(
        select(shadow_records).join(wanted, of_attempt(shadow_records, wanted)).order_by(shadow_records.c.at)
    )
    return {
        AttemptKey(job_key=row.job_key, number=row.number): Said(
            did=Did(row.did), did_at=row.did_at, who=row.who, why=row.why, nodes=tuple(row.nodes)
        )
        for row in found
    }


async def _corrections(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> Mapping[AttemptKey, Correction]:
    wanted = wanted_attempts(keys)
    found = await connection.execute(
        select(corrections).join(wanted, of_attempt(corrections, wanted)).order_by(corrections.c.at)
    )
    return {
        AttemptKey(job_key=row.job_key, number=row.number): Correction(
            who=row.who,
            at=row.at,
            why=row.why,
            category=None if row.category is None else Category(row.category),
            action=None if row.action is None else Action(row.action),
            nodes=None if row.nodes is None else tuple(row.nodes),
        )
        for row in found
    }


async def node_aftermaths(
    connection: AsyncConnection, places: Mapping[Place, datetime], rules: ShadowRules
) -> Mapping[Place, NodeAftermath]:
    """What became of nodes within the proof time after the moments given."""
    if not places:
        return {}
    clusters, names = {cluster for cluster, _ in places}, {name for _, name in places}
    since, until = min(places.values()), max(places.values()) + timedelta(days=rules.proof_days)
    changes = await _changes(connection, clusters, names, since, until)
    failures = await _failures(connection, clusters, names, since, until)
    hours = await _good_hours(connection, places, rules)
    return {
        place: NodeAftermath(
            node=place[1],
            changes=tuple(changes.get(place, ())),
            failures=tuple(failures.get(place, ())),
            good_hours=hours.get(place, 0.0),
        )
        for place in places
    }


async def _failures(
    connection: AsyncConnection, clusters: set[str], names: set[str], since: datetime, until: datetime
) -> Mapping[Place, list[datetime]]:
    """When trusted sources saw a node's own hardware begin a failure."""
    own = implications.c
    found = await connection.execute(
        select(own.cluster, own.node, own.at)
        .where(
            own.cluster == any_text(clusters),
            own.node == any_text(names),
            own.at > since,
            own.at <= until,
            own.weight > 0,
            own.role == Role.INITIATING.value,
            own.trust.in_([trust.value for trust in Trust if trust.trusted]),
            own.category.in_(sorted(category.value for category in HARDWARE)),
        )
        .order_by(own.at)
        .limit(CHANGES_MAX)
    )
    failures: dict[Place, list[datetime]] = defaultdict(list)
    for row in found:
        failures[row.cluster, row.node].append(row.at)
    return failures


async def _good_hours(
    connection: AsyncConnection, places: Mapping[Place, datetime], rules: ShadowRules
) -> Mapping[Place, float]:
    """For how long jobs ran on each node within its proof time."""
    own = attempts.c
    names = sorted({name for _, name in places})
    since, until = min(places.values()), max(places.values()) + timedelta(days=rules.proof_days)
    found = await connection.execute(
        select(own.cluster, own.nodes, own.started_at, own.ended_at)
        .where(
            own.cluster == any_text({cluster for cluster, _ in places}),
            own.nodes.overlap(text_array(names)),
            own.started_at < until,
            or_(own.ended_at.is_(None), own.ended_at > since),
        )
        .limit(RUNS_MAX)
    )
    hours: dict[Place, float] = defaultdict(float)
    for row in found:
        if row.ended_at is None:
            continue  # until it ends nobody knows whether it is well there
        for node in set(row.nodes) & set(names):
            at = places.get((row.cluster, node))
            if at is not None:
                left, right = max(row.started_at, at), min(row.ended_at, at + timedelta(days=rules.proof_days))
                hours[row.cluster, node] += max(0.0, (right - left).total_seconds()) / 3600
    return hours
