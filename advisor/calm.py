"""Attempts that need no new decision: nothing of them has changed since the last one, and it is not time yet.

Nor is one urgent of those that only take further steps: where they are many, each waits for its turn, some ticks.

Kept for one process only, and only of what it decided itself: whoever takes over decides at once about everything.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from advisor.core.calm import calm_until, goes_on
from advisor.core.model import Attempt, Decision, Job, NodeFact, Progress, Signal, Snapshot, Unavailable
from advisor.core.policy import Policy
from advisor.sighting import Sighting, TickState
from advisor.store.records import AttemptKey
from advisor.verdicts import Verdict


@dataclass(slots=True)
class _Known:
    """What a decision was made of, and until when it holds."""

    job: Job
    attempt: Attempt
    nodes: tuple[NodeFact, ...]
    state: TickState
    progress: Progress
    signals: tuple[Signal, ...]
    scheduler: Unavailable | None
    decision: Decision
    essence: str
    until: datetime

    def verdict(self, sighting: Sighting) -> Verdict:
        return Verdict(sighting=sighting, decision=self.decision, essence=self.essence)

    def beside_state(self, sighting: Sighting, scheduler: Unavailable | None, now: datetime) -> bool:
        """Whether all but the detector state is as it was. Values are compared by being the same ones: what is loaded
        or read anew is never the same."""
        item = sighting.item
        return (
            sighting.signals is self.signals
            and item.attempt is self.attempt
            and item.job is self.job
            and item.nodes is self.nodes
            and scheduler == self.scheduler
            and not sighting.conditions
            and now < self.until
        )


class Calm:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[AttemptKey, _Known] = {}

    def keep(self, keys: Collection[AttemptKey]) -> None:
        """Forget all others."""
        self._known = {key: known for key, known in self._known.items() if key in keys}

    def forget(self, jobs: Iterable[str]) -> None:
        """When anything is due of these is not known any more."""
        gone = frozenset(jobs)
        self._known = {key: known for key, known in self._known.items() if key.job_key not in gone}

    def verdict(self, sighting: Sighting, scheduler: Unavailable | None, now: datetime) -> Verdict | None:
        """The one that deciding again would give; None where that must be seen."""
        known = self._known.get(sighting.key)
        if known is None:
            return None
        if sighting.state is known.state and known.beside_state(sighting, scheduler, now):
            return known.verdict(sighting)
        del self._known[sighting.key]
        return None

    def goes_on(self, sighting: Sighting, scheduler: Unavailable | None, now: datetime) -> bool:
        """Whether the attempt took further steps since the last decision and nothing else is new of it."""
        known = self._known.get(sighting.key)
        if known is None or sighting.state is known.state or not known.beside_state(sighting, scheduler, now):
            return False
        return sighting.only_read_on(known.state) and goes_on(known.progress, sighting.progress)

    def standing(self, sighting: Sighting) -> Verdict:
        """What was decided last, of one that goes on."""
        return self._known[sighting.key].verdict(sighting)

    def note(self, verdict: Verdict, snapshot: Snapshot, scheduler: Unavailable | None) -> None:
        """A decision was made."""
        sighting = verdict.sighting
        item = sighting.item
        ruled = bool(item.job_rules or sighting.state.watch.runs)
        if verdict.record is not None or item.generation or ruled or sighting.conditions:
            return
        until = calm_until(snapshot, verdict.decision, self._policy)
        if until is not None:
            self._known[sighting.key] = _Known(
                job=item.job,
                attempt=item.attempt,
                nodes=item.nodes,
                state=sighting.state,
                progress=sighting.progress,
                signals=sighting.signals,
                scheduler=scheduler,
                decision=verdict.decision,
                essence=verdict.essence,
                until=until,
            )
