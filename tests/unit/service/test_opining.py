"""Other programs are asked once about each failed attempt, beside the tick, and within a budget."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from advisor.core.model import Unavailable
from advisor.core.scan import Scanner
from advisor.core.words import AttemptState, Category, Trust, UnavailableReason
from advisor.opining import AT_ONCE, Opining
from advisor.ports import Opinion, OpinionRequest
from advisor.rules.loader import load_rules
from advisor.sighting import Sighting
from tests.unit.service.test_measuring import HandClock, T, sighting

SCANNER = Scanner(load_rules(()))
OPINION = Opinion(action="RESTART", texts=("RuntimeError: CUDA error: uncorrectable ECC error encountered",))


@dataclass
class Others:
    """Answers as told, once the gate is open."""

    answer: Callable[[OpinionRequest], Opinion | Unavailable] = lambda _: OPINION
    name: str = "nvrx"
    trust: Trust = Trust.EXTERNAL
    budget_seconds: float = 60.0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[OpinionRequest] = field(default_factory=list)
    given_up: int = 0
    gave_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: OpinionRequest) -> Opinion | Unavailable:
        self.asked.append(request)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            self.gave_up.set()
            raise
        return self.answer(request)

    async def check(self) -> Unavailable | None:
        return None

    async def close(self) -> None: ...


def failed(number: int = 0, state: AttemptState = AttemptState.FAILED, ago: float = 1.0) -> Sighting:
    made = sighting(number, ended=T - timedelta(seconds=ago))
    attempt = replace(made.item.attempt, state=state)
    made.item = replace(made.item, attempt=attempt, stdout_path="/logs/17.out")
    return made


def opining(source: Others, clock: HandClock | None = None) -> Opining:
    return Opining(sources=[source], scanner=SCANNER, clock=clock or HandClock(), signals_max=100)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_tick_does_not_wait_and_takes_what_has_come() -> None:
    """Asked in one tick, among the signals of a later one, and never asked again."""
    source = Others()
    made, seen = opining(source), failed()
    await made.gather([seen])
    await settle()
    await made.gather([seen])
    assert (len(source.asked), seen.signals) == (1, ())
    source.gate.set()
    await settle()
    await made.gather([seen])
    (signal,) = seen.signals
    assert (signal.trust, signal.category, signal.source) == (Trust.EXTERNAL, Category.GPU_HARDWARE, "nvrx")
    assert (signal.nodes, signal.fields) == ((), {"action": "RESTART"})
    await made.gather([seen])
    assert len(source.asked) == 1
    assert seen.changed


@pytest.mark.parametrize("state", [AttemptState.COMPLETED, AttemptState.CANCELLED, AttemptState.PREEMPTED])
async def test_what_did_not_fail_is_not_asked_about(state: AttemptState) -> None:
    """Nor is an attempt that goes on, one without a log, and one that ended longer ago than the budget."""
    source = Others()
    running, silent = sighting(), failed()
    silent.item = replace(silent.item, stdout_path="")
    made = opining(source)
    await made.gather([failed(state=state), running, silent, failed(3, ago=61.0)])
    await settle()
    assert source.asked == []


async def test_what_comes_too_late_is_dropped_and_told() -> None:
    """The budget is over: absent, with the reason, and final."""
    source = Others(budget_seconds=0.01)
    made, seen = opining(source), failed(ago=0.0)
    await made.gather([seen])
    await source.gave_up.wait()
    await settle()
    await made.gather([seen])
    held = seen.state.sources["nvrx"]
    assert (seen.signals, held.final) == ((), True)
    assert [part.reason for part in held.unavailable] == [UnavailableReason.TIMEOUT]
    assert made.last["nvrx"].failed == 1


async def test_a_source_that_breaks_is_absent_and_harms_nobody() -> None:
    """A defect of the adapter ends no tick."""

    def breaks(_: OpinionRequest) -> Opinion:
        raise KeyError("x")

    source = Others(answer=breaks)
    source.gate.set()
    made, seen = opining(source), failed()
    await made.gather([seen])
    await settle()
    await made.gather([seen])
    assert [part.reason for part in seen.state.sources["nvrx"].unavailable] == [UnavailableReason.GARBLED]


async def test_questions_are_bounded_and_given_up_with_their_attempt() -> None:
    """A storm of failures asks a few at a time; what is not watched any more is not waited for."""
    source = Others()
    made, storm = opining(source), [failed(number) for number in range(AT_ONCE + 5)]
    await made.gather(storm)
    await settle()
    assert len(source.asked) == AT_ONCE
    await made.gather([])
    await settle()
    assert source.given_up == AT_ONCE
    await made.gather(storm[:1])
    await settle()
    await made.close()
    assert source.given_up == AT_ONCE + 1


async def test_hostile_words_are_one_harmless_line() -> None:
    """A model wrote them about what a user wrote."""
    source = Others(answer=lambda _: Opinion(action="STOP", texts=("a\nb\x1b[31mc" + "x" * 5_000,)))
    source.gate.set()
    made, seen = opining(source), failed()
    await made.gather([seen])
    await settle()
    await made.gather([seen])
    (signal,) = seen.signals
    assert len(signal.text) <= 410
    assert "\n" not in signal.text
    assert signal.category is Category.UNKNOWN
