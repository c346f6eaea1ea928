"""A file that is truncated and written anew between our look at it and our read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from connectors.logs.opening import Access
from connectors.logs.tail import Tail, read_tail

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Interrupted:
    """An `Allowance` that gives all and does something first, once."""

    act: Callable[[], object] | None = None

    def take(self, wanted: int) -> int:
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return wanted

    def give_back(self, unused: int) -> None:
        pass


def test_bytes_of_a_content_written_meanwhile_are_not_taken_for_the_rest_of_the_old_one(tmp_path: Path) -> None:
    """Long before the place that was reached, and as long as the old content: it is delivered whole, as fresh."""
    path = tmp_path / "job.log"
    path.write_bytes(b"old line\n" * 200)
    access = Access(owners=frozenset({os.getuid()}), owner_name="me")
    tail = Tail(path=str(path), access=access, now=NOON, started_at=None, ended_at=None)
    first = read_tail(tail, None, Interrupted())
    with path.open("ab") as file:
        file.write(b"one more\n")
    second = read_tail(tail, first.mark, Interrupted(lambda: path.write_bytes(b"new line\n" * 300)))
    assert [(chunk.fresh, chunk.offset, chunk.data) for chunk in second.chunks] == [(True, 0, b"new line\n" * 300)]
