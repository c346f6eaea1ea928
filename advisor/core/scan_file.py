"""One call of the scanner on one file: the mutable side, between two `FileState` values."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from advisor.core import progress as progress_module
from advisor.core.collectives import APART_MAX, distinct, without_numbers
from advisor.core.hostlist import short
from advisor.core.lines import cap, clean, decode, mask, raw_line_numbers, shorten
from advisor.core.model import Signal
from advisor.core.places import Place, place_of
from advisor.core.placing import Placer
from advisor.core.ranks import RANKS_MAX, fold_ranks, parse_ranks
from advisor.core.rules import Rule, effective
from advisor.core.scan_state import FileContext, FileState, Repeat, Scanned
from advisor.core.times import learn_offset, line_time
from advisor.core.traceback import ROOT_CAUSE_LINES, frames_before, ignored_before, printed_alike, root_cause_line
from advisor.core.words import Implicates, IncidentKind, Role, Trust

if TYPE_CHECKING:
    from advisor.core.scan import Scanner

REPEATS_MAX = 256  # distinct errors remembered per file
REPEATS_PER_RULE_MAX = 48
_BLOCK_BYTES = 2_048
_LOOKBACK_BYTES = 6_144
_MEMO_MAX = 4_096
# What differs between ranks that print the same error, and decides no rule: rank tags, clock times, long numbers.
_VARIES = re.compile(rb"[Rr]ank ?\d+|\d\d:\d\d:\d\d(?:[.,]\d+)?|\d{4,}")
# The number of a collective differs too, and tells who is behind.
_COLLECTIVE = re.compile(rb"(?:SeqNum=|work: |sequence id: )(\d+)")
_FIRST_RANK = re.compile(rb"[Rr]ank ?(\d{1,7})")
_KERNEL_STALE = timedelta(seconds=5)


class FileScan:
    """The mutable side of one `scan` call."""

    def __init__(self, scanner: "Scanner", context: FileContext, state: FileState, seen_at: datetime) -> None:
        self.scanner = scanner
        self.context = context
        self.state = state
        self.seen_at = seen_at
        looked_at = context.looked_at or seen_at
        self._late = max(0.0, (seen_at - looked_at).total_seconds())
        self.placer = Placer(context)
        self.progress = state.progress
        self.line = state.line
        self.last_time = state.last_time
        self.zone = state.zone_seconds
        self.recent = state.recent.encode("latin-1")
        self.repeats = {repeat.key: repeat for repeat in state.repeats}
        self.old_keys = frozenset(self.repeats)
        self.counts: dict[str, int] = {}
        self.ranks: dict[str, set[int]] = {}
        # Lines like these repeat an error that is known: its key, and whether the rank is the first one in the line.
        self.memo: dict[bytes, tuple[str, bool]] = {}
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
            self.progress = progress_module.observe(
                self.progress, text, forms, line, lines, self.seen_at, self._printed, self._late
            )

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
                elif self.memo and self._known(line):
                    continue
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

    def _known(self, line: bytes) -> bool:
        """Count a line that repeats a known error, without matching it again. Thousands of ranks print the same."""
        entry = self.memo.get(_alike(line))
        if entry is None:
            return False
        key, ranked = entry
        found = _FIRST_RANK.search(line) if ranked else None
        return self._repeated(key, int(found[1]) if found is not None else self.context.rank)

    def _remember(self, line: bytes, key: str, rank: int | None) -> None:
        """Let lines like this one be counted by `_known`, where that gives the same answer."""
        found = _FIRST_RANK.search(line)
        ranked = found is not None and rank == int(found[1])
        if (ranked or rank == self.context.rank) and len(self.memo) < _MEMO_MAX:
            self.memo[_alike(line)] = (key, ranked)

    def _hit(self, line: bytes, ids: Sequence[int], number: int, lines: Sequence[bytes], position: int) -> None:
        scanner = self.scanner
        rule_ids = [hit for hit in ids if hit < scanner.first_form]
        if self.context.trust is Trust.LOG:
            for hit in ids:
                if self._is_mark(hit):
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
            before = printed_alike(before[-_LOOKBACK_BYTES:], line)
            if ignored_before(before):
                return
            frames = frames_before(before)
            if frames:
                captures["frames"] = frames
        key, rank = self._emit(rule, captures, place, text, number, at)
        if key and len(rule_ids) == len(ids):
            self._remember(line, key, rank)

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
        if name == "ranks":
            fields = {key: value.decode("ascii") for key, value in _named(found).items() if value is not None}
            self.progress = progress_module.report(self.progress, fields)
            return
        step = _named(found).get("step")
        self.progress = progress_module.mark(self.progress, name, int(step) if step else None, number, self.seen_at)

    def _emit(
        self, rule: Rule, captures: dict[str, str], place: Place, text: str, number: int, at: datetime | None
    ) -> tuple[str, int | None]:
        """Make or count a signal. Gives key and rank where lines alike are one signal wherever they come from."""
        resolved = self.placer.resolve(captures, place)
        if resolved is None:
            self.foreign += 1
            return "", None
        rank, nodes, peers = resolved
        if place.pci:
            captures.setdefault("pci", place.pci)
        if rule.role is Role.INITIATING and rule.kind is IncidentKind.CRASH and self.context.trust is Trust.LOG:
            self.progress = replace(self.progress, broken=True)
        named = bool(captures.get("node") or captures.get("nodes"))
        placed = (*nodes, *peers) if named or rule.implicates in _PLACED or self.context.trust is not Trust.LOG else ()
        apart = distinct(rule.id, captures, text)
        key, together = self._key(rule, placed, place.body, apart)
        if together:
            captures = without_numbers(captures)
        anywhere = "" if placed else key
        if self._repeated(key, rank):
            return anywhere, rank
        context = self.context
        signal = Signal(
            id=hashlib.sha256(f"{context.file}|{number}|{rule.id}|{text}".encode()).hexdigest()[:24],
            rule=rule.id,
            trust=context.trust,
            source=context.source,
            seen_at=self.seen_at,
            written_at=None if context.written_at is None else min(context.written_at, self.seen_at),
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
            return "", None
        self.repeats[key] = Repeat(key=key, id=signal.id, rule=rule.id, ranks="" if rank is None else str(rank))
        self.signals[key] = signal
        return anywhere, rank

    def _key(self, rule: Rule, placed: Sequence[str], body: str, apart: str) -> tuple[str, bool]:
        """What lines that are one signal share, and whether they differ in what should keep them apart.

        Reports of a time-out stay apart by their numbers while they are few; the rest is counted together.
        """
        parts = (rule.id, ",".join(placed), mask(body))
        plain = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
        if not apart:
            return plain, False
        key = hashlib.sha256("|".join((*parts, apart)).encode()).hexdigest()[:16]
        if key in self.repeats or sum(r.rule == rule.id for r in self.repeats.values()) < APART_MAX:
            return key, False
        return plain, True

    def _repeated(self, key: str, rank: int | None) -> bool:
        known = self.repeats.get(key)
        if known is None:
            return False
        if rank is not None:
            if key not in self.ranks:
                self.ranks[key] = set(parse_ranks(known.ranks))
            if len(self.ranks[key]) < RANKS_MAX:
                self.ranks[key].add(rank)
        self.counts[key] = self.counts.get(key, 0) + 1
        return True

    def _settle_counts(self) -> None:
        """Put what was counted during this call into the repeats."""
        for key, more in self.counts.items():
            known = self.repeats[key]
            ranks = fold_ranks(self.ranks[key]) if key in self.ranks else known.ranks
            self.repeats[key] = replace(known, count=known.count + more, ranks=ranks)

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

    def _waiting_bar(self, tail: bytes) -> None:
        """What an unfinished line announces holds already: a bar waits for its next redraw as long as a phase lasts."""
        if not tail or self.context.trust is not Trust.LOG or tail == self.state.tail.encode("latin-1"):
            return
        text = clean(tail[-_BLOCK_BYTES:])
        for hit in self.scanner.set.Match(text) or ():
            name = self.scanner.marks[hit - self.scanner.first_mark] if self._is_mark(hit) else ""
            if name in progress_module.ANNOUNCING:
                self._mark(name, text, self.line + 1)

    def _is_mark(self, hit: int) -> bool:
        return self.scanner.first_mark <= hit < self.scanner.block_index

    def result(self, tail: bytes, read: int) -> Scanned:
        self._waiting_bar(tail)
        if self.any:
            self.progress = progress_module.read_on(self.progress, self.line, self.seen_at)
        self._settle_counts()
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
            repeats=tuple(self.repeats[key] for key in self.counts if key in self.old_keys),
            foreign=self.foreign,
            lines=self.line - self.state.line,
            newest_at=self.last_time or (self.seen_at if self.any else None),
        )


_PLACED = frozenset({Implicates.NODE, Implicates.PEER, Implicates.CONDITIONAL})


def _alike(line: bytes) -> bytes:
    """What lines that repeat one error have in common."""
    common = _VARIES.sub(b"#", line)
    if b"SeqNum=" in line or b"last enqueued" in line:
        common += b" ".join(_COLLECTIVE.findall(line))
    return common


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
