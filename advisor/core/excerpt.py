"""How long steps took in a log that is read all at once, line by line: whether they became slower.

A scan of a whole log looks at the first and the last progress line of a read only; what lies between is told here, from
the end of a file, by what its lines print or by their own times.
"""

from collections.abc import Iterable
from datetime import datetime

from advisor.core import straggler
from advisor.core.course import Throughput
from advisor.core.progress import COMPILED, STEP_FORMATS

_LINE_BYTES = 4_096
# Bars are not among them: they smooth what they show. An epoch's own count begins anew with each epoch.
_TIMED = STEP_FORMATS | {"epoch"}


def throughput(reads: Iterable[tuple[datetime, list[bytes]]], form: str) -> Throughput:
    """Of lines by when they were written (`reads`; lines without times in one read), whose steps have the format
    `form`.
    """
    if form not in _TIMED:
        return Throughput()
    samples: list[straggler.Sample] = []
    last: tuple[int, datetime] | None = None
    for at, lines in reads:
        for line in lines:
            found = COMPILED[form].search(line[:_LINE_BYTES])
            if found is None:
                continue
            step = int(found.group(1))
            if last is not None and step < last[0]:
                samples, last = [], None  # a restart, or an evaluation that counts for itself
            if last is not None and step > last[0]:
                printed = straggler.printed_seconds(line[:_LINE_BYTES].decode("latin-1"))
                seconds = printed or (at - last[1]).total_seconds() / (step - last[0])
                if seconds > 0:
                    samples.append(straggler.Sample(step=last[0], seconds=round(seconds, 6), at=at))
            if last is None or step > last[0]:
                last = (step, at)
    return straggler.in_short(samples)
