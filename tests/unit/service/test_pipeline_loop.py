"""The loop around the tick, on a clock that only moves when it sleeps."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from advisor.board import Board
from advisor.core.model import Attempt, Job
from advisor.core.policy import Policy
from advisor.core.rules import RuleSet
from advisor.core.scan import Scanner
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Mode, Reason
from advisor.gathering import Gatherer
from advisor.oldest_first import AT_ONCE
from advisor.pipeline import COMMITS_AT_ONCE, FAILING_SECONDS_MAX, Pipeline, Rulebook, TicksFailedError
from advisor.sighting import Sighting, SourceState, TickState
from advisor.store.due import Due, Settings
from advisor.store.errors import Conflict
from advisor.store.records import AttemptKey, CommittedDecision, DecisionRecord, DetectorState, StoredAttempt
from advisor.store.store import Store
from advisor.verdicts import Verdict


class JumpingClock:
    """Each sleep takes as long as it says, and no real time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


class EmptyStore:
    """Nothing is watched; `away` says whether the database answers."""

    def __init__(self, away: Callable[[], bool]) -> None:
        self._away = away

    async def due(self, now: datetime) -> Due:
        if self._away():
            raise OSError("no database")
        return Due(advice=False, isolations=False)

    async def settings(self) -> Settings:
        return Settings()

    async def watched(self, now: datetime) -> tuple[()]:
        return ()

    async def load(self, keys: object, *, now: datetime) -> dict[object, object]:
        return {}

    async def modes(self) -> tuple[()]:
        return ()

    async def pauses(self, now: datetime) -> tuple[()]:
        return ()

    async def earned(self) -> tuple[()]:
        return ()

    async def open_isolations(self, cluster: str) -> tuple[()]:
        return ()

    async def save_states(self, states: object, *, fence: object = None) -> None:
        pass

    @property
    def incarnation(self) -> str:
        return "first"

    async def open_advice(self, cluster: str, now: datetime) -> tuple[()]:
        return ()


def _pipeline(
    clock: JumpingClock,
    away: Callable[[], bool],
    on_tick: Callable[[], None],
    kind: type[EmptyStore] = EmptyStore,
) -> tuple[Pipeline, Board]:
    store = cast(Store, kind(away))
    rules = RuleSet(rules=())
    board = Board(store, clock)
    gatherer = Gatherer(sources=(), scanner=Scanner(rules), clock=clock, read_bytes_max=1, signals_max=1)
    pipeline = Pipeline(
        store=store,
        board=board,
        gatherer=gatherer,
        rulebook=Rulebook(rules=rules, policy=Policy(), build="test"),
        clock=clock,
        default_mode=Mode.MONITOR,
        interval_seconds=0.001,
        attempts_max=10,
        on_tick=on_tick,
    )
    return pipeline, board


async def test_ticks_that_fail_for_long_end_the_process() -> None:
    """Nothing works for minutes: the loop gives up with a sentence, and no tick was ever called completed."""
    clock = JumpingClock()
    pipeline, board = _pipeline(clock, lambda: True, lambda: None)
    with pytest.raises(TicksFailedError, match="no database"):
        await pipeline.run()
    assert clock.seconds >= FAILING_SECONDS_MAX
    assert board.pulse.ticks == 0
    assert board.pulse.age_seconds >= FAILING_SECONDS_MAX


async def test_a_database_that_comes_back_is_used_again() -> None:
    """An outage shorter than the limit only makes the tick old for that long."""
    clock = JumpingClock()
    completed = asyncio.Event()
    pipeline, board = _pipeline(clock, lambda: clock.seconds < FAILING_SECONDS_MAX / 2, completed.set)
    running = asyncio.create_task(pipeline.run())
    async with asyncio.timeout(30):
        await completed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert board.pulse.ticks >= 1


async def test_a_report_wakes_the_tick_before_its_interval() -> None:
    """With an interval of an hour, a wake-up leads to a tick at once."""
    clock = JumpingClock()
    ticked: asyncio.Queue[None] = asyncio.Queue()
    pipeline, board = _pipeline(clock, lambda: False, lambda: ticked.put_nowait(None))
    pipeline.interval_seconds = 3600.0
    running = asyncio.create_task(pipeline.run())
    async with asyncio.timeout(10):
        await ticked.get()
        board.wake.set()
        await ticked.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@dataclass(frozen=True)
class Parts:
    """As much of a record, or of a detector state, as committing replaces."""

    key: int = 0
    milestones: tuple[()] = ()
    created_at: datetime = datetime(2026, 3, 1, tzinfo=UTC)
    essence: str = ""
    generation: int = 0


def _verdict(number: int) -> Verdict:
    item = SimpleNamespace(job=SimpleNamespace(cluster="c", job_id=str(number)), milestones=())
    nothing = SimpleNamespace(
        action=Action.NONE,
        reason=Reason.HEALTHY,
        incident=SimpleNamespace(kind=IncidentKind.NONE),
        attribution=SimpleNamespace(category=Category.NONE),
        isolation=SimpleNamespace(exclude_for_job=(), withheld=()),
        mode=Mode.MONITOR,
    )
    sighting = SimpleNamespace(key=number, item=item, state=Parts())
    return cast(Verdict, SimpleNamespace(sighting=sighting, decision=nothing, essence="e", record=Parts(key=number)))


async def test_a_long_run_of_commits_is_told_as_it_goes() -> None:
    """Many jobs fail at once and storing takes a while: the agent hears of the first before the last is stored."""
    clock = JumpingClock()
    committed: list[object] = []
    heard: list[int] = []  # how many were committed at each reading of open advice
    ages: list[float] = []  # of the pulse, before each transaction

    class SlowStore(EmptyStore):
        async def commit_decisions(self, records: Sequence[object], *, fence: object = None) -> list[object]:
            ages.append(board.pulse.age_seconds)
            clock.seconds += 0.4
            committed.extend(records)
            return [CommittedDecision(decision_id="d", generation=1) for _ in records]

        async def open_advice(self, cluster: str, now: datetime) -> tuple[()]:
            heard.append(len(committed))
            return ()

    pipeline, board = _pipeline(clock, lambda: False, lambda: None, SlowStore)
    verdicts = [_verdict(number) for number in range(10 * COMMITS_AT_ONCE)]
    assert await pipeline._commit(verdicts) == verdicts
    assert heard == [3 * COMMITS_AT_ONCE, 6 * COMMITS_AT_ONCE, 9 * COMMITS_AT_ONCE]
    assert max(ages) == 0.0


async def test_one_decision_that_cannot_be_stored_keeps_no_other_back() -> None:
    """One of many is refused by the database and one was overtaken: the others are committed."""

    class PickyStore(EmptyStore):
        async def commit_decisions(self, records: Sequence[DecisionRecord], *, fence: object = None) -> list[object]:
            if any(record.key == refused for record in records):
                raise ValueError("this one not")
            return [
                Conflict("x", seen=0, newest=1)
                if record.key == overtaken
                else CommittedDecision(decision_id="d", generation=1)
                for record in records
            ]

    refused, overtaken = cast(Any, 3), cast(Any, 5)
    pipeline, _ = _pipeline(JumpingClock(), lambda: False, lambda: None, PickyStore)
    verdicts = [_verdict(number) for number in range(7)]
    done = await pipeline._commit(verdicts)
    assert done == [verdicts[number] for number in (0, 1, 2, 4, 6)]
    assert isinstance(verdicts[3].sighting.failed, ValueError)


def _one_of_many(number: int, state: AttemptState) -> Verdict:
    """It has read on, as all others have."""
    key = AttemptKey(job_key=f"{number:03d}", number=0)
    item = StoredAttempt(
        key=key,
        job=Job(key=key.job_key, cluster="c", job_id=str(number), user="u"),
        attempt=Attempt(number=0, state=state),
    )
    stored = TickState(sources={"log": SourceState(cursor="before")})
    read_on = replace(stored, sources={"log": SourceState(cursor="after")})
    sighting = Sighting(item=item, stored=stored, state=read_on, signals=item.signals)
    return cast(Verdict, SimpleNamespace(sighting=sighting, record=None))


async def test_of_an_attempt_that_is_not_over_after_all_that_is_saved_at_once() -> None:
    """Its end was forgotten by its scheduler: that it was seen over would close it before it has ended again."""
    saved: list[Mapping[AttemptKey, DetectorState]] = []

    class SavingStore(EmptyStore):
        async def save_states(self, states: Any, *, fence: object = None) -> None:
            saved.append(states)

    pipeline, _ = _pipeline(JumpingClock(), lambda: False, lambda: None, SavingStore)
    others, last = [_one_of_many(number, AttemptState.RUNNING) for number in range(2 * AT_ONCE)], 2 * AT_ONCE
    for state, over in ((AttemptState.FAILED, True), (AttemptState.RUNNING, False)):
        verdict = _one_of_many(last, state)
        await pipeline._save([*others, verdict], [])
        assert len(saved[-1]) == AT_ONCE + 1
        assert saved[-1][verdict.sighting.key].seen_over is over


async def test_without_a_database_the_process_stays() -> None:
    """Nobody could say what is wrong if it ended; when the database is back, open advice is read again at once."""
    read: list[str] = []

    class LostStore(EmptyStore):
        async def due(self, now: datetime) -> Due:
            if self._away():
                raise OperationalError("SELECT 1", None, Exception("connection refused"))
            return await super().due(now)

        async def open_advice(self, cluster: str, now: datetime) -> tuple[()]:
            read.append(cluster)
            return ()

    clock = JumpingClock()
    completed = asyncio.Event()
    pipeline, board = _pipeline(clock, lambda: clock.seconds < 3 * FAILING_SECONDS_MAX, completed.set, LostStore)
    await board.open_for("a")
    running = asyncio.create_task(pipeline.run())
    async with asyncio.timeout(30):
        await completed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert clock.seconds >= 3 * FAILING_SECONDS_MAX
    assert read[:2] == ["a", "a"]
