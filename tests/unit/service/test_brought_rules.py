"""Rules that jobs bring: read when due, checked once, bounded per user, kept while their file cannot be read."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from advisor.brought_rules import CHECKS_OF_USER_MAX, SLOW_OF_USER_MAX, BroughtRules, check
from advisor.core.job_rules import OWN, SITE
from advisor.core.job_watch import Piece, Watch
from advisor.core.model import Attempt, Job, Unavailable
from advisor.core.words import AttemptState, UnavailableReason
from advisor.ports import RulesRequest
from advisor.store.records import AttemptKey, StoredAttempt

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RULE = {"name": "steps", "logPattern": ".*step", "expectedRecurringFrequencyInSeconds": 60}


@dataclass(slots=True)
class FakeClock:
    at: datetime = T0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass(slots=True)
class FakeFiles:
    """Contents by path; what is not there is missing."""

    content: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def read(self, requests: Sequence[RulesRequest]) -> Mapping[str, bytes | Unavailable]:
        self.asked.extend(request.path for request in requests)
        absent = Unavailable(source="job-rules", reason=UnavailableReason.MISSING, detail="not there")
        return {request.key: self.content.get(request.path, absent) for request in requests}

    async def close(self) -> None:
        pass


@dataclass(slots=True)
class World:
    clock: FakeClock = field(default_factory=FakeClock)
    files: FakeFiles = field(default_factory=FakeFiles)

    def brought(self, **values: Any) -> BroughtRules:
        return BroughtRules(clock=self.clock, reader=self.files, **values)


def item(job: str, rules: str, user: str = "ada") -> StoredAttempt:
    return StoredAttempt(
        key=AttemptKey(job_key=job, number=0),
        job=Job(key=job, cluster="c", job_id=job, user=user),
        attempt=Attempt(number=0, state=AttemptState.RUNNING, started_at=T0),
        job_rules=rules,
    )


def refresh(brought: BroughtRules, *items: StoredAttempt) -> None:
    asyncio.run(brought.refresh(items))


def test_a_file_is_read_again_after_a_while_and_a_change_applies() -> None:
    """Not at every tick; another content has another digest, so that its state begins anew."""
    world = World()
    brought, job = world.brought(), item("1", "/r.json")
    world.files.content["/r.json"] = json.dumps([RULE]).encode()
    for _ in range(3):
        refresh(brought, job)
    before = brought.of(job)
    assert (len(world.files.asked), [one.of for one in before]) == (1, [OWN])
    world.files.content["/r.json"] += b" "
    world.clock.at += timedelta(seconds=31)
    refresh(brought, job)
    assert brought.of(job)[0].digest != before[0].digest


def test_rules_go_on_while_their_file_cannot_be_read_and_it_is_told() -> None:
    """A file that is being replaced is no end of its rules."""
    world = World()
    brought, job = world.brought(), item("1", "/r.json")
    world.files.content["/r.json"] = json.dumps([RULE]).encode()
    refresh(brought, job)
    before = brought.of(job)
    world.files.content.clear()
    world.clock.at += timedelta(seconds=31)
    refresh(brought, job)
    assert brought.of(job) == before
    assert brought.problems(job) == ("missing: not there",)


def test_one_users_many_contents_do_not_use_up_a_tick() -> None:
    """What is new is checked in several ticks, another user's in the first."""
    brought = World().brought()
    jobs = [item(str(n), json.dumps([{**RULE, "name": f"r{n}"}])) for n in range(5)]
    other = item("9", json.dumps([RULE]), user="bob")
    refresh(brought, *jobs, other)
    assert sum(bool(brought.of(job)) for job in jobs) == CHECKS_OF_USER_MAX
    assert brought.of(other)
    for _ in range(2):
        refresh(brought, *jobs, other)
    assert all(brought.of(job) for job in jobs)


def test_equal_contents_are_checked_once() -> None:
    """An array of thousand tasks brings one evaluator."""
    brought = World().brought()
    jobs = [item(str(n), json.dumps([RULE])) for n in range(50)]
    refresh(brought, *jobs)
    assert len({id(brought.of(job)[0].evaluator) for job in jobs}) == 1


def test_site_and_own_rules_both_apply() -> None:
    """Side by side, each with a state of its own."""
    site = check(json.dumps([RULE]).encode(), "/site.json", of_job=False)
    brought, job = World().brought(site=site), item("1", json.dumps([RULE]))
    refresh(brought, job)
    assert [one.of for one in brought.of(job)] == [OWN, SITE]
    assert len({one.digest for one in brought.of(job)}) == 2
    assert [one.of for one in brought.of(item("2", ""))] == [SITE]


def test_rules_that_take_too_long_are_switched_off_and_it_is_told() -> None:
    """Patterns that are costly on this output cost one bounded read, for this user only."""
    brought = World().brought(cpu_seconds_max=0.0)
    job, other = item("1", json.dumps([RULE])), item("2", json.dumps([RULE]), user="bob")
    refresh(brought, job, other)
    brought.apply(Watch(), job, [Piece(file="f", data=b"step\n" * 1000)], T0, restarts=lambda: 0, unread=True)
    assert brought.of(job) == ()
    assert brought.problems(job)[-1].endswith("switched off")
    assert brought.of(other)


def test_whoever_brings_slow_rules_again_and_again_brings_none() -> None:
    """Each content costs a read before it is switched off: so many of them, and no more of that user's are applied."""
    site = check(json.dumps([RULE]).encode(), "/site.json", of_job=False)
    brought = World().brought(cpu_seconds_max=0.0, site=site)
    jobs = [item(str(n), json.dumps([{**RULE, "name": f"r{n}"}])) for n in range(SLOW_OF_USER_MAX + 1)]
    other = item("9", json.dumps([RULE]), user="bob")
    applied = []
    for job in jobs:
        refresh(brought, job, other)
        applied.append([one.of for one in brought.of(job)])
        brought.apply(Watch(), job, [Piece(file="f", data=b"step\n" * 10)], T0, restarts=lambda: 0, unread=True)
    assert [OWN in each for each in applied] == [True] * (SLOW_OF_USER_MAX - 1) + [False] * 2
    assert brought.problems(jobs[-1])[-1].endswith("switched off")
    assert OWN in [one.of for one in brought.of(other)]


def test_lines_that_nobody_judged_end_a_state() -> None:
    """Rules that come back later begin anew instead of taking what they missed for silence."""
    brought, job = World().brought(), item("1", json.dumps([RULE]))
    refresh(brought, job)
    watch = brought.apply(Watch(), job, [Piece(file="f", data=b"step\n")], T0, restarts=lambda: 0, unread=True)
    assert watch.runs
    without = replace(job, job_rules="")
    refresh(brought, without)
    after = brought.apply(watch, without, [Piece(file="f", data=b"step\n")], T0, restarts=lambda: 0, unread=False)
    assert after.runs == {}
