"""Which files are left alone, which mounts are believed, and whose turn it is when time is short."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectors.logs.cursor import Cursor, Mark, Written, decode
from connectors.logs.opening import Access
from connectors.logs.quiet import Quiet, Sign
from connectors.logs.source import PART_SECONDS_MAX, Budget, Tails, Turns, read_part
from connectors.logs.tail import Tail
from connectors.logs.threads import Mounts
from tests.contract.world import StandingClock

OURS = Access(owners=frozenset({os.getuid()}), owner_name="us")
NOW = datetime(2100, 1, 1, tzinfo=UTC)  # the kernel dates changes of files by its own clock: long ago by ours


def tail(path: Path, **changes: object) -> Tail:
    values: dict[str, object] = {"now": NOW, "started_at": None, "ended_at": None}
    return Tail(path=str(path), access=OURS, **(values | changes))  # type: ignore[arg-type]  # values by name


def still(path: Path) -> Path:
    path.write_bytes(b"line\n")
    return path


def read_to_the_end(path: Path) -> Mark:
    found = path.stat()
    return Mark(inode=found.st_ino, offset=found.st_size, seen=found.st_size)


def test_a_file_is_left_alone_only_with_our_cursor_and_its_old_face(tmp_path: Path) -> None:
    """Another cursor, another size, another attempt: each means that it is read."""
    quiet, file = Quiet(), still(tmp_path / "log")
    at, mark = tail(file), read_to_the_end(file)
    sign = quiet.look(at)
    assert sign is not None
    quiet.remember("job/0", at, mark, sign, now=0.0)

    def alone(key: str, mark: Mark, sign: Sign) -> bool:
        return quiet.unchanged(key, at, mark, sign, now=1.0, trusted_seconds=None)

    assert alone("job/0", mark, sign)
    assert not alone("job/1", mark, sign)
    assert not alone("job/0", Mark(inode=mark.inode, offset=2), sign)
    with file.open("ab") as out:
        out.write(b"more\n")
    grown = quiet.look(at)
    assert grown is not None
    assert not alone("job/0", mark, grown)


@pytest.mark.parametrize("changes", [{"closed": True}, {"inherited": True}, {"fresh": True}, {"offset": 3}])
def test_what_is_not_read_to_its_end_is_not_left_alone(tmp_path: Path, changes: dict[str, object]) -> None:
    """Nor what still waits for something."""
    quiet, file = Quiet(), still(tmp_path / "log")
    at = tail(file)
    values: dict[str, object] = {"inode": file.stat().st_ino, "offset": 5}
    mark = Mark(**(values | changes))  # type: ignore[arg-type]  # values by name
    sign = quiet.look(at)
    assert sign is not None
    quiet.remember("job/0", at, mark, sign, now=0.0)
    assert not quiet.unchanged("job/0", at, mark, sign, now=1.0, trusted_seconds=None)


def test_a_file_that_just_changed_is_looked_at_again(tmp_path: Path) -> None:
    """A rewrite in the same tick of the file system's clock would show nowhere."""
    quiet, file = Quiet(), tmp_path / "log"
    file.write_bytes(b"line\n")
    just = tail(file, now=datetime.fromtimestamp(file.stat().st_mtime, UTC))
    mark, sign = read_to_the_end(file), quiet.look(just)
    assert sign is not None
    quiet.remember("job/0", just, mark, sign, now=0.0)
    assert not quiet.unchanged("job/0", just, mark, sign, now=1.0, trusted_seconds=None)


def test_where_stat_may_be_old_it_is_believed_for_a_time(tmp_path: Path) -> None:
    """Few files are opened at every look, thousands in turns that do not come all at once."""
    quiet = Quiet()
    due = []
    for number in range(200):
        file = still(tmp_path / str(number))
        at, mark = tail(file), read_to_the_end(file)
        sign = quiet.look(at)
        assert sign is not None
        quiet.remember("job/0", at, mark, sign, now=0.0)
        assert not quiet.unchanged("job/0", at, mark, sign, now=0.0, trusted_seconds=0.0)
        waits = [t for t in range(40) if quiet.unchanged("job/0", at, mark, sign, now=t / 2, trusted_seconds=8.0)]
        due.append(len(waits) / 2)
    assert 4 <= min(due) < 6
    assert 10 < max(due) <= 12.5


def test_network_mounts_are_told_by_the_kernels_table(tmp_path: Path) -> None:
    """By the longest mount point; of two mounts on one point the later one counts."""
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        b"2 1 0:50 / /home rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2\n"
        b"3 1 0:51 / /scratch rw - lustre mgs:/fs rw\n"
        b"4 1 0:52 / /home/local rw - xfs /dev/sdb1 rw\n"
        b"5 1 0:53 / /with\\040blank rw - fuse.sshfs host: rw\n"
        b"6 1 0:54 / /over rw - nfs server:/x rw\n"
        b"7 6 0:55 / /over rw - tmpfs tmpfs rw\n"
        b"broken\n"
    )
    mounts = Mounts(StandingClock(), table=table)
    paths = ["/home/a/log", "/home/local/log", "/homes/log", "/scratch/log", "/with blank/log", "/over/log", "/log"]
    assert [mounts.remote(path) for path in paths] == [True, False, False, False, True, False, False]


class SteppingClock(StandingClock):
    """Each look at it takes a while."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step, self._time = step, 0.0

    def monotonic(self) -> float:
        self._time += self._step
        return self._time


def test_files_that_time_did_not_reach_come_first_the_next_time(tmp_path: Path) -> None:
    """A file system that is slow for each file still gives all of them, a part at a time, and loses none."""
    files = [tmp_path / f"{number:03}" for number in range(100)]
    for number, file in enumerate(files):
        file.write_bytes(b"%d\n" % number)
    tails = Tails(paths=[str(file) for file in files], tail=lambda path: tail(Path(path)))
    got: list[bytes] = []
    cursor, rounds, quiet, clock = Cursor(), 0, Quiet(), SteppingClock(PART_SECONDS_MAX / 30)
    while True:
        turns = Turns(
            "logs",
            "job/0",
            cursor,
            1 << 20,
            Budget(1 << 20),
            quiet=quiet,
            trusted_seconds=None,
            clock=clock,
        )
        part = read_part(turns, tails, cursor, 1 << 20)
        got += [chunk.data for chunk in part.chunks]
        cursor = Cursor(marks={**cursor.marks, **part.marks}, turn=part.turn)
        rounds += 1
        if not part.more or rounds > 20:
            break
    assert sorted(got) == sorted(b"%d\n" % number for number in range(100))
    assert 3 <= rounds <= 6


def test_no_file_is_looked_at_once_all_bytes_are_taken(tmp_path: Path) -> None:
    """Of thousands of files those whose turn it is not cost nothing at a read, and none of them is left out."""
    files = [tmp_path / f"{number:03}" for number in range(100)]
    for file in files:
        file.write_bytes(b"x" * 1000)
    looked: list[str] = []

    def look(path: str) -> Tail:
        looked.append(path)
        return tail(Path(path))

    tails = Tails(paths=[str(file) for file in files], tail=look)
    cursor, read, counts = Cursor(), 0, []
    for _ in range(12):
        looked.clear()
        clock, budget = SteppingClock(0.0), Budget(1 << 20)
        turns = Turns("logs", "job/0", cursor, 10_000, budget, quiet=Quiet(), trusted_seconds=None, clock=clock)
        part = read_part(turns, tails, cursor, 10_000)
        cursor = Cursor(marks={**cursor.marks, **part.marks}, turn=part.turn)
        read += sum(len(chunk.data) for chunk in part.chunks)
        counts.append(len(looked))
        if not part.more:
            break
    assert (read, part.more) == (100_000, False)
    assert counts[:9] == [10] * 9


def test_a_cursor_written_mark_by_mark_is_the_cursor_written_whole() -> None:
    """In whatever order marks come, and whether they are new or others than before."""
    marks: dict[str, Mark] = {}
    written = Written(marks)
    for number in (3, 1, 2, 3, 9, 0, 1):
        changed = {f"/o/{number}": Mark(inode=len(marks) + 7, offset=number), f'/o/"{number}ü': Mark(offset=1)}
        marks |= changed
        written.change(changed)
        cursor = Cursor(marks=dict(marks), turn=f"/o/{number}")
        assert written.text(cursor.turn) == Written(cursor.marks).text(cursor.turn)
        assert decode(written.text(cursor.turn)) == cursor
