"""Which mode holds for one advice: monitor (record, touch nothing) or autonomous (the agent acts).

A setting names a cluster, partition, account, job and category; an empty field matches all. The setting with the most
fields set wins; at a tie monitor wins; without any setting the mode is monitor. Monitor for everything is the stop:
setting it removes every autonomous setting, so that none of them wins against it.

A canary is an autonomous setting for a share of jobs: which ones is drawn from their keys, so that the same job is
always on the same side, and a larger share only adds jobs. For the others the setting says monitor.

A pause is no mode: advice keeps its mode and waits.
"""

import hashlib
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
    account: str = ""
    percent: int | None = None  # of jobs that an autonomous setting holds for; None = all
    set_by: str = ""
    why: str = ""
    set_at: datetime | None = None

    @property
    def fields_set(self) -> int:
        """How narrow the setting is: 0 (everything) to 5."""
        return sum(bool(field) for field in (self.cluster, self.partition, self.job_id, self.category, self.account))

    @property
    def where(self) -> str:
        """The fields set, as people say them."""
        fields = (("cluster", self.cluster), ("partition", self.partition), ("job", self.job_id))
        named = (fields[0], fields[1], ("account", self.account), fields[2], ("category", self.category))
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
                (self.account, other.account),
            )
        )

    def matches(self, subject: "Subject") -> bool:
        return all(
            not wanted or wanted == given
            for wanted, given in (
                (self.cluster, subject.cluster),
                (self.partition, subject.partition),
                (self.job_id, subject.job_id),
                (self.category, subject.category),
                (self.account, subject.account),
            )
        )

    def mode_for(self, job_key: str) -> Mode:
        """What the setting says for one job: outside a canary's share, monitor."""
        if self.percent is None or in_share(job_key, self.percent):
            return self.mode
        return Mode.MONITOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What one advice is about, as far as modes ask."""

    cluster: str
    partition: str = ""
    account: str = ""
    job_id: str = ""
    job_key: str = ""
    category: str = ""


def in_share(job_key: str, percent: int) -> bool:
    """Whether a job is one of `percent` in a hundred. Without a key it is in none."""
    if not job_key:
        return False
    drawn = int.from_bytes(hashlib.sha256(job_key.encode()).digest()[:8], "big") % 100
    return drawn < percent


def effective_mode(settings: Iterable[ModeSetting], subject: Subject) -> Mode:
    """The mode of the narrowest matching setting; monitor at a tie and without any."""
    narrowest = -1
    mode = Mode.MONITOR
    for setting in settings:
        if not setting.matches(subject):
            continue
        says = setting.mode_for(subject.job_key)
        if setting.fields_set > narrowest:
            narrowest, mode = setting.fields_set, says
        elif setting.fields_set == narrowest and says is Mode.MONITOR:
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


def withdrawn(settings: Sequence[ModeSetting], subject: Subject) -> bool:
    """A setting says monitor here: autonomous advice from before it must not be acted on."""
    fitting = [setting for setting in settings if setting.matches(subject)]
    return bool(fitting) and effective_mode(fitting, subject) is Mode.MONITOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing is acted on before `until`, on one cluster or (with "") on any. Nothing is lost either."""

    cluster: str
    until: datetime
    set_by: str = ""
    why: str = ""
    set_at: datetime | None = None


def paused_until(pauses: Iterable[Pause], cluster: str, now: datetime) -> datetime | None:
    """The end of the longest pause in force for a cluster; None when there is none."""
    ends = [item.until for item in pauses if item.cluster in {"", cluster} and item.until > now]
    return max(ends, default=None)
