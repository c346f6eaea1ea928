"""What ended while nobody told the advisor, and Slurm has forgotten since: from accounting, told once after a silence.

A silence is the time between two reports that the advisor took: the agent was down, or the advisor was. What ended
less than MinJobAge ago slurmctld still shows; only what lies further back is asked of slurmdbd, in one go and bounded.
It is told before the complete report that says what Slurm has forgotten, so that such an attempt has its end, its nodes
and its exact exit on record; nothing is done about it any more. Without accounting nothing is missing but that.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from advisor.v1 import agent_pb2
from slurm_plugin import observe, sacct
from slurm_plugin.config import AgentConfig
from slurm_plugin.sacct import PastAttempt
from slurm_plugin.squeue import Slurm, SlurmError

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 60.0  # after slurmdbd gave no answer
MARGIN_SECONDS = 10.0  # ends are whole seconds, and told a little later
_FILE_BYTES_MAX = 4096


def last_told(tick_file: Path) -> float | None:
    """When an agent last heard from the advisor, from the file that it kept; None when there is none to be read."""
    try:
        with tick_file.open("rb") as opened:
            written = json.loads(opened.read(_FILE_BYTES_MAX)).get("written")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return float(written) if isinstance(written, int | float) and not isinstance(written, bool) else None


@dataclass(slots=True)
class Backfill:
    """Since when nobody was told, and what of that has to be asked for. Times are wall seconds, `due` monotonic."""

    slurm: Slurm
    config: AgentConfig
    told_at: float | None = None
    since: float | None = None  # of the silence that is to be filled
    unavailable: str = ""
    _due: float = 0.0

    def silence_over(self) -> None:
        """The advisor listens again: what lies between may have been missed."""
        if self.told_at is not None and self.since is None:
            self.since, self._due = self.told_at, 0.0

    def told(self, at: float) -> None:
        self.told_at = at

    async def missed(
        self, known: Mapping[str, int], *, memory_seconds: int, now: float, monotonic: float
    ) -> list[agent_pb2.JobObservation]:
        """Observations of what ended and Slurm does not show any more; nothing while accounting cannot tell, and then
        it is asked again. `known`: the restart count of each job that Slurm shows; attempts before that one are missed.
        """
        hours = self.config.slurm.history_hours
        if self.since is None or monotonic < self._due:
            return []
        since = max(self.since - MARGIN_SECONDS, now - hours * 3600)
        if not memory_seconds or not hours or now - since <= memory_seconds:
            self.since = None
            return []
        try:
            pasts = await asyncio.to_thread(sacct.ended, self.slurm, since=int(since), until=int(now))
        except SlurmError as error:
            self._failed(error, monotonic)
            return []
        self.unavailable = ""
        found = [
            self._observation(past, now)
            for past in pasts
            if past.over and past.row.restarts < known.get(past.row.job_id, sacct.RECORDS_MAX)
        ]
        self.since = None if not found else self.since
        log.info("history_backfilled", attempts=len(found), jobs=len(pasts), seconds=round(now - since))
        return found

    def filled(self) -> None:
        """The advisor has taken what was missed."""
        self.since = None

    def _failed(self, error: SlurmError, monotonic: float) -> None:
        if error.problem in {"not_configured", "missing"}:
            if not self.unavailable:
                log.info("history_not_configured", detail=error.detail)
            self.since = None  # there is no such thing here: nothing is lost that could be had
        elif error.detail != self.unavailable:
            log.warning("history_unavailable", problem=error.problem, detail=error.detail, again_seconds=AGAIN_SECONDS)
        self.unavailable, self._due = error.detail, monotonic + AGAIN_SECONDS

    def _observation(self, past: PastAttempt, now: float) -> agent_pb2.JobObservation:
        made = observe.observation(
            self.config.cluster,
            past.row,
            memory=observe.Memory(),
            details=past.details,
            nodes=(),
            scope_config=self.config.scope,
            at=now,
        )
        made.notice = agent_pb2.NOTICE_ACCOUNTING
        # Accounting does not tell where the output was: not known, and not the default.
        made.ClearField("stdout_path")
        made.ClearField("stderr_path")
        return made
