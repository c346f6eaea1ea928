"""What was read and is not everywhere yet: a small SQLite file on the node's own disk.

A record enters once, known by the kernel's boot and its number, in the transaction that remembers how far the device
was read. Each receiver has a place of its own, so that one that is away holds up no other. The oldest go when the spool
is full, and that is told to who did not get them.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, sequence INTEGER, uptime_us INTEGER, ns INTEGER NOT NULL,
    text TEXT NOT NULL, UNIQUE (boot, sequence)
);
CREATE TABLE IF NOT EXISTS device (one INTEGER PRIMARY KEY CHECK (one = 1), boot TEXT NOT NULL, next INTEGER NOT NULL,
    last_ns INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS places (receiver TEXT PRIMARY KEY, id INTEGER NOT NULL, intent TEXT NOT NULL DEFAULT '');
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line to deliver. `sequence` None: our own word about the device, not the kernel's."""

    id: int
    boot: str
    sequence: int | None
    uptime_us: int | None
    ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line to keep; see `Row`."""

    sequence: int | None
    uptime_us: int | None
    ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of the device: what was read. `next`: the first number that was not."""

    boot: str
    next: int
    last_ns: int


def set_aside_if_broken(path: Path) -> bool:
    """Whether there was a file that SQLite cannot use: it is renamed to `NAME.broken`, so that a node whose disk has
    lost a page goes on forwarding. Lines may be delivered again then.
    """
    if not path.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                return False
    except sqlite3.OperationalError:
        raise  # locked, or no room: the file is well
    except sqlite3.DatabaseError:
        pass
    path.replace(path.with_name(f"{path.name}.broken"))
    for beside in ("-wal", "-shm"):
        path.with_name(f"{path.name}{beside}").unlink(missing_ok=True)
    return True


class Spool:
    """One connection to the file; each thread has its own."""

    def __init__(self, path: Path, *, rows_max: int = 200_000) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)
        self._rows_max = rows_max

    def close(self) -> None:
        self._connection.close()

    def place(self, boot: str) -> Place:
        """How far the device was read in this boot."""
        row = self._connection.execute("SELECT boot, next, last_ns FROM device").fetchone()
        if row is None:
            return Place(boot=boot, next=-1, last_ns=0)
        return Place(boot=boot, next=row[1] if row[0] == boot else 0, last_ns=row[2])

    def add(self, entries: Sequence[Entry], place: Place) -> None:
        """All of them and the place, or nothing."""
        with self._transaction():
            self._connection.executemany(
                "INSERT OR IGNORE INTO records (boot, sequence, uptime_us, ns, text) VALUES (?, ?, ?, ?, ?)",
                [(place.boot, item.sequence, item.uptime_us, item.ns, item.text) for item in entries],
            )
            self._connection.execute(
                "INSERT INTO device VALUES (1, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET "
                "boot = excluded.boot, next = excluded.next, last_ns = excluded.last_ns",
                (place.boot, place.next, place.last_ns),
            )
            self._trim(place)

    def register(self, receivers: Sequence[str]) -> None:
        """Those that there are now; one that is new begins with what is still here. Others are forgotten."""
        with self._transaction():
            known = [name for (name,) in self._connection.execute("SELECT receiver FROM places")]
            gone = [(name,) for name in known if name not in receivers]
            self._connection.executemany("DELETE FROM places WHERE receiver = ?", gone)
            self._connection.executemany(
                "INSERT OR IGNORE INTO places (receiver, id) VALUES (?, 0)", [(name,) for name in receivers]
            )

    def waiting(self, receiver: str, rows_max: int) -> list[Row]:
        rows = self._connection.execute(
            "SELECT r.id, r.boot, r.sequence, r.uptime_us, r.ns, r.text FROM records r, places p "
            "WHERE p.receiver = ? AND r.id > p.id ORDER BY r.id LIMIT ?",
            (receiver, rows_max),
        )
        return [_row(row) for row in rows]

    def newest(self, receiver: str) -> Row | None:
        """The last of what waits."""
        rows = self._connection.execute(
            "SELECT r.id, r.boot, r.sequence, r.uptime_us, r.ns, r.text FROM records r, places p "
            "WHERE p.receiver = ? AND r.id > p.id ORDER BY r.id DESC LIMIT 1",
            (receiver,),
        )
        return next((_row(row) for row in rows), None)

    def intent(self, receiver: str) -> str:
        """What was begun and not said to be done: a word of the receiver's own, "" when nothing was."""
        row = self._connection.execute("SELECT intent FROM places WHERE receiver = ?", (receiver,)).fetchone()
        return row[0] if row is not None else ""

    def intend(self, receiver: str, intent: str) -> None:
        self._connection.execute("UPDATE places SET intent = ? WHERE receiver = ?", (intent, receiver))

    def delivered(self, receiver: str, last_id: int) -> None:
        self._connection.execute("UPDATE places SET id = ?, intent = '' WHERE receiver = ?", (last_id, receiver))

    def _trim(self, place: Place) -> None:
        """What everybody has, and the oldest of too many."""
        (done,) = self._connection.execute("SELECT coalesce(min(id), 0) FROM places").fetchone()
        self._connection.execute("DELETE FROM records WHERE id <= ?", (done,))
        (count,) = self._connection.execute("SELECT count(*) FROM records").fetchone()
        if count <= self._rows_max:
            return
        over = count - self._rows_max + self._rows_max // 20
        self._connection.execute(
            "DELETE FROM records WHERE id IN (SELECT id FROM records ORDER BY id LIMIT ?)", (over,)
        )
        self._connection.execute(
            "INSERT INTO records (boot, ns, text) VALUES (?, ?, ?)",
            (place.boot, place.last_ns, f"{over} kernel records were dropped: the spool was full"),
        )

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection)


def _row(columns: tuple[int, str, int | None, int | None, int, str]) -> Row:
    number, boot, sequence, uptime_us, ns, text = columns
    return Row(id=number, boot=boot, sequence=sequence, uptime_us=uptime_us, ns=ns, text=text)


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
