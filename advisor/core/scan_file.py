"""One call of the scanner on one file: the mutable side, between two `FileState` values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from advisor.core import bars, gpu_indices
from advisor.core import progress as progress_module
from advisor.core.alike import Alike, Answer, Outcome
from advisor.core.chatter import says_news
from advisor.core.course import Phase
from advisor.core.findings import Findings
from advisor.core.hostlist import short
from advisor.core.kernel_words import by_the_kernel
from advisor.core.lines import cap, clean, decode, shorten
from advisor.core.piece import BLOCK_BYTES, Piece, block_end
from advisor.core.places import Place, place_of
from advisor.core.placing import Placer
from advisor.core.records import Record, record_of
from advisor.core.rules import Rule, effective
from advisor.core.scan_state import FileContext, FileState, Scanned
from advisor.core.source_clock import SourceClock
from advisor.core.traceback import ROOT_CAUSE_LINES, frames_before, ignored_before, printed_alike, root_cause_line
from advisor.core.words import Role, Trust

if TYPE_CHECKING:
    from advisor.core.scan import Scanner

RECENT_BYTES_MAX = 6_144
_NEWS_EVERY = timedelta(minutes=1)
_BLOCK = b"Root Cause ("
_CHUNKS_UNCOUNTED_MAX = 16
_KERNEL_STALE = timedelta(seconds=5)
_LINES_BEFORE = 60  # that may hold the traceback of an exception


@dataclass(frozen=True, slots=True)
class _Found:
    """A line that a rule fits. `before`: what the same process printed last before it."""

    best: tuple[Rule, dict[str, str]]
    place: Place
    text: str
    at: datetime | None
    before: bytes


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
        self.clock = SourceClock(
            seen_at=seen_at,
            there_at=context.written_at or seen_at,
            live=context.live,
            zone_seconds=state.zone_seconds,
            lag_seconds=state.lag_seconds,
            newest=state.last_time,
            boot=state.boot,
        )
        self.recent = state.recent.encode("latin-1")
        self.findings = Findings(context, state, self.placer, seen_at)
        # Of kernel lines their times decide, too.
        self.alike = (
            scanner.alike.of(context.kin or context.file, self.placer.known) if context.trust is Trust.LOG else Alike()
        )
        self.chunks_uncounted = 0
        self.block = dict(state.block)
        self.block_lines = state.block_lines
        self.gpus = state.gpus
        self.any = False
        # Before the first step alone it matters whether lines say anything new, and to a minute.
        news_at = self.progress.news_at
        self._listens = context.trust is Trust.LOG and (news_at is None or seen_at - news_at >= _NEWS_EVERY)
        self._news = False
        self._first = True  # no piece was looked at line by line so far

    def skip(self, lines: int) -> None:
        """Lines that matter only in that they were printed."""
        self.line += lines
        self.any = self.any or lines > 0
        self._news = lines > 0  # nobody knows what they said

    def chunk(self, raw: bytes) -> None:
        """One line-aligned piece."""
        text = clean(raw)
        self.any = self.any or bool(text.strip())
        hits: Sequence[int] = self.scanner.set.Match(text) or ()
        lines = raw.count(b"\n")
        error = self.block_lines or any(hit < self.scanner.first_form or hit >= self.scanner.first_mark for hit in hits)
        self.clock.look(text, thorough=bool(error) or self.context.trust is Trust.KERNEL)
        if error:
            self._lines(raw, text)
        elif hits:
            own = lines if len(text) == len(raw) else text.count(b"\n")
            self.observe(text, (self.scanner.forms[hit - self.scanner.first_form] for hit in hits), self.line + 1, own)
        self.line += lines
        if self.progress.pace.phase is Phase.PREPARATION:
            self._wait(text)
        if self._listens and self.progress.last_step is None and not self._news:
            self._news = says_news(text, self.recent)
        kept = text[-RECENT_BYTES_MAX:]
        self.recent = kept if len(kept) == RECENT_BYTES_MAX else (self.recent + kept)[-RECENT_BYTES_MAX:]

    def observe(self, text: bytes, forms: Iterable[str], line: int, lines: int) -> None:
        if self.context.trust is Trust.LOG:
            self.progress = progress_module.observe(
                self.progress, text, forms, line, lines, self.seen_at, self._printed, self._late
            )

    def _printed(self, line: bytes) -> tuple[datetime | None, int | None]:
        text = decode(shorten(line))
        place = place_of(text, self.placer.allocation)
        return self.clock.time_of(text), place.rank if place.rank is not None else place.task

    def _lines(self, raw: bytes, text: bytes) -> None:
        """A chunk with hits: find the lines, keeping progress between them in order."""
        closing = b"Exception ignored in" in text or b"Exception ignored in" in self.recent
        piece = Piece(raw, text, self.line + 1, self.observe, closing=closing)
        match = self.scanner.set.Match
        first_form, first_mark = self.scanner.first_form, self.scanner.first_mark
        counted = self.findings.counted
        places = self._places(piece)
        lines = piece.lines if len(places) == len(piece.lines) else [piece.lines[place] for place in places]
        index = 0
        while index < len(lines):
            until = block_end(lines, index)
            answers = self._answers(piece, places[index:until])
            block = b"\n".join(line for line, answer in zip(lines[index:until], answers, strict=True) if answer is None)
            hits = (match(block) or ()) if block else ()
            piece.forms = {self.scanner.forms[hit - first_form] for hit in hits if first_form <= hit < first_mark}
            piece.pending |= piece.forms
            asked = any(not first_form <= hit < first_mark for hit in hits)
            for position, answer in zip(places[index:until], answers, strict=True):
                if self.block_lines:
                    self._block_line(piece.lines[position], piece.number(position))
                if answer is not None:
                    alike = counted.get(answer)
                    if alike is None or piece.pending or (answer.breaks and not self.progress.broken):
                        self._known(answer, piece, position)
                    else:
                        alike.append(piece.lines[position])
                elif asked:
                    self._unknown(piece, position)
            index = until
        piece.observe(len(piece.lines))
        self.chunks_uncounted += 1
        if self.chunks_uncounted >= _CHUNKS_UNCOUNTED_MAX:
            self.chunks_uncounted = 0
            self.findings.count()

    def _places(self, piece: Piece) -> Sequence[int]:
        """Which lines are to be looked at: all, or of a text that many ranks print, each into a file of its own, those
        that say something. Once per call: what follows in a file that all write into has another shape each time.
        """
        every = range(len(piece.lines))
        first, self._first = self._first, False
        if (
            not first
            or self.block_lines
            or piece.closing
            or _BLOCK in piece.text
            or self.context.trust is not Trust.LOG
        ):
            return every
        telling = self.alike.telling(piece.shape, piece.text)
        if telling is not None:
            return telling
        if self.alike.again(piece.shape):
            for shape, line in zip(piece.shapes(every), piece.lines, strict=True):
                if self.alike.find(shape, line) is None and not self.scanner.set.Match(line):
                    self.alike.nothing(line)
            self.alike.learn_piece(piece.shape, piece.text)
        return every

    def _answers(self, piece: Piece, places: Sequence[int]) -> Sequence[Answer | None]:
        """What is known of lines like these."""
        if not self.alike:
            return (None,) * len(places)
        find, lines = self.alike.find, piece.lines
        answers = [find(shape, lines[at]) for shape, at in zip(piece.shapes(places), places, strict=True)]
        if piece.closing:
            # What a traceback of a closing interpreter means stands above it.
            return [None if answer is not None and answer.rule.startswith("python.") else answer for answer in answers]
        return answers

    def _known(self, answer: Answer, piece: Piece, position: int) -> None:
        """A line like one that was understood before."""
        if answer.outcome is Outcome.NOTHING:
            return
        piece.observe(position)
        if answer.breaks:
            self._break()
        if answer.outcome is Outcome.HARMLESS:
            return
        line = piece.lines[position]
        if not self.findings.known(answer, line) and not self.findings.without_signal(
            answer, line, piece.number(position)
        ):
            self._unknown(piece, position)

    def _break(self) -> None:
        """A crash line: what comes after it is no progress of before."""
        if not self.progress.broken:
            self.progress = replace(self.progress, broken=True)

    def _unknown(self, piece: Piece, position: int) -> None:
        """Match one line."""
        line = piece.lines[position]
        hits = self.scanner.set.Match(line) or ()
        ids = [hit for hit in hits if hit < self.scanner.first_form or hit >= self.scanner.first_mark]
        if ids:
            piece.observe(position)
            self._hit(line, ids, piece, position, alone=len(ids) == len(hits))
        elif not hits:
            self.alike.nothing(line)

    def _hit(self, line: bytes, ids: Sequence[int], piece: Piece, position: int, *, alone: bool) -> None:
        """`alone`: the line shows no progress besides."""
        scanner = self.scanner
        number = piece.number(position)
        rule_ids = [hit for hit in ids if hit < scanner.first_form]
        if self.context.trust is Trust.LOG:
            for hit in ids:
                if self._is_mark(hit):
                    self._mark(scanner.marks[hit - scanner.first_mark], line, number)
            if scanner.block_index in ids:
                self.block = {"line": str(number), "text": cap(decode(shorten(line)))}
                self.block_lines = ROOT_CAUSE_LINES
        if scanner.gpu_index in ids and self.context.trust is Trust.LOG:
            self._learn_gpu(line)
        if not rule_ids and scanner.exception_index not in ids:
            return
        text = decode(shorten(line))
        place = place_of(text, self.placer.allocation)
        record = record_of(place.body)
        found = self._wrapped(record, place, piece, position) if record is not None else None
        if record is not None:
            place = record.place(place)
        if found is None:
            best = self._best(rule_ids, text, place)
            found = []
            if best is not None:
                before = self._before(line, piece, position) if _is_exception(best[0]) else b""
                found = [_Found(best, place, text, self.clock.time_of(text), before)]
        cached = alone and len(rule_ids) == len(ids)
        if not found and cached:
            self.alike.nothing(line, Outcome.HARMLESS)
        answers = [answer for one in found if (answer := self._judge(one, number)) is not None]
        if len(answers) == len(found) == 1 and cached:
            label_is_rank = place.rank is None and not self.placer.label_is_node()
            answer = answers[0] if record is None else replace(answers[0], role=None)
            self.alike.learn(line, answer, rank_of_file=self.context.rank, label_is_rank=label_is_rank)

    def _learn_gpu(self, line: bytes) -> None:
        """Which of a node's GPUs has which PCI address, when its node is certain."""
        place = place_of(decode(shorten(line)), self.placer.allocation)
        told = gpu_indices.told(place.body)
        resolved = self.placer.resolve({}, place)
        if told is not None and resolved is not None and len(resolved[1]) == 1:
            self.gpus = gpu_indices.learn(self.gpus, resolved[1][0], *told)

    def _wrapped(self, record: Record, outer: Place, piece: Piece, position: int) -> list["_Found"] | None:
        """The text that a JSON line wraps, as if it had been printed plainly by whom the record names. None: no rule
        speaks of it."""
        found: list[_Found] = []
        told = self.clock.time_of(record.time)
        speaks = False
        for index, line in enumerate(record.lines):
            ids = [hit for hit in self.scanner.set.Match(line) or () if hit < self.scanner.first_form]
            if not ids:
                continue
            speaks = True
            text = line.decode()
            place = record.place(outer, place_of(text, self.placer.allocation))
            best = self._best(ids, text, place)
            if best is not None:
                before = b"\n".join(record.lines[:index])
                if not index:  # Docker's json-file: a record is one line of what was printed
                    before = self._before(piece.lines[position], piece, position)
                found.append(_Found(best, place, text, told or self.clock.time_of(text), before))
        return found if speaks else None

    def _before(self, line: bytes, piece: Piece, position: int) -> bytes:
        """What whoever printed `line` printed last before it."""
        before = b"\n".join(piece.lines[max(0, position - _LINES_BEFORE) : position])
        if position < _LINES_BEFORE:
            before = self.recent + b"\n" + before
        return printed_alike(before[-RECENT_BYTES_MAX:], line)

    def _judge(self, found: "_Found", number: int) -> Answer | None:
        """The signal of a line that a rule fits; None: it is none of this attempt, or of a closing interpreter."""
        rule, captures = found.best
        at = self.clock.by_ours(found.at)
        if self._not_ours(rule, at):
            return None
        if _is_exception(rule):
            if ignored_before(found.before):
                return None
            frames = frames_before(found.before)
            if frames:
                captures["frames"] = frames
        return self._emit(rule, captures, found.place, found.text, number, at)

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
            if found is None or not self._believed(rule, found.start(), whole, body):
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

    def _believed(self, rule: Rule, start: int, whole: bytes, body: bytes) -> bool:
        """In a kernel's log: the kernel's own word, and not a name that a user chose."""
        if self.context.trust is not Trust.KERNEL:
            return True
        before = 0 if rule.pattern.startswith("^") else len(whole) - len(body)
        lead = body[: max(0, start - before)].decode("utf-8", "replace")
        return by_the_kernel(body.decode("utf-8", "replace"), len(lead), rule.id)

    def _mark(self, name: str, line: bytes, number: int) -> None:
        found = progress_module.MARKS_COMPILED[name].search(line)
        if found is None or (name in progress_module.ANNOUNCING and self._of_preparation(line, found.start())):
            return
        if name == "ranks":
            fields = {key: value.decode("ascii") for key, value in _named(found).items() if value is not None}
            self.progress = progress_module.report(self.progress, fields)
            return
        step = _named(found).get("step")
        self.progress = progress_module.mark(
            self.progress, name, int(step) if step else None, number, self.seen_at, self._late
        )

    def _of_preparation(self, line: bytes, start: int) -> bool:
        """The words there are what a bar of preparation calls itself."""
        return self.progress.last_step is None and start < bars.begin(line) and progress_module.prepares(line)

    def _emit(
        self, rule: Rule, captures: dict[str, str], place: Place, text: str, number: int, at: datetime | None
    ) -> Answer:
        answer = self.findings.take(rule, captures, place, text, number, at)
        if answer.breaks:
            self._break()
        return answer

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
        captures = {
            key: value for key, value in block.items() if key in {"rank", "local", "exitcode", "error", "signal"}
        }
        host = block.get("host", "")
        if host:
            node = short(host)
            if self.placer.allocation is None or node in self.placer.allocation:
                captures["node"] = node
        where = f"host {host or '?'} rank {block.get('rank', '?')}"
        text = f"{block['text']} {where} exitcode {block['exitcode']} {block.get('error', '')}"
        when = self.clock.by_ours(self.clock.time_of(block.get("time", "")))
        self._emit(rule, captures, Place(body=text), text.strip(), int(block["line"]), when)

    def _waiting_bar(self, tail: bytes) -> None:
        """What an unfinished line announces holds already: a bar waits for its next redraw as long as a phase lasts."""
        if not tail or self.context.trust is not Trust.LOG or tail == self.state.tail.encode("latin-1"):
            return
        text = clean(tail[-BLOCK_BYTES:])
        self._wait(text or b" ")  # wiped out, where only codes of the terminal are left
        for hit in self.scanner.set.Match(text) or ():
            name = self.scanner.marks[hit - self.scanner.first_mark] if self._is_mark(hit) else ""
            if name in progress_module.ANNOUNCING:
                self._mark(name, text, self.line + 1)

    def _wait(self, text: bytes) -> None:
        """What the last line of a piece leaves to wait for."""
        last = text.rstrip(b"\n").rpartition(b"\n")[2]
        if last and self.context.trust is Trust.LOG:
            self.progress = progress_module.waiting(self.progress, last, self.seen_at)

    def _is_mark(self, hit: int) -> bool:
        return self.scanner.first_mark <= hit < self.scanner.block_index

    def result(self, tail: bytes, read: int) -> Scanned:
        self._waiting_bar(tail)
        if self.any:
            self.progress = progress_module.read_on(self.progress, self.line, self.seen_at)
        if self._news and self._listens and self.progress.last_step is None:
            self.progress = replace(self.progress, news_at=self.seen_at)
        findings = self.findings
        findings.count()
        repeats = findings.repeats.settled()
        state = replace(
            self.state,
            tail=tail.decode("latin-1"),
            recent=self.recent.decode("latin-1"),
            offset=self.state.offset + read,
            line=self.line,
            last_time=self.clock.newest,
            zone_seconds=self.clock.zone_seconds,
            lag_seconds=self.clock.lag_seconds,
            boot=self.clock.boot,
            progress=self.progress,
            repeats=repeats,
            foreign=self.state.foreign + findings.foreign,
            dropped=self.state.dropped + findings.dropped,
            block=self.block,
            block_lines=self.block_lines,
            gpus=self.gpus,
        )
        return Scanned(
            state=state,
            signals=findings.settled(),
            repeats=findings.repeats.of_earlier_reads(),
            foreign=findings.foreign,
            lines=self.line - self.state.line,
            newest_at=self.clock.newest or (self.seen_at if self.any else None),
        )


def _is_exception(rule: Rule) -> bool:
    """What it means stands in the traceback above it."""
    return rule.id.startswith("python.")


def _named(match: Any) -> dict[str, bytes | None]:
    """Named groups of an RE2 match; its names are bytes for bytes patterns."""
    groups: dict[bytes | str, bytes | None] = match.groupdict()
    return {name.decode() if isinstance(name, bytes) else name: value for name, value in groups.items()}
