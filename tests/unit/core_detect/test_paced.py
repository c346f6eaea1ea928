"""Hangs in bundles: how long a silence is too long is learned from the times of the bundle's own lines."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from advisor.bundle import read_bundle
from advisor.core.decide import decide
from advisor.core.model import Decision
from advisor.core.policy import Policy
from advisor.core.words import Action, IncidentKind, Reason
from tests.unit.core_detect.logs import NOON, RULES, SCANNER
from tests.unit.core_detect.test_bundle import bundle

POLICY = Policy()
STEP = "iteration {:8d}/ 1000000 | consumed samples: 1 | lm loss: 2.0 |"
SAVING = "saving checkpoint at iteration    3000 to /ckpt in torch format"


def written(count: int, seconds: float, *, stamped: bool = True, after: str = "") -> bytes:
    """Steps 2001 and on, and what stands behind the last of them."""
    at, lines = NOON - timedelta(days=1), []
    for number in range(count):
        at += timedelta(seconds=seconds)
        lines.append(_at(at, stamped) + STEP.format(2001 + number))
    if after:
        lines.append(_at(at, stamped) + after)
    return ("\n".join(lines) + "\n").encode()


def _at(at: datetime, stamped: bool) -> str:
    return f"[{at:%Y-%m-%d %H:%M:%S}] " if stamped else ""


def decided(folder: Path, log: bytes, silent: float) -> Decision:
    path = bundle(folder, {"job_id": "7", "state": "RUNNING", "silent_seconds": silent}, **{"logs__job.log": log})
    return decide(read_bundle(path, SCANNER, NOON), RULES, POLICY, NOON)


@pytest.mark.parametrize(
    ("log", "silent", "hangs"),
    [
        (written(437, 2.0), 50, False),
        (written(437, 2.0), 70, True),
        (written(137, 40.0), 110, False),
        (written(137, 40.0), 130, True),
        (written(437, 2.0, stamped=False), 590, False),
        (written(437, 2.0, stamped=False), 610, True),
        (written(5, 2.0), 590, False),
        (written(437, 2.0, after=SAVING), 700, False),
        (written(437, 2.0, after=SAVING), 2000, True),
    ],
)
def test_a_silence_is_measured_by_the_jobs_own_pace(tmp_path: Path, log: bytes, silent: float, hangs: bool) -> None:
    """Three usual gaps and at least a minute, behind an announcement its own time; without times, the ceiling."""
    decision = decided(tmp_path, log, silent)
    assert (decision.incident.kind is IncidentKind.HANG) == hangs
    expected = (Action.RESTART, Reason.HANG) if hangs else (Action.NONE, Reason.HEALTHY)
    assert (decision.action, decision.reason) == expected


def test_only_the_end_of_a_long_log_is_read_for_its_pace(tmp_path: Path) -> None:
    """It was fast once: what counts is how it went at last."""
    slow = written(120, 40.0).replace(b"iteration     2", b"iteration     9")
    assert decided(tmp_path, written(9000, 1.0) + slow, 100).incident.kind is IncidentKind.NONE
