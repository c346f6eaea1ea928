"""A backtest that is broken off goes on where it was: page by page, with a server that is only values."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.backtest import Case, Outcome
from advisor.commands.backtest import Journal, go_on, open_journal
from advisor.commands.output import CommandError
from advisor.commands.progress import Bar
from advisor.core.policy import Policy
from advisor.core.words import Action, Category, Reason
from advisor.replay import Instead, Verdict
from advisor.v1 import audit_pb2

PAGES = {"": (["d1", "d2"], "second"), "second": (["d3"], "third"), "third": (["d4", "d5"], "")}
INSTEAD = Instead(policy=Policy(restarts_ceiling=3))


class Server:
    """Three pages of five decisions. Breaks off when the page with cursor `breaks_at` is asked for."""

    def __init__(self, breaks_at: str | None = None) -> None:
        self.breaks_at = breaks_at
        self.asked: list[str] = []
        self.audit = SimpleNamespace(ListDecisions=None)

    def call(self, _method: object, request: Any) -> audit_pb2.ListDecisionsResponse:
        cursor = request.page.cursor
        if cursor == self.breaks_at:
            raise KeyboardInterrupt
        self.asked.append(cursor)
        ids, following = PAGES[cursor]
        answer = audit_pb2.ListDecisionsResponse(next_cursor=following)
        for name in ids:
            answer.decisions.add().advice.advice_id = name
            answer.decisions[-1].advice.created_at.FromDatetime(datetime(2026, 11, 1, tzinfo=UTC))
        return answer

    def decision_inputs(self, decision_id: str) -> audit_pb2.DecisionInputs:
        return audit_pb2.DecisionInputs(decision_id=decision_id)


def judged(cases: Iterator[Case]) -> Iterator[Outcome]:
    """Every odd decision would be another."""
    before = Verdict(
        action=Action.RESTART,
        category=Category.UNKNOWN,
        reason=Reason.HEALTHY,
        exclude_nodes=(),
        isolate_nodes=(),
        why="",
    )
    for case in cases:
        odd = int(case.decision_id[1:]) % 2
        after = before if not odd else Verdict(**{**_fields(before), "action": Action.STOP})
        yield Outcome(decision_id=case.decision_id, job_id="7", before=before, after=after)


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}


def run(server: Server, path: Path | None) -> Journal:
    with open_journal(path, INSTEAD, "30d", None) as journal, Bar("s") as bar:
        go_on(server, journal, judged, bar, "")  # type: ignore[arg-type] # it is asked for no more than this
    return journal


@pytest.mark.parametrize("breaks_at", ["", "second", "third"])
def test_going_on_ends_like_one_run(tmp_path: Path, breaks_at: str) -> None:
    """Wherever it is broken off, pages that were done are not asked for again, and the result is that of one run."""
    path = tmp_path / "journal"
    whole = run(Server(), None)
    first = Server(breaks_at)
    with pytest.raises(KeyboardInterrupt):
        run(first, path)
    with path.open("a") as file:
        file.write('{"cursor": "thi')  # a line that was being written
    second = Server()
    again = run(second, path)
    assert first.asked + second.asked == ["", "second", "third"]
    assert json.loads(again.tally.write()) == json.loads(whole.tally.write())
    assert [item["decision_id"] for item in again.changes] == ["d1", "d3", "d5"]
    assert again.changes == whole.changes


def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    """Another question, and what no backtest wrote, are told with file and line, and stay as they are."""
    path = tmp_path / "journal"
    run(Server(), path)
    before = path.read_text()
    with (
        pytest.raises(CommandError, match=r"journal:1: is of another question"),
        open_journal(path, INSTEAD, "9d", None),
    ):
        pass
    assert path.read_text() == before
    path.write_text(before.splitlines(keepends=True)[0] + '{"cursor": 1}\n')
    with pytest.raises(CommandError, match=r"journal:2: not what"), open_journal(path, INSTEAD, "30d", None):
        pass
