"""Lemons: nodes that fail again and again by themselves. And what the replay of a trace of faults measures."""

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from advisor.core.history import Lemon, NodeImplication, lemons
from advisor.core.policy import Policy
from advisor.core.words import Category, Role, Trust
from benchmarks.history import read, replay

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[3]


def failure(days_ago: float, node: str = "node1", **changes: Any) -> NodeImplication:
    plain = NodeImplication(
        node=node,
        incident=f"{node}-{days_ago}",
        job=f"job-{days_ago}",
        weight=0.9,
        at=NOON - timedelta(days=days_ago),
        trust=Trust.KERNEL,
        role=Role.INITIATING,
        category=Category.GPU_HARDWARE,
        rule="kernel.xid",
    )
    return replace(plain, **changes)


def found(items: Iterable[NodeImplication]) -> tuple[Lemon, ...]:
    return lemons(items, NOON, Policy())


def test_three_own_failures_in_the_window_make_a_lemon() -> None:
    """With its evidence, newest first, and how many jobs met it."""
    (lemon,) = found([failure(20), failure(1), failure(9, job="job-1"), failure(2, "node2"), failure(3, "node2")])
    assert (lemon.node, lemon.jobs) == ("node1", 2)
    assert [item.incident for item in lemon.failures] == ["node1-1", "node1-9", "node1-20"]


@pytest.mark.parametrize(
    "changes",
    [
        {"trust": Trust.LOG},
        {"role": Role.CASCADE},
        {"category": Category.APPLICATION},
        {"category": Category.STORAGE},
        {"weight": 0.3},
        {"at": NOON - timedelta(days=40)},
    ],
    ids=lambda changes: str(next(iter(changes.values()))),
)
def test_what_is_not_the_nodes_own_hardware_does_not_count(changes: dict[str, Any]) -> None:
    """Logs of jobs, consequences, other causes, mere mentions, and what is long ago."""
    assert len(found([failure(1), failure(2), failure(3)])) == 1
    assert found([failure(1), failure(2), failure(3, **changes)]) == ()


def test_jobs_that_one_failure_takes_down_are_one_failure() -> None:
    """Three jobs within an hour, each seen minutes after the other."""
    burst = [failure(1 - minutes / 1440, incident=f"i{minutes}") for minutes in (0, 40, 80)]
    assert found(burst) == ()
    assert len(found([*burst, failure(5), failure(9)])) == 1


def test_the_worst_lemon_comes_first() -> None:
    """Recent failures weigh more, and equal ones have one order."""
    old = [failure(day, "node1") for day in (20, 21, 22, 23)]
    new = [failure(day, "node3") for day in (1, 2, 3)]
    same = [failure(day, "node2") for day in (1, 2, 3)]
    assert [lemon.node for lemon in found(old + new + same)] == ["node2", "node3", "node1"]


def trace(path: Path, faults: Iterable[tuple[str, float, float]]) -> Path:
    events = [
        {"node_id": node, "event_time": at, "event_type": kind, "fault_type": {"Level": "Hardware Failure"}}
        for node, start, end in faults
        for kind, at in (("fault_start", start), ("fault_end", end))
    ]
    path.write_text(json.dumps(sorted(events, key=lambda event: float(str(event["event_time"])))))
    return path


def test_the_replay_ranks_by_what_came_before(tmp_path: Path) -> None:
    """A server's first fault is no better than chance; one that failed yesterday is ahead of one of long ago."""
    faults = read(trace(tmp_path / "t.json", [("a", 31, 32), ("b", 90, 91), ("c", 91.5, 91.6), ("b", 92, 93)]))
    placed = replay(faults, Policy())
    first, _, third, again = (placed[fault] for fault in faults)
    assert first.share == pytest.approx(0.5)
    assert first.top == pytest.approx(10 / 400)
    assert third.share == pytest.approx(0.5, abs=0.01)
    assert again.share == pytest.approx(1 - 1 / 399)  # only `c` failed since
    assert again.top == 1.0


def test_without_a_trace_the_benchmark_says_so() -> None:
    """It is not shipped: running all benchmarks passes it by."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.history", "--trace", "no-such-file"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "skipped, no trace" in done.stderr
    assert done.stdout == ""
