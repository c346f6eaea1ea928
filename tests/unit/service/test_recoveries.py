"""Stages of recoveries, from milestones that come in any order, more than once, and from before our time."""

from datetime import UTC, datetime, timedelta

from advisor.recoveries import ATTEMPTS_MAX, STEPS, WHOLE, Recoveries
from advisor.store.records import AttemptKey, MilestoneKind

NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEY = AttemptKey(job_key="j", number=0)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def names(recoveries: Recoveries, *reached: tuple[MilestoneKind, float]) -> dict[str, float]:
    passed = recoveries.note(KEY, {kind: at(seconds) for kind, seconds in reached})
    return {item.stage.name: item.took.total_seconds() for item in passed}


def test_each_stage_is_told_once_when_both_its_ends_are_known() -> None:
    """A stage ends with its second milestone, whichever comes first, and what comes again says nothing."""
    recoveries = Recoveries(since=NOW)
    assert names(recoveries, (MilestoneKind.DETECTED, 3)) == {}
    assert names(recoveries, (MilestoneKind.FAULT_VISIBLE, 1), (MilestoneKind.DETECTED, 9)) == {"detect": 2}
    assert names(recoveries, (MilestoneKind.ADVISED, 4), (MilestoneKind.UPDATE_ACCEPTED, 6)) == {
        "decide": 1,
        "accept": 2,
    }
    assert names(recoveries, (MilestoneKind.RUNNING, 10)) == {"queue": 4, "restart": 7}
    assert names(recoveries, (MilestoneKind.FIRST_PROGRESS, 12)) == {"start": 2, "recovery": 11}
    assert names(recoveries, (MilestoneKind.FIRST_PROGRESS, 12), (MilestoneKind.RUNNING, 10)) == {}


def test_what_ended_before_our_time_is_known_and_not_told() -> None:
    """After a restart of the service the histograms are not filled with history, and go on where it was."""
    recoveries = Recoveries(since=at(5))
    assert names(recoveries, (MilestoneKind.FAULT_VISIBLE, 1), (MilestoneKind.DETECTED, 2)) == {}
    assert names(recoveries, (MilestoneKind.ADVISED, 6)) == {"decide": 4}


def test_clocks_that_contradict_each_other_give_no_negative_time() -> None:
    """A node's clock that is ahead of ours makes the stage take nothing."""
    assert names(Recoveries(since=NOW), (MilestoneKind.FAULT_VISIBLE, 5), (MilestoneKind.DETECTED, 4)) == {"detect": 0}


def test_attempts_that_nobody_speaks_of_are_forgotten() -> None:
    """Memory is bounded: the attempt not heard of for longest goes first."""
    recoveries = Recoveries(since=NOW)
    for number in range(ATTEMPTS_MAX + 1):
        recoveries.note(AttemptKey(job_key="j", number=number), {MilestoneKind.DETECTED: at(1)})
    assert recoveries.note(AttemptKey(job_key="j", number=0), {MilestoneKind.ADVISED: at(2)}) == ()
    last = recoveries.note(AttemptKey(job_key="j", number=ATTEMPTS_MAX), {MilestoneKind.ADVISED: at(2)})
    assert [item.stage.name for item in last] == ["decide"]


def test_the_steps_follow_each_other() -> None:
    """One after the other they are the whole, so that a dashboard may stack them."""
    assert [step.begins for step in STEPS[1:]] == [step.ends for step in STEPS[:-1]]
    assert (STEPS[0].begins, STEPS[-2].ends) == (WHOLE.begins, WHOLE.ends)
