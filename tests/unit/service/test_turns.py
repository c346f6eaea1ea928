"""Whose output is scanned first: a flood of one user's delays nobody else."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from advisor.core.model import Attempt, Job, Unavailable
from advisor.core.scan import Scanner
from advisor.core.words import AttemptState, Trust
from advisor.gathering import ROUNDS_MAX, ROUNDS_SLOW_MAX, SCAN_SECONDS_MAX, Gatherer
from advisor.ports import LogBatch, LogChunk, LogRequest
from advisor.rules.loader import load_rules
from advisor.store.records import AttemptKey, StoredAttempt
from advisor.turns import READ_BYTES_FIRST, READ_BYTES_MIN, SMALL_BYTES, Paces, Piece, Turns

T = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def piece(key: str, user: str, size: int) -> Piece:
    return Piece(key=AttemptKey(job_key=key, number=0), user=("c", user), size=size)


def names(pieces: Sequence[Piece]) -> list[str]:
    return [item.key.job_key for item in pieces]


def test_everybody_has_a_turn_before_anybody_has_a_second() -> None:
    """However many jobs one user has, and however small the pieces are that they write."""
    flood = [piece(f"m{number}", "mallory", 10) for number in range(3)]
    assert names(Turns().order("s", [*flood, piece("a", "alice", 1_000_000)])) == ["m0", "a", "m1", "m2"]


def test_of_ones_own_the_small_come_first_and_then_what_waited_longest() -> None:
    """A failed job's last words are not behind another job's chatter, and no chatter waits for ever."""
    turns, size = Turns(), SMALL_BYTES + 1
    first, second, words = piece("1", "u", size), piece("2", "u", size), piece("w", "u", 100)
    turns.served("s", first)
    assert names(turns.order("s", [first, second, words])) == ["w", "2", "1"]
    turns.served("s", second)
    assert names(turns.order("s", [first, second, words])) == ["w", "1", "2"]


def test_who_prints_what_is_slow_to_scan_is_read_in_smaller_pieces() -> None:
    """Quick scans of whole reads make them larger, up to the bound; slow ones smaller, for that user only."""
    paces, mallory, alice = Paces(bytes_max=8 << 20), ("c", "mallory"), ("c", "alice")
    for _ in range(10):
        paces.took("s", piece("a", "alice", paces.of("s", alice)), 0.01)
        paces.took("s", piece("m", "mallory", paces.of("s", mallory)), 1.0)
    assert (paces.of("s", alice), paces.of("s", mallory)) == (8 << 20, READ_BYTES_MIN)
    paces.took("s", piece("m", "mallory", 10), 0.01)
    assert paces.of("s", mallory) == READ_BYTES_MIN  # ten bytes prove nothing
    paces.keep({alice})
    assert paces.of("s", mallory) == READ_BYTES_FIRST
    assert Paces(bytes_max=10).of("s", mallory) == 10


@dataclass
class Slow:
    """A clock by which every scan takes as long as a source may take in one tick."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return T

    def monotonic(self) -> float:
        self.seconds += SCAN_SECONDS_MAX
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class Flood:
    """Much of mallory's, little of alice's, and always something new."""

    name: str = "s"
    trust: Trust = Trust.LOG

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        return {request.key: self._batch(request) for request in requests}

    def _batch(self, request: LogRequest) -> LogBatch:
        lines = 1 if request.user == "alice" else 20_000
        at = int(request.cursor or 0)
        return LogBatch(
            chunks=(LogChunk(file="f", offset=at, data=b"hello\n" * lines),), cursor=str(at + 6 * lines), more=False
        )

    async def close(self) -> None:
        return None


def item(number: int, user: str) -> StoredAttempt:
    return StoredAttempt(
        key=AttemptKey(job_key=f"{number}", number=0),
        job=Job(key=f"{number}", cluster="c", job_id=f"{number}", user=user),
        attempt=Attempt(number=0, state=AttemptState.RUNNING, nodes=("node1",), started_at=T),
    )


async def test_a_tick_scans_for_a_bounded_time_and_nobody_is_starved() -> None:
    """What there was no time for stays unread, and is read in one of the next ticks."""
    gatherer = Gatherer(
        sources=(Flood(),), scanner=Scanner(load_rules(())), clock=Slow(), read_bytes_max=1 << 20, signals_max=10
    )
    items = [*(item(number, "mallory") for number in range(4)), item(9, "alice")]
    scanned: list[set[str]] = []
    for _ in range(4):
        sightings = gatherer.sight(items)
        await gatherer.gather(sightings)
        done = {sighting.key.job_key for sighting in sightings if sighting.changed}
        assert {sighting.key.job_key for sighting in sightings if sighting.more} == {"0", "1", "2", "3", "9"} - done
        scanned.append(done)
    assert all(done == {"9"} for done in scanned)  # one read is all that this clock leaves time for
    items = [one for one in items if one.job.user != "alice"]
    for _ in range(4):
        sightings = gatherer.sight(items)
        await gatherer.gather(sightings)
        scanned.append({sighting.key.job_key for sighting in sightings if sighting.changed})
    assert scanned[4:] == [{"0"}, {"1"}, {"2"}, {"3"}]


@dataclass
class Ticking:
    """A clock by which every look at it takes a tenth of a second."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return T

    def monotonic(self) -> float:
        self.seconds += 0.1
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def scanned_of(users: Sequence[str]) -> int:
    """How many of 20 jobs of the first of these users, who write much, one tick has time for."""
    gatherer = Gatherer(
        sources=(Flood(),), scanner=Scanner(load_rules(())), clock=Ticking(), read_bytes_max=1 << 20, signals_max=10
    )
    sightings = gatherer.sight(
        [*(item(number, users[0]) for number in range(20)), *(item(99, user) for user in users[1:])]
    )
    await gatherer.gather(sightings)
    return sum(sighting.changed for sighting in sightings if sighting.item.job.user == users[0])


async def test_a_tick_that_others_wait_for_ends_earlier() -> None:
    """Alone a user's output is scanned for the whole time; with another's job watched, further turns are fewer."""
    alone, beside = await scanned_of(["mallory"]), await scanned_of(["mallory", "alice"])
    assert 0 < beside <= alone * 0.6


@dataclass
class Moved:
    """A clock that the source moves."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return T

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class Endless(Flood):
    """One line at each read, after `seconds`, and always more."""

    clock: Moved = field(default_factory=Moved)
    seconds: float = 0.0
    reads: int = 0

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        self.reads += 1
        self.clock.seconds += self.seconds
        return {
            request.key: LogBatch(
                chunks=(LogChunk(file="f", offset=6 * self.reads, data=b"hello\n"),), cursor=str(self.reads), more=True
            )
            for request in requests
        }


async def test_a_quick_source_is_read_on_within_a_tick_and_a_slow_one_is_not() -> None:
    """What one tick reads of a job is bounded by time: what sixteen thousand ranks print is not paced by ticks."""
    reads = []
    for seconds in (0.0, 0.2):
        source = Endless(seconds=seconds)
        gatherer = Gatherer(
            sources=(source,),
            scanner=Scanner(load_rules(())),
            clock=source.clock,
            read_bytes_max=1 << 20,
            signals_max=10,
        )
        sightings = gatherer.sight([item(1, "alice")])
        await gatherer.gather(sightings)
        assert sightings[0].more
        reads.append(source.reads)
    assert reads == [ROUNDS_MAX, ROUNDS_SLOW_MAX]
