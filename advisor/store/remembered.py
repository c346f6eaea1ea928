"""Attempts as they were loaded, for as long as the database says that nothing of them has changed.

Of thousands of watched attempts nearly all are as they were a second ago, and making values of their rows anew costs
most of a tick. What is plain (running, nothing decided, no other attempt of its job, no order, no exclusion) is kept,
with a stamp of everything that it was made of: a hash of what of its rows is read, who wrote its detector state, and
how many milestones it has. Every load asks the database for the stamps, within its transaction, and reads anew what has
another one: correct whichever replica or agent wrote meanwhile. What is not plain is read anew each time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Select, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.policy import Policy
from advisor.store.dependents import dependents
from advisor.store.node_book import NodeBook, Place
from advisor.store.records import AttemptKey, DetectorState, StoredAttempt
from advisor.store.sql import AnyRow, attempts_given, attempts_of, hash_of, of_attempt, written
from advisor.store.tables import attempts, detector_states, jobs, milestones

# What every tick or report writes, and is looked at apart or read by nobody here.
_BY_TICKS = frozenset(
    {"first_step", "last_step", "checkpoint_step", "resumed_step", "in_job_restarts", "first_progress_at"}
    | {"last_progress_at", "save_seconds", "foreign_count", "progress"}
)
_SEEN = frozenset({"observed_at", "first_seen_at"})
_OF_ATTEMPT = tuple(name for column in attempts.c if (name := column.name) not in _BY_TICKS | _SEEN)
_OF_JOB = tuple(name for column in jobs.c if (name := column.name) not in {"first_seen_at", "last_seen_at"})


LARGE_BYTES = 256 * 1024  # of a state


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an attempt was made of. `writer`: of its detector state, None for none."""

    facts: int
    milestones: int
    writer: int | None


@dataclass(slots=True)
class _Held:
    row: AnyRow
    item: StoredAttempt
    stamp: Stamp


def _alone(_: AnyRow) -> bool:
    return False


@dataclass(slots=True)
class Remembered:
    """One reader's memory. `nodes` and `beside` are of the transaction that was confirmed last."""

    nodes: NodeBook = field(default_factory=NodeBook)
    beside: Callable[[AnyRow], bool] = _alone
    _held: dict[AttemptKey, _Held] = field(default_factory=dict)
    _stamps: Mapping[AttemptKey, Stamp] = field(default_factory=dict)
    _large: dict[AttemptKey, tuple[int, bytes]] = field(default_factory=dict)  # states that were saved last, by writer
    _changed: set[Place] = field(default_factory=set)  # nodes that the book knows anew, and what is held does not yet

    async def confirmed(
        self, connection: AsyncConnection, keys: Sequence[AttemptKey], *, policy: Policy, now: datetime
    ) -> tuple[dict[AttemptKey, StoredAttempt], tuple[str, ...]]:
        """Those that are as they were, as of this transaction; and the clusters of all."""
        stamps: dict[AttemptKey, Stamp] = {}
        seen: dict[AttemptKey, datetime] = {}
        clusters: set[str] = set()
        for row in await connection.execute(_stamps(), attempts_of(keys)):
            key = keys[row.place - 1]
            stamps[key] = Stamp(row.facts, row.milestones, row.writer)
            seen[key] = row.observed_at
            clusters.add(row.cluster)
        self._changed |= await self.nodes.refresh(connection, clusters)
        await self.nodes.refresh_history(connection, clusters, policy=policy, now=now)
        self.beside = await dependents(connection, clusters)
        self._stamps, changed = stamps, frozenset(self._changed)
        self._changed.clear()
        wanted = frozenset(keys)
        self._held = {key: held for key, held in self._held.items() if key in wanted}
        self._large = {key: large for key, large in self._large.items() if key in wanted}
        same: dict[AttemptKey, StoredAttempt] = {}
        for key, held in list(self._held.items()):
            if held.stamp != stamps.get(key) or self.beside(held.row):
                del self._held[key]  # nothing of it is kept up to date from here on
                continue
            row, item = held.row, held.item
            if item.observed_at != seen[key]:
                item = replace(item, observed_at=seen[key])
            names = row.nodes or ()
            touched = bool(changed) and any((row.cluster, name) in changed for name in names)
            if touched or self.nodes.has_history(row.cluster, names) or any(fact.score for fact in item.nodes):
                facts = self.nodes.facts(row, policy=policy, now=now)
                if facts != item.nodes:
                    item = replace(item, nodes=facts)
            same[key] = held.item = item
        return same, tuple(sorted(clusters))

    def unread_states(self, keys: Iterable[AttemptKey]) -> Mapping[AttemptKey, bytes]:
        """Detector states that need not be read to be known: as of the transaction that was confirmed, nobody has
        written them since we did. Those of a job of thousands of files are megabytes, in every tick.
        """
        found = {}
        for key in keys:
            large, stamp = self._large.get(key), self._stamps.get(key)
            if large is not None and stamp is not None and stamp.writer == large[0]:
                found[key] = large[1]
        return found

    def take(
        self,
        rows: Mapping[AttemptKey, AnyRow],
        loaded: Mapping[AttemptKey, StoredAttempt],
        *,
        alone: Collection[AttemptKey],
    ) -> None:
        """Keep what was loaded in the same transaction and is plain. `alone`: without other attempts of their jobs."""
        for key, item in loaded.items():
            stamp = self._stamps.get(key)
            if stamp is not None and key in alone and _is_plain(item, rows[key]):
                self._held[key] = _Held(rows[key], item, stamp)
            else:
                self._held.pop(key, None)

    def saved(self, states: Mapping[AttemptKey, DetectorState], writer: int) -> None:
        """A tick has saved these: then they are what was loaded next, if nothing else comes between."""
        for key, state in states.items():
            self._large.pop(key, None)
            if len(state.state) >= LARGE_BYTES:
                self._large[key] = (writer, state.state)
            held = self._held.get(key)
            if held is None:
                continue
            held.stamp = replace(held.stamp, writer=writer)
            held.item = replace(
                held.item,
                detector_state=state.state,
                signals=state.signals,
                progress=state.progress,
                foreign=state.foreign,
            )


def _is_plain(item: StoredAttempt, row: AnyRow) -> bool:
    return (
        item.attempt.state.live
        and item.attempt.ended_at is None
        and row.over_seen_at is None
        and item.generation == 0
        and not row.orders
        and not row.excluded_nodes
        and not item.predecessor_state
        and not item.milestones
        and not item.forgotten
    )


@cache
def _stamps() -> Select[Any]:
    wanted = attempts_given()
    reached = select(func.count()).select_from(milestones).where(of_attempt(milestones, attempts)).scalar_subquery()
    facts = hash_of([*(attempts.c[name] for name in _OF_ATTEMPT), *(jobs.c[name] for name in _OF_JOB)])
    return (
        select(
            wanted.c.place,
            attempts.c.cluster,
            attempts.c.observed_at,
            facts.label("facts"),
            cast(reached, BigInteger()).label("milestones"),
            written("detector_states").label("writer"),
        )
        .select_from(wanted)
        .join(attempts, of_attempt(attempts, wanted))
        .join(jobs, jobs.c.key == attempts.c.job_key)
        .outerjoin(detector_states, of_attempt(detector_states, attempts))
    )
