"""A job whose log is read while it runs: what tests of hangs and of progress bars share."""

from dataclasses import replace
from datetime import timedelta

from advisor.core import hang
from advisor.core.model import PastAttempt, Snapshot
from advisor.core.policy import Policy
from advisor.core.progress import combine
from advisor.core.scan import FileState
from advisor.core.words import AttemptState
from tests.unit.core_detect.logs import NOON, SCANNER, context, snapshot

POLICY = Policy()
STEP = " iteration {:8d}/ 1000000 | consumed samples: 1 | elapsed time per iteration (ms): 9.1 | lm loss: 2.0 |\n"


class Job:
    """A job whose log is read at the second at which it prints."""

    def __init__(self, first: int = 1) -> None:
        self.at = 0.0
        self.step = first - 1
        self.states = {"job.log": FileState()}

    def say(self, text: str, file: str = "job.log", *, late: float = 0.0) -> None:
        """`late`: seconds since the log was looked at before; 0: as soon as the text was written."""
        state = self.states.get(file, FileState())
        seen_at = NOON + timedelta(seconds=self.at)
        data = (text.rstrip("\n") + "\n").encode() if not text.startswith(("\r", "\b")) else text.encode()
        where = context(file=file, looked_at=seen_at - timedelta(seconds=late))
        found = SCANNER.scan(where, state, data, fresh=False, final=False, seen_at=seen_at)
        self.states[file] = found.state

    def steps(self, count: int, seconds: float, every: int = 1) -> "Job":
        for _ in range(count):
            self.at += seconds
            self.step += every
            self.say(STEP.format(self.step))
        return self

    def wait(self, seconds: float) -> "Job":
        self.at += seconds
        return self

    @property
    def world(self) -> Snapshot:
        progress = combine({name: state.progress for name, state in self.states.items()})
        return replace(snapshot(state=AttemptState.RUNNING), progress=progress)

    def limit(self, policy: Policy = POLICY) -> float:
        """Seconds after the newest step at which the attempt is overdue."""
        due = hang.expected(self.world, policy)
        assert due is not None
        return due.seconds


def overdue(job: Job, *past: PastAttempt) -> float | None:
    """Seconds on the job's clock at which it is overdue, and may be ended."""
    due = hang.expected(replace(job.world, past=past), POLICY)
    assert due is None or due.at == due.ends_at
    return None if due is None else (due.at - NOON).total_seconds()
