"""docs/security.md says nothing that no test shows, and leaves out nothing that a test of this folder shows."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TEXT = (ROOT / "docs" / "security.md").read_text("utf-8")
NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")
HEAD = "| threat | what stops it | what remains | tests |"


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names that pytest collects from a file: functions of the module, its tests being no methods."""
    nodes = ast.parse(path.read_text("utf-8")).body
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def rows() -> list[list[str]]:
    """The cells of each row of a table of threats."""
    found: list[list[str]] = []
    inside = False
    for line in TEXT.splitlines():
        inside = line == HEAD or (inside and line.startswith("|"))
        if inside and line != HEAD and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def test_every_row_names_tests_that_exist() -> None:
    """A threat, what stops it, what remains, and at least one test; each by the name that pytest knows it by."""
    assert len(rows()) > 30
    assert TEXT.count(HEAD) == TEXT.count("\n| threat ")
    for cells in rows():
        assert len(cells) == 4, cells
        assert all(cells), cells
        assert NAMED.search(cells[3]), cells[0]
        assert NAMED.sub("", cells[3]).strip(" ,") == "", cells[0]
    missing = [
        f"{file}::{name}"
        for file, name in NAMED.findall(TEXT)
        if not (ROOT / file).is_file() or name not in names_in(ROOT / file)
    ]
    assert missing == []


def test_every_security_test_is_named() -> None:
    """Who adds one says which threat it is about."""
    named = {(Path(file).name, name) for file, name in NAMED.findall(TEXT) if file.startswith("tests/security/")}
    ours = {(path.name, name) for path in HERE.glob("test_*.py") for name in names_in(path)}
    assert sorted(ours - named) == []
