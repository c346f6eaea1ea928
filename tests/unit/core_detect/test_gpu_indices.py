"""Kernel lines name a GPU by its PCI address; jobs tell which index that is."""

from pathlib import Path

import pytest

from advisor.bundle import read_bundle, write_bundle
from advisor.core.gpu_indices import CONTRADICTED, INDICES_MAX, learn, told
from tests.unit.core_detect.logs import NOON, SCANNER, context, judge, kernel, scan

INIT = (
    "{node}:5120:5244 [{cuda}] NCCL INFO ncclCommInitRank comm 0x9b2e1f0 rank 9 nranks 32 cudaDev {cuda} "
    "nvmlDev {gpu} busId {bus} commId 0xf7e2b1 - Init START\n"
)
XID = "2026-11-29T11:59:00+00:00 {node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 0 nvmlDev 3 busId 3b000 - Init COMPLETE", ("3b:00", 3)),
        ("NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 0 nvmlDev 11 busId 1000e7010 - Init START", ("e7:01", 11)),
        ("|   3  NVIDIA H100 80GB HBM3          On  | 00000000:3B:00.0 Off |            0 |", ("3b:00", 3)),
        ("3, 00000000:3B:00.0, NVIDIA H100", ("3b:00", 3)),
        ("3, 00000000:3B:00.0", ("3b:00", 3)),
        ("NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 0 busId 3b000 - Abort COMPLETE", None),
        ("GPU 00000000:3B:00.0", None),
        ("step 3, 00000000:3B:00.0", None),
    ],
)
def test_lines_that_tell_address_and_index(body: str, found: tuple[str, int] | None) -> None:
    """NCCL's own numbering of visible devices is no index of the node."""
    assert told(body) == found


def test_an_xid_of_the_kernel_gets_the_index_that_the_job_told(tmp_path: Path) -> None:
    """Through all parts: the job's log tells it, the node's kernel log uses it, the verdict names it."""
    write_bundle(
        tmp_path / "b",
        job={"job_id": "7", "state": "FAILED", "nodes": "node[1-2]"},
        logs={"job.log": INIT.format(node="node2", cuda=0, gpu=3, bus="3b000").encode() * 2},
        kernel={"node1.log": b"x\n", "node2.log": XID.format(node="node2").encode()},
    )
    snapshot = read_bundle(tmp_path / "b", SCANNER, NOON)
    (signal,) = snapshot.signals
    assert (signal.gpu, signal.fields["pci"]) == (3, "3b:00")
    _, attribution = judge(snapshot)
    assert attribution.gpus == ("node2:3",)
    assert [item.unit for item in attribution.implications] == ["3b:00"]


@pytest.mark.parametrize(
    "text",
    [
        INIT.format(node="node1", cuda=0, gpu=3, bus="3b000"),
        INIT.format(node="elsewhere", cuda=0, gpu=3, bus="3b000"),
        INIT.format(node="node2", cuda=0, gpu=3, bus="3b000") + INIT.format(node="node2", cuda=0, gpu=4, bus="3b000"),
        "3, 00000000:3B:00.0\n",
    ],
    ids=["of another node", "of no node of ours", "two answers", "of nobody knows which node"],
)
def test_without_a_sure_answer_the_address_stays_the_name(text: str, tmp_path: Path) -> None:
    """The same address is another GPU elsewhere."""
    write_bundle(
        tmp_path / "b",
        job={"job_id": "7", "state": "FAILED", "nodes": "node[1-2]"},
        logs={"job.log": text.encode()},
        kernel={"node2.log": XID.format(node="node2").encode()},
    )
    snapshot = read_bundle(tmp_path / "b", SCANNER, NOON)
    assert [signal.gpu for signal in snapshot.signals] == [None]
    assert judge(snapshot)[1].gpus == ("node2:3b:00",)


def test_listings_are_of_the_node_that_prints_them() -> None:
    """By its label where srun starts one process per node, by its host's prefix, or by the file."""
    row = "|   3  NVIDIA H100 80GB HBM3          On  | 00000000:3B:00.0 Off |                    0 |\n"
    labelled = scan("2: " + row, context(tasks_per_node=1, world_size=32))
    assert labelled.state.gpus == {"node3/3b:00": 3}
    assert scan("node4: " + row).state.gpus == {"node4/3b:00": 3}
    assert scan(row, context(node="node1")).state.gpus == {"node1/3b:00": 3}
    assert scan(row).state.gpus == {}


def test_indices_are_kept_over_reads_within_a_bound_and_not_taken_from_trusted_sources() -> None:
    """A job with thousands of nodes must not make its state large; a kernel log is no place for them."""
    first = scan(INIT.format(node="node2", cuda=0, gpu=3, bus="3b000"), final=False)
    second = scan(INIT.format(node="node2", cuda=1, gpu=4, bus="4b000"), state=first.state)
    assert second.state.gpus == {"node2/3b:00": 3, "node2/4b:00": 4}
    assert scan("3, 00000000:3B:00.0\n", kernel("node2")).state.gpus == {}
    known = {f"node{index}/3b:00": 3 for index in range(INDICES_MAX)}
    assert learn(known, "more", "3b:00", 3) == known
    assert learn(known, "node5", "3b:00", 4)["node5/3b:00"] == CONTRADICTED
