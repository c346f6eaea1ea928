"""Which attempts are measured when, what is kept of it, and that no source holds or ends the tick."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from advisor.core.columns import Sample
from advisor.core.gpu_indices import with_indices
from advisor.core.measured import UTILISATION, XID
from advisor.core.model import Attempt, Job, Signal, Unavailable
from advisor.core.words import AttemptState, Trust, UnavailableReason
from advisor.measuring import AFTER_END, AGAIN_INTERVALS, FIRST_LOOK, Measurer
from advisor.ports import MetricsBatch, MetricsRequest, MetricsSeen
from advisor.rules.loader import load_rules
from advisor.sighting import Sighting, TickState, reports_of
from advisor.store.records import AttemptKey, StoredAttempt

T = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RULES = load_rules(())
NODES = ("node1", "node2")
INTERVAL = 15.0
Answer = MetricsBatch | Unavailable


@dataclass
class HandClock:
    at: datetime = T

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - T).total_seconds()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


@dataclass
class Told:
    """A source that answers as it is told, and remembers what it was asked."""

    answer: Callable[[MetricsRequest], Answer]
    name: str = "metrics"
    trust: Trust = Trust.TELEMETRY
    interval_seconds: float = INTERVAL
    blur_seconds: float = 45.0
    asked: list[list[MetricsRequest]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def read(self, requests: Sequence[MetricsRequest]) -> Mapping[str, Answer]:
        self.asked.append(list(requests))
        if self.gate is not None:
            await self.gate.wait()
        return {request.key: self.answer(request) for request in requests}

    async def look(self, nodes: Sequence[str]) -> MetricsSeen | Unavailable:
        raise NotImplementedError

    async def close(self) -> None: ...


def shown(field_: str = XID, value: float = 0.0, silent: tuple[str, ...] = ()) -> Callable[[MetricsRequest], Answer]:
    """All nodes show one value at the end of what was asked."""

    def answer(request: MetricsRequest) -> Answer:
        samples = tuple(
            Sample(at=request.until, node=node, gpu=0, field=field_, value=value)
            for node in request.nodes
            if node not in silent
        )
        return MetricsBatch(samples=samples, until=request.until, silent=silent)

    return answer


def dead(_: MetricsRequest) -> Answer:
    return Unavailable(source="metrics", reason=UnavailableReason.REFUSED, detail="cannot connect")


def sighting(number: int = 0, *, ended: datetime | None = None, state: TickState | None = None) -> Sighting:
    key = AttemptKey(job_key="k", number=number)
    attempt = Attempt(
        number=number,
        state=AttemptState.FAILED if ended else AttemptState.RUNNING,
        nodes=NODES,
        started_at=T - timedelta(hours=1),
        ended_at=ended,
    )
    item = StoredAttempt(key=key, job=Job(key="k", cluster="c", job_id="7", user="u"), attempt=attempt)
    state = state or TickState()
    return Sighting(item=item, stored=state, state=state, signals=())


def measurer(source: Told, clock: HandClock) -> Measurer:
    return Measurer(sources=[source], rules=RULES, clock=clock, signals_max=200)


def carried(before: Sighting, **changes: object) -> Sighting:
    """The same attempt at the next tick."""
    after = sighting(before.key.number, state=before.state, **changes)  # type: ignore[arg-type]
    after.signals = before.signals
    return after


async def test_a_change_is_an_event_of_its_node_with_the_time_in_which_it_happened() -> None:
    """It is dated by the sample that shows it, and says since when it may be so: a sample, a scrape and a collection
    before."""
    clock, source = HandClock(), Told(shown())
    measuring, seen = measurer(source, clock), sighting()
    await measuring.gather([seen])
    assert seen.signals == ()
    clock.at += timedelta(seconds=INTERVAL)
    source.answer = shown(value=79.0)
    seen = carried(seen)
    await measuring.gather([seen])
    assert {signal.nodes for signal in seen.signals} == {("node1",), ("node2",)}
    signal = seen.signals[0]
    assert (signal.rule, signal.at, signal.trust) == ("telemetry.xid", clock.at, Trust.TELEMETRY)
    assert datetime.fromisoformat(signal.fields["after"]) == T - timedelta(seconds=45)
    held = seen.state.sources["metrics"]
    assert (held.lines, held.newest_at, held.unavailable) == (4, clock.at, ())


async def test_a_source_is_asked_at_its_interval_and_not_at_every_tick() -> None:
    """Once for all attempts, each from where it was read to."""
    clock, source = HandClock(), Told(shown())
    measuring = measurer(source, clock)
    seen = [sighting(0), sighting(1)]
    for _ in range(31):
        await measuring.gather(seen)
        seen = [carried(one) for one in seen]
        clock.at += timedelta(seconds=1)
    assert [len(requests) for requests in source.asked] == [2, 2, 2]
    first, second, _ = (requests[0] for requests in source.asked)
    assert (first.since, first.until) == (T - FIRST_LOOK, T)
    assert (second.since, second.until) == (T, T + timedelta(seconds=INTERVAL))


async def test_an_attempt_that_ended_is_looked_at_at_once_and_until_it_can_show_nothing_more() -> None:
    """A scrape shows late what ended it."""
    clock, source = HandClock(), Told(shown())
    measuring, seen = measurer(source, clock), sighting()
    await measuring.gather([seen])
    clock.at += timedelta(seconds=4)
    ended = clock.at - timedelta(seconds=0.2)
    for _ in range(100):
        seen = carried(seen, ended=ended)
        await measuring.gather([seen])
        clock.at += timedelta(seconds=1)
    times = [requests[0].until for requests in source.asked[1:]]
    assert times[0] == T + timedelta(seconds=4)
    assert all((after - before).total_seconds() <= 4 for before, after in itertools.pairwise(times))
    assert times[-1] == ended + AFTER_END
    assert seen.state.sources["metrics"].final


async def test_a_dead_source_is_absent_with_its_reason_and_what_it_said_does_not_go_on_holding() -> None:
    """Conditions of before are not known any more; the report says why."""
    clock, source = HandClock(), Told(shown("DCGM_FI_DEV_ROW_REMAP_PENDING", 1.0))
    measuring, seen = measurer(source, clock), sighting()
    await measuring.gather([seen])
    assert {signal.rule for signal in seen.conditions} == {"telemetry.row_remap_pending"}
    seen = carried(seen)
    await measuring.gather([seen])
    assert len(seen.conditions) == 2  # between two looks they hold
    source.answer = dead
    clock.at += timedelta(seconds=INTERVAL)
    seen = carried(seen)
    await measuring.gather([seen])
    assert seen.conditions == ()
    report = next(r for r in reports_of(seen, measuring.sources, None, clock.now()) if r.source == "metrics")
    assert report.unavailable is not None
    assert (report.unavailable.reason, report.trust) == (UnavailableReason.REFUSED, Trust.TELEMETRY)
    assert measuring.last["metrics"].failed == 1


async def test_silent_nodes_are_named_in_the_report() -> None:
    """What is not measured is not known, though the source answers."""
    clock, source = HandClock(), Told(shown(silent=("node2",)))
    measuring, seen = measurer(source, clock), sighting()
    await measuring.gather([seen])
    report = next(r for r in reports_of(seen, measuring.sources, None, clock.now()) if r.source == "metrics")
    assert report.unavailable is not None
    assert (report.unavailable.reason, "node2" in report.unavailable.detail) == (UnavailableReason.STALE, True)


async def test_a_slow_source_does_not_hold_the_tick_and_its_answer_comes_later() -> None:
    """The question goes on beside the tick, and is not asked twice."""
    clock, source = HandClock(), Told(shown(value=79.0), gate=asyncio.Event())
    measuring, seen = measurer(source, clock), sighting()
    await measuring.gather([seen])
    await measuring.gather([seen])
    assert ("metrics" in seen.state.sources, len(source.asked)) == (False, 1)
    assert source.gate is not None
    source.gate.set()
    await measuring.gather([seen])
    assert seen.state.sources["metrics"].lines == 2


async def test_a_connector_that_raises_is_absence() -> None:
    """Its defect ends neither the tick nor the attempt."""

    def broken(_: MetricsRequest) -> Answer:
        raise RuntimeError("a defect")

    clock, source = HandClock(), Told(broken)
    measuring, seen = measurer(source, clock), sighting()
    await measuring.gather([seen])
    (missing,) = seen.state.sources["metrics"].unavailable
    assert (missing.reason, "a defect" in missing.detail, seen.failed) == (UnavailableReason.GARBLED, True, None)


async def test_who_takes_over_asks_for_the_newest_samples_again() -> None:
    """A change between the dead replica's last look and ours is seen; what is found twice has one id."""
    clock, source = HandClock(), Told(shown())
    seen = sighting()
    await measurer(source, clock).gather([seen])
    clock.at += timedelta(seconds=40)
    seen = carried(seen)
    await measurer(source, clock).gather([seen])
    request = source.asked[-1][0]
    assert request.since == T - timedelta(seconds=AGAIN_INTERVALS * INTERVAL)
    assert request.until == clock.at


async def test_an_attempt_without_nodes_is_not_asked_about() -> None:
    """Nothing is known to ask for while it waits."""
    clock, source = HandClock(), Told(shown(UTILISATION, 1.0))
    waiting = sighting()
    waiting.item = replace(waiting.item, attempt=Attempt(number=0, state=AttemptState.PENDING))
    await measurer(source, clock).gather([waiting])
    assert source.asked == []


async def test_many_answers_are_looked_at_over_several_ticks() -> None:
    """A tick has other things to do: what there is no time for comes with the next one, and is not asked again."""

    class Slow(HandClock):
        def monotonic(self) -> float:
            self.at += timedelta(seconds=0.1)  # every look at the clock, and so every answer, takes a while
            return super().monotonic()

    clock, source = Slow(), Told(shown())
    measuring, seen = measurer(source, clock), [sighting(number) for number in range(10)]
    counts = []
    for _ in range(6):
        await measuring.gather(seen)
        counts.append(sum("metrics" in one.state.sources for one in seen))
        seen = [carried(one) for one in seen]
    assert counts[-1] == 10
    assert 0 < counts[0] < counts[1] < 10
    assert len(source.asked) == 1


async def test_closing_ends_what_is_on_its_way() -> None:
    """The service stops while a server is slow."""
    clock, source = HandClock(), Told(shown(), gate=asyncio.Event())
    measuring = measurer(source, clock)
    await measuring.gather([sighting()])
    await measuring.close()
    assert len(source.asked) == 1


async def test_addresses_of_gpus_give_kernel_lines_their_index() -> None:
    """What the exporters tell of both is kept with the attempt; one that is told differently twice is not believed."""
    clock = HandClock()
    told = {"node1/3b:00": 3, "node2/3b:00": 5}

    def answer(request: MetricsRequest) -> Answer:
        found = shown()(request)
        assert isinstance(found, MetricsBatch)
        return replace(found, gpus=told)

    seen = sighting()
    await measurer(Told(answer), clock).gather([seen])
    xid = Signal(
        id="x",
        rule="kernel.xid",
        trust=Trust.KERNEL,
        source="kernel",
        seen_at=T,
        nodes=("node1",),
        fields={"pci": "3b:00"},
    )
    files = [held for source in seen.state.sources.values() for held in source.files.values()]
    assert [signal.gpu for signal in with_indices([xid], (held.gpus for held in files))] == [3]
    assert [s.gpu for s in with_indices([xid], [*(held.gpus for held in files), {"node1/3b:00": 4}])] == [None]
