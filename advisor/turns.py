"""Whose bytes are scanned first when there is no time for all of them.

Every user has a turn before anybody has a second one, so that one user's flood of output delays nobody else's failure
by more than a single read. Of one user's pieces the small ones come first, then those that waited longest. A read is as
large as what the user's jobs print lets it be: lines that are all errors, each another one, cost fifty times what
ordinary ones do, so that eight megabytes of them would hold everybody up for twenty seconds.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from advisor.core.model import Unavailable
from advisor.ports import LogBatch
from advisor.store.records import AttemptKey

SMALL_BYTES = 64 * 1024  # so little comes before what else the user's jobs wrote
READ_BYTES_FIRST = 512 * 1024  # of a user of whom nothing is known yet
READ_BYTES_MIN = 64 * 1024
READ_SECONDS_SLOW = 0.25  # a scan that took longer makes the user's next reads smaller,
READ_SECONDS_QUICK = 0.1  # a quicker one larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a source gave for one attempt in one read. `user`: of which cluster, and who."""

    key: AttemptKey
    user: tuple[str, str]
    size: int


@dataclass(slots=True, kw_only=True)
class Turns:
    """Remembers when much of an attempt was last scanned."""

    _served: dict[tuple[str, AttemptKey], int] = field(default_factory=dict)
    _count: int = 0

    def order(self, source: str, pieces: Iterable[Piece]) -> list[Piece]:
        def own_order(piece: Piece) -> tuple[int, int]:
            return (self._served.get((source, piece.key), 0) + 1 if piece.size > SMALL_BYTES else 0), piece.size

        taken: dict[tuple[str, str], int] = {}
        placed: list[tuple[int, int, Piece]] = []
        for piece in sorted(pieces, key=own_order):
            turn = taken.get(piece.user, 0)
            placed.append((turn, piece.size, piece))
            taken[piece.user] = turn + (piece.size > 0)  # what brought nothing takes nobody's time
        return [piece for _, _, piece in sorted(placed, key=lambda item: item[:2])]

    def served(self, source: str, piece: Piece) -> None:
        if piece.size > SMALL_BYTES:
            self._count += 1
            self._served[source, piece.key] = self._count

    def keep(self, keys: Container[AttemptKey]) -> None:
        """Forget all others."""
        self._served = {turn: at for turn, at in self._served.items() if turn[1] in keys}


@dataclass(slots=True, kw_only=True)
class Paces:
    """How much is read at once of one attempt of a user, so that no scan takes long. `bytes_max`: at most."""

    bytes_max: int
    _of: dict[tuple[str, tuple[str, str]], int] = field(default_factory=dict)

    def of(self, source: str, user: tuple[str, str]) -> int:
        return self._of.get((source, user), min(READ_BYTES_FIRST, self.bytes_max))

    def took(self, source: str, piece: Piece, seconds: float) -> None:
        """What a scan of this piece took. A small piece that was quick says nothing of a larger one."""
        now = self.of(source, piece.user)
        if seconds > READ_SECONDS_SLOW:
            now = max(now // 2, min(READ_BYTES_MIN, self.bytes_max))
        elif seconds < READ_SECONDS_QUICK and piece.size > now // 2:
            now = min(now * 2, self.bytes_max)
        self._of[source, piece.user] = now

    def keep(self, users: Container[tuple[str, str]]) -> None:
        """Forget all others."""
        self._of = {place: size for place, size in self._of.items() if place[1] in users}


def bytes_of(answer: LogBatch | Unavailable | None) -> int:
    """0 also for what no connector may give: scanning it will say so, and fail that one job's tick."""
    if not isinstance(answer, LogBatch):
        return 0
    try:
        return sum(len(chunk.data) for chunk in answer.chunks)
    except TypeError:
        return 0
