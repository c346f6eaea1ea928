"""What healthy jobs print, alarming words included, opens no incident."""

from pathlib import Path

import pytest

from advisor.core.words import AttemptState, Category, IncidentKind, Role
from tests.unit.core_detect.logs import context, judge, scan, snapshot

LINES = Path(__file__).with_name("healthy.log").read_text("utf-8").splitlines()


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_healthy_line_is_no_cause_and_no_hang(line: str) -> None:
    """Neither an initiating event nor a collective time-out."""
    assert [signal.rule for signal in scan(line + "\n").signals if signal.role is Role.INITIATING] == []


def test_a_healthy_log_has_no_incident_while_it_runs_or_when_it_is_done() -> None:
    """All of it in one file."""
    text = "\n".join(LINES) + "\n"
    for state in (AttemptState.RUNNING, AttemptState.COMPLETED):
        incident, blame = judge(snapshot((context(), text), state=state))
        assert incident.kind is IncidentKind.NONE
        assert blame.category is Category.NONE
