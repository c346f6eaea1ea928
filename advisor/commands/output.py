"""How commands print: JSON or tables, log text made harmless, errors in one line."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from advisor.commands.tables import GAP, layout, terminal_columns, wrapped
from advisor.plain_text import harmless as harmless
from advisor.plain_text import one_line as one_line

if TYPE_CHECKING:
    from google.protobuf.message import Message

PIPE_COLUMNS = 2_000


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"  # one line for each of a list, one for anything else


class CommandError(Exception):
    """Ends a command with one line on standard error. Code 1: it failed; 2: it was asked wrongly."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def complain(message: str) -> None:
    print(f"advisor: {one_line(message)}", file=sys.stderr)


def print_json(value: object, form: Format = Format.JSON) -> None:
    # ASCII only: nothing that a terminal would obey gets through.
    if form is Format.JSONL:
        for item in value if isinstance(value, list) else [value]:
            print(json.dumps(item, ensure_ascii=True, sort_keys=False, separators=(",", ":")))
        return
    print(json.dumps(value, indent=2, ensure_ascii=True, sort_keys=False))


def whole_document(message: "Message") -> dict[str, Any]:
    """A message with each of its fields, zero and false ones too: what a program looks for is there."""
    from google.protobuf.json_format import MessageToDict

    document: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return document


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str, least: Sequence[str] = ()
) -> None:
    """A table as wide as the terminal; `empty` is said when there are no rows.

    `least`: the columns that a narrow terminal does not show, the first one first; it says which.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[one_line(cell) for cell in row] for row in rows]
    if not cells:
        print(empty)
        return
    width = terminal_columns() or PIPE_COLUMNS  # a pipe has no width: one row is one line there
    found = layout(columns, cells, width, least)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for at, wide in found.shown:
        table.add_column(wrapped(columns[at], wide), width=wide, overflow="fold")
    for row in cells:
        table.add_row(*(Text(wrapped(row[at], wide)) for at, wide in found.shown))
    console = Console(width=width + GAP, highlight=False)  # a last column's own gap holds nothing
    with console.capture() as text:
        console.print(table)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))
    if found.left_out:
        print(f"not shown in {width} columns: {', '.join(found.left_out)}")


def short_time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%SZ")
