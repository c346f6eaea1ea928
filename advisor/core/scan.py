"""Lines to signals and progress: one RE2 set over line-aligned chunks, captures only on hits.

The scanner holds compiled patterns only; everything that a file has shown so far is in its `FileState`, a frozen value,
so that another replica continues where a dead one stopped. Repeats of an error (numbers masked) are counted, not kept.

A leading `^` in a rule means the start of the line after the prefixes that launchers put before it.
"""

from datetime import datetime
from typing import Any

import re2

from advisor.core import gpu_indices
from advisor.core import progress as progress_module
from advisor.core.alike import AlikeFiles
from advisor.core.piece import block_end
from advisor.core.rules import RuleSet
from advisor.core.scan_file import FileScan
from advisor.core.scan_state import FileContext, FileState, Repeat, Room, Scanned, fold_signals, room_of

__all__ = [
    "FileContext",
    "FileState",
    "Repeat",
    "Room",
    "Scanned",
    "Scanner",
    "block_end",
    "fold_signals",
    "room_of",
]

CHUNK_BYTES = 65_536
TAIL_BYTES_MAX = 65_536


class Scanner:
    """Compiled once per rule set; `scan` is pure: what it remembers between calls changes nothing but its speed."""

    def __init__(self, rules: RuleSet, alike: AlikeFiles | None = None) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = 96 << 20  # of DFA states: reached on hostile text only
        self.rules = tuple(rule for rule in rules.rules if rule.pattern)
        self.xids = rules.xids
        self.set = re2.Set.SearchSet(options)
        single = re2.Options()
        single.encoding = re2.Options.Encoding.LATIN1
        self.compiled: list[Any] = []
        for rule in self.rules:
            self.set.Add(set_pattern(rule.pattern).encode())
            self.compiled.append(re2.compile(rule.pattern.encode(), single))
        self.forms = tuple(progress_module.FORMATS)
        for name in self.forms:
            self.set.Add(progress_module.FORMATS[name].encode())
        self.marks = tuple(progress_module.MARKS)
        for name in self.marks:
            self.set.Add(progress_module.MARKS[name].encode())
        self.set.Add(rb"(?m)Root Cause \(first observed failure\)")
        self.set.Add(rb'(?m)"exc_type": ?"')  # structlog takes exceptions apart
        self.set.Add(gpu_indices.PATTERN)
        self.set.Compile()
        self.alike = alike or AlikeFiles()
        self.by_id = {rule.id: rule for rule in rules.rules}
        self.first_form = len(self.rules)
        self.first_mark = self.first_form + len(self.forms)
        self.block_index = self.first_mark + len(self.marks)
        self.exception_index = self.block_index + 1
        self.gpu_index = self.exception_index + 1

    def scan(
        self,
        context: FileContext,
        state: FileState,
        data: bytes,
        *,
        fresh: bool,
        final: bool,
        seen_at: datetime,
        skipped: int = 0,
    ) -> Scanned:
        """Scan the next bytes of a file.

        `fresh`: the file was replaced or truncated: forget its state. `final`: nothing follows; the last line counts
        even without its newline. `seen_at`: when the bytes could be read. `skipped`: lines before them that were
        printed, and left out since no rule speaks of them.
        """
        work = FileScan(self, context, FileState() if fresh else state, seen_at)
        work.skip(skipped)
        buffer = work.state.tail.encode("latin-1") + data
        cut = len(buffer) if final or len(buffer) > TAIL_BYTES_MAX + len(data) else _last_line_end(buffer)
        tail = buffer[cut:]
        if len(tail) > TAIL_BYTES_MAX:
            cut, tail = len(buffer), b""
        start = 0
        while start < cut:
            end = _chunk_end(buffer, start, cut)
            work.chunk(buffer[start:end])
            start = end
        return work.result(tail, len(data))


def set_pattern(pattern: str) -> str:
    """A rule's pattern as it goes into the set, where prefixes are still there and lines are many, some within JSON."""
    if pattern.startswith("^"):
        return rf"(?m)(?:^|[ \t\]):>|\"]|\\n){pattern[1:]}"
    return f"(?m){pattern}"


def _last_line_end(buffer: bytes) -> int:
    """After the last newline, or carriage return where progress bars print nothing else."""
    newline = buffer.rfind(b"\n") + 1
    # A "\r" at the very end may be the first half of "\r\n".
    return max(newline, buffer.rfind(b"\r", newline, len(buffer) - 1) + 1)


def _chunk_end(buffer: bytes, start: int, cut: int) -> int:
    if cut - start <= CHUNK_BYTES:
        return cut
    end = buffer.rfind(b"\n", start, start + CHUNK_BYTES) + 1
    if end <= start:
        end = buffer.find(b"\n", start + CHUNK_BYTES, cut) + 1
    return end if end > start else cut
