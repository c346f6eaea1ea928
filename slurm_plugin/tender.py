"""Looks after waiting jobs that carry exclusions of ours, whether or not advice on them is open (see `tending`)."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from slurm_plugin import guard, mark, tending
from slurm_plugin.applier import Apply
from slurm_plugin.apply import Result
from slurm_plugin.briefing import Briefing
from slurm_plugin.clock import Clock
from slurm_plugin.squeue import JobRow
from slurm_plugin.words import Action, Status

log = structlog.get_logger(__name__)

CONFIRM_SECONDS = 1.0  # a node may come back between two looks
AT_ONCE_MAX = 8
PAUSE_SECONDS = 2.0  # Slurm's own view follows its scheduler's next round


@dataclass(slots=True, kw_only=True)
class Tender:
    """`busy`: jobs that somebody acts on right now. `told`: hears what was given back."""

    briefing: Briefing
    apply: Apply
    clock: Clock
    busy: set[str]
    told: Callable[[JobRow, Result], None]
    _short_since: dict[str, float] = field(default_factory=dict)
    _again_at: dict[str, float] = field(default_factory=dict)

    async def look(self, rows: Mapping[str, JobRow]) -> None:
        """One pass over the rows of a full look."""
        if self.briefing.config.mode != "act":
            return
        now, short = self.clock.monotonic(), dict[str, float]()
        self._again_at = {key: at for key, at in self._again_at.items() if key in rows and at > now}
        acted = 0
        for row in rows.values():
            if row.state != "PENDING" or mark.PREFIX not in row.admin_comment:
                continue
            asked = self._as_advice(row)
            limits = self.briefing.limits(asked, row, requeues_left=0, missing_right=False)
            found = tending.relief(row, limits.fitting, nodes_together=limits.nodes_together)
            if found is None:
                continue
            short[row.job_id] = self._short_since.get(row.job_id, now)
            late = row.job_id in self._again_at or row.job_id in self.busy or acted >= AT_ONCE_MAX
            if late or (not found.sure and now - short[row.job_id] < CONFIRM_SECONDS):
                continue
            acted += 1
            self._again_at[row.job_id] = now + PAUSE_SECONDS
            self.busy.add(row.job_id)
            try:
                result = await self.apply(self.briefing.request(asked, row, limits, tends=True), asyncio.Event())
            finally:
                self.busy.discard(row.job_id)
            if result.status is Status.APPLIED:
                log.warning("exclusions_dropped", job=row.job_id, nodes=list(result.dropped), why=result.detail)
                self.told(row, result)
            else:
                log.info("exclusions_not_dropped", job=row.job_id, status=result.status, detail=result.detail)
        self._short_since = short

    def _as_advice(self, row: JobRow) -> guard.Advice:
        """Names the job as it is at this moment; nothing is wanted of it."""
        return guard.Advice(
            advice_id="",
            incarnation="",
            job_key="",
            job_id=row.job_id,
            attempt=row.restarts,
            submitted_at=row.submit or 0,
            user=row.user,
            generation=0,
            action=Action.NONE,
            expires_monotonic=self.clock.monotonic(),
        )
