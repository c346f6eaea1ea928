"""Lines that one answer of a store holds for one attempt, given on in parts that do not weigh too much.

Within a stream lines are in order, so all of a part that one stream has is a stretch of it: what a part needs is the
moment at which it ends. Lines are never put into one order over all streams, only their times and lengths are.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from connectors.logs.store import Stream


class Stretch(NamedTuple):
    """The lines of a stream from the place `low` on, before `high`; at least one."""

    stream: Stream
    low: int
    high: int


class Pile:
    """`streams`: with their lines in order. Weights are of texts with their newlines."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = [stream for stream in streams if stream.times]
        self._lows = [0] * len(self._streams)
        self._left = sum(sum(map(len, stream.texts)) + len(stream.texts) for stream in self._streams)
        self._times = np.empty(0, np.int64)  # of all lines, in order; made when a part does not hold them all
        self._sums = np.empty(0, np.int64)  # what the lines weigh up to each of them
        self._given = 0

    def take(self, bytes_max: int) -> tuple[list[Stretch], int | None]:
        """The next lines that fit, and the moment of the first that did not. Lines of one nanosecond go together,
        whatever they weigh, and so does the first line.
        """
        next_ns = self._end(bytes_max) if self._left > bytes_max else None
        taken = []
        for number, (stream, low) in enumerate(zip(self._streams, self._lows, strict=True)):
            high = len(stream.times) if next_ns is None else bisect_left(stream.times, next_ns, low)
            if high > low:
                taken.append(Stretch(stream, low, high))
                self._lows[number] = high
        return taken, next_ns

    def _end(self, bytes_max: int) -> int | None:
        if not len(self._times):
            self._sort()
        before = int(self._sums[self._given - 1]) if self._given else 0
        fits = max(self._given + 1, int(np.searchsorted(self._sums, before + bytes_max, side="right")))
        end = int(np.searchsorted(self._times, self._times[fits - 1], side="right"))
        self._given, self._left = end, int(self._sums[-1] - self._sums[end - 1])
        return int(self._times[end]) if self._left else None

    def _sort(self) -> None:
        count = sum(len(stream.times) for stream in self._streams)
        times = np.fromiter(chain.from_iterable(stream.times for stream in self._streams), np.int64, count)
        texts = chain.from_iterable(stream.texts for stream in self._streams)
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._sums = (np.fromiter(map(len, texts), np.int64, count)[order] + 1).cumsum()
