"""One failed attempt and what may have followed it, for the tests of this folder."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from advisor.core.people import Advised, NodeChange, Run, ShadowRules, Watched
from advisor.core.words import Action, AttemptState, Category, NodeState, Reason

T0 = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
RULES = ShadowRules()


def at(seconds: float) -> datetime:
    """From the attempt's end on."""
    return T0 + timedelta(seconds=seconds)


def run(**changes: Any) -> Run:
    made = Run(
        job_key="k1",
        number=0,
        job_id="7",
        state=AttemptState.FAILED,
        submitted_at=at(-7200),
        started_at=at(-7000),
        ended_at=at(0),
        partition="gpu",
        nodes_requested=4,
        stdout="/home/ada/llama-7.out",
        gpus=32,
    )
    return replace(made, **changes)


def advised(**changes: Any) -> Advised:
    made = Advised(
        decision_id="d1",
        at=at(5),
        action=Action.RESTART,
        category=Category.GPU_HARDWARE,
        reason=Reason.NODES_IMPLICATED,
        nodes=("node2",),
        blamed=("node2",),
        fingerprint="xid79",
    )
    return replace(made, **changes)


def stop(**changes: Any) -> Advised:
    values = {
        "action": Action.STOP,
        "category": Category.APPLICATION,
        "nodes": (),
        "blamed": (),
        "fingerprint": "keyerror",
    }
    return advised(reason=Reason.SAME_FAILURE_SAME_PROGRESS, **(values | changes))


def follower(**changes: Any) -> Run:
    values = {
        "number": 1,
        "state": AttemptState.RUNNING,
        "submitted_at": at(600),
        "started_at": at(720),
        "ended_at": None,
    }
    return run(**(values | changes))


def namesake(**changes: Any) -> Run:
    values = {
        "job_key": "k9",
        "job_id": "9",
        "state": AttemptState.RUNNING,
        "submitted_at": at(900),
        "started_at": at(910),
        "ended_at": None,
        "stdout": "/home/ada/llama-9.out",
    }
    return run(**(values | changes))


def change(
    node: str, seconds: float, state: NodeState, reason: str = "", before: NodeState = NodeState.UP
) -> NodeChange:
    return NodeChange(node=node, at=at(seconds), before=before, state=state, reason=reason)


def watched(**changes: Any) -> Watched:
    made = Watched(
        run=run(),
        cluster="alps",
        user="ada",
        name="llama-70b",
        advised=(advised(),),
        nodes=("node1", "node2", "node3", "node4"),
        exit_code=1,
        exit_signal=0,
        fault_at=at(-1),
    )
    return replace(made, **changes)
