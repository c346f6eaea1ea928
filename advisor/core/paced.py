"""What a log that is read all at once teaches about its job's pace: as if it had been read while it was written.

The lines' own times stand in for the reader's clock. A log without them teaches nothing, and the site's limit holds.
"""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from advisor.core.chatter import Voice, voice
from advisor.core.lines import clean, decode, shorten
from advisor.core.progress import FileProgress
from advisor.core.scan_state import FileContext, FileState
from advisor.core.times import line_time

if TYPE_CHECKING:
    from advisor.core.scan import Scanner

PACED_BYTES = 512 << 10  # the newest ones: what was usual at the end
READS_MAX = 4_000


Reads = list[tuple[datetime, list[bytes]]]


def reads_of(tail: bytes, now: datetime) -> Reads:
    """The lines of the end of a file by when they were written, as they tell; those without a time with the ones before
    them. `now`: completes times without a date.
    """
    reads: Reads = []
    for line in tail.split(b"\n"):
        found = line_time(decode(shorten(clean(line))), now)
        if found is not None and (not reads or found.at > reads[-1][0]):
            reads.append((found.at, []))
        if reads:
            reads[-1][1].append(line)
    return reads


def voice_of(reads: Reads) -> Voice | None:
    """What these lines say that is news."""
    return voice([(at, decode(shorten(clean(line)))) for at, lines in reads for line in lines if line.strip()])


def paced(scanner: "Scanner", context: FileContext, reads: Reads) -> FileProgress | None:
    """Progress with the pace that the times of these lines show, the end of a file; None where they have none.

    Its times are those of the log.
    """
    state = FileState()
    if len(reads) < 2:
        return None
    for at, lines in reads[-READS_MAX:]:
        data = b"\n".join(lines) + b"\n"
        where = replace(context, live=True)
        state = scanner.scan(where, state, data, fresh=False, final=False, seen_at=at).state
    return state.progress if state.progress.last_at is not None else None
