"""What only the service missed is no silence of the job: it is known when a log was looked at before."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from advisor.core.course import Pace
from advisor.core.model import Unavailable
from advisor.core.scan import Scanner
from advisor.core.words import Trust, UnavailableReason
from advisor.gathering import Gatherer
from advisor.ports import LogBatch, LogChunk, LogRequest
from advisor.rules.loader import load_rules
from advisor.sighting import decoded_state
from advisor.state_writing import StateWriter
from advisor.store.records import StoredAttempt
from advisor.verdicts import detector_state
from tests.unit.service.test_turns import T, item

SCANNER = Scanner(load_rules(()))


@dataclass
class Ticking:
    """A clock that stands still until it is set."""

    at: datetime = T

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class Training:
    """A job that prints a step every two seconds. `away`: the log store does not answer."""

    clock: Ticking
    given: int = 0
    away: bool = False
    name: str = "s"
    trust: Trust = Trust.LOG
    text: bytes = field(default=b"", repr=False)

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        if self.away:
            return {r.key: Unavailable(source="s", reason=UnavailableReason.TIMEOUT) for r in requests}
        until = int((self.clock.at - T).total_seconds()) // 2
        data = b"".join(b"step %d | loss 2.0\n" % step for step in range(self.given + 1, until + 1))
        self.given, at = until, len(self.text)
        self.text += data
        chunk = LogChunk(file="f", offset=at, data=data)
        return {r.key: LogBatch(chunks=(chunk,), cursor=str(until)) for r in requests}

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("outage", ["the service slept", "the log store was away", "another replica took over"])
async def test_an_outage_of_ours_is_no_silence_of_the_job(outage: str) -> None:
    """Five minutes in which nobody read: no long gap or pause was seen, and no schedule ruled out."""
    clock = Ticking()
    source = Training(clock)
    watched = item(1, "alice")
    gatherer = _gatherer(source, clock)
    watched = await _ticks(100, gatherer, clock, watched)
    ruled_out = _pace(watched).ruled_out
    source.away = outage == "the log store was away"
    if source.away:
        watched = await _ticks(150, gatherer, clock, watched)
    else:
        clock.at += timedelta(seconds=300)
    source.away = False
    if outage == "another replica took over":
        gatherer = _gatherer(source, clock)
    watched = await _ticks(1, gatherer, clock, watched)
    pace = _pace(watched)
    assert source.given == 251
    assert (pace.pauses, max(pace.gaps)) == ((), 2.0)
    assert pace.ruled_out == ruled_out
    assert _pace(await _ticks(60, gatherer, clock, watched)).ruled_out != ruled_out


def _gatherer(source: Training, clock: Ticking) -> Gatherer:
    return Gatherer(sources=(source,), scanner=SCANNER, clock=clock, read_bytes_max=1 << 20, signals_max=10)


async def _ticks(count: int, gatherer: Gatherer, clock: Ticking, watched: StoredAttempt) -> StoredAttempt:
    for _ in range(count):
        clock.at += timedelta(seconds=2)
        sightings = gatherer.sight([watched])
        await gatherer.gather(sightings)
        watched = replace(watched, detector_state=detector_state(sightings[0], StateWriter(), seen_over=False).state)
    return watched


def _pace(watched: StoredAttempt) -> Pace:
    (source,) = decoded_state(watched.key, watched.detector_state).sources.values()
    return source.files["f"].progress.pace
