"""Reports from the store by the core's arithmetic: gathered in the event loop, computed beside it.

What `advisor report` prints, the dashboard shows and `earning` judges by comes from here, so that all three agree.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.core.autonomy import Earned
from advisor.core.people import ShadowRules, Watched
from advisor.core.reliability import AttemptFacts, Figures, figures, grouped
from advisor.core.shadow import Case, NodeAftermath, NodeProof, ShadowReport, compare, prove, tally
from advisor.core.words import Action
from advisor.store.records import LemonRow, LemonsWanted
from advisor.store.reliability_queries import ReliabilityWanted
from advisor.store.shadow_queries import Place, ShadowWanted
from advisor.store.store import Store

NODES_MAX = 2_000  # proved in one report: those advised on last
GROUPINGS = ("cluster", "partition", "user", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """`capped`: see `ShadowEvidence`."""

    report: ShadowReport
    capped: bool
    earned: tuple[Earned, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    everything: Figures
    groups: tuple[Figures, ...]  # those with most node-days first
    groups_left_out: int
    lemons: tuple[LemonRow, ...]
    capped: bool


class Reporting:
    """One per service."""

    def __init__(self, store: Store, rules: ShadowRules) -> None:
        self._store = store
        self.rules = rules

    async def cases(self, wanted: ShadowWanted, now: datetime) -> tuple[tuple[Case, ...], bool]:
        """Every attempt of the window, compared; and whether there were more."""
        evidence = await self._store.shadow_evidence(wanted, self.rules)
        return await asyncio.to_thread(_compared, evidence.watched, now, self.rules), evidence.capped

    async def shadow(self, wanted: ShadowWanted, now: datetime) -> Shadow:
        cases, capped = await self.cases(wanted, now)
        kept = [case for case in cases if not wanted.category or case.category == wanted.category]
        named = _named(kept)
        histories = await self._store.node_aftermaths(
            {(case.cluster, node): advised_at(case) for (_, node), case in named.items()}, self.rules
        )
        proofs = [self._proof(case, node, histories, now) for (_, node), case in named.items()]
        return Shadow(report=tally(kept, proofs), capped=capped, earned=await self._store.earned())

    def _proof(self, case: Case, node: str, histories: Mapping[Place, NodeAftermath], now: datetime) -> NodeProof:
        at = advised_at(case)
        history = histories.get((case.cluster, node), NodeAftermath(node=node))
        proof, why = prove(history, at, now, self.rules)
        return NodeProof(
            node=node,
            cluster=case.cluster,
            category=case.category,
            decision_id=case.advice.decision_id if case.advice is not None else "",
            at=at,
            proof=proof,
            why=why,
        )

    async def reliability(self, wanted: ReliabilityWanted, *, by: str, groups_max: int, now: datetime) -> Reliability:
        """`by`: one of `GROUPINGS`, "" for no groups."""
        rows = await self._store.reliability_rows(wanted)
        everything, groups = await asyncio.to_thread(_figures, rows.attempts, wanted, by, groups_max)
        lemons = await self._store.audit.lemons(LemonsWanted(cluster=wanted.cluster), now=now)
        return Reliability(
            everything=everything,
            groups=groups[:groups_max],
            groups_left_out=max(0, _groups_count(rows.attempts, by) - groups_max),
            lemons=lemons.rows,
            capped=rows.capped,
        )


def advised_at(case: Case) -> datetime:
    if case.advised_at is None:
        raise ValueError("a case without advice names no nodes")
    return case.advised_at


def _compared(watched: Sequence[Watched], now: datetime, rules: ShadowRules) -> tuple[Case, ...]:
    return tuple(compare(item, now, rules) for item in watched)


def _named(cases: Sequence[Case]) -> Mapping[Place, Case]:
    """The nodes that restarts were to avoid, each with the first case of the window that named it."""
    named: dict[Place, Case] = {}
    with_advice = [case for case in cases if case.advice is not None and case.advice.action is Action.RESTART]
    for case in sorted(with_advice, key=advised_at):
        for node in case.advice.nodes if case.advice is not None else ():
            named.setdefault((case.cluster, node), case)
    return dict(list(named.items())[-NODES_MAX:])


def _figures(
    attempts: Sequence[AttemptFacts], wanted: ReliabilityWanted, by: str, groups_max: int
) -> tuple[Figures, tuple[Figures, ...]]:
    everything = figures(attempts, wanted.window)
    if not by:
        return everything, ()
    groups = sorted(grouped(attempts, _group(by)).items(), key=lambda item: (-_node_seconds(item[1], wanted), item[0]))
    return everything, tuple(figures(own, wanted.window, name) for name, own in groups[:groups_max])


def _node_seconds(attempts: Sequence[AttemptFacts], wanted: ReliabilityWanted) -> float:
    return sum(wanted.window.run_seconds(attempt) * attempt.nodes for attempt in attempts)


def _groups_count(attempts: Sequence[AttemptFacts], by: str) -> int:
    return len({_group(by)(attempt) for attempt in attempts}) if by else 0


def _group(by: str) -> Callable[[AttemptFacts], str]:
    """Which group an attempt belongs to."""
    names: Mapping[str, Callable[[AttemptFacts], str]] = {
        "cluster": lambda attempt: attempt.cluster,
        "partition": lambda attempt: attempt.partition,
        "user": lambda attempt: attempt.user,
        "job": lambda attempt: attempt.job_id,
    }
    return names[by]
