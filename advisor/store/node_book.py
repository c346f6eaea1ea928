"""What the database says of nodes, kept between ticks for as long as it says the same.

A tick asks about every node of every watched attempt, tens of thousands, of which nearly none has changed. So they are
looked at in `_PARTS` parts by name: how many rows a part has, and a hash of what they say, whoever wrote it and in
which order. Memory is only believed where the database confirms it, within the same transaction. Parts that differ are
read again.

A book is for one reader at a time, whose transaction sees one moment.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.history import PastImplication, node_score, other_jobs, units_of_others
from advisor.core.model import NodeFact
from advisor.core.policy import Policy
from advisor.core.words import NodeState
from advisor.store.node_queries import past_implication
from advisor.store.sql import AnyRow, any_text, any_text_given, quick_hash_of, time_given
from advisor.store.tables import implications, node_states

_PARTS = 256
_OF_HISTORY = ("cluster", "node", "job_key", "user_name", "trust", "unit", "weight", "at")
_HISTORY_MAX = 100_000  # rows of implications that are kept; of more, those of the nodes asked about are read each time

Place = tuple[str, str]  # cluster and node
_Part = tuple[str, int]


@dataclass(slots=True)
class NodeBook:
    """`refresh` within a transaction, then the others until its end."""

    columns: tuple[str, ...] = ("cluster", "name", "state", "since")
    rows: dict[Place, AnyRow] = field(default_factory=dict)
    _facts: dict[Place, NodeFact] = field(default_factory=dict)
    _seen: dict[_Part, tuple[int, int]] = field(default_factory=dict)
    _names: dict[_Part, list[Place]] = field(default_factory=dict)
    _history: dict[Place, list[PastImplication]] = field(default_factory=dict)
    _history_seen: tuple[object, ...] | None = None

    async def refresh(self, connection: AsyncConnection, clusters: Iterable[str]) -> frozenset[Place]:
        """Bring the nodes of these clusters up to date; returns those whose rows are others than before."""
        clusters = sorted(clusters)
        if await self._is_current(connection, clusters):
            return frozenset()
        part = func.hashtext(node_states.c.name).op("&")(_PARTS - 1)
        found = {
            (row.cluster, row.part): (row.many, row.stamp)
            for row in await connection.execute(
                select(
                    node_states.c.cluster,
                    part.label("part"),
                    func.count().label("many"),
                    _said(self.columns).label("stamp"),
                )
                .where(node_states.c.cluster == any_text(clusters))
                .group_by(node_states.c.cluster, literal_column("part"))
            )
        }
        mine = {place for place in self._seen if place[0] in clusters}
        different = [place for place in {*found, *mine} if found.get(place) != self._seen.get(place)]
        if not different:
            return frozenset()
        changed: set[Place] = set()
        before: dict[Place, AnyRow] = {}
        for place in different:
            for name in self._names.pop(place, ()):
                before[name] = self.rows.pop(name)
        parts = func.unnest(
            cast([cluster for cluster, _ in different], ARRAY(Text())),
            cast([number for _, number in different], ARRAY(BigInteger())),
        ).table_valued(column("cluster", Text()), column("part", BigInteger()), name="parts")
        given = parts.render_derived()
        for row in await connection.execute(
            select(*(node_states.c[name] for name in self.columns), part.label("part"))
            .select_from(node_states)
            .join(given, (given.c.cluster == node_states.c.cluster) & (given.c.part == part))
        ):
            name = (row.cluster, row.name)
            self.rows[name] = row
            self._names.setdefault((row.cluster, row.part), []).append(name)
            if before.pop(name, None) != row:
                changed.add(name)
                self._facts[name] = node_fact(row.name, row)
        for name in before:
            changed.add(name)
            self._facts.pop(name, None)
        for place in different:
            if place in found:
                self._seen[place] = found[place]
            else:
                del self._seen[place]
        return frozenset(changed)

    async def _is_current(self, connection: AsyncConnection, clusters: Sequence[str]) -> bool:
        """All parts together are as they were: mostly so, and said in one row."""
        found = {
            row.cluster: (row.many, row.stamp)
            for row in await connection.execute(_stamps(self.columns), {"clusters": list(clusters)})
            if row.many
        }
        seen: dict[str, tuple[int, int]] = {}
        for (cluster, _), (many, stamp) in self._seen.items():
            if cluster in clusters:
                before = seen.get(cluster, (0, 0))
                seen[cluster] = (before[0] + many, before[1] ^ stamp)
        return found == seen

    async def refresh_history(
        self, connection: AsyncConnection, clusters: Iterable[str], *, policy: Policy, now: datetime
    ) -> None:
        """Bring what incidents said of nodes up to date."""
        clusters = tuple(sorted(clusters))
        given = {"clusters": list(clusters), "since": now - timedelta(days=policy.history_window_days)}
        row = (await connection.execute(_history_stamp(), given)).one()
        seen = (clusters, *row)
        if seen == self._history_seen:
            return
        history: dict[Place, list[PastImplication]] = defaultdict(list)
        for item in await connection.execute(
            select(*(implications.c[name] for name in _OF_HISTORY))
            .where(*_of_history())
            .order_by(implications.c.at.desc(), implications.c.incident_id, implications.c.node)
            .limit(_HISTORY_MAX),
            given,
        ):
            history[item.cluster, item.node].append(past_implication(item))
        self._history, self._history_seen = dict(history), seen

    def has_history(self, cluster: str, names: Sequence[str] | None) -> bool:
        history = self._history
        return bool(history) and any((cluster, name) in history for name in names or ())

    def fact(self, cluster: str, name: str) -> NodeFact | None:
        """Of a node that the scheduler has shown, without its history."""
        return self._facts.get((cluster, name))

    def facts(self, row: AnyRow, *, policy: Policy, now: datetime) -> tuple[NodeFact, ...]:
        """Of the nodes of an attempt's row, with what other jobs say of them."""
        cluster, names = row.cluster, row.nodes or ()
        known = self._facts
        shown = [known.get((cluster, name)) or NodeFact(name=name, state=NodeState.OTHER) for name in names]
        if not self.has_history(cluster, names):
            return tuple(shown)
        return tuple(self._with_history(fact, row, policy, now) for fact in shown)

    def _with_history(self, fact: NodeFact, row: AnyRow, policy: Policy, now: datetime) -> NodeFact:
        said = self._history.get((row.cluster, fact.name))
        if not said:
            return fact
        return replace(
            fact,
            score=node_score(said, now, policy, except_job=row.job_key, except_user=row.user_name),
            other_jobs=other_jobs(said, now, policy, except_job=row.job_key, except_user=row.user_name),
            units=units_of_others(said, now, policy, except_job=row.job_key, except_user=row.user_name),
        )


def _said(columns: Iterable[str]) -> ColumnElement[int]:
    """What the rows of one cluster say. Names are among the columns: no two rows are alike, and cancel each other."""
    own = [node_states.c[name] for name in columns if name != "cluster"]
    return func.bit_xor(quick_hash_of(own), type_=BigInteger())


@cache
def _stamps(columns: tuple[str, ...]) -> Select[Any]:
    # One cluster after the other: to group tens of thousands of rows by it takes longer than to hash them.
    given = func.unnest(bindparam("clusters", type_=ARRAY(Text()))).table_valued(
        column("cluster", Text()), name="given"
    )
    wanted = given.render_derived()
    said = (
        select(func.count().label("many"), _said(columns).label("stamp"))
        .where(node_states.c.cluster == wanted.c.cluster)
        .lateral("said")
    )
    return select(wanted.c.cluster, said.c.many, said.c.stamp).select_from(wanted).join(said, true())


@cache
def _history_stamp() -> Select[int, int]:
    said = quick_hash_of(implications.c[name] for name in ("incident_id", *_OF_HISTORY))
    return select(func.count(), func.bit_xor(said, type_=BigInteger())).where(*_of_history())


def _of_history() -> tuple[ColumnElement[bool], ...]:
    return (
        implications.c.cluster == any_text_given("clusters"),
        implications.c.at >= time_given("since"),
        implications.c.weight > 0,
    )


def node_fact(name: str, state: AnyRow) -> NodeFact:
    """Of a node without history: most are, so that all attempts on it share the value."""
    return NodeFact(name=name, state=NodeState(state.state), since=state.since)
