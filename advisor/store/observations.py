"""Recording what an agent saw: jobs and attempts by `identity` and `merging`, nodes, and what was forgotten.

A report is one transaction and a constant number of statements, however many jobs it names. Reports of one cluster
follow each other (advisory lock): a hook's notice and a listing must not both create the same job.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import Any, assert_never

from sqlalchemy import bindparam, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.words import AttemptState
from advisor.store.audit_log import append_all
from advisor.store.identity import KnownAttempt, KnownJob, Match, resolve, slot_of
from advisor.store.ids import new_id
from advisor.store.known_jobs import Compared, JobBook, Learned, compared, is_due, remembered_job
from advisor.store.merging import (
    AttemptFacts,
    first_facts,
    is_late,
    merge,
    shown_again,
    superseded,
    without_predecessors,
    worth_a_look,
)
from advisor.store.node_book import NodeBook
from advisor.store.node_states import record_nodes
from advisor.store.open_advice import undo
from advisor.store.records import AttemptKey, AuditEvent, Notice, ObservedJob, ObservedNode, Recorded
from advisor.store.sql import AnyRow, all_ids, all_text, any_text, named_in, of_attempt, storable, wanted_attempts
from advisor.store.tables import attempt_states, attempts, detector_states, identities, jobs

_NAME_CHARACTERS_MAX = 1024
_PATH_CHARACTERS_MAX = 4096
_NODES_MAX = 65_536
_WAITS_MAX = 1000
_FACTS = tuple(AttemptFacts.__dataclass_fields__)
_BUT_SEEN = attrgetter(*(name for name in _FACTS if name != "observed_at"))
# What ticks read of an attempt, by column, where nothing is null.
_READ = (
    *("first_step", "last_step", "checkpoint_step", "resumed_step", "first_progress_at", "last_progress_at"),
    *("save_seconds", "progress"),
)
# What a listing says of the job itself, by column.
_JOB_COLUMNS = (
    *("job_id", "user_id", "name", "partition", "account", "batch", "requeueable", "in_scope", "scope_reason"),
    *("restarts_max", "nodes_requested", "array_job_id", "array_task", "het_job_id", "het_offset"),
    *("waits_for", "singleton"),
)


@dataclass(slots=True, kw_only=True)
class _Job:
    """A job's row while a report is worked in."""

    key: str
    user: str
    columns: dict[str, Any]
    attempts: dict[int, KnownAttempt]
    first_seen_at: datetime
    last_seen_at: datetime
    forgotten_at: datetime | None
    new: bool = False
    dirty: bool = False  # beyond its last sighting
    refreshed: bool = False

    @property
    def known(self) -> KnownJob:
        return KnownJob(
            key=self.key,
            user=self.user,
            last_seen_at=self.last_seen_at,
            forgotten=self.forgotten_at is not None,
            attempts=self.attempts,
        )

    @property
    def standing(self) -> list[int]:
        """Its attempts but those that were withdrawn."""
        return sorted(number for number, attempt in self.attempts.items() if not attempt.withdrawn)


@dataclass(slots=True, kw_only=True)
class _Report:
    """All rows that a report touches, read before and written after."""

    cluster: str
    now: datetime
    complete: bool
    jobs: dict[str, _Job] = field(default_factory=dict)
    slots: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    exact: dict[str, dict[tuple[datetime, int, str], AttemptKey]] = field(default_factory=lambda: defaultdict(dict))
    facts: dict[AttemptKey, AttemptFacts] = field(default_factory=dict)
    before: dict[AttemptKey, AttemptFacts | None] = field(default_factory=dict)
    new_identities: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    changed: dict[AttemptKey, None] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    refused_slots: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    generations: dict[AttemptKey, int] = field(default_factory=dict)  # of the newest decisions
    withdrawn: list[AttemptKey] = field(default_factory=list)
    reopened: set[AttemptKey] = field(default_factory=set)  # which is to be decided about again

    def known(self, slot: str) -> tuple[KnownJob, ...]:
        return tuple(self.jobs[key].known for key in self.slots[slot])


async def record_observations(
    connection: AsyncConnection,
    cluster: str,
    observed_jobs: Sequence[ObservedJob],
    observed_nodes: Sequence[ObservedNode],
    *,
    complete: bool,
    now: datetime,
    listed: Sequence[str] = (),
    nodes_known: NodeBook,
    jobs_known: JobBook,
) -> tuple[Recorded, Learned]:
    """Work one report in. Idempotent: the same report again changes nothing. `listed`: see `Store`; `nodes_known`,
    `jobs_known`: of this cluster. What is learned may be kept when the transaction is committed."""
    await connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"observations {cluster}", 0))))
    report = _Report(cluster=cluster, now=now, complete=complete)
    # First, although there may be tens of thousands: a tick that saves waits for rows of attempts written below.
    for key in await record_nodes(connection, cluster, observed_nodes, nodes_known):
        report.changed[key] = None
    accepted = _acceptable(observed_jobs, report)
    compare = await compared(connection, cluster, accepted, jobs_known, now)
    report.seen.update(known.job_key for known in compare.same.values())
    await _read(connection, report, {slot_of(job) for job in compare.others})
    for job in compare.others:
        _work_in(report, job)
    learned = _learned(report, compare, listed)
    await _write(connection, report)
    if report.withdrawn:
        await undo(connection, report.reopened, now)
        await append_all(connection, [_withdrawal(report, key) for key in report.withdrawn])
    if complete:
        listed_at = max((job.observed_at for job in accepted), default=now)
        await _forget_absent(connection, report, listed_at, listed)
    recorded = Recorded(
        changed=tuple(report.changed),
        refused=tuple(report.refused),
        withdrawn=tuple(report.withdrawn),
        accepted=len(observed_jobs) - len(report.refused),
    )
    return recorded, learned


def _acceptable(observed: Sequence[ObservedJob], report: _Report) -> list[ObservedJob]:
    accepted = []
    for place, job in enumerate(observed):
        problem = _problem(job)
        if problem:
            report.refused.append(f"jobs[{place}] (job {storable(job.job_id)[:40]!r}): {problem}")
            report.refused_slots.add(storable(slot_of(job)))
        else:
            accepted.append(job)
    return accepted


def _problem(job: ObservedJob) -> str:
    names = {"job_id": job.job_id, "user": job.user, "array_job_id": job.array_job_id}
    for name, value in names.items():
        if storable(value) != value or len(value) > _NAME_CHARACTERS_MAX:
            return f"{name} is not a name"
    if not job.job_id or not job.user:
        return "without a job id and a user it names nobody"
    if job.attempt < 0:
        return f"attempt {job.attempt} is not a restart count"
    if job.nodes is not None and len(job.nodes) > _NODES_MAX:
        return f"{len(job.nodes)} nodes are more than {_NODES_MAX}"
    for name in ("submitted_at", "observed_at", "eligible_at", "started_at", "ended_at"):
        time = getattr(job, name)
        if time is not None and time.tzinfo is None:
            return f"{name} has no time zone"
    return ""


async def _read(connection: AsyncConnection, report: _Report, slots: set[str]) -> None:
    if not slots:
        return
    found = await connection.execute(
        select(jobs).where(jobs.c.cluster == report.cluster, jobs.c.slot == any_text(slots))
    )
    for row in found:
        report.jobs[row.key] = _Job(
            key=row.key,
            user=row.user_name,
            columns={name: getattr(row, name) for name in _JOB_COLUMNS},
            attempts={},
            first_seen_at=row.first_seen_at,
            last_seen_at=row.last_seen_at,
            forgotten_at=row.forgotten_at,
        )
        report.slots[row.slot].append(row.key)
    names = await connection.execute(
        select(identities).where(identities.c.cluster == report.cluster, identities.c.slot == any_text(slots))
    )
    for row in names:
        key = AttemptKey(job_key=row.job_key, number=row.number)
        report.exact[row.slot][row.submitted_at, row.restarts, row.user_name] = key
        report.before[key] = None
    table = wanted_attempts(list(report.before))
    columns = [attempts.c.job_key, attempts.c.number, attempts.c.generation, *(attempts.c[name] for name in _FACTS)]
    for row in await connection.execute(select(*columns).join(table, of_attempt(attempts, table))):
        key = AttemptKey(job_key=row.job_key, number=row.number)
        report.generations[key] = row.generation
        _know(report, key, _facts(row))
    report.before = dict(report.facts)


def _know(report: _Report, key: AttemptKey, facts: AttemptFacts) -> None:
    report.facts[key] = facts
    report.jobs[key.job_key].attempts[key.number] = KnownAttempt(
        submitted_at=facts.submitted_at, state=facts.state, withdrawn=facts.withdrawn_generation is not None
    )


def _facts(row: AnyRow) -> AttemptFacts:
    values = {name: getattr(row, name) for name in _FACTS}
    return AttemptFacts(
        **{
            **values,
            "state": AttemptState(row.state),
            "nodes": None if row.nodes is None else tuple(row.nodes),
            "excluded_nodes": tuple(row.excluded_nodes),
            "our_excluded_nodes": tuple(row.our_excluded_nodes),
        }
    )


def _work_in(report: _Report, job: ObservedJob) -> None:
    """One observation; later ones of the same report see what it changed."""
    slot = slot_of(job)
    resolution = resolve(job, report.exact[slot], report.known(slot), complete=report.complete)
    key = resolution.key
    match resolution.match:
        case Match.REFUSED:
            report.refused.append(resolution.refusal)
            report.refused_slots.add(slot)
            return
        case Match.NEW | Match.NEW_OLD:
            key = _new_job(report, job, old=resolution.match is Match.NEW_OLD)
        case Match.SAME | Match.NEXT | Match.EARLIER | Match.REWRITTEN:
            pass
        case _:
            assert_never(resolution.match)
    if key is None:
        return
    if resolution.match is not Match.SAME and job.submitted_at is not None:
        _name(report, job, key, job.submitted_at)
    _apply(report, job, key, resolution.match)


def _name(report: _Report, job: ObservedJob, key: AttemptKey, submitted_at: datetime) -> None:
    slot = slot_of(job)
    report.exact[slot][submitted_at, job.attempt, job.user] = key
    report.jobs[key.job_key].dirty = True
    report.new_identities.append(
        {
            "cluster": report.cluster,
            "slot": slot,
            "submitted_at": submitted_at,
            "restarts": job.attempt,
            "user_name": job.user,
            "job_key": key.job_key,
            "number": key.number,
            "first_seen_at": report.now,
        }
    )


def _new_job(report: _Report, job: ObservedJob, *, old: bool) -> AttemptKey:
    slot = slot_of(job)
    if not old:
        for key in report.slots[slot]:  # their id belongs to another job now
            other = report.jobs[key]
            if other.forgotten_at is None:
                other.forgotten_at, other.dirty = report.now, True
    key = new_id(report.now)
    report.jobs[key] = _Job(
        key=key,
        user=job.user,
        columns={},
        attempts={},
        first_seen_at=report.now,
        last_seen_at=report.now,
        forgotten_at=report.now if old else None,
        new=True,
    )
    report.slots[slot].append(key)
    return AttemptKey(job_key=key, number=job.attempt)


def _apply(report: _Report, job: ObservedJob, key: AttemptKey, match: Match) -> None:
    owner, rewritten = report.jobs[key.job_key], match is Match.REWRITTEN
    known = report.facts.get(key)
    own = without_predecessors(job, report.facts.get(AttemptKey(job_key=key.job_key, number=key.number - 1)))
    if known is not None and known.withdrawn_generation is not None:
        report.seen.add(key.job_key)  # a moment ago, at least
        # Under a name of its own it is another requeue, however the clock was set since.
        if job.notice is Notice.HOOK or (match is Match.SAME and is_late(known, job)):
            return
        rewritten = True  # requeued once more, or it had only been shown out of turn
    forgotten = job.notice is Notice.POLL and _withdraw_later(report, job, key)
    if known is not None and forgotten:
        after = shown_again(known, own)
    elif known is not None and not rewritten:
        after = merge(known, own)
    elif job.submitted_at is not None:
        after = first_facts(own, job.submitted_at)
    else:
        return  # a hook names known attempts only
    report.seen.add(key.job_key)
    _change(report, key, after, job)
    if job.notice is not Notice.HOOK:
        _update_job(report, owner, job)
    numbers = owner.standing
    for number, follower in pairwise(numbers):
        # Also when the report was late: an attempt that has a successor is over, whatever it looked like then.
        earlier = AttemptKey(job_key=key.job_key, number=number)
        successor = report.facts[AttemptKey(job_key=key.job_key, number=follower)]
        _change(report, earlier, superseded(report.facts[earlier], successor), job)
    place = numbers.index(key.number)
    if place > 0 and key in report.changed:
        report.changed[AttemptKey(job_key=key.job_key, number=numbers[place - 1])] = None


def _withdraw_later(report: _Report, job: ObservedJob, key: AttemptKey) -> bool:
    """The scheduler shows an attempt that has a successor: of what it once said after it, it knows nothing any more.
    Returns whether that is so."""
    owner = report.jobs[key.job_key]
    later = [AttemptKey(job_key=key.job_key, number=number) for number in owner.standing if number > key.number]
    known = owner.known
    if any(known.has_run(one.number) or is_late(report.facts[one], job) for one in later):
        return False
    for one in later:
        before = AttemptKey(job_key=one.job_key, number=one.number - 1)
        undone = report.generations.get(before, 0)
        _change(report, one, replace(report.facts[one], withdrawn_generation=undone, observed_at=job.observed_at), job)
        owner.dirty = True
        report.changed[key] = None
        report.withdrawn.append(one)
        report.reopened.add(key)
    return bool(later)


def _change(report: _Report, key: AttemptKey, after: AttemptFacts, job: ObservedJob) -> None:
    before = report.facts.get(key)
    if after.over_seen_at is None and (
        after.state.ended or key.number < max(report.jobs[key.job_key].standing, default=0)
    ):
        after = replace(after, over_seen_at=report.now)
    _know(report, key, after)
    if before is not None and not worth_a_look(before, after):
        return
    report.changed[key] = None
    if before is None or before.state is not after.state:
        report.history.append(
            {
                "job_key": key.job_key,
                "number": key.number,
                "state": after.state.value,
                "notice": job.notice.value,
                "observed_at": job.observed_at,
                "recorded_at": report.now,
            }
        )


def _update_job(report: _Report, owner: _Job, job: ObservedJob) -> None:
    values = {
        "job_id": job.job_id,
        "user_id": job.user_id,
        "name": storable(job.name)[:_NAME_CHARACTERS_MAX],
        "partition": storable(job.partition)[:_NAME_CHARACTERS_MAX],
        "account": storable(job.account)[:_NAME_CHARACTERS_MAX],
        "batch": job.batch,
        "requeueable": job.requeueable,
        "in_scope": job.in_scope,
        "scope_reason": storable(job.scope_reason)[:_NAME_CHARACTERS_MAX],
        "restarts_max": job.restarts_max,
        "nodes_requested": job.nodes_requested,
        "array_job_id": job.array_job_id,
        "array_task": job.array_task,
        "het_job_id": storable(job.het_job_id)[:_NAME_CHARACTERS_MAX],
        "het_offset": job.het_offset,
        # The scheduler drops a dependency that is met: what was once waited for stays.
        "waits_for": list(dict.fromkeys((*owner.columns.get("waits_for", ()), *job.waits_for)))[:_WAITS_MAX],
        "singleton": job.singleton or bool(owner.columns.get("singleton")),
    }
    if values != owner.columns:
        owner.columns, owner.dirty = values, True
    if is_due(slot_of(job), owner.last_seen_at, report.now):
        owner.last_seen_at, owner.refreshed = report.now, True
    alone = all(report.jobs[key].forgotten_at for key in report.slots[slot_of(job)] if key != owner.key)
    if owner.forgotten_at is not None and alone and not owner.new:
        owner.forgotten_at, owner.dirty = None, True


async def _write(connection: AsyncConnection, report: _Report) -> None:
    slots = {key: slot for slot, keys in report.slots.items() for key in keys}
    new_jobs = [_job_values(report, job, slots[job.key]) for job in report.jobs.values() if job.new]
    if new_jobs:
        await connection.execute(insert(jobs), new_jobs)
    new, changed = [], []
    for key, facts in report.facts.items():
        before = report.before.get(key)
        if before is None:
            new.append(_new_attempt(report, key, facts))
        elif key in report.reopened or (facts != before and _needs_writing(slots[key.job_key], before, facts)):
            changed.append({"k": key.job_key, "n": key.number, "reopened": key in report.reopened, **_values(facts)})
    if new:
        await connection.execute(insert(attempts), new)
    await _look_again(connection, report)
    await _read_anew(connection, report)
    if changed:
        statement = (
            update(attempts)
            .where(
                attempts.c.job_key == bindparam("k", type_=attempts.c.job_key.type), attempts.c.number == bindparam("n")
            )
            .values(open=or_(attempts.c.open, bindparam("reopened", type_=attempts.c.open.type)))
        )
        # In key order, as all that write many attempts: then none of them wait in a circle.
        await connection.execute(statement, sorted(changed, key=lambda row: (row["k"], row["n"])))
    if report.new_identities:
        await connection.execute(insert(identities), report.new_identities)
    if report.history:
        await connection.execute(insert(attempt_states), report.history)
    written = (job for job in report.jobs.values() if (job.dirty or job.refreshed) and not job.new)
    dirty = [_job_values(report, job, slots[job.key]) for job in written]
    if dirty:
        key_type = jobs.c.key.type
        statement = update(jobs).where(jobs.c.key == bindparam("k", type_=key_type))
        await connection.execute(statement, [{"k": row.pop("key"), **row} for row in dirty])


async def _look_again(connection: AsyncConnection, report: _Report) -> None:
    """At what is not over after all: what saw its end saw one that never was. Before the attempts themselves are
    written: a tick saves them in that order."""
    again = [key for key in report.reopened if report.facts[key].over_seen_at is None]
    if again:
        seen_over = update(detector_states).where(of_attempt(detector_states, wanted_attempts(again)))
        await connection.execute(seen_over.values(seen_over=False))


async def _read_anew(connection: AsyncConnection, report: _Report) -> None:
    """What was read of a withdrawn attempt is forgotten where another one has its number."""
    anew = [
        key
        for key, before in report.before.items()
        if before is not None
        and before.withdrawn_generation is not None
        and report.facts[key].withdrawn_generation is None
    ]
    if anew:
        theirs = wanted_attempts(anew)
        await connection.execute(delete(detector_states).where(of_attempt(detector_states, theirs)))
        nothing = dict.fromkeys(_READ) | {"in_job_restarts": 0, "foreign_count": 0}
        await connection.execute(update(attempts).where(of_attempt(attempts, theirs)).values(nothing))


def _needs_writing(slot: str, before: AttemptFacts, after: AttemptFacts) -> bool:
    return not _only_later(before, after) or is_due(slot, before.observed_at, after.observed_at)


def _only_later(before: AttemptFacts | None, after: AttemptFacts) -> bool:
    return before is not None and _BUT_SEEN(before) == _BUT_SEEN(after)


def _learned(report: _Report, compare: Compared, listed: Sequence[str]) -> Learned:
    """Observations that have changed nothing but sightings."""
    known = {}
    for job in compare.others:
        slot = slot_of(job)
        if slot not in compare.stamps or job.submitted_at is None:
            continue
        key = report.exact[slot].get((job.submitted_at, job.attempt, job.user))
        if key is None or key.job_key not in report.seen or not _as_before(report, slot):
            continue
        before, after = report.before[key], report.facts[key]
        if before is None or before.withdrawn_generation is not None:
            continue
        written = is_due(slot, before.observed_at, after.observed_at)
        known[slot] = remembered_job(
            job,
            stamp=compare.stamps[slot],
            job_key=key.job_key,
            observed_at=after.observed_at if written else before.observed_at,
            last_seen_at=report.jobs[key.job_key].last_seen_at,
        )
    held = None
    if report.complete:
        held = frozenset((*compare.same, *(slot_of(job) for job in compare.others), *listed))
    return Learned(known=known, held=held)


def _as_before(report: _Report, slot: str) -> bool:
    return not any(report.jobs[key].dirty or report.jobs[key].new for key in report.slots[slot]) and all(
        _only_later(report.before.get(attempt), report.facts[attempt])
        for key in report.slots[slot]
        for attempt in (AttemptKey(job_key=key, number=number) for number in report.jobs[key].attempts)
    )


def _job_values(report: _Report, job: _Job, slot: str) -> dict[str, Any]:
    return {
        "key": job.key,
        "cluster": report.cluster,
        "slot": slot,
        "user_name": job.user,
        **job.columns,
        "last_number": max(job.standing),
        "first_seen_at": job.first_seen_at,
        "last_seen_at": job.last_seen_at,
        "forgotten_at": job.forgotten_at,
    }


def _new_attempt(report: _Report, key: AttemptKey, facts: AttemptFacts) -> dict[str, Any]:
    owner = report.jobs[key.job_key]
    return {
        "job_key": key.job_key,
        "number": key.number,
        "cluster": report.cluster,
        "user_name": owner.user,
        "account": owner.columns["account"],
        **_values(facts),
        "first_seen_at": report.now,
        "generation": 0,
        "open": True,
        "in_job_restarts": 0,
        "foreign_count": 0,
    }


def _values(facts: AttemptFacts) -> dict[str, Any]:
    values = {name: getattr(facts, name) for name in _FACTS}
    for name in ("nodes", "excluded_nodes", "our_excluded_nodes"):
        values[name] = None if values[name] is None else [storable(node) for node in values[name]]
    for name in ("stdout_path", "stderr_path", "pending_reason", "partition"):
        values[name] = storable(values[name])[:_PATH_CHARACTERS_MAX]
    values["job_rules"] = storable(values["job_rules"])
    return values


def _withdrawal(report: _Report, key: AttemptKey) -> AuditEvent:
    return AuditEvent(
        at=report.now,
        who="advisor",
        what="requeue_forgotten",
        why="its scheduler shows the attempt before it again: the requeue is lost, as when it is killed unsaved",
        cluster=report.cluster,
        subject=str(key),
        detail={"job": report.jobs[key.job_key].columns["job_id"], "attempt": str(key.number)},
    )


async def _forget_absent(
    connection: AsyncConnection, report: _Report, listed_at: datetime, listed: Sequence[str]
) -> None:
    """Jobs that a complete listing does not hold are gone, unless they were seen after it was taken."""
    seen_later = (
        select(attempts.c.job_key)
        .where(
            attempts.c.job_key == jobs.c.key,
            attempts.c.number == jobs.c.last_number,
            attempts.c.observed_at > listed_at,
        )
        .exists()
    )
    gone = await connection.execute(
        update(jobs)
        .where(
            jobs.c.cluster == report.cluster,
            jobs.c.forgotten_at.is_(None),
            jobs.c.key != all_ids(report.seen),
            jobs.c.slot != all_text(report.refused_slots),
            ~seen_later,
            ~named_in(jobs.c.slot, listed),
        )
        .values(forgotten_at=report.now)
        .returning(jobs.c.key, jobs.c.last_number)
    )
    for row in gone:
        report.changed[AttemptKey(job_key=row.key, number=row.last_number)] = None
