"""What is asked of log and metrics stores: nothing in it is a user's to choose but the job's number."""

import ast
from pathlib import Path

import pytest

from connectors.logs import loki, victorialogs

ROOT = Path(__file__).resolve().parents[2]
ASKING = [
    *(ROOT / "connectors" / "logs" / f"{name}.py" for name in ("loki", "victorialogs", "store_reader", "store")),
    ROOT / "connectors" / "kernel" / "stores.py",
    *sorted((ROOT / "connectors" / "metrics").glob("*.py")),
]
OF_USERS = frozenset({"user", "job_name", "account", "comment", "stdout_path", "stderr_path", "paths"})
HOSTILE = ('"} |= "" or {x="', "`} | json", "\\", "a\nb", "\0", "$(id)", "){}[", "\u202e\u2028")


def test_no_name_of_a_user_reaches_a_store() -> None:
    """Who asks a store never looks at what a user is called, or calls his jobs, or where he writes."""
    looked = [
        f"{path.name}:{node.lineno}: .{node.attr}"
        for path in ASKING
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in OF_USERS
    ]
    assert looked == []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_quoted_text_ends_where_we_end_it(text: str) -> None:
    """In both stores' languages: one string, with no quote inside that is not escaped, on one line."""
    for quoted in (loki._quoted(text), victorialogs._quoted(text)):
        assert quoted[0] == quoted[-1] == '"'
        inner, place = quoted[1:-1], 0
        while place < len(inner):
            assert inner[place] not in '"\n\0'
            place += 2 if inner[place] == "\\" else 1
        assert place == len(inner)  # the last one is no escape of our own quote
