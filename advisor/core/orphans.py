"""Steps of an earlier incarnation that still writes into the same file, told from those of the present one.

Where ranks begin anew from a checkpoint, their steps go back. Somebody who meanwhile goes on from where they had left
off is no progress of theirs: a step beyond that mark which is no next step of the present ones. One such line proves
nothing (lines may be missing): it is left aside. A step of the present ones after it is the proof, and three of its
kind in a row, with none of the present ones between, are the present ones after all.
"""

from dataclasses import dataclass, replace

_ALONE_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """`left_step`: the newest step when a checkpoint was loaded; `loaded`: that checkpoint's; `newest`: of the other's
    steps; `alone`: lines of the other since the newest of ours; `sure`: both have been seen in turn."""

    left_step: int
    loaded: int | None = None
    newest: int | None = None
    alone: int = 0
    sure: bool = False

    @property
    def bound(self) -> int:
        return self.left_step if self.newest is None else max(self.left_step, self.newest)


def is_others(known: Orphan, *, last: int, stride: int, waiting: bool, step: int) -> bool:
    """A step of somebody else, if there is one. `last`: our newest; `stride`: between two of our lines; `waiting`: we
    have shown no step yet since the checkpoint was loaded."""
    if step <= known.bound:
        return False
    least = max(stride, 1)
    if waiting:
        return known.loaded is not None and step - known.loaded > 2 * least and known.loaded + least < known.left_step
    return last < known.bound and step - last > least and (stride > 0 or known.sure)


def seen_other(known: Orphan, step: int) -> Orphan | None:
    """With one more line of theirs; None: it is us after all."""
    if not known.sure and known.alone + 1 >= _ALONE_MAX:
        return None
    return replace(known, newest=step, alone=known.alone + 1)


def seen_own(known: Orphan, *, last: int, stride: int, step: int) -> Orphan | None:
    """After a step of ours; None: nobody else is to be reckoned with."""
    if step <= known.left_step:
        return replace(known, sure=known.sure or known.alone > 0, alone=0)
    ours = known.sure and step < known.bound and step - last <= max(stride, 1)
    return replace(known, alone=0) if ours else None


def may_begin(known: Orphan, *, stride: int, step: int) -> bool:
    """A step that goes back is where we began anew; otherwise, with lines left aside, some rank was merely late."""
    return known.alone == 0 or known.loaded is None or stride <= 0 or step - known.loaded <= 2 * stride
