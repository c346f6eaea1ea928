"""Recoveries as they go on: which of their stages have just ended, by the milestones that are stored.

One attempt's recovery is told once, by the process that watches it. What ended before this process began is known, so
that stages that follow can be measured, and is not told: the process before it has told it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.store.records import AttemptKey, MilestoneKind

ATTEMPTS_MAX = 10_000  # remembered; the ones not seen for longest are forgotten first


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    begins: MilestoneKind
    ends: MilestoneKind


WHOLE = Stage(name="recovery", begins=MilestoneKind.FAULT_VISIBLE, ends=MilestoneKind.FIRST_PROGRESS)
RESTART = Stage(name="restart", begins=MilestoneKind.DETECTED, ends=MilestoneKind.RUNNING)
# One after the other they are the recovery, and what came of it.
STEPS = (
    Stage(name="detect", begins=MilestoneKind.FAULT_VISIBLE, ends=MilestoneKind.DETECTED),
    Stage(name="decide", begins=MilestoneKind.DETECTED, ends=MilestoneKind.ADVISED),
    Stage(name="accept", begins=MilestoneKind.ADVISED, ends=MilestoneKind.UPDATE_ACCEPTED),
    Stage(name="queue", begins=MilestoneKind.UPDATE_ACCEPTED, ends=MilestoneKind.RUNNING),
    Stage(name="start", begins=MilestoneKind.RUNNING, ends=MilestoneKind.FIRST_PROGRESS),
    Stage(name="catch_up", begins=MilestoneKind.FIRST_PROGRESS, ends=MilestoneKind.CAUGHT_UP),
)
STAGES = (*STEPS, RESTART, WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """One stage of the recovery of one attempt, from when to when."""

    key: AttemptKey
    stage: Stage
    began_at: datetime
    ended_at: datetime

    @property
    def took(self) -> timedelta:
        """Clocks of two hosts may contradict each other: never less than nothing."""
        return max(self.ended_at - self.began_at, timedelta())


class Recoveries:
    """Remembers what was reached, attempt by attempt. `since`: when this process began to look."""

    def __init__(self, since: datetime) -> None:
        self._since = since
        self._reached: OrderedDict[AttemptKey, dict[MilestoneKind, datetime]] = OrderedDict()

    def note(self, key: AttemptKey, reached: Mapping[MilestoneKind, datetime]) -> tuple[Passed, ...]:
        """Stages that `reached` completes. What was noted before changes nothing: the first time stays."""
        known = self._reached.setdefault(key, {})
        self._reached.move_to_end(key)
        if len(self._reached) > ATTEMPTS_MAX:
            self._reached.popitem(last=False)
        new = {kind: at for kind, at in reached.items() if kind not in known}
        known.update(new)
        return tuple(
            Passed(key=key, stage=stage, began_at=known[stage.begins], ended_at=known[stage.ends])
            for stage in STAGES
            if (stage.begins in new or stage.ends in new)
            and stage.begins in known
            and stage.ends in known
            and known[stage.ends] >= self._since
        )
