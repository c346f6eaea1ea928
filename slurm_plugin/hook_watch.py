"""Whether the hook really tells us of ends. Pure.

A hook that SlurmUser cannot run is off, with one line in slurmctld's log; and a slurmctld that never had one calls its
first only after a restart. Nothing is wrong then but time: ends are noticed at the next look. So it has to be said.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_plugin.records import JobRow
from slurm_plugin.words import ENDED, Phase, phase_of

SILENT_ENDS = 5  # unannounced, one after the other; a single notice may be lost in a burst


@dataclass(slots=True)
class HookWatch:
    """Counts ends that a look found and no notice had told of."""

    _running: set[tuple[str, int]] = field(default_factory=set)
    _missed: int = 0

    def heard(self, job_id: str) -> None:
        self._running = {key for key in self._running if key[0] != job_id}
        self._missed = 0

    def looked(self, rows: Iterable[JobRow]) -> bool:
        """True once, when it has been silent for so many ends."""
        before, self._running = self._running, set()
        was = self._missed
        for row in rows:
            key, phase = (row.job_id, row.restarts), phase_of(row.state)
            if phase is Phase.RUNNING:
                self._running.add(key)
            elif key in before and (phase is Phase.COMPLETING or phase in ENDED):
                self._missed += 1
        return was < SILENT_ENDS <= self._missed
