"""Lists that are fetched while they are walked, page by page, and tables of them."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from advisor.client.errors import ClientError
from advisor.exporting import FORMATS, head, line

if TYPE_CHECKING:
    import pandas as pd
    from google.protobuf.message import Message

Value = TypeVar("Value")
# One page behind a cursor: its messages, and the next cursor.
FetchPage = Callable[[str, int], "tuple[list[Any], str]"]

PAGE_SIZE = 100


class Listing(Generic[Value]):
    """`for decision in advisor.decisions(user="ada"): ...`

    Nothing is fetched before it is walked, and each walk begins anew with what is newest then. Rows that arrive during
    a walk neither shift nor repeat others. `limit`: so many at most, None for all there are.
    """

    def __init__(
        self, fetch: FetchPage, made: Callable[[Any], Value], kind: "type[Message]", *, limit: int | None = None
    ) -> None:
        if limit is not None and limit < 0:
            raise ClientError(f"limit: {limit} is less than nothing")
        self._fetch = fetch
        self._made = made
        self._kind = kind
        self._limit = limit

    def __iter__(self) -> Iterator[Value]:
        for page in self.pages():
            yield from page

    def pages(self, size: int = PAGE_SIZE) -> Iterator[tuple[Value, ...]]:
        """Page by page, each of `size` values at most."""
        return (tuple(map(self._made, page)) for page in self._messages(size))

    def _messages(self, size: int = PAGE_SIZE) -> "Iterator[list[Message]]":
        left, cursor = self._limit, ""
        while left is None or left > 0:
            rows, cursor = self._fetch(cursor, size if left is None else min(size, left))
            if rows:
                yield rows
            if left is not None:
                left -= len(rows)
            if not cursor:
                return

    def first(self) -> Value | None:
        """The newest one, None when there is none."""
        return next((self._made(row) for page in self._messages(1) for row in page), None)

    def to_pandas(self) -> "pd.DataFrame":
        """A table with a column for each field; times are UTC. Needs `pip install 'recovery-advisor[reports]'`."""
        return table(list(self), _columns(self._made))

    def to_file(self, path: Path | str, form: str = "") -> int:
        """Written as JSON lines or CSV (by the name's ending, or `form`); returns how many rows."""
        chosen = form or Path(path).suffix.lstrip(".")
        if chosen not in FORMATS:
            raise ClientError(f"{path}: {chosen!r} is not one of {', '.join(FORMATS)}")
        count = 0
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            descriptor: Any = self._kind.DESCRIPTOR
            file.write(head(descriptor, chosen))
            for page in self._messages(250):
                file.writelines(line(message, chosen) for message in page)
                count += len(page)
        return count


def _columns(made: Callable[..., Any]) -> list[str]:
    owner = getattr(made, "__self__", None)
    return [item.name for item in fields(owner) if item.name not in {"message", "evidence"}] if owner else []


def table(rows: list[Any], columns: list[str]) -> "pd.DataFrame":
    """Values as a table; pandas is loaded here and nowhere else."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ClientError("tables need pandas: pip install 'recovery-advisor[reports]'") from None
    frame = pd.DataFrame([{name: getattr(row, name) for name in columns} for row in rows], columns=columns)
    for name in columns:
        if name == "at" or name.endswith("_at") or any(isinstance(value, datetime) for value in frame[name].head(1)):
            frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame
