"""How commands print: JSON or tables, log text made harmless, errors in one line."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}
# Bidirectional overrides and isolates reorder what is printed after them; separators break lines.
ESCAPED |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0x200F)}


PIPE_COLUMNS = 2_000

# Why a source could not be read → what to do about it.
TO_DO_ABOUT = {
    "permission": "let the advisor's user read these files, by group or ACL (setfacl -m u:USER:r)",
    "missing": "check the path, and that the file system is mounted on this host",
    "not_regular": "the path must lead to a regular file",
    "timeout": "the file system does not answer: check its mount on this host",
    "not_configured": "configure the source, or accept verdicts without it",
    "refused": "check the owner and mode of the file and its folder: nobody but root may write a trusted log",
}


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class CommandError(Exception):
    """Ends a command with one line on standard error. Code 1: it failed; 2: it was asked wrongly."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def complain(message: str) -> None:
    print(f"advisor: {one_line(message)}", file=sys.stderr)


def harmless(text: str) -> str:
    """Text of others for a terminal: control characters and lone surrogates are shown, never obeyed."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").translate(ESCAPED)


def one_line(text: str) -> str:
    return harmless(text).replace("\n", "\\n")


def print_json(value: object) -> None:
    # ASCII only: nothing that a terminal would obey gets through.
    print(json.dumps(value, indent=2, ensure_ascii=True, sort_keys=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table as wide as the terminal; `empty` is said when there are no rows."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=at == 0)
    count = 0
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
        count += 1
    if count:
        # A pipe has no width: one row is one line there.
        Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False).print(table)
    else:
        print(empty)


def short_time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%SZ")


def seconds_text(seconds: float) -> str:
    """A duration that a person reads at a glance."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
