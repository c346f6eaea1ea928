"""How often slurmctld is asked: a rate, and a growing pause while it gives no answer."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from slurm_plugin.apply import Request, Result
from slurm_plugin.pace import ACTING_RPCS, PAUSE_SECONDS, Pace, paced
from slurm_plugin.squeue import Output, SlurmError, rpcs_of
from slurm_plugin.words import Reason, Status

GOOD = Output(returncode=0, stdout=b"", stderr=b"")
AWAY = Output(returncode=1, stdout=b"", stderr=b"slurm_load_jobs error: Unable to contact slurm controller\n")
REFUSED = Output(returncode=1, stdout=b"", stderr=b"Invalid job id specified\n")


@dataclass
class Controller:
    """Answers `answer`, or nothing at all; time passes only by waiting."""

    now: float = 0.0
    answer: Output | None = GOOD
    asked: list[float] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        self.asked.append(self.now)
        if self.answer is None:
            self.now += timeout_seconds
            raise SlurmError("timeout", "no answer")
        return self.answer

    def pace(self, per_second: float = 10.0) -> Pace:
        return Pace(self, per_second=per_second, monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def ask(pace: Pace) -> Output:
    return pace(("squeue",), {}, 2.0)


def test_the_rate_is_never_exceeded() -> None:
    """A few at once, then evenly; a look is two RPCs, and a process that acts counts for all of its own."""
    controller = Controller()
    pace = controller.pace()
    for _ in range(40):
        ask(pace)
    assert controller.now == pytest.approx(7.7)
    for at in controller.asked:
        assert sum(at <= other < at + 1 for other in controller.asked) <= 7
    pace.take(20)
    ask(pace)
    assert controller.now == pytest.approx(9.9)
    assert pace.sent == 102


async def test_an_acting_process_is_charged_what_it_sent() -> None:
    """More than expected makes the others wait longer, less than expected shorter; one that was ended had it all."""
    controller = Controller()
    pace = controller.pace()
    told = iter((ACTING_RPCS, 50, 3, 0))

    async def apply(request: Request, withdrawn: asyncio.Event) -> Result:
        return Result(status=Status.APPLIED, reason=Reason.OBSERVED, rpcs=next(told))

    request = cast(Request, SimpleNamespace(companions=()))
    total = 0
    for charged in (ACTING_RPCS, 50, 3, ACTING_RPCS):
        assert (await paced(apply, pace)(request, asyncio.Event())).status is Status.APPLIED
        total += charged
        assert pace.sent == total
    ask(pace)
    assert controller.now >= (total + 2 - 3) / 10.0


@pytest.mark.parametrize(
    ("argv", "rpcs"),
    [
        (("/opt/slurm/bin/squeue", "-h", "-a"), 2),
        (("squeue", "-h", "-j", "7"), 3),
        (("squeue", "-a", "--json"), 1),
        (("sinfo", "-N"), 2),
        (("scontrol", "show", "config"), 2),
        (("scontrol", "requeue", "7"), 1),
        (("scancel", "--state=RUNNING", "7"), 3),
    ],
)
def test_a_call_counts_as_slurmctld_counts_it(argv: tuple[str, ...], rpcs: int) -> None:
    """As measured with sdiag."""
    assert rpcs_of(argv) == rpcs


@pytest.mark.parametrize("answer", [None, AWAY])
def test_a_controller_that_gives_no_answer_is_asked_ever_more_rarely(answer: Output | None) -> None:
    """Within a minute of silence a handful of questions; everybody else hears at once that nobody was asked."""
    controller = Controller(answer=answer)
    pace = controller.pace()
    refused = 0
    while controller.now < 60:
        try:
            ask(pace)
        except SlurmError as error:
            refused += "not asked again yet" in error.detail
        controller.now += 0.1
    assert len(controller.asked) <= 12
    assert refused > 100
    gaps = [later - earlier for earlier, later in zip(controller.asked, controller.asked[1:], strict=False)]
    assert all(gap >= pause for gap, pause in zip(gaps, PAUSE_SECONDS, strict=False))


def test_when_it_is_back_one_question_tells() -> None:
    """While that one is under way the others still wait; after its answer everything is as before."""
    controller = Controller(answer=None)
    pace = controller.pace()
    with pytest.raises(SlurmError):
        ask(pace)
    controller.now += PAUSE_SECONDS[0]
    controller.answer = GOOD
    inner: list[str] = []

    class Slow:
        def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
            try:
                pace.take(1)
            except SlurmError as error:
                inner.append(error.problem)
            return GOOD

    pace._run = Slow()
    ask(pace)
    assert inner == ["timeout"]
    ask(pace)
    pace.take(5)


def test_a_refusal_is_an_answer() -> None:
    """Slurm that says no is there."""
    controller = Controller(answer=REFUSED)
    pace = controller.pace()
    for _ in range(5):
        assert ask(pace) is REFUSED
