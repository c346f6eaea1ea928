"""What an attempt's own progress lines have taught about it: values only. They die with their attempt.

`hang`, `straggler` and `divergence` learn and judge; `progress` keeps one `Pace`, `Throughput` and `Numbers` per file.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Phase(StrEnum):
    """What an attempt is doing, as far as its lines tell. STEP: nothing else was announced."""

    STEP = "step"
    START = "start"  # again, inside the job: a restart of its ranks, a checkpoint being loaded
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


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
    stride: int = 0  # steps between two progress lines
    total: int | None = None  # where a bar ends
    phase: Phase = Phase.STEP
    began_at: datetime | None = None  # first progress line since the ranks last began
    sign_at: datetime | None = None  # newest progress line, or line about a phase
    phase_line: int = 0  # newest line about a phase since the newest step
    phase_since: datetime | None = None  # first line since the newest step that announced the phase
    closed_at: datetime | None = None  # a line said that the phase is over: the next step is due from then on
    unusual_at: datetime | None = None  # more was printed since the newest step than usually comes between two
