"""Healthy runs, generated: what a training job prints from its start to its end while nothing is wrong.

A run is a sequence of `Piece`s in time order. Same arguments, same run. It has a start with a compilation, steps of one
framework told by one rank or by many, noise of the benign corpus between them, checkpoints, evaluations and
recompilations that stop the steps for minutes, outages of the metrics service, uploads that need several tries, skipped
steps, and the noise of a teardown after success. Its nodes' kernel logs have corrected and harmless events.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from advisor.core.progress import COMPILED, MARKS_COMPILED
from tests.corpus.benign_lines import Group

STYLES_PATH = Path(__file__).with_name("styles.toml")
RANKS = 32
TOTAL = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What was printed at `at`. `node`: into that node's kernel log, else into the job's own."""

    at: datetime
    text: str
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one framework tells its progress; see `styles.toml`."""

    name: str
    start: Sequence[str]
    step: str
    saving: str
    saved: str
    evaluation: Sequence[str]  # before, while it goes on, after
    end: Sequence[str]
    prefix: str = ""
    skipped: str = ""
    every: int = 1
    newline: str = "\n"


_DOCUMENT: Mapping[str, Any] = tomllib.loads(STYLES_PATH.read_text("utf-8"))
STYLES = tuple(Style(**raw) for raw in _DOCUMENT["style"])
CHATTER: Mapping[str, Sequence[str]] = _DOCUMENT["chatter"]


# Times that the corpus has, and how to write one of the same shape.
_TIMES = re.compile(
    r"2026([-/])03\1\d\d([ T,:])\d\d:\d\d:\d\d|\b([IWEV])0?302 \d\d:\d\d:\d\d|\b03([-/])\d\d \d\d:\d\d:\d\d"
)


def _retimed(line: str, now: datetime) -> str:
    """The line as if it were printed now."""

    def written(match: re.Match[str]) -> str:
        dash, between, level, short = match.groups()
        if dash:
            return f"{now:%Y{dash}%m{dash}%d{between}%H:%M:%S}"
        return f"{level}{now:%m%d %H:%M:%S}" if level else f"{now:%m{short}%d %H:%M:%S}"

    return _TIMES.sub(written, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Benign lines that are neither progress nor a mark, and so fit between the lines of any framework."""

    job: tuple[str, ...]
    kernel: tuple[str, ...]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Noise":
        """Kernel lines without those of storage that went away: here they would come at random, and not come back."""
        plain = [line for group in groups if group.node is None for line in group.lines if not _tells(line)]
        kernel = [line for group in groups if group.node in {"node1", "node2", "node3"} for line in group.lines]
        return cls(job=tuple(plain), kernel=tuple(kernel))


def _tells(line: str) -> bool:
    raw = line.encode()
    return any(pattern.search(raw) for pattern in (*COMPILED.values(), *MARKS_COMPILED.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long things last, in seconds, and how often they come, in progress lines."""

    step: float = 4.0
    first_step_max: float = 2_400.0
    pause_max: float = 480.0
    save_every: int = 97
    evaluate_every: int = 233
    compile_every: int = 611
    outage_every: int = 150
    noise_max: int = 24  # lines between two progress lines


def healthy_run(style: Style, noise: Noise, *, seed: int, lines: int, begin: datetime, plan: Plan) -> Iterator[Piece]:
    """A run of about `lines` lines. Pauses are announced, and none is longer than the plan says."""
    run = _Run(style, noise, Random(seed), begin, plan)
    yield from run.starting()
    while run.printed < lines:
        yield from run.stepping()
    yield from run.ending()


class _Run:
    def __init__(self, style: Style, noise: Noise, random: Random, begin: datetime, plan: Plan) -> None:
        self.style, self.noise, self.random, self.plan = style, noise, random, plan
        self.now = begin
        self.turn = 0
        self.printed = 0
        self.outage = 0  # progress lines that the metrics service stays away
        self.usual = plan.step * random.uniform(0.5, 2.0)

    def fields(self, rank: int) -> dict[str, Any]:
        wobble = self.random.uniform(0.97, 1.03)
        step = self.turn * self.style.every
        return {
            "stamp": f"{self.now:%Y-%m-%d %H:%M:%S}",
            "day": f"{self.now:%Y-%m-%d %H:%M:%S}",
            "step": step,
            "total": TOTAL,
            "samples": step * 256,
            "ms": 1000 * self.usual * wobble,
            "seconds": self.usual * wobble,
            "loss": (2 + 8 / (1 + step / 500)) * wobble,
            "norm": wobble,
            "rank": rank,
            "part": self.random.randrange(10),
        }

    def piece(self, templates: Sequence[str], rank: int = 0) -> Piece:
        fields = self.fields(rank)
        lines = [self.style.prefix.format(rank=rank) + template.format(**fields) for template in templates]
        return self.raw(lines)

    def raw(self, lines: Sequence[str]) -> Piece:
        """Lines with this style's newline: progress bars have none, until something else is printed."""
        self.printed += len(lines)
        text = "".join(line + (self.style.newline if line.startswith("\r") else "\n") for line in lines)
        return Piece(at=self.now, text=text)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def starting(self) -> Iterator[Piece]:
        yield self.piece(self.style.start)
        yield from self.chattering()
        compiling = self.random.uniform(0.1, 1.0) * self.plan.first_step_max
        yield self.piece(CHATTER["compile"])
        self.wait(compiling)

    def stepping(self) -> Iterator[Piece]:
        """To the next progress line, with what comes before and after it."""
        self.turn += 1
        self.wait(self.usual * self.random.uniform(0.9, 1.15))
        yield from self.telling()
        yield from self.chattering()
        plan = self.plan
        if self.turn % plan.save_every == 0:
            yield from self.pausing([self.style.saving], (), [self.style.saved])
        if self.turn % plan.evaluate_every == 0:
            before, during, after = self.style.evaluation
            yield from self.pausing([before], [during], [after] if after else ())
        if self.turn % plan.compile_every == 0:
            yield from self.pausing(CHATTER["compile"], (), ())
        if self.turn % plan.outage_every == 0:
            self.outage = self.random.randint(1, 30)
        if self.outage:
            self.outage -= 1
            yield self.raw([CHATTER["outage"][self.random.randrange(3) if self.outage else 3]])
        if self.random.random() < 0.01:
            yield self.piece(CHATTER["upload"])
        if self.random.random() < 0.05:
            yield self.kernel()

    def telling(self) -> Iterator[Piece]:
        """One progress line, or that of every rank, out of order; some ranks are late by a step."""
        style = self.style
        if style.skipped and self.random.random() < 0.003:
            yield self.piece([style.skipped], self.random.randrange(RANKS))
        if not style.prefix:
            yield self.piece([style.step])
            return
        ranks = self.random.sample(range(RANKS), k=8)
        for rank in ranks:
            if self.random.random() < 0.05 and self.turn > 2:
                self.turn -= 1
                yield self.piece([style.step], rank)
                self.turn += 1
            yield self.piece([style.step], rank)

    def chattering(self) -> Iterator[Piece]:
        amount = self.random.randint(0, self.plan.noise_max)
        lines = [_retimed(line, self.now) for line in self.random.choices(self.noise.job, k=amount)]
        if self.style.prefix:
            prefixes = (self.style.prefix.format(rank=self.random.randrange(RANKS)) for _ in lines)
            lines = [prefix + line for prefix, line in zip(prefixes, lines, strict=True)]
        yield self.raw(lines)

    def pausing(self, before: Sequence[str], during: Sequence[str], after: Sequence[str]) -> Iterator[Piece]:
        """Announce, stand still, and say that it is done. An evaluation may tell how far it is, or nothing."""
        yield self.piece(before)
        seconds = self.random.choice((0.1, 0.3, 1.0)) * self.plan.pause_max * self.random.random()
        talks = during and self.random.random() < 0.5
        for _ in range(4 if talks else 1):
            self.wait(seconds / (4 if talks else 1))
            if talks:
                yield self.piece(during)
        if after:
            yield self.piece(after)

    def kernel(self) -> Piece:
        node = self.random.choice(("node1", "node2", "node3"))
        line = self.random.choice(self.noise.kernel)
        return Piece(at=self.now, text=f"{self.now:%Y-%m-%dT%H:%M:%S.%f}+00:00 {node} {line}\n", node=node)

    def ending(self) -> Iterator[Piece]:
        """Training is over: what is printed from here on is the noise of processes that end."""
        if self.style.end:
            yield self.raw([""])
            yield self.piece(self.style.end)
        for rank in range(8):
            self.wait(0.2)
            noise = [template.format(rank=rank, part=rank % 8) for template in CHATTER["teardown"]]
            yield self.raw(self.random.sample(noise, k=5))


def reads(pieces: Iterable[Piece], seconds: float) -> Iterator[tuple[datetime, dict[str | None, str]]]:
    """As a reader gets them, `seconds` apart or longer: the time of the newest piece, and the new text of each file."""
    texts: dict[str | None, list[str]] = {}
    begin = end = None
    for piece in pieces:
        if begin is not None and end is not None and (piece.at - begin).total_seconds() > seconds:
            yield end, {node: "".join(held) for node, held in texts.items()}
            texts, begin = {}, None
        begin, end = begin or piece.at, piece.at
        texts.setdefault(piece.node, []).append(piece.text)
    if end is not None:
        yield end, {node: "".join(held) for node, held in texts.items()}
