"""Exported lines: hostile text stays text, in JSON lines and in CSV."""

import csv
import io
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.exporting import cells, columns, head, line, lines, safe
from advisor.v1 import audit_pb2, common_pb2


def action(detail: str, **changes: str) -> audit_pb2.ActionTaken:
    made = audit_pb2.ActionTaken(
        decision_id="d1",
        attempt=common_pb2.AttemptRef(job_id="7", user="ada", attempt=2),
        generation=3,
        action=common_pb2.ACTION_RESTART,
        outcome=audit_pb2.Reconciliation(
            status=common_pb2.RECONCILIATION_STATUS_VERIFIED, detail=detail, excluded_nodes=["n1", "n2"]
        ),
        **changes,
    )
    made.decided_at.FromDatetime(datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC))
    return made


def row_of(message: audit_pb2.ActionTaken) -> dict[str, str]:
    text = head(audit_pb2.ActionTaken.DESCRIPTOR, "csv") + line(message, "csv")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    return row


def test_columns_are_the_fields_of_the_message() -> None:
    """Nested fields by their path, words in lower case, UTC times, names joined by blanks."""
    row = row_of(action("done"))
    assert row["attempt.job_id"] == "7"
    assert (row["action"], row["outcome.status"], row["mode"]) == ("restart", "verified", "")
    assert row["decided_at"] == "2026-11-01T12:00:00.123456+00:00"
    assert row["outcome.excluded_nodes"] == "n1 n2"
    assert (row["generation"], row["attempt.attempt"]) == ("3", "2")
    assert row["attempt.submitted_at"] == ""


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =cmd()", "＝1", "\ufeff=1"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    """What a spreadsheet would compute begins with an apostrophe, and nothing else does."""
    assert safe(text).startswith("'")
    assert safe(f"a{text}") == safe(f"a{text}").lstrip("'")


def test_large_documents_and_tables_are_left_to_json() -> None:
    """A decision's CSV has no analysis and no evidence; its JSON line has both."""
    made = audit_pb2.Decision(analysis_json="{}", advice=common_pb2.Advice(evidence=[common_pb2.Evidence(text="x")]))
    assert not {name for name in columns(made.DESCRIPTOR) if "analysis" in name or "evidence" in name}
    assert json.loads(line(made, "jsonl"))["advice"]["evidence"][0]["text"] == "x"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_one_cell_on_one_line(text: str) -> None:
    """Whatever stands in a log, a row is one line with as many cells as the head, free of control characters."""
    made = action(text.encode("utf-8", "replace").decode())
    written = line(made, "csv")
    assert written.endswith("\r\n")
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in written[:-2])
    (row,) = csv.reader(io.StringIO(written, newline=""))
    assert len(row) == len(columns(audit_pb2.ActionTaken.DESCRIPTOR)) == len(cells(made))
    assert not row[-3].startswith(("=", "+", "-", "@", "\t", "\r"))


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_survives_json_lines(text: str) -> None:
    """A line is ASCII without line breaks inside, and holds what was written."""
    clean = text.encode("utf-8", "replace").decode()
    written = "".join(lines([action(clean), action("b")], "jsonl"))
    first, second, end = written.split("\n")
    assert end == ""
    assert written.isascii()
    assert json.loads(first)["outcome"].get("detail", "") == clean
    assert json.loads(second)["outcome"]["detail"] == "b"
