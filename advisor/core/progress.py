"""Progress of an attempt from what it prints: steps, checkpoints, the end, and restarts inside the job.

One newest step is kept per file, whichever rank printed it: ranks of synchronous training are at most a step apart. A
step that goes back is an in-job restart when a checkpoint was loaded since, or when it stays back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

import re2

from advisor.core import bars, divergence, hang, orphans, rank_times, straggler
from advisor.core.course import Numbers, Pace, Phase, Throughput
from advisor.core.model import Progress
from advisor.core.orphans import Orphan

INTERVALS_KEPT = 16
_TAIL_BYTES = 4_096
_AFTER_BREAK = 8
_BESIDE_ANOTHER = 256
_VALUES_BYTES = 4_096  # of a progress line, for its values
CHECKPOINTS_KEPT = 8

_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1

# Formats whose step counts over the whole run. Each has the groups `step` and, where the line has it, `ms` or `s`.
_STEP_FORMATS: Mapping[str, str] = {
    "megatron": r"(?m)\biteration +(?P<step>\d{1,12})/ *\d+ \|",
    "nemo": r"(?m)\b(?:global_step[=: ]|Global Step:)[=: ]*(?P<step>\d{1,12})\b",
    "deepspeed": r"(?m)\bstep=(?P<step>\d{1,12}), skipped=",
    "maxtext": r"(?m)\bcompleted step: (?P<step>\d{1,12})\b",
    "step": r"(?m)(?:^|[ \[(|,:\]])(?i:train_step|global step|step|iteration|iter|num_updates|update)s?"
    r"(?:[=:/#]| [=:#]?)? {0,8}(?P<step>\d{1,12})\b[^\n]{0,400}?(?i:loss|lr\b|tok|/s|grad|ppl|ms\b|sec|took \d)",
}
# Bars count within one epoch: they show that something moves, not how far the run is.
_BAR_FORMATS: Mapping[str, str] = {
    **bars.FORMATS,
    "epoch": r"(?m)\bEpoch:? ?(?:\(train\) )?\[?\d{1,6}\]?[ :,]*(?:Batch )?\[ *(?P<step>\d{1,12})(?:/\d+|\]\s+Speed\b)",
    "epoch_loss": r"(?m)(?:^|[ \[(|,:\]])(?i:epoch)(?:[=:#]| [=:#]?)? {0,8}\[?(?P<step>\d{1,9})\b"
    r"[^\n]{0,80}?\b(?i:loss|acc|ppl)\b[^\n]{0,20}\d",
    bars.SHARE: bars.SHARE_FORMAT,
}
STEP_FORMATS = frozenset(_STEP_FORMATS)
# Not a form of progress: what each rank tells of its own steps.
RANKS = "rank_step"
FORMATS: Mapping[str, str] = {**_STEP_FORMATS, **_BAR_FORMATS, RANKS: rank_times.PATTERN}
COMPILED: Mapping[str, Any] = {name: re2.compile(pattern.encode(), _OPTIONS) for name, pattern in FORMATS.items()}

MARKS: Mapping[str, str] = {
    # No bar ("Loading checkpoint shards: 50%|"): who loads weights to serve them takes no steps.
    "loaded": r"(?im)(?:loaded checkpoint|resum(?:ed|ing)\b[^\n]{0,80}?(?:checkpoint|from)"
    r"|restored [^\n]{0,60}checkpoint|loading checkpoint)"
    r"(?:[^\n]{0,200}?(?:iteration|step|iter)[ =_:-]{0,8}(?P<step>\d{1,12})\b|(?:[^\n|]{0,200}|[^\n%]{0,200})$)",
    "saving": r"(?im)\b(?:saving|writing) (?:a |the |latest |final |model |full )*(?:checkpoint|ckpt|model)\b"
    r"|saving model to '|\bpreparing to save checkpoint\b|\bcheckpoint \S{1,80} is about to be saved\b",
    # After "saving": a line may say both, and then it is done.
    "saved": r"(?im)(?:successfully saved checkpoint|checkpoint saved|saved checkpoint"
    r"|finished saving (?:the )?checkpoint|checkpoint \S{1,80} is ready now"
    r"|saved (?:the |model )?checkpoint|checkpoint .{0,120}successfully saved)"
    r"[^\n]{0,200}?(?:(?:iteration|step|iter)[ =_:-]{0,8}(?P<step>\d{1,12})\b|$)",
    "starting": r"(?i)restarting worker group|rendezvous(?:'ing| complete for) worker|\bin-?process restart\b"
    r"|restarting (?:all )?(?:ranks|workers|training)\b",
    "compiling": r"(?i)\bcompiling (?:the |a |train|model|kernel|graph|fused|with )|\b(?:jit|xla|graph)[ -]compil"
    r"|torch\.compile\b[^\n]{0,80}(?:start|first|may take|take a while)|\bautotune (?:mm|bmm|addmm|conv)"
    r"|\bcapturing (?:the )?cuda graph|\bbuilding extension module",
    "evaluating": r"(?i)\b(?:running|starting|begin(?:ning)?|entering) (?:the |a )?"
    r"(?:eval(?:uation|s)?|validation|sanity check)"
    r"|\bevaluating\b(?: on| the| at| model|:|\.)|\bvalidating(?: on| the| at| model|:|\.)|validation dataloader \d"
    r"|\bsanity checking\b|\bevaluating iter |\b(?:validation|eval(?:uation)?|testing): {1,10}(?:\d+% ?)?\|"
    r"|\b(?:validation|eval(?:uation)?|testing):? {1,20}(?:━|╸|╺)",
    "evaluated": r"(?i)\bvalidation loss at iteration|\b(?:evaluation|validation) (?:is )?(?:done|complete|completed"
    r"|finished)\b|\bfinished (?:evaluation|validation)\b|'eval_(?:loss|runtime)'",
    "ranks": r"MnRtt/Rnk: (?P<low>\d{1,9}(?:\.\d{1,6})?)\w*/\d{1,7} \| MxRtt/Rnk: (?P<high>\d{1,9}(?:\.\d{1,6})?)\w*/"
    r"(?P<high_rank>\d{1,7})\b(?:[^\n]*?MnDRtt/Rnk: \d{1,12}(?:\.\d{1,6})?\w*/\d{1,7} \| "
    r"MxDRtt/Rnk: (?P<data_high>\d{1,12}(?:\.\d{1,6})?))?",
    # Only where the sentence ends there: "finished training epoch 3" is not the end.
    "finished": r"(?im)\[after training is done\]|'train_runtime': |\*{5} train metrics \*{5}"
    r"|exiting program at iteration"
    r"|\btraining (?:is |was |has )?(?:been )?(?:successfully )?(?:complete|completed|finished|done)(?: successfully)?"
    r"(?:[.!]|\s*$| in \d| after \d)|\b(?:finished|completed|done with|done) training(?:[.!]|\s*$)"
    r"|`?Trainer\.fit`? stopped: `?max_(?:epochs|steps)",
}
MARKS_COMPILED: Mapping[str, Any] = {name: re2.compile(pattern.encode(), _OPTIONS) for name, pattern in MARKS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProgress:
    """What one file has shown so far. Times: `at` as read (live) or as printed (offline)."""

    form: str = ""
    first_step: int | None = None
    last_step: int | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    printed_at: datetime | None = None  # the newest step's own timestamp, for intervals
    intervals: tuple[float, ...] = ()
    checkpoint_step: int | None = None
    loaded_step: int | None = None  # of the newest checkpoint that was loaded before the first step
    saving_line: int = 0  # newest "saving checkpoint" line without a later step
    restarts: int = 0
    finished: bool = False
    last_line_at: datetime | None = None
    news_at: datetime | None = None  # before the first step: newest line that is no repetition, to a minute
    advance_line: int = 0
    advance_at: datetime | None = None
    cleared_line: int = 0  # line of the advance before the newest: earlier errors were survived
    cleared_at: datetime | None = None
    rank: int | None = None  # who printed the newest step
    low_steps: tuple[int, ...] = ()  # steps below `last_step` that the same rank printed since
    broken: bool = False  # a crash line since the newest advance
    reloaded: bool = False  # a checkpoint was loaded since
    pace: Pace = field(default_factory=Pace)
    throughput: Throughput = field(default_factory=Throughput)
    numbers: Numbers = field(default_factory=Numbers)
    checkpoints: tuple[int, ...] = ()  # saved or loaded, newest last
    drawn: tuple[tuple[str, str], ...] = ()  # bars that are redrawn, and what each shows
    orphan: Orphan | None = None  # who may still write here from before the newest checkpoint was loaded


def observe(
    progress: FileProgress,
    text: bytes,
    forms: Iterable[str],
    line: int,
    lines: int,
    seen_at: datetime,
    printed: Any,
    late: float = 0.0,
) -> FileProgress:
    """Progress lines of a piece of cleaned text of `lines` newlines that starts at `line`: the first and the newest
    one are enough.

    `printed(line_bytes)` gives a line's own time and its rank, each or None; it is asked for those two lines only.
    `late`: seconds since the look before this one, 0 where the reader waited for the lines.
    """
    forms = frozenset(forms)
    if RANKS in forms:
        progress = _ranks(progress, text, seen_at)
    form = _choose(progress, forms - {RANKS})
    if form is None:
        return progress
    most = _AFTER_BREAK if progress.broken else 1
    if form in bars.REDRAWN:
        matches, drawn = bars.news(progress.drawn, form, text)
        if not matches and progress.last_step is not None and progress.pace.phase is Phase.STEP:
            # Drawn again as it was: that is not more output than usual.
            progress = replace(progress, pace=replace(progress.pace, phase_line=line + lines))
        matches = matches[:most] + matches[most:][-1:]
        progress = replace(progress, drawn=drawn)
    else:
        matches = _telling(COMPILED[form], text, most)
    if form in bars.FORMATS and progress.last_step is None and matches:
        matches = _from_first_step(form, text, matches)
    if progress.orphan is not None and form in _STEP_FORMATS and len(matches) > 1:
        matches = _telling(COMPILED[form], text, _BESIDE_ANOTHER)
    first = matches[0] if matches else None
    for match in matches:
        start = match.start(1)
        # Counting newlines is what costs here: from the nearer end.
        near = start <= len(text) // 2
        number = line + (text.count(b"\n", 0, start) if near else lines - text.count(b"\n", start))
        whole = _line_around(text, match.start(1))
        own, rank = printed(whole)
        total = bars.end(form, match)
        said = whole[:_VALUES_BYTES].decode("latin-1")
        listed = not isinstance(match, _Shifted)
        seen = _Seen(int(match.group(1)), number, seen_at, own, rank, total, match is first, said, late, listed)
        progress = _step(progress, form, seen)
    others = forms - {RANKS, bars.SHARE, form}
    if form in bars.FORMATS and progress.last_step is None and others:
        # They prepare the steps, which are of another form, and may be read with them.
        return observe(progress, text, others, line, lines, seen_at, printed, late)
    return progress


def _telling(pattern: Any, text: bytes, most: int) -> list[Any]:
    """The first matches and the last: one is enough, but after a crash line each further step counts, and where
    another may write beside us, each line.
    """
    matches = list(islice(pattern.finditer(text), most))
    if not matches:
        return []
    last = _last(pattern, text)
    if last is not None and last.start() > matches[-1].start():
        matches.append(last)
    return matches


def _from_first_step(form: str, text: bytes, telling: list[Any]) -> list[Any]:
    """The first bar that counts steps, behind those that prepare them, and the last bar."""
    drawn = islice(COMPILED[form].finditer(text), _BESIDE_ANOTHER)
    first = next((bar for bar in drawn if not prepares(_line_around(text, bar.start(1)))), None)
    if first is None or first.start() >= telling[-1].start():
        return telling[-1:]
    return [first, telling[-1]]


def _choose(progress: FileProgress, forms: Iterable[str]) -> str | None:
    """The file's own format as long as it appears; a format that counts the whole run beats a bar."""
    order = list(FORMATS)
    found = sorted(set(forms), key=order.index)
    if not found:
        return None
    if progress.form in found or not progress.form:
        return progress.form or found[0]
    if found[0] in _STEP_FORMATS and progress.form in _BAR_FORMATS:
        return found[0]
    return None if progress.form in _STEP_FORMATS else found[0]


class _Shifted:
    """A match found in a tail of the text, with offsets in the whole."""

    __slots__ = ("_match", "_shift")

    def __init__(self, match: Any, shift: int) -> None:
        self._match = match
        self._shift = shift

    def start(self, group: int | str = 0) -> int:
        return int(self._match.start(group)) + self._shift

    def group(self, group: int | str = 0) -> bytes:
        found: bytes = self._match.group(group)
        return found


def _last(pattern: Any, text: bytes) -> _Shifted | None:
    """The last match, looked for in growing tails."""
    size = _TAIL_BYTES
    while True:
        cut = text.rfind(b"\n", 0, len(text) - size) + 1 if size < len(text) else 0
        found = None
        for match in pattern.finditer(text[cut:]):
            found = match
        if found is not None:
            return _Shifted(found, cut)
        if cut == 0:
            return None
        size *= 4


def _line_around(text: bytes, position: int) -> bytes:
    start = text.rfind(b"\n", 0, position) + 1
    end = text.find(b"\n", position)
    return text[start : end if end >= 0 else len(text)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """One progress line. `at`: as read; `printed`: its own time; `rank`: who printed it; `total`: where a bar ends;
    `next`: no other progress line stands between it and the newest one known; `text`: the line, for its values;
    `late`: seconds since the look before; `listed`: no progress line stands between it and the one looked at before.
    """

    step: int
    line: int
    at: datetime
    printed: datetime | None
    rank: int | None
    total: int | None
    next: bool
    text: str
    late: float
    listed: bool


def _step(p: FileProgress, form: str, seen: _Seen) -> FileProgress:
    """Take one progress line into account."""
    if p.last_step is None:
        full = seen.total is not None and seen.step >= seen.total
        # Into a file rich draws a bar once, when it is full: how long the next one takes nobody knows.
        if bars.prepares(form, seen.text) or (form == "rich" and full):
            return _preparing(p, seen.at, full=full)
    if form == bars.SHARE:
        return p
    if p.form != form:
        # Another format: numbers do not compare. It only shows that the attempt goes on.
        p = replace(p, form=form, last_step=None, low_steps=())
    last = p.last_step
    if last is None:
        first = p.first_step if p.first_step is not None else seen.step
        return _advance(replace(p, first_step=first, first_at=p.first_at or seen.at), seen)
    if form in _STEP_FORMATS and p.orphan is not None:
        aside = _beside(p, p.orphan, seen)
        if aside is not None:
            return aside
        p = replace(p, orphan=orphans.seen_own(p.orphan, last=last, stride=p.pace.stride, step=seen.step))
    if seen.step > last:
        return _advance(p, seen)
    if form in _BAR_FORMATS:
        # The next epoch, or a validation bar.
        restarted = p.broken and p.reloaded and seen.step < last
        return replace(_advance(p, seen), restarts=p.restarts + (1 if restarted else 0))
    if p.reloaded:
        return _restart(p, seen)
    if seen.rank != p.rank or seen.step == p.last_step:
        # Other ranks are behind by a step, or by their whole output buffer.
        return p
    low = p.low_steps if p.low_steps and p.low_steps[-1] >= seen.step else (*p.low_steps, seen.step)[-3:]
    if len(low) >= 3 or (p.broken and low[-1] - low[0] >= 2):
        return _restart(p, seen)
    return replace(p, low_steps=low)


def prepares(line: bytes) -> bool:
    """Whether a line is a bar, of what comes before the first step."""
    return bars.preparing(line) is not None


def waiting(progress: FileProgress, line: bytes, at: datetime) -> FileProgress:
    """The last line of what was read, with or without its end: before the first step, a bar of preparation is awaited
    as long as it is the last that was said. One that was wiped out, or that other lines follow, may never be redrawn.
    """
    if progress.last_step is not None:
        return progress
    awaits = progress.pace.phase is Phase.PREPARATION
    bar = bars.awaited(line)
    if bar is None:
        return replace(progress, pace=Pace()) if awaits else progress
    if bar.drawn is not None:
        shown = dict(progress.drawn)
        if shown.pop(bar.drawn[0], None) == bar.drawn[1] and (awaits or bar.full):
            return progress  # drawn again as it was
        progress = replace(progress, drawn=bars.kept({**shown, bar.drawn[0]: bar.drawn[1]}))
    return _preparing(progress, at, full=bar.full)


def _preparing(p: FileProgress, at: datetime, *, full: bool) -> FileProgress:
    """No step, and none is due behind a full bar: who loads weights to serve them takes no steps."""
    return replace(p, pace=Pace() if full else Pace(phase=Phase.PREPARATION, sign_at=at), news_at=at)


def _beside(p: FileProgress, known: Orphan, seen: _Seen) -> FileProgress | None:
    """Unchanged but for what is known of another who writes here, when this is a step of theirs."""
    last, stride = p.last_step or 0, p.pace.stride
    waiting = p.reloaded
    if seen.listed and orphans.is_others(known, last=last, stride=stride, waiting=waiting, step=seen.step):
        other = orphans.seen_other(known, seen.step)
        return replace(p, orphan=other) if other is not None else None
    if waiting and seen.step < last and not orphans.may_begin(known, stride=stride, step=seen.step):
        return p
    return None


def _restart(p: FileProgress, seen: _Seen) -> FileProgress:
    """The ranks began anew from a checkpoint: what they did after it does not count any more."""
    again = replace(p, restarts=p.restarts + 1, last_step=None, printed_at=None, broken=True, reloaded=False)
    fresh = replace(again, pace=replace(p.pace, began_at=None), throughput=Throughput())
    return _advance(fresh, seen)


def _advance(p: FileProgress, seen: _Seen) -> FileProgress:
    if p.reloaded or p.pace.phase is Phase.START:
        # The ranks began anew, wherever their steps go on: they compile and warm up again.
        p = replace(p, pace=replace(p.pace, began_at=None), throughput=Throughput())
    intervals = p.intervals
    if p.last_step is not None and seen.step > p.last_step:
        seconds = (seen.printed - p.printed_at).total_seconds() if seen.printed and p.printed_at else 0.0
        if seconds <= 0 and p.last_at is not None:
            seconds = (seen.at - p.last_at).total_seconds()
        if seconds > 0:
            intervals = (*intervals, seconds / (seen.step - p.last_step))[-INTERVALS_KEPT:]
    steps = (p.last_step, seen.step) if p.last_step is not None and not p.broken and not p.reloaded else None
    pace = _learned(p, seen)
    if seen.total is not None and p.pace.total not in {None, seen.total}:
        pace = replace(pace, gaps=(), lines=())  # another bar: how long its steps take is not known
    pace = hang.stepped(pace, line=seen.line, total=seen.total, at=seen.at, steps=steps)
    # Cleared is what came before the *previous* step: the first step after a crash line may be one that another rank
    # was just finishing.
    return replace(
        p,
        last_step=seen.step,
        rank=seen.rank,
        last_at=seen.at,
        printed_at=seen.printed or p.printed_at,
        intervals=intervals,
        pace=pace,
        throughput=_throughput(p, seen),
        numbers=_numbers(p, seen),
        cleared_line=p.advance_line,
        cleared_at=p.advance_at,
        advance_line=seen.line,
        advance_at=seen.at,
        low_steps=(),
        saving_line=0,
        broken=False,
        reloaded=False,
        restarts=p.restarts + (1 if p.broken and p.reloaded else 0),
        # The bar's last line comes after the summary that the end prints.
        finished=p.finished and seen.total is not None and seen.step >= seen.total,
    )


def _learned(p: FileProgress, seen: _Seen) -> Pace:
    """The pace with the gap before this line."""
    pace, last_step, last_at = p.pace, p.last_step, p.last_at
    if last_step is None or last_at is None:
        return pace
    broken = p.broken or p.reloaded
    if pace.phase is not Phase.STEP or pace.closed_at is not None:
        return pace if broken else hang.learn_stretch(pace, step=last_step, at=seen.at, late=seen.late)
    gap = hang.Gap(
        first=last_step,
        last=seen.step,
        at=seen.at,
        read=(seen.at - last_at).total_seconds(),
        printed=(seen.printed - p.printed_at).total_seconds() if seen.printed and p.printed_at else 0.0,
        late=seen.late,
        between=max(0, seen.line - p.advance_line - 1),
        # The newest line of a read whose first line was the one before: what came between the two was not looked at.
        adjacent=seen.next or seen.step - last_step == pace.stride,
    )
    return hang.learn(pace, gap, broken=broken)


def _throughput(p: FileProgress, seen: _Seen) -> Throughput:
    """With the seconds per step since the line before, where only steps came between the two."""
    explained = p.pace.phase is not Phase.STEP or p.pace.closed_at is not None or p.broken or p.reloaded
    if p.last_step is None or p.last_at is None or explained or seen.step <= p.last_step:
        return p.throughput
    seconds = straggler.printed_seconds(seen.text)
    if seconds is None:
        elapsed = (seen.printed - p.printed_at).total_seconds() if seen.printed and p.printed_at else 0.0
        seconds = (elapsed if elapsed > 0 else (seen.at - p.last_at).total_seconds()) / (seen.step - p.last_step)
    if seconds <= 0:
        return p.throughput
    wait = straggler.printed_wait(seen.text)
    return straggler.learn(p.throughput, step=p.last_step, seconds=seconds, wait=wait, at=seen.at)


def _numbers(p: FileProgress, seen: _Seen) -> Numbers:
    loss, norm = divergence.printed_values(seen.text)
    step = seen.step if p.last_step is None else p.last_step
    return divergence.learn(p.numbers, step=step, loss=loss, norm=norm, at=seen.at)


def report(progress: FileProgress, fields: Mapping[str, str]) -> FileProgress:
    """A report of the slowest and the fastest rank."""
    return replace(progress, throughput=straggler.report(progress.throughput, fields))


def _ranks(progress: FileProgress, text: bytes, at: datetime) -> FileProgress:
    """How long ranks took for their steps."""
    known = progress.throughput
    ranks = rank_times.learn(known.ranks, map(rank_times.parsed, COMPILED[RANKS].finditer(text)), at)
    return replace(progress, throughput=replace(known, ranks=ranks))


def read_on(progress: FileProgress, line: int, at: datetime) -> FileProgress:
    """The file was read until `line` at `at`."""
    pace = hang.printed_since(progress.pace, line - max(progress.advance_line, progress.pace.phase_line), at)
    return replace(progress, last_line_at=at, pace=pace)


ANNOUNCING = frozenset({"saving", "starting", "compiling", "evaluating"})
_PHASES: Mapping[str, tuple[Phase, bool]] = {
    "saving": (Phase.CHECKPOINT, True),
    "saved": (Phase.CHECKPOINT, False),
    "loaded": (Phase.START, True),
    "starting": (Phase.START, True),
    "compiling": (Phase.COMPILE, True),
    "evaluating": (Phase.EVALUATION, True),
    "evaluated": (Phase.EVALUATION, False),
}


def mark(
    progress: FileProgress, name: str, step: int | None, line: int, at: datetime, late: float = 0.0
) -> FileProgress:
    """A line, read at `at`, that is no step but says where the attempt stands. `late`: as for `observe`."""
    if name in _PHASES:
        phase, begins = _PHASES[name]
        pace = progress.pace
        last = progress.last_step if not progress.broken else None  # a restart inside the job has no usual length
        if begins:
            pace = hang.announced(pace, phase, step=last, line=line, at=at, late=late)
        else:
            pace = hang.closed(pace, phase, step=last, line=line, at=at)
        progress = replace(progress, pace=pace)
    match name:
        case "starting" | "compiling" | "evaluating" | "evaluated":
            return progress
        case "saved":
            return replace(_checkpoint(progress, step), saving_line=0)
        case "loaded":
            left = progress.last_step
            orphan = (
                Orphan(left_step=left, loaded=step) if left is not None and not progress.reloaded else progress.orphan
            )
            before = step if progress.first_step is None and step is not None else progress.loaded_step
            return replace(_checkpoint(progress, step), reloaded=True, orphan=orphan, loaded_step=before)
        case "saving":
            return replace(progress, saving_line=line)
        case "finished":
            return replace(progress, finished=True)
        case _:
            raise ValueError(f"no such mark: {name}")


def _checkpoint(progress: FileProgress, step: int | None) -> FileProgress:
    if step is None:
        return progress
    known = tuple(item for item in progress.checkpoints if item != step)
    return replace(progress, checkpoint_step=step, checkpoints=(*known, step)[-CHECKPOINTS_KEPT:])


def combine(states: Mapping[str, FileProgress]) -> Progress:
    """One attempt's progress from its files: the furthest step, the newest times, the most restarts."""
    files = list(states.values())
    counting = [p for p in files if p.last_step is not None and p.form in _STEP_FORMATS] or [
        p for p in files if p.last_step is not None
    ]
    intervals = sorted(value for p in counting for value in p.intervals)
    checkpoints = [p.checkpoint_step for p in files if p.checkpoint_step is not None]
    lead = _lead(counting)
    first = min((p.first_step for p in counting if p.first_step is not None), default=None)
    return Progress(
        first_step=first,
        last_step=max((p.last_step for p in counting if p.last_step is not None), default=None),
        first_at=min((p.first_at for p in counting if p.first_at is not None), default=None),
        last_at=max((p.last_at for p in counting if p.last_at is not None), default=None),
        interval_seconds=intervals[len(intervals) // 2] if len(intervals) >= 2 else None,
        checkpoint_step=max(checkpoints, default=None),
        resumed_step=None if first is None else _resumed(first, files, lead.pace.stride if lead else 0),
        in_job_restarts=max((p.restarts for p in files), default=0),
        last_line_at=max((p.last_line_at for p in files if p.last_line_at is not None), default=None),
        news_at=max((p.news_at for p in files if p.news_at is not None), default=None) if lead is None else None,
        finished=any(p.finished for p in files),
        saving=any(p.saving_line for p in files),
        cleared_at=max((p.cleared_at for p in counting if p.cleared_at is not None), default=None),
        cleared_lines={name: p.cleared_line for name, p in sorted(states.items()) if p.cleared_line},
        broken=lead is not None and any(p.broken for p in files if p is lead or p.last_step is None),
        pace=hang.merged(lead.pace, (p.pace for p in files if p is not lead), lead.last_at)
        if lead
        else hang.unled(p.pace for p in files if not _spoken_over(p, files)),
        throughput=_throughput_of(lead, files),
        numbers=lead.numbers if lead else Numbers(),
        checkpoints=tuple(sorted({step for p in files for step in p.checkpoints}))[-CHECKPOINTS_KEPT:],
    )


def _resumed(first: int, files: Sequence[FileProgress], stride: int) -> int:
    """The step that the attempt's first one followed: of the checkpoint that it loaded, where its log tells that. Else,
    where every so many steps a line is printed, as many before the first line; from nothing none was done.
    """
    loaded = max((p.loaded_step for p in files if p.loaded_step is not None and p.loaded_step <= first), default=None)
    if loaded is None:
        loaded = max(first - max(stride, 1), 0)
    return min(loaded, first - 1)  # that one itself is done again


def _spoken_over(file: FileProgress, files: Sequence[FileProgress]) -> bool:
    """A bar of preparation that is not the last that was said: another file went on, as standard output does behind
    standard error.
    """
    sign_at = file.pace.sign_at
    if file.pace.phase is not Phase.PREPARATION or sign_at is None:
        return False
    others = (p.last_line_at for p in files if p.pace.phase is not Phase.PREPARATION and p.last_line_at is not None)
    return any(at >= sign_at for at in others)


def _throughput_of(lead: FileProgress | None, files: Sequence[FileProgress]) -> Throughput:
    """Of the file whose steps are waited for; what ranks tell of theirs may stand in another."""
    known = lead.throughput if lead else Throughput()
    telling = max((p.throughput.ranks for p in files), key=lambda ranks: ranks.closed or -1, default=known.ranks)
    return replace(known, ranks=telling) if telling.closed is not None or telling.open else known


def _lead(counting: Sequence[FileProgress]) -> FileProgress | None:
    """The file whose progress lines are waited for: it showed the newest step, and shows most of them."""
    newest = max((p.last_at for p in counting if p.last_at is not None), default=None)
    fresh = [p for p in counting if p.last_at == newest]
    return max(fresh, key=lambda p: len(p.pace.gaps), default=None)
