"""Which mode holds for one advice: monitor (record, touch nothing) or autonomous (the agent acts).

A setting names a cluster, partition, job and category; an empty field matches all. The setting with the most fields
set wins; at a tie monitor wins; without any setting the mode is monitor. Monitor for everything is the stop: setting
it removes every autonomous setting, so that none of them wins against it.
"""

from collections.abc import Iterable, Sequence
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

    @property
    def where(self) -> str:
        """The fields set, as people say them."""
        fields = (("cluster", self.cluster), ("partition", self.partition), ("job", self.job_id))
        named = (*fields, ("category", self.category))
        return ", ".join(f"{word} {value}" for word, value in named if value) or "everything"

    def overlaps(self, other: "ModeSetting") -> bool:
        """Some advice could match both."""
        return all(
            not one or not another or one == another
            for one, another in (
                (self.cluster, other.cluster),
                (self.partition, other.partition),
                (self.job_id, other.job_id),
                (self.category, other.category),
            )
        )

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChange:
    """What one change did: the setting made or removed, the autonomous ones that went with it, and those that win."""

    setting: ModeSetting
    no_longer_autonomous: tuple[ModeSetting, ...] = ()
    still_autonomous: tuple[ModeSetting, ...] = ()


def stopped_by(setting: ModeSetting, settings: Iterable[ModeSetting]) -> tuple[ModeSetting, ...]:
    """The autonomous settings that `setting` removes: monitor for everything means everything."""
    if setting.mode is not Mode.MONITOR or setting.fields_set > 0:
        return ()
    return tuple(other for other in settings if other.mode is Mode.AUTONOMOUS and other.fields_set > 0)


def autonomous_within(setting: ModeSetting, settings: Iterable[ModeSetting]) -> tuple[ModeSetting, ...]:
    """The autonomous settings that win over `setting` somewhere."""
    return tuple(
        other
        for other in settings
        if other.mode is Mode.AUTONOMOUS and other.fields_set > setting.fields_set and other.overlaps(setting)
    )


def withdrawn(settings: Sequence[ModeSetting], cluster: str, partition: str, job_id: str, category: str) -> bool:
    """A setting says monitor here: autonomous advice from before it must not be acted on."""
    fitting = [setting for setting in settings if setting.matches(cluster, partition, job_id, category)]
    return bool(fitting) and effective_mode(fitting, cluster, partition, job_id, category) is Mode.MONITOR
