"""Restarts that wait for the agent's cap: in which order they go, and how many Slurm will have forgotten by then.

A fabric event fails more jobs at once than `caps.requeues_per_minute` lets through while Slurm remembers them
(MinJobAge). The cap stays what it is: no advisor may exceed it. What it costs is told while it can be raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from slurm_plugin.squeue import JobRow

log = structlog.get_logger(__name__)


def urgency(row: JobRow | None) -> tuple[int, float]:
    """Smallest first: the largest job, as most is lost with it; of equals the one that ended first."""
    if row is None:
        return (0, 0.0)
    return (-row.nodes_wanted, float(row.end) if row.end is not None else float("inf"))


def restartable(*, per_minute: int, memory_seconds: int) -> int:
    """Of jobs that fail together, how many can be restarted before Slurm forgets them."""
    return int(per_minute * memory_seconds / 60.0)


def lost(remaining_seconds: Sequence[float], *, per_minute: int) -> int:
    """Of waiting jobs, in their order, how many are forgotten before their turn: `remaining_seconds` until each is."""
    turns = 0
    for left in remaining_seconds:
        if turns * 60.0 / per_minute < left:
            turns += 1
    return len(remaining_seconds) - turns


@dataclass(slots=True, kw_only=True)
class Backlog:
    """Says it when jobs begin to be lost, when they become more, and when none wait any more."""

    per_minute: int
    _told: int = 0

    def look(self, waiting: Sequence[JobRow], *, memory_seconds: int, now: float) -> None:
        """`waiting`: jobs that only the cap keeps from being restarted. `memory_seconds`: MinJobAge, 0 for ever."""
        ordered = sorted((row for row in waiting if row.end is not None), key=urgency)
        left = [row.end + memory_seconds - now for row in ordered if row.end is not None]
        missed = lost(left, per_minute=self.per_minute) if memory_seconds else 0
        if missed > self._told * 1.2:
            self._told = missed
            log.error(
                "restarts_will_be_lost",
                waiting=len(waiting),
                lost=missed,
                requeues_per_minute=self.per_minute,
                min_job_age_seconds=memory_seconds,
                to_do="raise caps.requeues_per_minute of the agent and restart it, or restart the jobs yourself",
            )
        if not waiting:
            self._told = 0
