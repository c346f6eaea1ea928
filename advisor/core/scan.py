"""Lines to signals and progress: one RE2 set over line-aligned chunks, captures only on hits.

The scanner holds compiled patterns only; everything that a file has shown so far is in its `FileState`, a frozen value,
so that another replica continues where a dead one stopped. Repeats of an error (numbers masked) are counted, not kept.

A leading `^` in a rule means the start of the line after the prefixes that launchers put before it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import re2

from advisor.core import progress as progress_module
from advisor.core.hostlist import short
from advisor.core.lines import cap, clean, decode, mask, raw_line_numbers, shorten
from advisor.core.model import Signal
from advisor.core.places import Place, place_of
from advisor.core.placing import Placer
from advisor.core.ranks import fold_ranks, parse_ranks
from advisor.core.rules import Rule, RuleSet, effective
from advisor.core.scan_state import FileContext, FileState, Repeat, Scanned, fold_signals
from advisor.core.times import learn_offset, line_time
from advisor.core.traceback import ROOT_CAUSE_LINES, frames_before, ignored_before, root_cause_line
from advisor.core.words import Implicates, IncidentKind, Role, Trust

__all__ = ["FileContext", "FileState", "Repeat", "Scanned", "Scanner", "fold_signals"]

CHUNK_BYTES = 65_536
TAIL_BYTES_MAX = 65_536
REPEATS_MAX = 256  # distinct errors remembered per file
REPEATS_PER_RULE_MAX = 48
_BLOCK_BYTES = 2_048
_LOOKBACK_BYTES = 6_144
_KERNEL_STALE = timedelta(seconds=5)


class Scanner:
    """Compiled once per rule set; `scan` is pure."""

    def __init__(self, rules: RuleSet) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = 256 << 20
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
        self.set.Compile()
        self.by_id = {rule.id: rule for rule in rules.rules}
        self.first_form = len(self.rules)
        self.first_mark = self.first_form + len(self.forms)
        self.block_index = self.first_mark + len(self.marks)

    def scan(
        self, context: FileContext, state: FileState, data: bytes, *, fresh: bool, final: bool, seen_at: datetime
    ) -> Scanned:
        """Scan the next bytes of a file.

        `fresh`: the file was replaced or truncated: forget its state. `final`: nothing follows; the last line counts
        even without its newline. `seen_at`: when the bytes could be read.
        """
        work = _Work(self, context, FileState() if fresh else state, seen_at)
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
    """A rule's pattern as it goes into the set, where prefixes are still there and lines are many."""
    if pattern.startswith("^"):
        return rf"(?m)(?:^|[ \t\]):>|]){pattern[1:]}"
    return f"(?m){pattern}"


def _last_line_end(buffer: bytes) -> int:
    """After the last newline, or carriage return where progress bars print nothing else."""
    newline = buffer.rfind(b"\n") + 1
    carriage = buffer.rfind(b"\r", newline) + 1
    # A "\r" at the very end may be the first half of "\r\n".
    return newline if carriage == 0 or carriage == len(buffer) else carriage


def _chunk_end(buffer: bytes, start: int, cut: int) -> int:
    if cut - start <= CHUNK_BYTES:
        return cut
    end = buffer.rfind(b"\n", start, start + CHUNK_BYTES) + 1
    if end <= start:
        end = buffer.find(b"\n", start + CHUNK_BYTES, cut) + 1
    return end if end > start else cut


class _Work:
    """The mutable side of one `scan` call."""

    def __init__(self, scanner: Scanner, context: FileContext, state: FileState, seen_at: datetime) -> None:
        self.scanner = scanner
        self.context = context
        self.state = state
        self.seen_at = seen_at
        self.placer = Placer(context)
        self.progress = state.progress
        self.line = state.line
        self.last_time = state.last_time
        self.zone = state.zone_seconds
        self.recent = state.recent.encode("latin-1")
        self.repeats = {repeat.key: repeat for repeat in state.repeats}
        self.old_keys = frozenset(self.repeats)
        self.touched: dict[str, None] = {}
        self.signals: dict[str, Signal] = {}
        self.foreign = 0
        self.dropped = 0
        self.block = dict(state.block)
        self.block_lines = state.block_lines
        self.any = False

    def chunk(self, raw: bytes) -> None:
        """One line-aligned piece."""
        text = clean(raw)
        self.any = self.any or bool(text.strip())
        hits: Sequence[int] = self.scanner.set.Match(text) or ()
        lines = raw.count(b"\n")
        if self.block_lines or any(hit < self.scanner.first_form or hit >= self.scanner.first_mark for hit in hits):
            self._lines(raw, text)
        elif hits:
            own = lines if len(text) == len(raw) else text.count(b"\n")
            self._observe(text, (self.scanner.forms[hit - self.scanner.first_form] for hit in hits), self.line + 1, own)
        self.line += lines
        kept = text[-_LOOKBACK_BYTES:]
        self.recent = kept if len(kept) == _LOOKBACK_BYTES else (self.recent + kept)[-_LOOKBACK_BYTES:]

    def _observe(self, text: bytes, forms: Iterable[str], line: int, lines: int) -> None:
        if self.context.trust is Trust.LOG:
            found = progress_module.observe(self.progress, text, forms, line, lines, self.seen_at, self._printed)
            self.progress = found

    def _printed(self, line: bytes) -> tuple[datetime | None, int | None]:
        text = decode(shorten(line))
        place = place_of(text, self.placer.allocation)
        return self._time(text), place.rank if place.rank is not None else place.task

    def _time(self, text: str) -> datetime | None:
        """A line's time in UTC, the source's learned zone applied."""
        found = line_time(text, self.seen_at)
        if found is None:
            return None
        at = found.at
        if not found.zoned:
            if self.context.live:
                learned = learn_offset(at, self.seen_at)
                if learned is not None:
                    self.zone = learned.total_seconds()
            at += timedelta(seconds=self.zone or 0.0)
        self.last_time = at
        return at

    def _lines(self, raw: bytes, text: bytes) -> None:
        """A chunk with hits: find the lines, keeping progress between them in order."""
        lines = text.split(b"\n")
        numbers = raw_line_numbers(raw) if b"\r" in raw else None
        match = self.scanner.set.Match
        first_form, first_mark = self.scanner.first_form, self.scanner.first_mark
        pending_from = 0
        forms: set[str] = set()
        index = 0
        while index < len(lines):
            if not self.block_lines:
                until = block_end(lines, index)
                block_hits = match(b"\n".join(lines[index:until])) or ()
                forms.update(
                    self.scanner.forms[hit - first_form] for hit in block_hits if first_form <= hit < first_mark
                )
                if all(first_form <= hit < first_mark for hit in block_hits):
                    index = until
                    continue
            else:
                until = index + 1
            for position in range(index, until):
                line = lines[position]
                number = self.line + 1 + (numbers[position] if numbers else position)
                if self.block_lines:
                    self._block_line(line, number)
                hits = match(line) or ()
                ids = [hit for hit in hits if hit < first_form or hit >= first_mark]
                if not ids:
                    continue
                if forms:
                    start = self.line + 1 + (numbers[pending_from] if numbers else pending_from)
                    piece = lines[pending_from:position]
                    self._observe(b"\n".join(piece), forms, start, max(0, len(piece) - 1))
                pending_from = position
                self._hit(line, ids, number, lines, position)
            index = until
        if forms and pending_from < len(lines):
            start = self.line + 1 + (numbers[min(pending_from, len(numbers) - 1)] if numbers else pending_from)
            self._observe(b"\n".join(lines[pending_from:]), forms, start, len(lines) - pending_from - 1)

    def _hit(self, line: bytes, ids: Sequence[int], number: int, lines: Sequence[bytes], position: int) -> None:
        scanner = self.scanner
        rule_ids = [hit for hit in ids if hit < scanner.first_form]
        if self.context.trust is Trust.LOG:
            for hit in ids:
                if scanner.first_mark <= hit < scanner.block_index:
                    self._mark(scanner.marks[hit - scanner.first_mark], line, number)
            if scanner.block_index in ids:
                self.block = {"line": str(number), "text": cap(decode(shorten(line)))}
                self.block_lines = ROOT_CAUSE_LINES
        if not rule_ids:
            return
        text = decode(shorten(line))
        place = place_of(text, self.placer.allocation)
        best = self._best(rule_ids, text, place)
        if best is None:
            return
        rule, captures = best
        at = self._time(text)
        if self._not_ours(rule, at):
            return
        if rule.id.startswith("python."):
            before = self.recent + b"\n" + b"\n".join(lines[max(0, position - 60) : position])
            before = before[-_LOOKBACK_BYTES:]
            if ignored_before(before):
                return
            frames = frames_before(before)
            if frames:
                captures["frames"] = frames
        self._emit(rule, captures, place, text, number, at)

    def _not_ours(self, rule: Rule, at: datetime | None) -> bool:
        """Kernel sources carry kernel rules only, and nothing from before the attempt."""
        context = self.context
        if context.trust is not Trust.KERNEL:
            return False
        if not rule.id.startswith("kernel."):
            return True
        return at is not None and context.started_at is not None and at < context.started_at - _KERNEL_STALE

    def _best(self, ids: Sequence[int], text: str, place: Place) -> tuple[Rule, dict[str, str]] | None:
        """The rule that says most about this line. One benign rule silences the line."""
        body = place.body.encode("utf-8", "replace")
        whole = text.encode("utf-8", "replace")
        best: tuple[Rule, dict[str, str]] | None = None
        for index in ids:
            rule = self.scanner.rules[index]
            found = self.scanner.compiled[index].search(body if rule.pattern.startswith("^") else whole)
            if found is None:
                continue
            captures = {
                name: value.decode("utf-8", "replace") for name, value in _named(found).items() if value is not None
            }
            actual = effective(rule, captures, self.scanner.xids)
            if actual.role is Role.BENIGN and rule.id not in {"kernel.xid", "dcgm.xid", "log.xid_mention"}:
                return None
            if best is None or actual.weight > best[0].weight:
                best = (actual, captures)
        return best

    def _mark(self, name: str, line: bytes, number: int) -> None:
        found = progress_module.MARKS_COMPILED[name].search(line)
        if found is None:
            return
        step = _named(found).get("step")
        self.progress = progress_module.mark(self.progress, name, int(step) if step else None, number)

    def _emit(
        self, rule: Rule, captures: dict[str, str], place: Place, text: str, number: int, at: datetime | None
    ) -> None:
        resolved = self.placer.resolve(captures, place)
        if resolved is None:
            self.foreign += 1
            return
        rank, nodes, peers = resolved
        if place.pci:
            captures.setdefault("pci", place.pci)
        if rule.role is Role.INITIATING and rule.kind is IncidentKind.CRASH and self.context.trust is Trust.LOG:
            self.progress = replace(self.progress, broken=True)
        named = bool(captures.get("node") or captures.get("nodes"))
        placed = (*nodes, *peers) if named or rule.implicates in _PLACED or self.context.trust is not Trust.LOG else ()
        key = hashlib.sha256("|".join((rule.id, ",".join(placed), mask(place.body))).encode()).hexdigest()[:16]
        if self._repeated(key, rank):
            return
        context = self.context
        signal = Signal(
            id=hashlib.sha256(f"{context.file}|{number}|{rule.id}|{text}".encode()).hexdigest()[:24],
            rule=rule.id,
            trust=context.trust,
            source=context.source,
            seen_at=self.seen_at,
            at=at,
            rank=rank,
            gpu=_gpu(captures, place),
            nodes=nodes,
            peers=peers,
            file=context.file,
            line=number,
            text=cap(text),
            role=rule.role,
            category=rule.category,
            fields={name: cap(value, 300) for name, value in sorted(captures.items())},
            order=number,
        )
        if (
            len(self.repeats) >= REPEATS_MAX
            or sum(r.rule == rule.id for r in self.repeats.values()) >= REPEATS_PER_RULE_MAX
        ):
            self.dropped += 1
            return
        self.repeats[key] = Repeat(key=key, id=signal.id, rule=rule.id, ranks="" if rank is None else str(rank))
        self.signals[key] = signal

    def _repeated(self, key: str, rank: int | None) -> bool:
        known = self.repeats.get(key)
        if known is None:
            return False
        ranks = known.ranks
        if rank is not None and str(rank) != ranks:
            present = parse_ranks(ranks)
            ranks = ranks if rank in present else fold_ranks(present | {rank})
        self.repeats[key] = replace(known, count=known.count + 1, ranks=ranks)
        self.touched[key] = None
        return True

    def _block_line(self, line: bytes, number: int) -> None:
        """One line of torchelastic's block: collect until it is complete."""
        self.block_lines -= 1
        done = root_cause_line(decode(shorten(line)), self.block)
        if done or self.block_lines == 0:
            self.block_lines = 0
            self._emit_block()

    def _emit_block(self) -> None:
        block, self.block = self.block, {}
        rule = self.scanner.by_id.get("torchelastic.root_cause")
        if rule is None or "exitcode" not in block:
            return
        captures = {key: value for key, value in block.items() if key in {"rank", "exitcode", "error", "signal"}}
        host = block.get("host", "")
        if host:
            node = short(host)
            if self.placer.allocation is None or node in self.placer.allocation:
                captures["node"] = node
        where = f"host {host or '?'} rank {block.get('rank', '?')}"
        text = f"{block['text']} {where} exitcode {block['exitcode']} {block.get('error', '')}"
        at = line_time(block.get("time", ""), self.seen_at)
        when = at.at + timedelta(seconds=0 if at.zoned else self.zone or 0.0) if at is not None else None
        self._emit(rule, captures, Place(body=text), text.strip(), int(block["line"]), when)

    def result(self, tail: bytes, read: int) -> Scanned:
        if self.any:
            self.progress = replace(self.progress, last_line_at=self.seen_at)
        for key, signal in list(self.signals.items()):
            repeat = self.repeats[key]
            fields = dict(signal.fields)
            if "," in repeat.ranks or "-" in repeat.ranks:
                fields["ranks"] = repeat.ranks
            self.signals[key] = replace(signal, count=repeat.count, fields=fields)
        state = replace(
            self.state,
            tail=tail.decode("latin-1"),
            recent=self.recent.decode("latin-1"),
            offset=self.state.offset + read,
            line=self.line,
            last_time=self.last_time,
            zone_seconds=self.zone,
            progress=self.progress,
            repeats=tuple(self.repeats.values()),
            foreign=self.state.foreign + self.foreign,
            dropped=self.state.dropped + self.dropped,
            block=self.block,
            block_lines=self.block_lines,
        )
        return Scanned(
            state=state,
            signals=tuple(self.signals.values()),
            repeats=tuple(self.repeats[key] for key in self.touched if key in self.old_keys),
            foreign=self.foreign,
            lines=self.line - self.state.line,
            newest_at=self.last_time or (self.seen_at if self.any else None),
        )


_PLACED = frozenset({Implicates.NODE, Implicates.PEER, Implicates.CONDITIONAL})


def block_end(lines: Sequence[bytes], index: int) -> int:
    """Where a block of a few lines ends: a set is asked about blocks before it is asked about lines."""
    size = 0
    end = index
    while end < len(lines) and (size < _BLOCK_BYTES or end == index):
        size += len(lines[end]) + 1
        end += 1
    return end


def _named(match: Any) -> dict[str, bytes | None]:
    """Named groups of an RE2 match; its names are bytes for bytes patterns."""
    groups: dict[bytes | str, bytes | None] = match.groupdict()
    return {name.decode() if isinstance(name, bytes) else name: value for name, value in groups.items()}


def _gpu(captures: Mapping[str, str], place: Place) -> int | None:
    text = captures.get("gpu", "")
    return int(text) if text.isdigit() and len(text) < 3 else place.gpu
