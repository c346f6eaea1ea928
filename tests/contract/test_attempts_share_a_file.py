"""Two attempts of one job write into the same path: whose bytes are whose (`JobFileLogs`)."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import LogBatch, LogRequest
from tests.contract.world import Harness, batch, job_harness, private_folder, read_one, text

CRASH = b"step 1\nKeyError: 'tokens'\n"


@pytest.fixture
def world() -> Iterator[Harness]:
    with private_folder() as folder:
        yield job_harness(folder)


def write(world: Harness, path: Path, data: bytes, *, mode: str = "ab") -> None:
    """Write as a job does at the world's present moment."""
    with path.open(mode) as out:
        out.write(data)
    at = world.clock.now().timestamp()
    os.utime(path, (at, at))


def attempt(world: Harness, number: int, cursor: str = "", **changes: Any) -> LogRequest:
    return world.request(cursor, key=f"job/{number}", attempt=number, **changes)


async def run_to_its_end(world: Harness, content: bytes = CRASH) -> tuple[str, LogRequest]:
    """Attempt 0 runs, fails and is read to its `final` batch; returns the last cursor and its request."""
    source = world.make()
    started = world.clock.now()
    write(world, world.file, content)
    running = await batch(source, attempt(world, 0, started_at=started))
    world.clock.advance(1)
    ended = world.clock.now()
    world.clock.advance(3)
    request = attempt(world, 0, running.cursor, started_at=started, ended_at=ended)
    last = await batch(source, request)
    assert text(running) + text(last) == content
    assert last.final
    return last.cursor, attempt(world, 0, last.cursor, started_at=started, ended_at=ended)


async def test_not_started_is_not_read(world: Harness) -> None:
    """Before its start an attempt has written nothing: what lies at the path is somebody else's."""
    write(world, world.file, b"of another job\n")
    answer = await read_one(world.make(), attempt(world, 1, started_at=None))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING


async def test_last_bytes_may_come_late_and_then_the_end_is_fixed(world: Harness) -> None:
    """Bytes that arrive shortly after the end are delivered; then the batch is final and stays so."""
    source, started = world.make(), world.clock.now()
    write(world, world.file, b"begin\n")
    first = await batch(source, attempt(world, 0, started_at=started))
    world.clock.advance(10)
    ended = world.clock.now()
    second = await batch(source, attempt(world, 0, first.cursor, started_at=started, ended_at=ended))
    assert not second.final
    world.clock.advance(1)
    write(world, world.file, b"late\n")
    third = await batch(source, attempt(world, 0, second.cursor, started_at=started, ended_at=ended))
    assert text(third) == b"late\n"
    assert not third.final
    world.clock.advance(3)
    fourth = await batch(source, attempt(world, 0, third.cursor, started_at=started, ended_at=ended))
    assert fourth.final
    assert fourth.chunks == ()


async def test_final_waits_for_unread_bytes(world: Harness) -> None:
    """An ended attempt with more bytes than one page is final only when the last page was given."""
    source, started = world.make(), world.clock.now()
    write(world, world.file, b"x" * 10_000)
    ended = world.clock.now()
    world.clock.advance(4)
    cursor, got = "", b""
    for last in (False, False, True):
        page = await batch(source, attempt(world, 0, cursor, started_at=started, ended_at=ended, bytes_max=4096))
        cursor, got = page.cursor, got + text(page)
        assert page.final is last
        assert page.more is not last
    assert got == b"x" * 10_000


@pytest.mark.parametrize("new_content", [b"s", CRASH, CRASH + b"step 2\n", b"something else and longer than that\n"])
async def test_nothing_written_by_the_next_attempt_is_ever_given_as_the_last_ones(
    world: Harness, new_content: bytes
) -> None:
    """After the end is fixed, truncation and new content, like or unlike the old one, change nothing."""
    _, request = await run_to_its_end(world)
    world.clock.advance(10)
    write(world, world.file, new_content, mode="wb")
    answer = await batch(world.make(), request)
    assert answer.chunks == ()
    assert answer.final
    assert answer.unavailable == ()


@pytest.mark.parametrize("new_content", [b"s", CRASH[:7], CRASH, b"something else and longer than that\n"])
async def test_next_attempt_truncates(world: Harness, new_content: bytes) -> None:
    """In a truncated file the next attempt begins at 0, also when it prints the very same bytes again."""
    cursor, _ = await run_to_its_end(world)
    source = world.make()
    world.clock.advance(10)
    started = world.clock.now()
    early = await batch(source, attempt(world, 1, started_at=started, predecessor=cursor))
    assert early.chunks == ()
    world.clock.advance(1)
    write(world, world.file, new_content, mode="wb")
    for earlier in ("", early.cursor):
        answer = await batch(source, attempt(world, 1, earlier, started_at=started, predecessor=cursor))
        assert text(answer) == new_content, earlier


async def test_next_attempt_appends(world: Harness) -> None:
    """In a file opened for appending the next attempt begins where the last one ended."""
    cursor, request = await run_to_its_end(world)
    source = world.make()
    world.clock.advance(10)
    started = world.clock.now()
    early = await batch(source, attempt(world, 1, started_at=started, predecessor=cursor))
    assert early.chunks == ()
    world.clock.advance(1)
    write(world, world.file, b"step 2\n")
    for earlier in ("", early.cursor):
        answer = await batch(source, attempt(world, 1, earlier, started_at=started, predecessor=cursor))
        assert [(c.offset, c.data) for c in answer.chunks] == [(len(CRASH), b"step 2\n")], earlier
    old = await batch(source, request)
    assert old.chunks == ()


async def test_first_attempt_in_a_file_of_an_earlier_job(world: Harness) -> None:
    """A file last written before the attempt started holds nothing of it, whether it is then rewritten or appended."""
    write(world, world.file, b"Xid 79 of another job\n")
    world.clock.advance(60)
    started = world.clock.now()
    source = world.make()
    early = await batch(source, attempt(world, 0, started_at=started))
    assert early.chunks == ()
    write(world, world.file, b"mine\n")
    appended = await batch(source, attempt(world, 0, early.cursor, started_at=started))
    assert text(appended) == b"mine\n"
    write(world, world.file, b"Xid 79 of another job\n", mode="wb")
    rewritten = await batch(source, attempt(world, 0, early.cursor, started_at=started))
    assert text(rewritten) == b"Xid 79 of another job\n"


async def test_end_looked_at_too_late(world: Harness) -> None:
    """After a long absence only bytes that were seen while the attempt ran are its own: the rest may be the next's."""
    source, started = world.make(), world.clock.now()
    write(world, world.file, b"seen and unread, 0123456789\n")
    first = await batch(source, attempt(world, 0, started_at=started, bytes_max=4))
    world.clock.advance(1)
    ended = world.clock.now()
    world.clock.advance(500)
    write(world, world.file, b"of the next attempt\n")
    answer = await batch(source, attempt(world, 0, first.cursor, started_at=started, ended_at=ended))
    assert text(first) + text(answer) == b"seen and unread, 0123456789\n"
    assert answer.final


async def test_unread_bytes_that_a_truncation_took_are_reported(world: Harness) -> None:
    """Bytes known to have been there and gone before they were read are said, at every look."""
    source, started = world.make(), world.clock.now()
    write(world, world.file, b"0123456789\n")
    first = await batch(source, attempt(world, 0, started_at=started, bytes_max=4))
    ended = world.clock.now()
    world.clock.advance(500)
    write(world, world.file, b"the next attempt truncated it\n", mode="wb")
    cursor = first.cursor
    for _ in range(2):
        answer = await batch(source, attempt(world, 0, cursor, started_at=started, ended_at=ended))
        cursor = answer.cursor
        assert answer.chunks == ()
        assert answer.final
        assert [u.reason for u in answer.unavailable] == [UnavailableReason.STALE]
        assert " 7 bytes" in answer.unavailable[0].detail


async def test_rotation_at_the_end_is_still_drained(world: Harness) -> None:
    """An ended attempt's renamed file is read to its end under the new name."""
    source, started = world.make(), world.clock.now()
    write(world, world.file, b"0123456789\n")
    first = await batch(source, attempt(world, 0, started_at=started, bytes_max=4))
    ended = world.clock.now()
    world.file.rename(world.folder / "node1.log.1")
    world.clock.advance(60)
    write(world, world.file, b"the next attempt\n")
    answer = await batch(source, attempt(world, 0, first.cursor, started_at=started, ended_at=ended))
    assert text(first) + text(answer) == b"0123456789\n"
    assert answer.final


async def test_stdout_and_stderr_in_one_file(world: Harness) -> None:
    """The same file under one name, or under two, is delivered once."""
    write(world, world.file, b"once\n")
    link, hard = world.folder / "err.log", world.folder / "hard.log"
    link.symlink_to(world.file)
    hard.hardlink_to(world.file)
    for other in (world.file, link, hard):
        answer = await batch(world.make(), world.request(files=[world.file, other]))
        assert text(answer) == b"once\n"
        assert answer.unavailable == ()


async def test_null_device_is_no_gap_in_the_evidence(world: Harness) -> None:
    """`--error=/dev/null` is common: nothing is missing, and nothing is opened."""
    write(world, world.file, b"out\n")
    answer = await batch(world.make(), world.request(files=[world.file, Path("/dev/null")]))
    assert text(answer) == b"out\n"
    assert answer.unavailable == ()


@pytest.mark.parametrize(
    "path",
    ["relative.log", "", "/a/../etc/shadow", "/a\nb", "/a\0b", "/" + "x" * 5000, "/" + "d/" * 2500, "/tmp/\x1b[2J"],
)
async def test_paths_that_no_honest_scheduler_hands_out(world: Harness, path: str) -> None:
    """Relative, climbing, control characters, too long: refused before the file system hears of it."""
    answer = await read_one(world.make(), world.request(paths=(path,)))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.REFUSED
    assert answer.detail.isprintable()


async def test_path_that_is_no_utf8(world: Harness) -> None:
    """A path of any bytes works, and cursors survive it."""
    path = Path(os.fsdecode(os.fsencode(world.folder) + b"/\xff\xfe.log"))
    write(world, path, b"bytes\n")
    first = await batch(world.make(), world.request(paths=(str(path),)))
    assert text(first) == b"bytes\n"
    assert first.cursor.isascii()
    assert (await batch(world.make(), world.request(first.cursor, paths=(str(path),)))).chunks == ()


async def test_link_is_followed_to_the_users_own_file(world: Harness) -> None:
    """Links in a path are normal; what counts is whose file they lead to."""
    write(world, world.folder / "real", b"own\n")
    world.file.symlink_to(world.folder / "real")
    assert text(await batch(world.make(), world.request())) == b"own\n"


async def test_link_into_a_file_of_another_user_is_refused(world: Harness) -> None:
    """The advisor's rights are not lent to a user: a link to a file the user does not own is not read."""
    world.file.symlink_to("/etc/passwd")
    answer = await read_one(world.make(), world.request(user_id=4242))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.PERMISSION
    assert "tester" in answer.detail


async def test_user_unknown_here_is_refused(world: Harness) -> None:
    """Without a uid nobody can tell whose a file is."""
    write(world, world.file, b"x\n")
    answer = await read_one(world.make(lookup_uid=lambda name: None), world.request(user_id=None))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.PERMISSION


async def test_user_is_looked_up_by_name(world: Harness) -> None:
    """With no uid in the request the host is asked once per user."""
    write(world, world.file, b"x\n")
    asked: list[str] = []

    def lookup(name: str) -> int:
        asked.append(name)
        return os.getuid()

    source = world.make(lookup_uid=lookup)
    for _ in range(3):
        assert isinstance(await read_one(source, world.request(user_id=None)), LogBatch)
    assert asked == ["tester"]


async def test_extra_files_by_pattern(world: Harness) -> None:
    """Files per rank beside the output are read when the site names them, and only this job's."""
    for name in ("node1.log", "rank0-7.log", "rank1-7.log", "rank0-8.log"):
        write(world, world.folder / name, name.encode())
    answer = await batch(world.make(extra_files=("rank*-%j.log",)), world.request())
    assert {c.data for c in answer.chunks} == {b"node1.log", b"rank0-7.log", b"rank1-7.log"}


async def test_old_extra_files_hold_nothing_of_this_attempt(world: Harness) -> None:
    """A rank file of an earlier attempt that is not written any more contributes nothing."""
    write(world, world.folder / "rank9-7.log", b"old\n")
    world.clock.advance(60)
    started = world.clock.now()
    write(world, world.file, b"new\n")
    source = world.make(extra_files=("rank*-%j.log",))
    answer = await batch(source, world.request(started_at=started + timedelta(seconds=0)))
    assert text(answer) == b"new\n"
