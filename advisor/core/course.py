"""What an attempt's own progress lines have taught about it: values only. They die with their attempt.

`hang`, `straggler` and `divergence` learn and judge; `progress` keeps one `Pace`, `Throughput` and `Numbers` per file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Phase(StrEnum):
    """What an attempt is doing, as far as its lines tell. STEP: nothing else was announced."""

    STEP = "step"
    START = "start"  # again, inside the job: a restart of its ranks, a checkpoint being loaded
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    PREPARATION = "preparation"  # before the first step: a bar of what is done until then is the last that was said
    OTHER = "other"  # announced in words that are not known: more output than usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A stretch without a sign (a progress line, a line about a phase) that was long, or that a line explained.

    `step`: of the newest progress line before it. `phase` STEP: nothing announced it.
    """

    step: int
    seconds: float
    phase: Phase = Phase.STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often progress lines come. `gaps` and `lines` are of the same newest ordinary gaps, oldest first."""

    gaps: tuple[float, ...] = ()  # seconds between two progress lines with nothing announced between them
    lines: tuple[int, ...] = ()  # other lines between the two
    pauses: tuple[Pause, ...] = ()
    # Of the schedules in `schedules.ROUND`, as bits: those that no silence goes with, those that one went with at
    # their last turn, and those whose last turn was announced.
    ruled_out: int = 0
    acted: int = 0
    told: int = 0
    ordinary_from: int | None = None  # the step since which no silence came that is longer than a slow step
    stride: int = 0  # steps between two progress lines
    total: int | None = None  # where a bar ends
    phase: Phase = Phase.STEP
    began_at: datetime | None = None  # first progress line since the ranks last began; before: `steady.begun`
    sign_at: datetime | None = None  # newest progress line, or line about a phase
    phase_line: int = 0  # newest line about a phase since the newest step
    phase_since: datetime | None = None  # first line since the newest step that announced the phase
    closed_at: datetime | None = None  # a line said that the phase is over: the next step is due from then on
    unusual_at: datetime | None = None  # more was printed since the newest step than usually comes between two


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """One report of the slowest and the fastest rank, as Megatron's `--log-straggler` prints it.

    `ratio`: slowest over fastest in the compute part; `data_share`: of the slowest's time, how long the rank that
    waited longest for its batch did, 0 where not printed.
    """

    slowest: int
    ratio: float
    data_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long the ranks took for one step. `histogram`: ranks by the logarithm of their seconds."""

    step: int
    histogram: Mapping[int, int] = field(default_factory=dict)
    slowest: tuple[tuple[int, float], ...] = ()  # rank and seconds, the slowest first


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPace:
    """Ranks against each other, where each prints its time of a step. `steps` to `since` are of the open window
    (`worst` and `usual`, seconds of a step, of the one before while it is empty)."""

    open: tuple[StepTimes, ...] = ()  # steps that not all ranks have told yet
    closed: int | None = None  # the newest step that is complete
    compared: int = 0  # steps in all
    steps: int = 0
    seconds: float = 0.0
    slow: Mapping[int, int] = field(default_factory=dict)  # in how many of the steps a rank was slow
    worst: float = 0.0
    usual: float = 0.0
    since: int | None = None
    windows: tuple[tuple[int, ...], ...] = ()  # ranks that were slow in the newest windows
    began: tuple[int, ...] = ()  # first steps of these
    named: tuple[int, ...] = ()  # stragglers
    named_step: int | None = None  # since when
    named_at: datetime | None = None
    text: str = ""  # by how much, when they were named


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How long steps take, in windows of several progress lines. Seconds per step; `samples` are of the open window."""

    samples: tuple[float, ...] = ()
    waits: tuple[float, ...] = ()  # share of a step spent waiting for input, where lines print it
    usual: tuple[float, ...] = ()  # ordinary windows, newest last
    slow: tuple[float, ...] = ()  # consecutive slow windows, the first ones
    slow_count: int = 0
    slow_step: int | None = None  # the last step before the first of them
    slow_at: datetime | None = None  # when that was noticed first
    recovered: int = 0  # ordinary windows in a row while `sustained`
    sustained: bool = False
    wait_share: float | None = None  # of the newest slow window
    reports: tuple[RankTimes, ...] = ()
    ranks: RankPace = field(default_factory=RankPace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The loss and the gradient norm that progress lines print. Only finite, ordinary values are history."""

    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    not_finite: int = 0  # losses in a row that were NaN or infinite
    far: int = 0  # values in a row far above history
    what: str = ""  # of those: "loss" or "gradient norm"
    onset: int | None = None  # the last step before the run of bad values began
    onset_at: datetime | None = None
    finite: bool = False  # the newest loss was finite


SAVES_KEPT = 20  # of one attempt: what they cost does not change from one to the next


def saves_of(pace: Pace) -> tuple[float, ...]:
    """For how long each of the newest checkpoints held training up: the silence around it, less a usual step's."""
    gaps = sorted(pace.gaps)
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    paused = [pause.seconds for pause in pace.pauses if pause.phase is Phase.CHECKPOINT]
    return tuple(max(0.0, seconds - usual) for seconds in paused[-SAVES_KEPT:])
