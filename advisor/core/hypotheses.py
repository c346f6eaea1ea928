"""How well each initiating signal explains the incident: weight, trust, order in time, and what came after."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from advisor.core.detection import AFTERMATH, survived
from advisor.core.doubts import doubt
from advisor.core.model import Incident, Signal, Snapshot
from advisor.core.places_of_signals import ranks_of
from advisor.core.policy import Policy
from advisor.core.rules import Rule
from advisor.core.suspects import RECORDED
from advisor.core.words import Category, IncidentKind, Role, Trust

WEAK = 0.4  # below this a hypothesis does not name a category
LATER_PENALTY = 0.12
SURVIVED_PENALTY = 0.35
AFTERMATH_PENALTY = 0.3
DOUBT_PENALTY = 0.45
TRUSTED_BONUS = 0.3
RECORDED_BONUS = 0.15
WAIT_BONUS = 0.1
AROUND_WAIT = timedelta(seconds=60)  # of when a collective began to wait: what came then made somebody late


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One initiating signal with its effective rule and how well it explains the incident."""

    signal: Signal
    rule: Rule
    score: float
    against: str  # what lowered the score, for `why_not`


def score(
    snapshot: Snapshot, incident: Incident, judged: Sequence[tuple[Signal, Rule]], policy: Policy
) -> list[Scored]:
    """Initiating signals, best explanation first."""
    initiating = [(s, rule) for s, rule in judged if rule.role is Role.INITIATING]
    skew = timedelta(seconds=policy.clock_skew_seconds)
    late = frozenset(rank for s, rule in initiating if rule.id in RECORDED for rank in ranks_of(s))
    stalled = next((s for s, rule in judged if rule.kind is IncidentKind.HANG and rule.role is Role.SYMPTOM), None)
    waiting = _waiting_since(s for s, _ in judged)
    outlived = frozenset(
        s.id
        for s, rule in initiating
        if rule.clears
        and incident.kind is not IncidentKind.NONE
        and not (rule.id not in RECORDED and _when_waiting_began(s, waiting, snapshot))
        and survived(s, snapshot)
    )
    # What training went on after began nothing, unless nothing else could have and there was but one life.
    sound = [(s, rule) for s, rule in initiating if rule.id not in RECORDED and not doubt(s) and rule.weight >= 0.5]
    only = next(iter(sound), None) if not snapshot.progress.in_job_restarts else None
    first = next((item for item in sound if item[0].id not in outlived), only)
    scored: list[Scored] = []
    for position, (signal, rule) in enumerate(initiating):
        score, against = rule.weight, ""
        if signal.trust.trusted:
            score += TRUSTED_BONUS
        elif first is not None and signal is not first[0] and _later(signal, first[0], skew):
            score -= LATER_PENALTY
            against = f"it came after {_within(first[1].title)}"
        if (
            stalled is not None
            and not signal.trust.trusted
            and rule.category in AFTERMATH
            and _later(signal, stalled, skew)
            and not _of(signal, late)
        ):
            score -= AFTERMATH_PENALTY
            against = "it came after the time-out, when processes were being ended"
        if rule.id not in RECORDED and _of(signal, late):
            score += RECORDED_BONUS  # printed by a rank that the others waited for
        if rule.id not in RECORDED and _when_waiting_began(signal, waiting, snapshot):
            score += WAIT_BONUS  # also where a step or two was still finished after it
        elif signal.id in outlived:
            # However trusted: a GPU that went on computing did not end the attempt.
            score = rule.weight - SURVIVED_PENALTY
            against = "training went on after it"
        if rule.id == "scheduler.time_limit" and any(_machine_gone(s, r, snapshot) for s, r in initiating):
            score, against = 0.9, "a machine was gone before, and the attempt only waited for its limit"
        if rule.id == "host.keyboard_interrupt" and not _interrupted(snapshot):
            score -= SURVIVED_PENALTY
            against = "the exit code is not that of an interrupt: the launcher sent it"
        if rule.id == "scheduler.cancelled" and any(
            r.weight >= 0.75 and r.ends and not s.trust.trusted for s, r in initiating
        ):
            # Somebody cleaned up after a failure that has its own evidence.
            score, against = 0.5, "the attempt had failed before it was cancelled"
        if doubt(signal):
            score, against = score - DOUBT_PENALTY, doubt(signal)
        scored.append(Scored(signal=signal, rule=rule, score=score - position * 1e-6, against=against))
    if snapshot.progress.in_job_restarts:
        scored = _of_the_last_life(scored, outlived, skew)
    # What the job's own log tells of its failure is not overruled by what may be of another day.
    told = min((item.score for item in scored if item.score >= WEAK and not doubt(item.signal)), default=1.0)
    scored = [replace(item, score=min(item.score, told - 0.01)) if doubt(item.signal) else item for item in scored]
    scored.sort(key=lambda item: -item.score)
    return scored


def _of_the_last_life(scored: Sequence[Scored], outlived: frozenset[str], skew: timedelta) -> list[Scored]:
    """Where the ranks began anew, within the job or because several attempts write one log: what a log says of an
    earlier life is worth less than any word for how the last one ended. Not what it said again: nobody knows when.
    """
    ends = [item for item in scored if item.signal.id not in outlived and item.rule.ends and item.score >= WEAK]
    made = []
    for item in scored:
        signal = item.signal
        later = (end.score for end in ends if signal.id in outlived and _later(end.signal, signal, skew))
        again = signal.trust.trusted or signal.count > 1
        least = 1.0 if again else min(later, default=1.0)
        made.append(replace(item, score=min(item.score, least - 0.01)))
    return made


def _within(title: str) -> str:
    """A title within a sentence. Names and abbreviations stay as they are spelt."""
    named = title.startswith("Xid ") or title[1:2].isupper()
    return title if named else title[:1].lower() + title[1:]


def _waiting_since(signals: Iterable[Signal]) -> datetime | None:
    """When the first collective that timed out began to wait: its time-out before the line that says so."""
    since = [
        s.at - timedelta(milliseconds=int(limit))
        for s in signals
        if s.at is not None and (limit := s.fields.get("timeout", "")).isdigit() and len(limit) < 10
    ]
    return min(since, default=None)


def _when_waiting_began(signal: Signal, waiting: datetime | None, snapshot: Snapshot) -> bool:
    if waiting is None or signal.at is None:
        return False
    around = max(AROUND_WAIT, timedelta(seconds=3.0 * (snapshot.progress.interval_seconds or 0.0)))
    return _earliest(signal, signal.at) - around <= waiting <= signal.at + around


def _earliest(signal: Signal, at: datetime) -> datetime:
    """When the event may have happened, where a source saw only that it had happened meanwhile (telemetry)."""
    after = signal.fields.get("after", "") if signal.trust is Trust.TELEMETRY else ""
    return datetime.fromisoformat(after) if after else at


def _machine_gone(signal: Signal, rule: Rule, snapshot: Snapshot) -> bool:
    """Trusted evidence that a machine of the attempt failed, and no progress since."""
    return (
        signal.trust.trusted
        and bool(signal.nodes)
        and rule.category in {Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT}
        and rule.weight >= 0.85
        and not survived(signal, snapshot)
    )


def _of(signal: Signal, ranks: frozenset[int]) -> bool:
    """Printed by these ranks and by no other."""
    own = ranks_of(signal)
    return bool(own) and own <= ranks


def _later(signal: Signal, first: Signal, skew: timedelta) -> bool:
    if signal.file == first.file and signal.file:
        return signal.order > first.order and not (
            signal.at and first.at and signal.at - first.at <= skew and signal.rank != first.rank
        )
    if signal.at is None or first.at is None:
        return False
    return signal.at - first.at > skew


def by_category(scored: Iterable[Scored]) -> list[list[Scored]]:
    """By category, best first; within a category best first."""
    groups: dict[Category, list[Scored]] = {}
    for item in scored:
        groups.setdefault(item.rule.category, []).append(item)
    return sorted(groups.values(), key=lambda group: -group[0].score)


def _interrupted(snapshot: Snapshot) -> bool:
    """Nothing contradicts that somebody pressed Ctrl-C: the exit code says so, or is not known."""
    status = snapshot.attempt.exit
    return status is None or status.code == 130 or status.signal == 2
