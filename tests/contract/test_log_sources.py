"""What every log source that reads files promises, run on each of them."""

import asyncio
import fcntl
import gzip
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import LogBatch
from connectors.logs.source import ReadLimits
from tests.contract.world import HARNESSES, Harness, batch, drain, private_folder, read_one, text


@pytest.fixture(params=sorted(HARNESSES))
def world(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with private_folder() as folder:
        yield HARNESSES[request.param](folder)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


async def test_trust_follows_the_transport(world: Harness) -> None:
    """A source says by which transport its facts come, whatever the text says."""
    assert world.make().trust is world.trust


async def test_whole_file_then_growth(world: Harness) -> None:
    """What is there is delivered, then what is appended, with offsets that count from the file's beginning."""
    source = world.make()
    append(world.file, b"one\ntwo\n")
    first = await batch(source, world.request())
    assert text(first) == b"one\ntwo\n"
    assert [chunk.offset for chunk in first.chunks] == [0]
    append(world.file, b"three\n")
    second = await batch(source, world.request(first.cursor))
    assert text(second) == b"three\n"
    assert [(chunk.offset, chunk.fresh) for chunk in second.chunks] == [(8, False)]
    assert not second.more
    assert not second.final


async def test_cursor_survives_a_restart(world: Harness) -> None:
    """A new instance continues from the cursor of a dead one and delivers nothing twice."""
    append(world.file, b"a" * 5000)
    first = await batch(world.make(), world.request(bytes_max=3000))
    second = await batch(world.make(), world.request(first.cursor))
    assert text(first) + text(second) == b"a" * 5000
    third = await batch(world.make(), world.request(second.cursor))
    assert third.chunks == ()
    assert third.cursor == second.cursor


@pytest.mark.parametrize("bytes_max", [1, 7, 4096, 10_000])
async def test_page_boundaries(world: Harness, bytes_max: int) -> None:
    """Pages hold at most `bytes_max`, say that there is more, and add up to the file, lines cut anywhere."""
    content = b"".join(b"line %04d\n" % n for n in range(40))
    append(world.file, content)
    source, got, cursor = world.make(), b"", ""
    for _ in range(len(content) + 1):
        page = await batch(source, world.request(cursor, bytes_max=bytes_max))
        assert len(text(page)) <= bytes_max
        got, cursor = got + text(page), page.cursor
        assert page.more == (len(got) < len(content))
        if not page.more:
            break
    assert got == content


async def test_truncation_starts_over_fresh(world: Harness) -> None:
    """After a truncation reading starts at 0 and the first chunk says `fresh`, also when it was empty meanwhile."""
    source = world.make()
    append(world.file, b"old content\n")
    first = await batch(source, world.request())
    world.file.write_bytes(b"")
    empty = await batch(source, world.request(first.cursor))
    assert empty.chunks == ()
    append(world.file, b"new\n")
    second = await batch(source, world.request(empty.cursor))
    assert [(c.offset, c.data, c.fresh) for c in second.chunks] == [(0, b"new\n", True)]
    append(world.file, b"more\n")
    third = await batch(source, world.request(second.cursor))
    assert [(c.offset, c.data, c.fresh) for c in third.chunks] == [(4, b"more\n", False)]


@pytest.mark.parametrize("same_first_bytes", [0, 300, 70_000])
async def test_truncation_is_seen_although_the_file_grew_past_the_offset(world: Harness, same_first_bytes: int) -> None:
    """A file rewritten and longer than before is another content, also when it begins like the old one."""
    source = world.make()
    head = b"h" * same_first_bytes
    append(world.file, head + b"attempt one was here, and this is its end\n")
    first = await batch(source, world.request())
    content = head + b"attempt two is here; " + b"x" * 200 + b"\n"
    world.file.write_bytes(content)
    second = await batch(source, world.request(first.cursor))
    assert text(second) == content
    assert second.chunks[0].fresh


async def test_rename_rotation_drains_the_old_file_first(world: Harness) -> None:
    """Unread bytes of a renamed file come first, then the new one's with `fresh`, and nothing twice."""
    source = world.make()
    append(world.file, b"first\n")
    first = await batch(source, world.request())
    append(world.file, b"unread\n")
    world.file.rename(world.folder / "node1.log.1")
    append(world.file, b"new file\n")
    second = await batch(source, world.request(first.cursor))
    assert [(c.data, c.fresh) for c in second.chunks] == [(b"unread\n", False), (b"new file\n", True)]
    third = await batch(source, world.request(second.cursor))
    assert third.chunks == ()


async def test_several_rotations_between_two_looks(world: Harness) -> None:
    """Generations that came and went between two reads are delivered in order."""
    source = world.make()
    append(world.file, b"0\n")
    first = await batch(source, world.request())
    for number in (1, 2, 3):
        for old in (2, 1):
            if (world.folder / f"node1.log.{old}").exists():
                (world.folder / f"node1.log.{old}").rename(world.folder / f"node1.log.{old + 1}")
        world.file.rename(world.folder / "node1.log.1")
        append(world.file, b"generation %d\n" % number)
    got, _ = await drain(source, world.request, first.cursor)
    assert got == b"generation 1\ngeneration 2\ngeneration 3\n"


@pytest.mark.parametrize("packed", [False, True])
async def test_several_rotations_by_date_between_two_looks(world: Harness, packed: bool) -> None:
    """logrotate's `dateext` numbers nothing: dates tell the order, and files of other shapes are none of its."""
    source = world.make()
    append(world.file, b"0\n")
    first = await batch(source, world.request())
    (world.folder / "node1.log-99999999.orig").write_bytes(b"another file\n")
    (world.folder / "node1.log.err").write_bytes(b"and another\n")
    for day in (28, 29, 30):
        append(world.file, b"until %d\n" % day)
        old = world.folder / f"node1.log-202611{day}"
        world.file.rename(old)
        if packed and day < 30:  # `delaycompress`
            old.with_name(f"{old.name}.gz").write_bytes(gzip.compress(old.read_bytes()))
            old.unlink()
    append(world.file, b"now\n")
    got, _ = await drain(source, world.request, first.cursor)
    assert got == b"until 28\nuntil 29\nuntil 30\nnow\n"


async def test_writer_that_never_reopens_is_followed_under_the_new_name(world: Harness) -> None:
    """logrotate with `create` leaves an empty file while the job goes on writing into the renamed one."""
    source = world.make()
    append(world.file, b"begin\n")
    first = await batch(source, world.request())
    moved = world.folder / "node1.log.1"
    world.file.rename(moved)
    world.file.touch()
    append(moved, b"still here\n")
    second = await batch(source, world.request(first.cursor))
    assert text(second) == b"still here\n"
    append(moved, b"and here\n")
    assert text(await batch(source, world.request(second.cursor))) == b"and here\n"


async def test_copytruncate_reads_the_rest_from_the_copy(world: Harness) -> None:
    """What was unread when a file was copied and truncated is found in the copy."""
    source = world.make()
    append(world.file, b"read before the rotation\n")
    first = await batch(source, world.request())
    append(world.file, b"unread\n")
    (world.folder / "node1.log.1").write_bytes(world.file.read_bytes())
    world.file.write_bytes(b"")
    append(world.file, b"after\n")
    second = await batch(source, world.request(first.cursor))
    assert [(c.data, c.fresh) for c in second.chunks] == [(b"unread\n", False), (b"after\n", True)]


async def test_replaced_file_with_the_same_inode_number(world: Harness) -> None:
    """A deleted file's inode number may come back at once: the content tells that it is another file."""
    source = world.make()
    append(world.file, b"content of the first file\n")
    first = await batch(source, world.request())
    cursor = json.loads(first.cursor)
    world.file.unlink()
    append(world.file, b"another content, and a longer one at that\n")
    for mark in cursor["files"].values():
        mark["i"] = world.file.stat().st_ino
    second = await batch(source, world.request(json.dumps(cursor)))
    assert [(c.offset, c.fresh) for c in second.chunks] == [(0, True)]


async def test_missing_then_appearing(world: Harness) -> None:
    """A missing file is `Unavailable(missing)`, which is not an empty answer; when it comes it is read from 0."""
    source = world.make()
    answer = await read_one(source, world.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING
    assert answer.source == source.name
    world.file.touch()
    empty = await batch(source, world.request())
    assert empty.chunks == ()
    append(world.file, b"x\n")
    assert text(await batch(source, world.request(empty.cursor))) == b"x\n"


async def test_one_missing_file_does_not_hide_the_others(world: Harness) -> None:
    """What can be read is delivered, and what cannot is named beside it."""
    files = world.many(3)
    append(files[0], b"a\n")
    append(files[2], b"c\n")
    answer = await batch(world.make(), world.request(files=files))
    assert text(answer) == b"a\nc\n"
    assert [u.reason for u in answer.unavailable] == [UnavailableReason.MISSING]
    assert "node2" in answer.unavailable[0].detail


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_link_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_folder, make_link_to_device, make_link_loop])
async def test_only_regular_files_are_opened(world: Harness, make: object) -> None:
    """A FIFO, a socket, a folder, a device or a link loop is refused with its kind, at once and unopened."""
    assert callable(make)
    make(world.file)
    async with asyncio.timeout(5):
        answer = await read_one(world.make(), world.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.NOT_REGULAR


async def test_fifo_without_a_writer_does_not_delay_the_others(world: Harness) -> None:
    """A FIFO beside regular files costs nothing: no open that waits for a writer."""
    files = world.many(2)
    make_fifo(files[0])
    append(files[1], b"read\n")
    async with asyncio.timeout(1):
        answer = await batch(world.make(), world.request(files=files))
    assert text(answer) == b"read\n"
    assert [u.reason for u in answer.unavailable] == [UnavailableReason.NOT_REGULAR]


async def test_file_swapped_for_a_fifo_after_the_first_read(world: Harness) -> None:
    """A path that was a file once is judged anew at every read."""
    source = world.make()
    append(world.file, b"x\n")
    first = await batch(source, world.request())
    world.file.unlink()
    make_fifo(world.file)
    async with asyncio.timeout(5):
        answer = await read_one(source, world.request(first.cursor))
    refused = [answer] if isinstance(answer, Unavailable) else answer.unavailable
    assert [u.reason for u in refused] == [UnavailableReason.NOT_REGULAR]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")
async def test_other_users_file_is_refused(world: Harness) -> None:
    """A file of another user is not read although our rights would allow it; a trusted one, whoever reads."""
    append(world.file, b"secret\n")
    os.chown(world.file, 65534, 65534)
    answer = await read_one(world.make(), world.request())
    assert isinstance(answer, Unavailable)
    wrong = UnavailableReason.REFUSED if world.trust.trusted else UnavailableReason.PERMISSION
    assert answer.reason is wrong
    assert "65534" in answer.detail


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "[]",
        "{}",
        '{"v":2,"files":{}}',
        '{"v":1,"files":[]}',
        '{"v":1,"files":{"/a":7}}',
        '{"v":1,"files":{"/a":{"o":-1}}}',
        '{"v":1,"files":{"/a":{"o":true}}}',
        '{"v":1,"files":{"/a":{"o":1e400}}}',
        '{"v":1,"files":{"/a":{"zz":1}}}',
        '{"v":1,"files":{"/a":{"h":5}}}',
        '{"v":1,"files":{},"turn":1}',
        "[" * 100_000,
    ],
)
async def test_invalid_cursor_is_a_located_error(world: Harness, cursor: str) -> None:
    """A cursor that is none of ours is answered with its place, and other requests are served."""
    append(world.file, b"x\n")
    answers = await world.make().read([world.request(cursor), world.request(key="other/0")])
    broken, other = answers["job/0"], answers["other/0"]
    assert isinstance(broken, Unavailable)
    assert broken.reason is UnavailableReason.GARBLED
    assert "job/0" in broken.detail
    assert "cursor" in broken.detail
    assert isinstance(other, LogBatch)
    assert text(other) == b"x\n"


async def test_thousands_of_files_within_bounds(world: Harness) -> None:
    """Of 3,000 files none is forgotten, no page exceeds its bound, and every file gets its turn."""
    files = world.many(3000)
    for number, path in enumerate(files):
        path.write_bytes(b"line of %05d\n" % number)
    source, cursor, pages = world.make(), "", 0
    seen: dict[str, bytes] = {}
    while True:
        page = await batch(source, world.request(cursor, files=files, bytes_max=8192))
        pages += 1
        assert sum(len(c.data) for c in page.chunks) <= 8192
        for chunk in page.chunks:
            seen[chunk.file] = seen.get(chunk.file, b"") + chunk.data
        cursor = page.cursor
        if not page.more:
            break
        assert pages < 100
    assert seen == {str(path): b"line of %05d\n" % number for number, path in enumerate(files)}


async def test_more_files_than_the_bound_is_said(world: Harness) -> None:
    """A bound on the number of files that bites is visible in the answer."""
    files = world.many(5)
    for path in files:
        path.write_bytes(b"x\n")
    answer = await batch(world.make(limits=ReadLimits(files_max=3)), world.request(files=files))
    assert len(answer.chunks) == 3
    assert [u.reason for u in answer.unavailable] == [UnavailableReason.LIMIT]


async def test_a_loud_file_does_not_starve_a_quiet_one(world: Harness) -> None:
    """Files of one request share its bytes: a small one is not kept waiting by a large one."""
    files = world.many(2)
    files[0].write_bytes(b"l" * 1_000_000)
    files[1].write_bytes(b"quiet\n")
    page = await batch(world.make(), world.request(files=files, bytes_max=16_384))
    assert b"quiet\n" in {c.data for c in page.chunks}
    assert page.more
    assert sum(len(c.data) for c in page.chunks) == 16_384


async def test_growing_files_take_turns(world: Harness) -> None:
    """When all files grow faster than they may be read, each still gets its turn."""
    files, source, cursor = world.many(8), world.make(), ""
    heard: set[str] = set()
    for _ in range(8):
        for path in files:
            append(path, b"g" * 8192)
        page = await batch(source, world.request(cursor, files=files, bytes_max=4096))
        cursor = page.cursor
        heard |= {c.file for c in page.chunks}
    assert heard == {str(path) for path in files}


async def test_a_lease_on_the_file_does_not_hold_the_reader(world: Harness) -> None:
    """Opening a file that somebody leased would wait for the lease to break: it is left for the next look."""
    append(world.file, b"leased\n")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with world.file.open("rb+") as held:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            async with asyncio.timeout(0.25):
                answer = await read_one(world.make(), world.request())
        assert isinstance(answer, Unavailable)
        assert answer.reason is UnavailableReason.TIMEOUT
    finally:
        signal.signal(signal.SIGIO, before)
    assert text(await batch(world.make(), world.request())) == b"leased\n"


async def test_all_requests_together_are_bounded_and_take_turns(world: Harness) -> None:
    """The bound over one call is kept, and who got nothing comes first the next time."""
    source = world.make(limits=ReadLimits(call_bytes_max=10_000))
    keys = [f"job{n}/0" for n in range(8)]
    cursors, got = dict.fromkeys(keys, ""), dict.fromkeys(keys, 0)
    for _ in range(10):
        append(world.file, b"z" * 20_000)
        answers = await source.read([world.request(cursors[key], key=key) for key in keys])
        total = 0
        for key, answer in answers.items():
            assert isinstance(answer, LogBatch)
            assert answer.more
            total += len(text(answer))
            got[key] += len(text(answer))
            cursors[key] = answer.cursor
        assert 0 < total <= 10_000
    assert min(got.values()) > 0


async def test_concurrent_reads_do_not_disturb_each_other(world: Harness) -> None:
    """Many reads at once each get the whole content."""
    world.file.write_bytes(b"content\n" * 1000)
    source = world.make()
    answers = await asyncio.gather(
        *(source.read([world.request(key=f"job{n}/0") for n in range(20)]) for _ in range(10))
    )
    for answer in answers:
        assert len(answer) == 20
        assert all(isinstance(b, LogBatch) and text(b) == b"content\n" * 1000 for b in answer.values())


async def test_cancellation_leaves_the_source_usable(world: Harness) -> None:
    """A cancelled read loses nothing, at whatever moment: the next one starts from the same cursor."""
    world.file.write_bytes(b"content\n")
    source = world.make()
    for _ in range(20):
        reading = asyncio.create_task(read_one(source, world.request()))
        await asyncio.sleep(0)
        reading.cancel()
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        # A thread that was quick enough has answered already.
        assert isinstance(outcome, asyncio.CancelledError | LogBatch)
    assert text(await batch(source, world.request())) == b"content\n"


async def test_closed_source_refuses_to_read(world: Harness) -> None:
    """Reading after `close` is a programmer's error; closing twice is not."""
    world.file.write_bytes(b"content\n")
    source = world.make()
    await source.close()
    await source.close()
    with pytest.raises(RuntimeError, match="closed"):
        await read_one(source, world.request())


async def test_no_requests_no_answers(world: Harness) -> None:
    """Asking for nothing is answered with nothing."""
    assert await world.make().read([]) == {}


async def test_a_hole_is_skipped_and_said_by_the_offset(world: Harness) -> None:
    """Gigabytes of hole that a descriptor left after a truncation are not read as zeros."""
    source = world.make(**({"backlog_bytes": 1 << 40} if world.kind == "kernel" else {}))
    with world.file.open("wb") as out:
        out.write(b"begin\n")
        out.seek(1 << 33)
        out.write(b"far away\n")
    got = await drain(source, lambda cursor: world.request(cursor, bytes_max=65_536))
    assert got[0].startswith(b"begin\n")
    assert got[0].endswith(b"far away\n")
    assert len(got[0]) < 1 << 20


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_nothing_stays_open(world: Harness) -> None:
    """A read leaves no descriptor behind, whatever it found."""
    files = world.many(4)
    append(files[0], b"x")
    make_fifo(files[1])
    files[2].mkdir()
    source = world.make()
    await source.read([world.request(files=files)])
    before = open_descriptors()
    for _ in range(5):
        await source.read([world.request(files=files)])
    assert open_descriptors() == before


def pack(path: Path) -> None:
    """As logrotate does it: a new file beside, with the old one's time, then the old one goes."""
    found = path.stat()
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    packed.chmod(found.st_mode & 0o7777)
    os.utime(packed, ns=(found.st_atime_ns, found.st_mtime_ns))
    path.unlink()


@pytest.mark.parametrize("bytes_max", [7, 1 << 20])
async def test_a_generation_packed_before_it_was_read_to_its_end(world: Harness, bytes_max: int) -> None:
    """What is unread of `log.1.gz` is delivered first, in pages, then the new file."""
    source = world.make()
    append(world.file, b"x" * 1000 + b"\nread\n")
    first = await batch(source, world.request())
    append(world.file, b"unread, and the last words\n")
    world.file.rename(world.folder / "node1.log.1")
    pack(world.folder / "node1.log.1")
    append(world.file, b"new file\n")
    got, cursor, fresh = b"", first.cursor, []
    for _ in range(20):
        page = await batch(source, world.request(cursor, bytes_max=bytes_max))
        got, cursor = got + text(page), page.cursor
        fresh += [(chunk.offset, chunk.data[:1]) for chunk in page.chunks if chunk.fresh]
        if not page.more:
            break
    assert got == b"unread, and the last words\nnew file\n"
    assert fresh == [(0, b"n")]


@pytest.mark.parametrize("packed", [False, True])
async def test_rotation_that_packs_twice_between_two_looks(world: Harness, packed: bool) -> None:
    """`log.2.gz` holds our content and `log.1`, packed or not, the generation after it."""
    source = world.make()
    append(world.file, b"zero\n")
    first = await batch(source, world.request())
    append(world.file, b"rest of zero\n")
    world.file.rename(world.folder / "node1.log.2")
    pack(world.folder / "node1.log.2")
    append(world.folder / "node1.log.1", b"one\n")
    if packed:
        pack(world.folder / "node1.log.1")
    append(world.file, b"two\n")
    got, _ = await drain(source, world.request, first.cursor)
    assert got == b"rest of zero\none\ntwo\n"


@pytest.mark.parametrize("broken", ["cut", "no gzip", "bomb"])
async def test_packed_files_that_cannot_be_used_cost_their_bytes_only(world: Harness, broken: str) -> None:
    """What was known to be unread is told as lost, and reading goes on with the new file, in bounded time and space."""
    source = world.make()
    append(world.file, b"known\n")
    first = await batch(source, world.request())
    append(world.file, b"grown " * 2000)
    second = await batch(source, world.request(first.cursor, bytes_max=100))
    packed = b"not packed at all"
    if broken == "cut":
        packed = gzip.compress(world.file.read_bytes())[:-20]
    elif broken == "bomb":
        packed = gzip.compress(world.file.read_bytes() + b"\0" * (80 << 20), compresslevel=1)
    world.file.rename(world.folder / "node1.log.1")
    (world.folder / "node1.log.1").unlink()
    (world.folder / "node1.log.1.gz").write_bytes(packed)
    append(world.file, b"new file\n")
    third = await batch(source, world.request(second.cursor))
    assert text(third) == b"new file\n"
    assert third.chunks[0].fresh
    assert [item.reason for item in third.unavailable] == [UnavailableReason.STALE]


async def test_unchanged_files_are_left_alone_and_every_change_is_seen(world: Harness) -> None:
    """Growth, truncation to the same size, replacement and removal, each after looks that found nothing new."""
    source, paths = world.make(), world.many(40)
    for path in paths:
        append(path, b"one\n")
    for path in paths:
        os.utime(path, (1_700_000_000, 1_700_000_000))
    world.clock.advance(60)

    async def look(cursor: str) -> tuple[list[bytes], str]:
        page = await batch(source, world.request(cursor, files=paths))
        return [chunk.data for chunk in page.chunks], page.cursor

    _, cursor = await look("")
    for _ in range(3):
        quiet, again = await look(cursor)
        assert (quiet, again) == ([], cursor)
    append(paths[1], b"grown\n")
    paths[2].write_bytes(b"two\n")
    (world.folder / "new").write_bytes(b"thr\n")
    (world.folder / "new").rename(paths[3])
    found, cursor = await look(cursor)
    assert sorted(found) == [b"grown\n", b"thr\n", b"two\n"]
    elsewhere = world.make()
    assert await batch(elsewhere, world.request(cursor, files=paths)) == await batch(
        source, world.request(cursor, files=paths)
    )
