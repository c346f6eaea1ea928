"""The project's labelled bundles: whole incidents, each with the answers that are accepted."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from advisor.rules.loader import load_rules
from benchmarks.labelled import Judged, calibration_error, judge, share

FOLDER = Path(__file__).parent.parent.parent / "cases" / "attribution"
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def judged() -> tuple[Judged, ...]:
    return judge(FOLDER, load_rules(), NOW)


@pytest.fixture(scope="module")
def firm(judged: tuple[Judged, ...]) -> tuple[Judged, ...]:
    return tuple(item for item in judged if item.label.firm)


def test_there_are_cases_of_every_sort(judged: tuple[Judged, ...]) -> None:
    """Hangs, crashes, stragglers, divergence and healthy jobs; kernel logs, several files, earlier attempts."""
    assert len(judged) >= 100
    assert {kind for item in judged for kind in item.label.kinds} == {
        "crash",
        "hang",
        "straggler",
        "divergence",
        "none",
    }
    folders = [FOLDER / item.label.ident for item in judged]
    assert sum((folder / "kernel").is_dir() for folder in folders) >= 15
    assert any(len(list((folder / "logs").iterdir())) > 1 for folder in folders)
    assert any((folder / "attempts.jsonl").exists() for folder in folders)
    assert {folder.name for folder in FOLDER.iterdir() if folder.is_dir()} == {item.label.ident for item in judged}


def test_the_targets_hold(firm: tuple[Judged, ...]) -> None:
    """Kind and category at least 0.97, all three right at least 0.93."""
    missed = "\n".join(str(item) for item in firm if not item.right)
    assert share(item.kind_right for item in firm) >= 0.97, missed
    assert share(item.category_right for item in firm) >= 0.97, missed
    assert share(item.right for item in firm) >= 0.93, missed


def test_no_node_is_excluded_wrongly_and_no_job_stopped_for_its_machines(firm: tuple[Judged, ...]) -> None:
    """What costs most never happens: a good node taken away, or a night lost to a fault that a restart cures."""
    assert [str(item) for item in firm if item.wrongly_excluded] == []
    assert [str(item) for item in firm if item.false_stop] == []


def test_those_at_fault_are_found(firm: tuple[Judged, ...]) -> None:
    """Nodes that must be avoided are avoided, sure stops are stopped, and ranks are named and only those."""
    wanted = [item for item in firm if item.label.nodes and item.label.actions == ("restart_exclude",)]
    assert len(wanted) >= 8
    assert share(node in item.excluded for item in wanted for node in item.label.nodes) >= 0.87
    sure = [item for item in firm if item.label.actions == ("stop",)]
    assert len(sure) >= 3
    assert [str(item) for item in sure if item.decision.action.value != "stop"] == []
    ranked = [item for item in firm if item.label.ranks]
    found = [(set(item.decision.attribution.ranks), item.label.ranks) for item in ranked]
    assert share(rank in ranks for ranks, right in found for rank in right) >= 0.9
    assert share(rank in right for ranks, right in found for rank in ranks) >= 0.9


def test_confidence_says_how_often_the_category_is_right(judged: tuple[Judged, ...]) -> None:
    """The expected calibration error over these cases is at most 0.1."""
    assert calibration_error(judged) <= 0.1
