"""How often slurmctld is asked: a rate that is never exceeded, and a pause that grows while it gives no answer.

One object for all that the agent sends, whoever sends it: polling, followed ends, and the processes that act (which
take their share beforehand, and settle the difference afterwards). What is counted is RPCs, as slurmctld does: one
squeue is up to three. A slurmctld that hangs is tried by one question at a time; when it comes back there is
nobody waiting to ask at once, so that a restart is not met by a storm.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from slurm_plugin.applier import Apply
from slurm_plugin.apply import Request, Result
from slurm_plugin.squeue import Output, Run, SlurmError, first_line, rpcs_of
from slurm_plugin.words import Reason, Status

BURST_SECONDS = 0.3  # this much of a second's RPCs may be sent at once
PAUSE_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # after the first, second, … question without an answer
ACTING_RPCS = 11  # two squeue to look, one for the comment, three each; two verbs: the usual action
WAITED_RPCS, COMPONENT_RPCS, COMPONENTS_LOOK_RPCS = 4, 1, 6  # a dependent's comment and update, a component's update
_AWAY = ("unable to contact", "connection refused", "timed out", "zero bytes", "communication")


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


class Pace:
    """Wraps `run`. `per_second` RPCs in the long run, some at once. Thread-safe; waits by blocking its thread."""

    def __init__(
        self,
        run: Run,
        *,
        per_second: float,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = _sleep,
    ) -> None:
        self._run, self._rate, self._monotonic, self._sleep = run, per_second, monotonic, sleep
        self._lock = threading.Lock()
        self._most = max(per_second * BURST_SECONDS, 1.0)
        self._free, self._at = self._most, monotonic()  # RPCs that may be sent at once, as of then
        self._unanswered = 0
        self._closed_until = 0.0
        self._trying = False
        self.sent = 0

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        """Raises SlurmError("timeout") without asking while the last question has gone unanswered."""
        trying = self._enter()
        self._take(rpcs_of(argv))
        try:
            output = self._run(argv, environment, timeout_seconds)
        except SlurmError as error:
            self._heard(answered=error.problem != "timeout", trying=trying)
            raise
        except BaseException:
            self._heard(answered=True, trying=trying)
            raise
        away = output.returncode != 0 and any(word in first_line(output.stderr).lower() for word in _AWAY)
        self._heard(answered=not away, trying=trying)
        return output

    def take(self, count: int) -> None:
        """Wait for the turn of a process that is to send `count` RPCs. Raises SlurmError like a call."""
        with self._lock:
            self._refuse_if_closed()
        self._take(count)

    def settle(self, more: int) -> None:
        """A process that had its turn sent so many more, or fewer, than it took: those after it wait accordingly."""
        with self._lock:
            self._free -= more
            self.sent += more

    def _enter(self) -> bool:
        """True for the one question that tries whether slurmctld is back."""
        with self._lock:
            self._refuse_if_closed()
            self._trying = self._unanswered > 0
            return self._trying

    def _refuse_if_closed(self) -> None:
        if self._unanswered and (self._trying or self._monotonic() < self._closed_until):
            raise SlurmError("timeout", f"not asked again yet: {self._unanswered} questions in a row got no answer")

    def _heard(self, *, answered: bool, trying: bool) -> None:
        with self._lock:
            if trying:
                self._trying = False
            if answered:
                self._unanswered = 0
                return
            pause = PAUSE_SECONDS[min(self._unanswered, len(PAUSE_SECONDS) - 1)]
            self._unanswered += 1
            self._closed_until = self._monotonic() + pause

    def _take(self, count: int) -> None:
        with self._lock:
            now = self._monotonic()
            self._free = min(self._most, self._free + (now - self._at) * self._rate) - count
            self._at = now
            self.sent += count
            wait = -self._free / self._rate
        if wait > 0:
            self._sleep(wait)


def paced(apply: Apply, pace: Pace) -> Apply:
    """`apply` that waits for its turn, and is not started at all while slurmctld gives no answer."""

    async def act(request: Request, withdrawn: asyncio.Event) -> Result:
        expected = expected_rpcs(request)
        try:
            await asyncio.to_thread(pace.take, expected)
        except SlurmError as error:
            return Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error))
        result = await apply(request, withdrawn)
        if result.rpcs:  # a process that was ended says nothing, and may have sent all of it
            pace.settle(result.rpcs - expected)
        return result

    return act


def expected_rpcs(request: Request) -> int:
    """What a process usually sends for it."""
    waited = sum(companion.waited for companion in request.companions)
    components = len(request.companions) - waited
    return (
        ACTING_RPCS + WAITED_RPCS * waited + (COMPONENTS_LOOK_RPCS + COMPONENT_RPCS * components if components else 0)
    )
