"""Whatever happens to a file between two looks, each byte is delivered once, in order, or was truncated unseen."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from advisor.core.model import Unavailable
from advisor.ports import LogSource
from tests.contract.world import HARNESSES, Harness, read_one

GENERATIONS_KEPT = 6  # below what one read follows


class History(RuleBasedStateMachine):
    """A writer, a rotation program and somebody who truncates, against a reader that looks now and then.

    `owed` is what the reader must still deliver, one entry per generation, the newest last. Each record begins with a
    byte that no other record begins with: contents that are equal cannot be told apart by anybody.
    """

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ra-history-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.world: Harness = HARNESSES[self.kind](self.folder)
        self.source: LogSource = self.world.make()
        self.runner = asyncio.Runner()
        self.cursor = ""
        self.owed: list[bytes] = [b""]
        self.delivered_of_newest = 0
        self.truncated_unseen = False
        self.records = 0

    def teardown(self) -> None:
        self.runner.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.world.file.touch()
        self._look(1 << 16)

    @property
    def exists(self) -> bool:
        return self.world.file.exists()

    @precondition(lambda self: self.records < 250)
    @rule(size=st.one_of(st.integers(1, 20), st.sampled_from([63, 64, 65, 255, 256, 257, 5000])))
    def append(self, size: int) -> None:
        record = bytes([self.records % 251]) + bytes((self.records * 7 + n) % 256 for n in range(size - 1))
        self.records += 1
        with self.world.file.open("ab") as out:
            out.write(record)
        self.owed[-1] += record

    @precondition(lambda self: self.exists)
    @rule()
    def truncate(self) -> None:
        self.world.file.write_bytes(b"")
        self._forget()

    @precondition(lambda self: self.exists)
    @rule()
    def replace(self) -> None:
        self.world.file.unlink()
        self._forget()

    def _forget(self) -> None:
        self.owed[-1] = b""
        self.delivered_of_newest = 0
        self.truncated_unseen = True

    @precondition(lambda self: self.exists and not self.truncated_unseen and len(self.owed) < GENERATIONS_KEPT)
    @rule(create=st.booleans())
    def rotate_by_name(self, create: bool) -> None:
        self._shift()
        self.world.file.rename(self._generation(1))
        if create:
            self.world.file.touch()
        self._next_generation()

    @precondition(
        lambda self: (
            self.exists
            and not self.truncated_unseen
            and self.delivered_of_newest > 0
            and len(self.owed) < GENERATIONS_KEPT
        )
    )
    @rule()
    def copy_and_truncate(self) -> None:
        self._shift()
        shutil.copyfile(self.world.file, self._generation(1))
        self.world.file.write_bytes(b"")
        self._next_generation()

    def _generation(self, number: int) -> Path:
        return self.folder / f"{self.world.file.name}.{number}"

    def _shift(self) -> None:
        for number in range(GENERATIONS_KEPT + 2, 0, -1):
            if self._generation(number).exists():
                self._generation(number).rename(self._generation(number + 1))

    def _next_generation(self) -> None:
        self.owed.append(b"")
        self.delivered_of_newest = 0

    @rule()
    def restart(self) -> None:
        self.source = self.world.make()

    @rule(bytes_max=st.sampled_from([1, 2, 50, 300, 4096, 1 << 16]))
    def read(self, bytes_max: int) -> None:
        self._look(bytes_max)

    def _look(self, bytes_max: int) -> bool:
        answer = self.runner.run(read_one(self.source, self.world.request(self.cursor, bytes_max=bytes_max)))
        if isinstance(answer, Unavailable):
            assert not self.exists, answer
            return False
        self.cursor = answer.cursor
        got = b"".join(chunk.data for chunk in answer.chunks)
        assert len(got) <= bytes_max
        for data in (chunk.data for chunk in answer.chunks):
            self._take(data)
        return answer.more

    def _take(self, data: bytes) -> None:
        while not self.owed[0] and len(self.owed) > 1:
            self.owed.pop(0)
        assert self.owed[0].startswith(data), (self.owed, data)
        self.owed[0] = self.owed[0][len(data) :]
        if len(self.owed) == 1:
            self.delivered_of_newest += len(data)

    @rule()
    def read_all(self) -> None:
        for _ in range(200):
            if not self._look(4096):
                break
        else:
            raise AssertionError("`more` never ended")
        if self.exists:
            assert not any(self.owed)
            self.owed = self.owed[-1:]
            self.truncated_unseen = False

    @invariant()
    def cursor_is_small(self) -> None:
        assert len(self.cursor) < 500


class JobHistory(History):
    kind = "job"


class KernelHistory(History):
    kind = "kernel"


TestJobHistory = JobHistory.TestCase
TestKernelHistory = KernelHistory.TestCase
TestJobHistory.settings = TestKernelHistory.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, print_blob=True
)
