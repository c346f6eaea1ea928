"""Which mode holds for one advice: monitor (record, touch nothing) or autonomous (the agent acts).

A setting names a cluster, partition, job and category; an empty field matches all. The setting with the most fields
set wins; at a tie monitor wins; without any setting the mode is monitor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from advisor.core.words import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSetting:
    """One operator's choice. Empty = all."""

    mode: Mode
    cluster: str = ""
    partition: str = ""
    job_id: str = ""
    category: str = ""
    set_by: str = ""
    why: str = ""
    set_at: datetime | None = None

    @property
    def fields_set(self) -> int:
        """How narrow the setting is: 0 (everything) to 4."""
        return sum(bool(field) for field in (self.cluster, self.partition, self.job_id, self.category))

    def matches(self, cluster: str, partition: str, job_id: str, category: str) -> bool:
        return all(
            not wanted or wanted == given
            for wanted, given in (
                (self.cluster, cluster),
                (self.partition, partition),
                (self.job_id, job_id),
                (self.category, category),
            )
        )


def effective_mode(settings: Iterable[ModeSetting], cluster: str, partition: str, job_id: str, category: str) -> Mode:
    """The mode of the narrowest matching setting; monitor at a tie and without any."""
    narrowest = -1
    mode = Mode.MONITOR
    for setting in settings:
        if not setting.matches(cluster, partition, job_id, category):
            continue
        if setting.fields_set > narrowest:
            narrowest, mode = setting.fields_set, setting.mode
        elif setting.fields_set == narrowest and setting.mode is Mode.MONITOR:
            mode = Mode.MONITOR
    return mode
