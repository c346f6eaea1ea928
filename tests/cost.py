"""What a piece of work costs, on a machine that does other things beside it."""

import gc
import time
from collections.abc import Callable
from typing import TypeVar

TRIES = 3
T = TypeVar("T")


def within(seconds_max: float, work: Callable[[], T]) -> T:
    """What `work` returns; fails unless one of three runs takes this thread less than `seconds_max` of its processor.

    Other threads are not counted, nor the garbage that earlier tests left: a pass over it is no cost of this work, and
    takes half a second late in a long run.
    """
    took = []
    for _ in range(TRIES):
        collecting = gc.isenabled()
        gc.disable()
        try:
            began = time.thread_time()
            result = work()
            took.append(time.thread_time() - began)
        finally:
            if collecting:
                gc.enable()
        if took[-1] < seconds_max:
            return result
    raise AssertionError(f"took {', '.join(f'{each:.2f}' for each in took)} s, not less than {seconds_max:g} s")
