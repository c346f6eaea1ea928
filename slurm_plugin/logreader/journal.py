"""What the reader tells: each path when a user's job first has it opened, each refusal, and counts every minute.

One JSON object a line on standard error, ASCII only: a path cannot forge a line. Bounded, and what was left out is
counted: a path is one that somebody else chose.
"""

import json
from collections import Counter, OrderedDict
from collections.abc import Callable

KNOWN_MAX = 16_384
LINES_PER_SECOND = 50.0
LINES_BURST = 200.0
COUNT_SECONDS = 60.0
PATH_CHARACTERS_MAX = 512


class Journal:
    """`write` takes one line; `now` is monotonic, in seconds."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float]) -> None:
        self._write, self._now = write, now
        self._known: OrderedDict[tuple[int, str], str] = OrderedDict()
        self._left, self._left_at = LINES_BURST, now()
        self._withheld = 0
        self._counts: Counter[tuple[int, str]] = Counter()
        self._counted_at = now()

    def tell(self, event: str, **facts: object) -> None:
        """One line, unless there were too many lately."""
        now = self._now()
        self._left = min(LINES_BURST, self._left + (now - self._left_at) * LINES_PER_SECOND)
        self._left_at = now
        if self._left < 1:
            self._withheld += 1
            return
        self._left -= 1
        self._write(json.dumps({"event": event} | facts))

    def asked(self, uid: int, job: str, path: str, outcome: str) -> None:
        """`outcome`: "opened" or the reason of a refusal. Told when it is new for this user and path."""
        self._counts[uid, outcome] += 1
        place = (uid, path)
        if self._known.get(place) == outcome:
            self._known.move_to_end(place)
            return
        self._known[place] = outcome
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self.tell("file_opened" if outcome == "opened" else "file_refused", **_facts(uid, job, path, outcome))

    def count(self) -> None:
        """Once a minute: how often each user's files were asked for, and how many lines were left out."""
        if self._now() - self._counted_at < COUNT_SECONDS:
            return
        self._counted_at = self._now()
        for (uid, outcome), number in sorted(self._counts.items()):
            self.tell("files_counted", uid=uid, outcome=outcome, number=number)
        self._counts.clear()
        if self._withheld:
            self.tell("lines_withheld", number=self._withheld)
            self._withheld = 0


def _facts(uid: int, job: str, path: str, outcome: str) -> dict[str, object]:
    return {"uid": uid, "job": job, "path": path[:PATH_CHARACTERS_MAX], "outcome": outcome}
