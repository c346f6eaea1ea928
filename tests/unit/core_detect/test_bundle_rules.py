"""A job's own log rules over the logs of a bundle: on the clock that the lines show."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from advisor.bundle_facts import BundleError, given_rules
from advisor.bundle_parts import parts_of
from advisor.bundle_rules import read_judged
from advisor.core.decide import decide
from advisor.core.model import Decision
from advisor.core.policy import Policy
from advisor.core.words import Action, IncidentKind
from tests.unit.core_detect.logs import RULES, SCANNER

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TICK = "2026-11-29 08:{:02d}:00 tick: {}\n"
RECURS = {"name": "ticks", "logPattern": r".*tick: \d+", "expectedRecurringFrequencyInSeconds": 300}
FAULT = {"name": "data", "logPattern": ".*DataIntegrityError", "faultOnMatch": True}


def judged(folder: Path, text: str, rules: Any, **facts: Any) -> Decision:
    (folder / "logs").mkdir()
    (folder / "logs" / "job.log").write_text(text)
    job = {"job_id": "7", "state": "RUNNING", "silent_seconds": 20, "rules": rules, **facts}
    (folder / "job.json").write_text(json.dumps(job))
    return decide(read_judged(parts_of(folder), SCANNER, NOW), RULES, Policy(), NOW)


def rules_seen(decision: Decision) -> set[str]:
    return {signal.rule for signal in decision.incident.signals}


@pytest.mark.parametrize(("silent", "kind"), [(200, IncidentKind.NONE), (400, IncidentKind.HANG)])
def test_silence_counts_from_the_last_line_of_the_rule(tmp_path: Path, silent: int, kind: IncidentKind) -> None:
    """The bundle says how long nothing came; the limit is the rule's, far below the general one."""
    decision = judged(tmp_path, TICK.format(1, 1) + TICK.format(3, 2), [RECURS], silent_seconds=silent)
    assert decision.incident.kind is kind
    assert ("job.hang" in rules_seen(decision)) is (kind is IncidentKind.HANG)


def test_a_rule_that_other_lines_outlive_is_hanging(tmp_path: Path) -> None:
    """Lines go on, the one that the rule awaits does not."""
    text = TICK.format(1, 1) + "".join(f"2026-11-29 08:{minute:02d}:00 still here\n" for minute in range(2, 9))
    assert "job.hang" in rules_seen(judged(tmp_path, text, [RECURS]))


def test_a_gap_that_is_over_is_no_hang(tmp_path: Path) -> None:
    """The line came again."""
    assert judged(tmp_path, TICK.format(1, 1) + TICK.format(30, 2), [RECURS]).incident.kind is IncidentKind.NONE


def test_without_times_nothing_is_taken_for_late(tmp_path: Path) -> None:
    """Lines that carry no time are all of one moment."""
    decision = judged(tmp_path, "tick: 1\n" + "loading\n" * 50, [{**RECURS, "expectedStartCutOffInSeconds": 10}])
    assert decision.incident.kind is IncidentKind.NONE


def test_files_are_read_in_the_order_of_their_lines_times(tmp_path: Path) -> None:
    """What another rank printed meanwhile is no silence."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank1.log").write_text(TICK.format(4, 2) + TICK.format(8, 3))
    (tmp_path / "logs" / "rank0.log").write_text(TICK.format(1, 1) + TICK.format(9, 4))
    job = {"job_id": "7", "state": "RUNNING", "silent_seconds": 5, "rules": [RECURS]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    snapshot = read_judged(parts_of(tmp_path), SCANNER, NOW)
    assert [signal for signal in snapshot.signals if signal.rule.startswith("job.")] == []
    assert snapshot.sources[-1].lines == 4


def test_a_fault_ends_a_failed_job(tmp_path: Path) -> None:
    """And its line is the evidence."""
    text = "tick: 1\nDataIntegrityError: shard 7\n"
    decision = judged(tmp_path, text, {"logMonitoringConfiguration": [FAULT]}, state="FAILED", exit_code="1:0")
    assert decision.action is Action.RESTART
    assert [(s.file, s.line) for s in decision.incident.signals if s.rule == "job.fault"] == [("logs/job.log", 2)]


def test_rules_may_stand_in_a_file_of_the_bundle_and_in_no_other(tmp_path: Path) -> None:
    """A bundle comes from anywhere: it makes nobody read another file."""
    (tmp_path / "rules.json").write_text(json.dumps([FAULT]))
    text = "DataIntegrityError: shard 7\n"
    decision = judged(tmp_path, text, "rules.json", state="FAILED", exit_code="1:0")
    assert "job.fault" in rules_seen(decision)
    for name, problem in (("/etc/passwd", "names no file of the bundle"), ("gone.json", "gone.json is not in")):
        (tmp_path / "job.json").write_text(json.dumps({"job_id": "7", "rules": name}))
        assert problem in read_judged(parts_of(tmp_path), SCANNER, NOW).sources[-1].problems[0]


def test_a_bad_rule_is_told_and_the_others_work(tmp_path: Path) -> None:
    """With the place of what is wrong."""
    bad = {"name": "bad", "logPattern": "("}
    text = "DataIntegrityError: shard 7\n"
    assert "job.fault" in rules_seen(judged(tmp_path, text, [bad, FAULT], state="FAILED", exit_code="1:0"))
    [problem] = read_judged(parts_of(tmp_path), SCANNER, NOW).sources[-1].problems
    assert "job.json: rules: rule 1 (bad)" in problem


def test_rules_that_are_given_by_hand_replace_those_of_the_bundle(tmp_path: Path) -> None:
    """And a file that is not there is an error."""
    judged(tmp_path, "tick: 1\nDataIntegrityError: shard 7\n", [FAULT], state="FAILED", exit_code="1:0")
    other = tmp_path / "other.json"
    other.write_text(json.dumps([RECURS]))
    snapshot = read_judged(parts_of(tmp_path), SCANNER, NOW, given_rules(other))
    assert not any(signal.rule == "job.fault" for signal in snapshot.signals)
    with pytest.raises(BundleError, match="no such file"):
        given_rules(tmp_path / "gone.json")
