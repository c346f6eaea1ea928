"""Pauses that come every so many steps and that nothing announces: which schedules may still have one.

"Every 500 steps" is ruled out as soon as its turn came and went without a silence, or when two turns in a row were
announced. One that fell silent at a turn is expected to do so at the next.
"""

from collections.abc import Iterator
from dataclasses import replace

from advisor.core.course import Pace, Phase

# Schedules are written by people: every 500 steps, every 1,024. Their order is part of what is stored: append only.
ROUND = tuple(
    lead * 10**power // 10 for power in range(1, 8) for lead in (10, 15, 20, 25, 30, 40, 50, 60, 75, 80)
) + tuple(2**power for power in range(5, 21))
_ASCENDING = tuple(sorted((number, 1 << index) for index, number in enumerate(ROUND)))


def due(pace: Pace, last: int) -> float | None:
    """How long the silence may be that a schedule calls for after step `last`: 0 where none does, None where one may
    act of which nothing is known.
    """
    ahead = last + max(1, pace.stride)
    if pace.total is not None:
        return (_longest(pace) or None) if ahead >= pace.total else 0.0
    acts = False
    for bit in turns(pace, last, ahead):
        if pace.acted & bit:
            acts = True
        elif not pace.ruled_out & bit:
            return None
    return _longest(pace) if acts else 0.0


def _longest(pace: Pace) -> float:
    scheduled = (pause for pause in pace.pauses if pause.phase is Phase.STEP and on_schedule(pause.step, pace))
    return max((pause.seconds for pause in scheduled), default=0.0)


def turns(pace: Pace, first: int, last: int) -> Iterator[int]:
    """The bits of all schedules that have a turn from step `first` to `last`. One at every line is the pace itself."""
    for number, bit in _ASCENDING:
        if number > last:
            break
        if number > pace.stride and last // number * number >= first:
            yield bit


def on_schedule(step: int, pace: Pace) -> bool:
    """A schedule that is not ruled out has a turn at the step, or before the next progress line; a bar was about
    full.
    """
    ahead = max(1, pace.stride)
    if pace.total is not None:
        return step + ahead >= pace.total
    return any(pace.acted & bit or not pace.ruled_out & bit for bit in turns(pace, step, step + ahead))


def fell_silent(pace: Pace, first: int, last: int) -> Pace:
    """A silence that nothing announced came between the lines of two steps."""
    met = sum(turns(pace, first, last))
    return replace(pace, acted=pace.acted | met, told=pace.told & ~met, ordinary_from=None)


def was_told(pace: Pace, first: int, last: int) -> Pace:
    """A pause between the lines of two steps was announced. A schedule of which two turns in a row were has all of them
    announced: whatever else comes every so many steps has its turns there too.
    """
    met = sum(turns(pace, first, last)) & ~pace.acted
    ruled_out = pace.ruled_out | (met & pace.told)
    return replace(pace, ruled_out=ruled_out, told=pace.told | met, ordinary_from=None)


def went_on(pace: Pace, first: int, last: int, *, ordinary: bool) -> Pace:
    """From the line of step `first` to that of `last` nothing was silent for longer than a step may take (`ordinary`),
    or something was.

    A turn at a step that has a line may act before or after it: it is over when both sides were ordinary.
    """
    if not ordinary:
        return pace if pace.ordinary_from is None else replace(pace, ordinary_from=None)
    since = pace.ordinary_from if pace.ordinary_from is not None and pace.ordinary_from <= first else first
    met = sum(turns(pace, max(first, since + 1), last - 1))
    # One that acted may miss a turn once: a save that is mostly written in the background.
    ruled_out, acted = pace.ruled_out | (met & ~pace.acted), pace.acted & ~met
    return replace(pace, ruled_out=ruled_out, acted=acted, ordinary_from=since)
