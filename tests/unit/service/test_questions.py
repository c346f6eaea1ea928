"""Who is no operator leaves the store free for who is."""

import asyncio
from typing import Any

import pytest
from google.protobuf.message import Message

from advisor.service.callers import Caller, Proof, Role, granted
from advisor.service.calls import Calls
from advisor.service.errors import TooOftenError
from advisor.service.limits import QUESTIONS_EACH, QUESTIONS_TOGETHER, Questions
from advisor.v1 import report_pb2


def _caller(name: str, role: Role = Role.VIEWER) -> Caller:
    return Caller(name=name, roles=granted(role), proof=Proof.TOKEN)


class _Slow:
    """Answers when it is told to; counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = asyncio.Event()

    def of(self, caller: Caller) -> Any:
        outer = self

        class Report:
            async def GetReliability(self, request: Any, context: Any) -> Message:  # noqa: N802
                outer.asked.append(caller.name)
                await outer.go_on.wait()
                return report_pb2.ReliabilityReport()

        return Report()


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_asks_much_at_once_waits_for_himself_and_never_in_front_of_an_operator() -> None:
    """One viewer has two questions at once, all viewers three, whoever else waits; an operator's is asked at once."""
    slow = _Slow()
    calls = Calls({"ReportService": slow.of})

    def ask(caller: Caller) -> "asyncio.Task[Any]":
        request, kind = report_pb2.GetReliabilityRequest(), report_pb2.ReliabilityReport
        return asyncio.create_task(calls.unary(caller, "ReportService/GetReliability", request, kind))

    asking = [ask(_caller("eve")) for _ in range(50)]
    await _settled()
    assert slow.asked == ["eve"] * QUESTIONS_EACH
    asking += [ask(_caller("vera")) for _ in range(50)]
    await _settled()
    assert sorted(slow.asked) == ["eve"] * QUESTIONS_EACH + ["vera"] * (QUESTIONS_TOGETHER - QUESTIONS_EACH)
    asking.append(ask(_caller("oscar", Role.OPERATOR)))
    await _settled()
    assert slow.asked[-1] == "oscar"
    asking[0].cancel()
    await _settled()
    assert slow.asked[-1] == "vera"
    slow.go_on.set()
    await asyncio.gather(*asking, return_exceptions=True)
    assert len(slow.asked) == 101


async def test_a_question_whose_turn_does_not_come_is_refused() -> None:
    """With when to come again; and nothing of it is left that others would wait for."""
    questions = Questions(each=1, together=1, wait_seconds=0.01)
    async with questions.turn(_caller("eve")):
        for name in ("eve", "vera"):
            with pytest.raises(TooOftenError, match="try again"):
                async with questions.turn(_caller(name)):
                    pass
    async with questions.turn(_caller("vera")):
        pass
