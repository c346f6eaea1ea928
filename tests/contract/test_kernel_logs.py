"""What the kernel-log source promises beyond the contract of all log sources: nobody but root could have written it."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from connectors.kernel.files import KernelFileLogs
from tests.contract.world import Harness, batch, kernel_harness, private_folder, read_one, text

XID = b"kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


@pytest.fixture
def world() -> Iterator[Harness]:
    with private_folder() as folder:
        yield kernel_harness(folder)


async def test_node_is_told_by_the_file_not_by_the_text(world: Harness) -> None:
    """A line that names another node still comes from the node whose file it is in."""
    world.file.write_bytes(b"node3 " + XID)
    answer = await batch(world.make(), world.request())
    assert [chunk.node for chunk in answer.chunks] == ["node1"]


def world_writable(file: Path) -> None:
    file.chmod(0o646)


def group_writable(file: Path) -> None:
    file.chmod(0o664)


def folder_world_writable(file: Path) -> None:
    file.parent.chmod(0o777)


def folder_sticky_and_world_writable(file: Path) -> None:
    file.parent.chmod(0o1777)


def folder_group_writable(file: Path) -> None:
    file.parent.chmod(0o775)


@pytest.mark.parametrize(
    "spoil",
    [world_writable, group_writable, folder_world_writable, folder_sticky_and_world_writable, folder_group_writable],
)
async def test_what_others_could_have_written_is_refused(world: Harness, spoil: Callable[[Path], None]) -> None:
    """A file or folder that others may write could hold a forged line: refused, with the way to make it right."""
    world.file.write_bytes(XID)
    spoil(world.file)
    answer = await read_one(world.make(), world.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.REFUSED
    assert "not trusted" in answer.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
async def test_folder_of_another_user_is_refused(world: Harness) -> None:
    """Whoever owns the folder can put another file of the owner's in place by a hard link."""
    world.file.write_bytes(XID)
    os.chown(world.folder, 65534, 65534)
    answer = await read_one(world.make(), world.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.REFUSED


async def test_link_is_refused(world: Harness) -> None:
    """A link could lead to another file of root's that users can write lines into, such as syslog."""
    (world.folder / "syslog").write_bytes(XID)
    world.file.symlink_to(world.folder / "syslog")
    answer = await read_one(world.make(), world.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.NOT_REGULAR


async def test_link_is_refused_also_after_a_stale_handle(world: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS says ESTALE when another host replaced a file: looking its name up anew is no less careful."""
    (world.folder / "syslog").write_bytes(XID)
    world.file.symlink_to(world.folder / "syslog")
    real, stale = os.open, [True]

    def once_stale(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path).endswith(world.file.name) and stale:
            stale.pop()
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", once_stale)
    answer = await read_one(world.make(), world.request())
    assert not stale
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.NOT_REGULAR


@pytest.mark.parametrize("node", ["", ".", "..", "a/b", "../node1", "node1.log", "node 1", "n\n", "-x", "n" * 64, "ñ"])
async def test_node_names_that_are_no_names_are_refused(world: Harness, node: str) -> None:
    """A node name becomes part of a path: only host name labels do, and the other nodes are still read."""
    world.file.write_bytes(XID)
    answer = await batch(world.make(), world.request(nodes=("node1", node)))
    assert text(answer) == XID
    assert [u.reason for u in answer.unavailable] == [UnavailableReason.REFUSED]


async def test_unknown_allocation_is_not_an_empty_answer(world: Harness) -> None:
    """Without nodes there is no kernel log to ask, which is not the same as a quiet one."""
    answer = await read_one(world.make(), world.request(nodes=()))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING


@pytest.mark.parametrize("path", ["/var/log/kernel.log", "/var/log/%n/kern.log", "relative/%n.log", "/a/../%n.log"])
def test_pattern_that_cannot_be_right_is_an_error_at_start(world: Harness, path: str) -> None:
    """The pattern is configuration: it is checked when the source is made."""
    with pytest.raises(ValueError, match="path"):
        KernelFileLogs(clock=world.clock, path=path)


async def test_backlog_begins_at_a_line_and_is_marked(world: Harness) -> None:
    """The first look reads a bounded piece before the end, whole lines only, marked; what follows is not."""
    lines = [b"%04d %s" % (n, XID) for n in range(100)]
    world.file.write_bytes(b"".join(lines))
    source = world.make(backlog_bytes=len(lines[0]) * 10 + 5)
    cursor, got = "", b""
    for _ in range(100):
        page = await batch(source, world.request(cursor, bytes_max=100))
        cursor, got = page.cursor, got + text(page)
        assert all(chunk.backlog for chunk in page.chunks)
        if not page.more:
            break
    assert got == b"".join(lines[-10:])
    with world.file.open("ab") as out:
        out.write(b"new\n")
    after = await batch(source, world.request(cursor))
    assert [(c.data, c.backlog) for c in after.chunks] == [(b"new\n", False)]


async def test_growth_within_the_first_page_is_told_from_the_backlog(world: Harness) -> None:
    """Where a page reaches over the end of the backlog, it is cut there."""
    world.file.write_bytes(b"old\n")
    source = world.make()
    first = await batch(source, world.request(bytes_max=2))
    with world.file.open("ab") as out:
        out.write(b"new\n")
    second = await batch(source, world.request(first.cursor))
    assert [(c.offset, c.data, c.backlog) for c in second.chunks] == [(2, b"d\n", True), (4, b"new\n", False)]


async def test_file_not_written_since_the_start_has_no_backlog(world: Harness) -> None:
    """Yesterday's Xid in a quiet file is not this attempt's."""
    world.file.write_bytes(XID)
    source = world.make()
    started = world.clock.now() + timedelta(hours=1)
    first = await batch(source, world.request(started_at=started))
    assert first.chunks == ()
    with world.file.open("ab") as out:
        out.write(b"new\n")
    assert text(await batch(source, world.request(first.cursor, started_at=started))) == b"new\n"


async def test_late_lines_after_the_end_and_then_final(world: Harness) -> None:
    """Kernel lines travel: they are taken for a while after the attempt's end, then nothing more is."""
    source = world.make(late_seconds=30.0)
    world.file.write_bytes(b"begin\n")
    ended = world.clock.now()
    first = await batch(source, world.request(ended_at=ended))
    world.clock.advance(20)
    with world.file.open("ab") as out:
        out.write(XID)
    second = await batch(source, world.request(first.cursor, ended_at=ended))
    assert text(second) == XID
    assert not second.final
    world.clock.advance(20)
    third = await batch(source, world.request(second.cursor, ended_at=ended))
    assert third.final
    with world.file.open("ab") as out:
        out.write(b"of the next attempt\n")
    fourth = await batch(source, world.request(third.cursor, ended_at=ended))
    assert fourth.chunks == ()
    assert fourth.final


async def test_many_nodes_with_one_broken(world: Harness) -> None:
    """One node's FIFO costs neither time nor the other nodes' lines."""
    files = world.many(200)
    for path in files:
        path.write_bytes(XID)
    files[7].unlink()
    os.mkfifo(files[7])
    async with asyncio.timeout(5):
        answer = await batch(world.make(), world.request(files=files))
    assert len(answer.chunks) == 199
    assert {chunk.node for chunk in answer.chunks} == {f"node{n}" for n in range(1, 201)} - {"node8"}
    assert [u.reason for u in answer.unavailable] == [UnavailableReason.NOT_REGULAR]
