"""What job_submit.lua is told of isolated nodes: only while it is true, and only nodes that Slurm knows."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from advisor.v1 import agent_pb2
from slurm_plugin.config import decode
from slurm_plugin.drainer import Drainer
from slurm_plugin.isolated_file import NODES_MAX, REWRITE_SECONDS, IsolatedFile
from slurm_plugin.records import NodeRow
from slurm_plugin.squeue import Slurm


@dataclass(slots=True)
class Hands:
    """A clock that is moved by hand."""

    at: float = 1000.0

    def wall(self) -> float:
        return self.at + 1_700_000_000

    def monotonic(self) -> float:
        return self.at

    boot = monotonic


def node(name: str, gres: str = "gpu:h200:8", cpus: int = 64, partitions: tuple[str, ...] = ("main",)) -> NodeRow:
    return NodeRow(
        name=name,
        state="idle",
        responding=True,
        partitions=partitions,
        cpus=cpus,
        memory_mb=1000,
        gres=gres,
        features=(),
        reason="",
    )


KNOWN = (node("node1"), node("node2"))


def nodes_in(path: Path) -> list[str]:
    value = json.loads(path.read_text())
    assert value["v"] == 1
    return list(value["nodes"])


def test_it_is_written_on_a_change_and_again_before_it_is_old(tmp_path: Path) -> None:
    """Not at every look."""
    clock = Hands()
    told = IsolatedFile(path=tmp_path / "i", clock=clock)
    told.tell(("node2", "gone"), KNOWN)
    assert nodes_in(tmp_path / "i") == ["node2"]
    first = (tmp_path / "i").read_bytes()
    clock.at += REWRITE_SECONDS - 1
    told.tell(("node2",), KNOWN)
    assert (tmp_path / "i").read_bytes() == first
    clock.at += 1
    told.tell(("node2",), KNOWN)
    assert json.loads((tmp_path / "i").read_text())["written"] == json.loads(first)["written"] + REWRITE_SECONDS
    told.tell((), KNOWN)
    assert nodes_in(tmp_path / "i") == []


def test_it_says_how_many_nodes_could_stand_in(tmp_path: Path) -> None:
    """Per partition: at least as many processors, as much memory, the same devices. Down or not is all the same."""
    known = (
        node("n1", partitions=("main", "big")),
        node("n2", cpus=32),
        node("n3", gres="gpu:h200:4"),
        replace(node("n4", gres="gpu:h200:16", cpus=128), state="down"),
        node("n5", gres="gpu:a100:8"),
    )
    IsolatedFile(path=tmp_path / "i", clock=Hands()).tell(("n1", "n2", "n3"), known)
    found = json.loads((tmp_path / "i").read_text())["alike"]
    assert found == {"n1": {"main": 2, "big": 1}, "n2": {"main": 3}, "n3": {"main": 3}}


def test_more_than_a_job_should_avoid_is_told_as_none(tmp_path: Path) -> None:
    """A fabric event is not for every single job to avoid."""
    many = [f"node{number}" for number in range(NODES_MAX + 1)]
    IsolatedFile(path=tmp_path / "i", clock=Hands()).tell(many, [node(name) for name in many])
    assert nodes_in(tmp_path / "i") == []


def test_a_folder_that_is_gone_is_tried_again(tmp_path: Path) -> None:
    """And nothing else of the agent's suffers."""
    told = IsolatedFile(path=tmp_path / "gone" / "i", clock=Hands())
    told.tell(("node2",), KNOWN)
    (tmp_path / "gone").mkdir()
    told.tell(("node2",), KNOWN)
    assert nodes_in(tmp_path / "gone" / "i") == ["node2"]


@pytest.mark.parametrize(
    ("stopped", "mode", "isolation", "expected"),
    [
        (False, "act", "act", ("node2",)),
        (False, "act", "off", ("node2",)),
        (False, "act", "dry_run", ()),
        (False, "observe", "act", ()),
        (True, "act", "act", ()),
    ],
)
def test_what_is_isolated_is_what_is_wanted_drained_now(
    tmp_path: Path, stopped: bool, mode: str, isolation: str, expected: tuple[str, ...]
) -> None:
    """Neither what is only rehearsed, nor what is to be put back, nor anything while the stop is pulled or the agent
    only observes. A site whose agent drains nothing may still have new jobs avoid them.
    """
    tree = {"cluster": "c", "stop_file": str(tmp_path / "stop"), "mode": mode, "isolation": {"mode": isolation}}
    config = decode(tree, {})
    if stopped:
        (tmp_path / "stop").touch()
    clock = Hands()
    drainer = Drainer(config=config, slurm=Slurm(), clock=clock, put=lambda request: None)

    def wanted(node: str, desired: agent_pb2.NodeDesire.ValueType, *, dry_run: bool = False) -> agent_pb2.NodeAdvice:
        advice = agent_pb2.NodeAdvice(isolation_id=node, node=node, generation=1, desired=desired, dry_run=dry_run)
        advice.time_to_live.FromSeconds(30)
        return advice

    drainer.heard(
        [
            wanted("node2", agent_pb2.NODE_DESIRE_DRAINED),
            wanted("node3", agent_pb2.NODE_DESIRE_DRAINED, dry_run=True),
            wanted("node4", agent_pb2.NODE_DESIRE_NOT_DRAINED),
        ]
    )
    assert drainer.isolated(100) == expected
    assert drainer.isolated(10) == ()  # the agent's own cap: two in a hundred
    clock.at += 31
    assert drainer.isolated(100) == ()
