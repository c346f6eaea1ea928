"""Reading what is new in one growing file, whatever happened to the file since the last look.

The core of all file sources. State goes in and comes out as a `Mark`; nothing is kept between calls, so another
replica continues where this one stopped. What is found at the path is one of:

* the same file, grown or not: deliver what is new;
* another file, and ours was renamed beside it (`log` -> `log.1`), or ours was copied and truncated (`copytruncate`),
  packed by gzip or not: deliver the rest of the old content first, then every later generation in order, each with
  `fresh`;
* the same file truncated, or another file, and the old content is nowhere: start over with `fresh`.

**Whose bytes are they?** Two attempts of a job write into the same path. The next one truncates the file (Slurm's
default) or appends to it, at the earliest one requeue delay after the end of the last one. So for a file of attempts
(`Ownership`), once the end is `grace_seconds` ago:

* a file last modified before that holds only bytes of this attempt: its size is this attempt's end, for ever;
* a file modified later may hold another attempt's bytes: only bytes up to the size seen before count;
* a file truncated or replaced later is not read any more; what was known to be there and unread is reported as lost.

And at the beginning: a file last modified before the attempt started holds nothing of it, and neither does the part
that the predecessor's cursor says is the predecessor's. Such a file is `inherited`: reading starts at its end, or at
0 as soon as it turns out to have been rewritten.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from advisor.core.words import UnavailableReason
from advisor.ports import LogChunk
from connectors.logs.cursor import HEAD_BYTES, TAIL_BYTES, Mark, fingerprint
from connectors.logs.opening import Access, Opened, RefusedError, open_regular, printable, refusal
from connectors.logs.packed import unpack

GENERATIONS_MAX = 8  # rotated files followed in one read
FOLDER_ENTRIES_MAX = 20_000  # names looked at to find a rotated file
COPIES_MAX = 8  # files opened to find a copy
PACKED_MAX = 3  # and of those that logrotate has packed meanwhile
HOLE_BYTES_MIN = 1 << 20  # below this, zeros are cheaper to read than to look for
LINE_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The file belongs to one attempt after the other; see the module's docstring."""

    grace_seconds: float
    skew_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """One file and the moments that matter. `backlog_bytes`: begin this far before the end; None = at the start."""

    path: str
    access: Access
    now: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ownership: Ownership | None = None
    before: Mark | None = None  # where the predecessor's reading of this path ended
    backlog_bytes: int | None = None
    late_seconds: float = 0.0  # without ownership: how long after the end lines may still arrive
    node: str | None = None
    optional: bool = False  # a name that a pattern made: nothing is missing if it is not there

    @property
    def over(self) -> bool:
        """The attempt ended long enough ago that nothing of it is still on its way."""
        late = self.ownership.grace_seconds if self.ownership else self.late_seconds
        return self.ended_at is not None and self.now >= self.ended_at + timedelta(seconds=late)

    def older_than_start(self, file: Opened) -> bool:
        skew = self.ownership.skew_seconds if self.ownership else 0.0
        return self.started_at is not None and _modified(file) < self.started_at - timedelta(seconds=skew)

    def may_hold_the_next(self, file: Opened) -> bool:
        """The file changed so late that the next attempt may have done it."""
        if self.ownership is None or self.ended_at is None:
            return False
        margin = self.ownership.grace_seconds + self.ownership.skew_seconds
        return _modified(file) > self.ended_at + timedelta(seconds=margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one read of one file gave. `lost`: bytes found gone by this read, or by the one that closed the file."""

    chunks: tuple[LogChunk, ...] = ()
    mark: Mark
    more: bool = False
    lost: int = 0

    @property
    def size(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


class Allowance(Protocol):
    """How many bytes may still be taken; asked when it is known how many there are."""

    def take(self, wanted: int) -> int: ...

    def give_back(self, unused: int) -> None: ...


def read_tail(tail: Tail, mark: Mark | None, allowance: Allowance) -> Piece:
    """Deliver new bytes as far as allowed. Raises `RefusedError` when there is nothing that may be read."""
    if mark is not None and mark.closed:
        return Piece(mark=mark, lost=mark.lost)
    try:
        return _read_open(tail, mark, allowance)
    except OSError as error:  # a file system that fails in the middle of a read; nothing was delivered
        raise refusal(error, tail.path) from error


def _read_open(tail: Tail, mark: Mark | None, allowance: Allowance) -> Piece:
    with ExitStack() as files:
        top = _open_or_none(tail.path, tail.access, files)
        if mark is None:
            if top is None:
                raise RefusedError(UnavailableReason.MISSING, f"{printable(tail.path)}: no such file")
            mark = _begin(tail, top)
        return _Reading(tail, top, files, allowance).run(mark)


class _Reading:
    """One call of `read_tail`: the files opened so far and what was taken from them."""

    def __init__(self, tail: Tail, top: Opened | None, files: ExitStack, allowance: Allowance) -> None:
        self._tail, self._top, self._files, self._allowance = tail, top, files, allowance
        self._chunks: list[LogChunk] = []
        self._denied = False
        self._lost = 0

    def run(self, mark: Mark) -> Piece:
        for _ in range(GENERATIONS_MAX):
            file = self._locate(mark)
            if file is None:
                if self._top is None:
                    raise RefusedError(
                        UnavailableReason.MISSING, f"{printable(self._tail.path)}: no such file any more"
                    )
                mark = self._start_over(mark, self._top)
                file = self._top
            taken = self._take(file, mark)
            if taken is None:  # truncated under our hands: look again
                continue
            mark = taken
            stop = self._stop(file, mark)
            if mark.offset < stop:  # if all was allowed, only a hole or a short read ends here: no hurry
                return self._piece(mark, more=self._denied)
            following = self._following(file)
            if following is None:
                return self._piece(replace(mark, closed=self._tail.over))
            mark = Mark(inode=following.stat.st_ino, fresh=True, lost=mark.lost)
        return self._piece(mark, more=True)

    def _piece(self, mark: Mark, *, more: bool = False) -> Piece:
        return Piece(chunks=tuple(self._chunks), mark=mark, more=more, lost=self._lost)

    # Where is the content that `mark` speaks of?

    def _locate(self, mark: Mark) -> Opened | None:
        top = self._top
        if top is not None:
            # Open since the beginning of this call; its size may be older than what was just found out.
            top = self._top = replace(top, stat=os.fstat(top.fd))
            if top.stat.st_ino == mark.inode and _continues(top, mark):
                return None if self._rewritten(top, mark) else top
        moved = _find_moved(self._tail.path, mark, self._tail.access, self._files)
        if moved is not None:
            return moved
        # The number changed and the content did not: a file system moved, or an editor wrote it anew.
        if top is not None and mark.offset and _continues(top, mark) and not self._rewritten(top, mark):
            return top
        return None

    def _rewritten(self, top: Opened, mark: Mark) -> bool:
        """An inherited file was written since the start and did not grow: truncated, and the same bytes again."""
        unchanged = mark.inherited and top.stat.st_size == mark.offset
        return unchanged and self._tail.started_at is not None and not self._tail.older_than_start(top)

    def _start_over(self, mark: Mark, top: Opened) -> Mark:
        tail = self._tail
        known = 0 if mark.inherited else max(0, mark.own_end - mark.offset)
        self._lost += known
        return Mark(
            inode=top.stat.st_ino,
            fresh=mark.fresh or (mark.offset > 0 and not mark.inherited),
            lost=mark.lost + known,
            backlog=top.stat.st_size if tail.backlog_bytes is not None else 0,
        )

    def _following(self, file: Opened) -> Opened | None:
        """The next newer generation, None while `file` is the newest or nothing was written after it."""
        if self._top is not None and file.fd == self._top.fd:
            return None
        for name in _newer_names(self._tail.path, file.path):
            if name == self._tail.path:
                break
            for written in (name, f"{name}.gz"):
                found = _open_content(written, 0, self._tail.access, self._files)
                if found is not None:
                    return found
        # A writer that never reopens goes on in the old file while the new one stays empty: keep following it.
        return self._top if self._top is not None and self._top.stat.st_size else None

    # Taking bytes

    def _stop(self, file: Opened, mark: Mark) -> int:
        return file.stat.st_size if mark.end is None else min(mark.end, file.stat.st_size)

    def _take(self, file: Opened, mark: Mark) -> Mark | None:
        tail = self._tail
        size = file.stat.st_size
        if not tail.over:
            mark = replace(mark, seen=size)
        elif mark.end is None and tail.ownership is not None:
            mark = replace(mark, end=min(size, mark.own_end) if tail.may_hold_the_next(file) else size)
        mark = replace(mark, inode=file.stat.st_ino)
        stop = self._stop(file, mark)
        start = _skip_hole(file.fd, mark.offset, stop)
        if start is None:
            return replace(mark, offset=stop) if tail.over else mark
        # The bytes before the new ones are read after them: if they are what they were, so were the new ones, for what
        # was truncated does not come back. (Read together with them they would have to be copied apart.)
        lead = min(TAIL_BYTES, start)
        wanted = max(0, stop - start)
        granted = self._allowance.take(wanted) if wanted else 0
        self._denied = granted < wanted
        used = 0
        try:
            data = os.pread(file.fd, granted, start) if granted else b""
            before = os.pread(file.fd, lead, start - lead) if lead else b""
            head = _head(file.fd, mark, start, data)
            if head is None or (start == mark.offset and fingerprint(before) != mark.tail):
                return None
            used = len(data)
        finally:
            self._allowance.give_back(granted - used)
        self._deliver(file, mark, start, data)
        offset = start + len(data)
        return replace(
            mark,
            offset=offset,
            head=head,
            tail=fingerprint((before + data[-TAIL_BYTES:])[-min(TAIL_BYTES, offset) :] if offset else b""),
            fresh=mark.fresh and not data,
            inherited=mark.inherited and not data,
        )

    def _deliver(self, file: Opened, mark: Mark, start: int, data: bytes) -> None:
        old = max(0, min(len(data), mark.backlog - start))
        for at, part, backlog in ((start, data[:old], True), (start + old, data[old:], False)):
            if part:
                self._chunks.append(
                    LogChunk(
                        file=self._tail.path,
                        offset=at,
                        data=part,
                        fresh=mark.fresh and at == start,
                        node=self._tail.node,
                        modified_at=_modified(file),
                        backlog=backlog,
                    )
                )


def _begin(tail: Tail, top: Opened) -> Mark:
    """The first look at a file: where do this attempt's bytes begin?"""
    size = top.stat.st_size
    if tail.ownership is None:
        if tail.backlog_bytes is None:
            return Mark(inode=top.stat.st_ino)
        if tail.older_than_start(top):
            return _mark_at(top, size)
        return replace(_mark_at(top, _line_start(top.fd, max(0, size - tail.backlog_bytes))), backlog=size)
    if tail.older_than_start(top):
        return replace(_mark_at(top, size), inherited=True)
    before = tail.before
    if before is not None and before.offset and before.own_end <= size and _continues(top, before):
        return replace(_mark_at(top, before.own_end), inherited=True)
    return Mark(inode=top.stat.st_ino)


def _mark_at(file: Opened, offset: int) -> Mark:
    head = os.pread(file.fd, min(HEAD_BYTES, offset), 0)
    lead = min(TAIL_BYTES, offset)
    return Mark(
        inode=file.stat.st_ino,
        offset=offset,
        head=fingerprint(head),
        tail=fingerprint(os.pread(file.fd, lead, offset - lead)),
        seen=offset,
    )


def _line_start(fd: int, offset: int) -> int:
    """The first line start at or after `offset`, so that a cut line cannot be taken for a whole one."""
    if not offset:
        return 0
    found = os.pread(fd, LINE_PROBE_BYTES, offset - 1).find(b"\n")
    return offset if found < 0 else offset + found


def _head(fd: int, mark: Mark, start: int, data: bytes) -> str | None:
    """The fingerprint of the first bytes after `data` is delivered; None if those before changed meanwhile."""
    if mark.offset >= HEAD_BYTES:
        return mark.head
    first = os.pread(fd, min(HEAD_BYTES, start + len(data)), 0)
    same = fingerprint(first[: mark.offset]) == mark.head and first[start:] == data[: max(0, HEAD_BYTES - start)]
    return fingerprint(first) if same else None


def _continues(file: Opened, mark: Mark) -> bool:
    """The bytes delivered so far are still there, before the offset."""
    if file.stat.st_size < mark.offset:
        return False
    found = _mark_at(file, mark.offset)
    return found.head == mark.head and found.tail == mark.tail


def _skip_hole(fd: int, offset: int, stop: int) -> int | None:
    """Where written bytes begin: a descriptor that outlived a truncation leaves a hole as long as the old file.

    None: nothing was written between `offset` and the end, so there is nothing to skip to yet.
    """
    if stop - offset < HOLE_BYTES_MIN:
        return offset
    try:
        return min(os.lseek(fd, offset, os.SEEK_DATA), stop)
    except OSError as error:
        return None if error.errno == errno.ENXIO else offset


def _modified(file: Opened) -> datetime:
    return datetime.fromtimestamp(max(0.0, min(file.stat.st_mtime, 4e9)), UTC)


def _open_or_none(path: str, access: Access, files: ExitStack) -> Opened | None:
    try:
        return files.enter_context(open_regular(path, access))
    except RefusedError as refused:
        if refused.reason is UnavailableReason.MISSING:
            return None
        raise


# Rotated files


def _find_moved(path: str, mark: Mark, access: Access, files: ExitStack) -> Opened | None:
    """Our content under another name beside `path`: renamed (same inode), else copied or packed (same bytes)."""
    if not mark.inode:
        return None
    names = list(_siblings(path))
    renamed = [name for name, inode in names if inode == mark.inode]
    others = [name for name, inode in names if inode != mark.inode] if mark.offset else []
    copied = sorted((name for name in others if not name.endswith(".gz")), key=_age)[:COPIES_MAX]
    packed = sorted((name for name in others if name.endswith(".gz")), key=_age)[:PACKED_MAX]
    for name in renamed + copied + packed:
        try:
            found = _open_content(name, mark.offset, access, files)
        except RefusedError:
            continue  # not ours to read, so not ours
        if found is not None and _continues(found, mark):
            return found
    return None


def _open_content(name: str, offset: int, access: Access, files: ExitStack) -> Opened | None:
    """What a rotated file holds, from `offset` on if it is packed."""
    found = _open_or_none(name, access, files)
    if found is None or not name.endswith(".gz"):
        return found
    unpacked = unpack(found, offset)
    return files.enter_context(unpacked) if unpacked is not None else None


_SUFFIX = re.compile(r"\.(\d{1,4})")
_DIGIT = re.compile(r"\d")


def _age(name: str) -> tuple[int, str]:
    """Numbered generations first, newest first; then by name."""
    number = _SUFFIX.fullmatch(Path(name.removesuffix(".gz")).suffix)
    return (int(number[1]) if number else 10_000, name)


def _siblings(path: str) -> Iterator[tuple[str, int]]:
    """Files whose names begin with ours and go on with a separator, with their inode numbers."""
    folder, base = Path(path).parent, Path(path).name
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(FOLDER_ENTRIES_MAX), entries, strict=False):
                if entry.name.startswith(base) and entry.name[len(base) : len(base) + 1] in {".", "-", "_", "~"}:
                    yield str(folder / entry.name), entry.inode()
    except PermissionError:  # may be entered and not listed: try the usual names
        for name in (f"{path}.1", f"{path}.0"):
            try:
                yield name, os.lstat(name).st_ino
            except PermissionError:
                yield name, 0  # not even that may be asked: the root log reader may be able to open it
            except OSError:
                continue
    except FileNotFoundError:
        return


def _newer_names(path: str, name: str) -> Iterator[str]:
    """Names of the generations after `name`, oldest first, `path` itself last."""
    suffix = name[len(path) :].removesuffix(".gz")
    number = _SUFFIX.fullmatch(suffix)
    if number:
        newest = int(number[1]) - 1
        for n in range(newest, max(-1, newest - GENERATIONS_MAX), -1):
            yield f"{path}.{n}"
    elif any(character.isdigit() for character in suffix):  # dates (`log-20261129`): later ones are of the same shape
        shape = _DIGIT.sub("0", suffix)
        others = {sibling[len(path) :].removesuffix(".gz") for sibling, _ in _siblings(path)}
        later = sorted(other for other in others if other > suffix and _DIGIT.sub("0", other) == shape)
        for other in later[:GENERATIONS_MAX]:
            yield f"{path}{other}"
    yield path
