"""Rank, node and GPU from every spelling that launchers use, and from none that only looks like one."""

import pytest

from advisor.core.places import place_of

NODES = frozenset({"node1", "node2", "node-a"})


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: KeyError: 'x'", 3),
        ("29: [rank29]: boom", 29),
        ("[RANK 1] boom", 1),
        ("[1,12]<stdout>:container-7:815:864 [0] x", 12),
        ("2019-06-02T16:13:44.884Z: [1,12]<stdout>:node1:815:864 [0] NCCL WARN x", 12),
        ("[E ProcessGroupNCCL.cpp:821] [Rank 2] Watchdog caught", 2),
        ("[rank7]:[E218 10:48:25.033 ProcessGroupNCCL.cpp:632] [Rank 7] Watchdog", 7),
        ("INFO: Initializing distributed: GLOBAL_RANK: 6, MEMBER: 7/32", 6),
        ("JobEnvironment(job_id=1, hostname=h, local_rank=0(2), node=0(1), global_rank=5(8))", 5),
        ("Rank=0 Node=node1 says", 0),
        ("/job:jax_worker/replica:0/task:4 heartbeat timeout", 4),
        ("ERROR train.py:308 -- Raise exception from host with rank id: 3", 3),
        ("[3] is setting up NCCL communicator", 3),
        ("the loss is odd (rank 5)", 5),
        (
            "\x1b[36m(RayWorkerWrapper pid=4009)\x1b[0m [rank1]:[E x.cpp:1] y".replace("\x1b[36m", "").replace(
                "\x1b[0m", ""
            ),
            1,
        ),
        ("MPICH ERROR [Rank 2047] [job id 5.0] [Fri Aug 28 22:45:13 2026] [nid69] - Abort(1)", 2047),
    ],
)
def test_ranks_are_read_from_every_spelling(line: str, rank: int) -> None:
    """Each spelling gives the global rank."""
    assert place_of(line).rank == rank


@pytest.mark.parametrize(
    "line",
    [
        "GPU 3 has a total capacity of 79.11 GiB",
        "tensor on cuda:2",
        "node22:183006:183220 [1] NCCL WARN x",
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3000",
        "Indexing.cu:1308: block: [58,0,0], thread: [99,0,0] Assertion",
        "Abort(1) (rank 2047 in comm 432): application called",
        "WorkNCCL(SeqNum=20311, OpType=ALLREDUCE)",
        "I0411 01:28:10.345465 1406 fabric.py:15] 3: compute-node-[183,252]",
        "srun: error: node2: task 9: Exited with exit code 1",
    ],
)
def test_look_alikes_are_no_ranks(line: str) -> None:
    """Devices, bus ids, blocks, communicators, sequence numbers and arguments are not ranks."""
    assert place_of(line).rank is None


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("Aug 26 15:28:16 node1 kernel: [87474.8] NVRM: x", "node1"),
        ("2026-11-29T03:00:01.123456+00:00 node2 kernel: NVRM: x", "node2"),
        ("node22.cluster.internal:183006:183220 [1] NCCL WARN x", "node22"),
        ("[node127:2330856:0:2330856] ib_mlx5_log.c:177 x", "node127"),
        ("slurmstepd-node12: error: x", "node12"),
        ("node-a: torch.distributed.elastic.x", "node-a"),
        ("[node1:3]:KeyError: 'x'", "node1"),
        ("node2 [rank 3]: KeyError: 'x'", "node2"),
        ("MPICH ERROR [Rank 1] [job id 5.0] [Fri Aug 28 22:45:13 2026] [nid000069] - Abort(1)", "nid000069"),
    ],
)
def test_nodes_are_read_from_prefixes(line: str, node: str) -> None:
    """Kernel, NCCL, UCX, slurmstepd and pdsh prefixes name the node that prints, by its short name."""
    assert place_of(line, NODES).node == node


@pytest.mark.parametrize(
    "line",
    [
        "HW Exception by GPU node-1 (Agent handle: 0x3508fba0) reason :GPU Hang",
        "RuntimeError: boom",
        "AssertionError: Rank 11: found NaN. Device: 3, node: node-02",
        "node-z: not of this job",
        "slurmstepd: error: *** JOB 9 ON node12 CANCELLED AT 2026-09-21T08:12:01 ***",
    ],
)
def test_a_node_in_the_text_is_no_place(line: str) -> None:
    """A message that prints a node's name did not come from there."""
    assert place_of(line, NODES).node is None


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("[w-30:0]:An error occurred", "An error occurred"),
        ("[vm-1.c.lab.internal:0]: loss", "loss"),
        ("w30 [rank 4]: loss", "loss"),
        ("10.20.30.40: Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("w30: torch.cuda.OutOfMemoryError: x", "torch.cuda.OutOfMemoryError: x"),
    ],
)
def test_labels_of_launchers_are_read_where_the_allocation_is_unknown(line: str, body: str) -> None:
    """The label goes, and names no node and no rank that nothing else confirms."""
    place = place_of(line)
    assert (place.body, place.node) == (body, None)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: x",
        "srun: error: w30: task 3: Exited with exit code 1",
        "[loop2.py:33]: ValueError: x",
        "[loop:33]: ValueError: x",
        "step12: ValueError: x",
        "w30: loss 2.1",
    ],
)
def test_what_only_looks_like_a_label_stays(line: str) -> None:
    """Exceptions, programs, source lines, counters, and a word before ordinary text."""
    assert place_of(line).body == line


def test_a_label_outside_the_allocation_is_an_address_at_most() -> None:
    """Where the nodes are known, another name is text; addresses are never among the names."""
    assert place_of("w30: KeyError: 'x'", NODES).body == "w30: KeyError: 'x'"
    assert place_of("10.20.30.40: KeyError: 'x'", NODES).body == "KeyError: 'x'"


def test_labels_and_devices_are_kept_apart() -> None:
    """srun's label is a task, the bracket after host:pid:tid a device."""
    place = place_of("12: node1:183006:183220 [5] NCCL WARN x")
    assert (place.task, place.gpu, place.node, place.rank) == (12, 5, "node1", None)
    assert place.body == "NCCL WARN x"


def test_torchx_and_tee_prefixes_give_local_ranks() -> None:
    """Replica and local rank; which global rank that is depends on the job's shape."""
    place = place_of("trainer/2 [1]:[E socket.cpp:610] x")
    assert (place.replica, place.local) == (2, 1)
    assert place_of("[default3]: x").local == 3


def test_pci_addresses_are_kept() -> None:
    """They name the GPU where no index is printed."""
    assert place_of("node2 kernel: NVRM: Xid (PCI:0000:3B:00): 79, x").pci == "3b:00"


@pytest.mark.parametrize(
    ("line", "rank", "body"),
    [
        ("3:     raise ValueError('x')", None, "raise ValueError('x')"),
        (" 41%|████      | 410/1000 [03:21<04:50,  2.03it/s, loss=2.1]Killed", None, "Killed"),
        ("Epoch 0:  12%|█▏        | 5/40 [06:41<46:49, v_num=1][rank3]: KeyError: 'x'", 3, "KeyError: 'x'"),
        ("12/100 ━━━━━━━━━━━━━━━━━━━━ 1:23 95ms/step - accuracy: 0.91 - loss: 3.1e-01Killed", None, "Killed"),
        ("[rank3]: 12/100 ━━━━━━━━━━━━━━━━━━━━ 0s 95ms/step - loss: 0.3100  KeyError: 'x'", 3, "KeyError: 'x'"),
        ("     12/Unknown 3s 95ms/step - loss: nanKilled", None, "Killed"),
        ("⠙ Epoch 1 ━━━━━━━━━━━━╸━━━━━━ 450/1000 0:00:10 • 0:01:02[rank3]: KeyError: 'x'", 3, "KeyError: 'x'"),
        ("Training ━━━━━━━━━━━━━━━━━━━━  45% 450/1000Killed", None, "Killed"),
    ],
)
def test_what_is_glued_to_a_prefix_is_still_found(line: str, rank: int | None, body: str) -> None:
    """Indentation after srun's label, and a progress bar that nobody ended with a newline."""
    place = place_of(line)
    assert (place.rank, place.body) == (rank, body)


@pytest.mark.parametrize(
    ("line", "task", "node", "body"),
    [
        ("  3: KeyError: 'x'", 3, None, "KeyError: 'x'"),
        ("0012: KeyError: 'x'", 12, None, "KeyError: 'x'"),
        ("P0  3: KeyError: 'x'", 3, None, "KeyError: 'x'"),
        ("P1  3: KeyError: 'x'", None, None, "KeyError: 'x'"),
        ("slurmstepd-node1: error: x", None, "node1", "error: x"),
        ("  3: slurmstepd-node1: error: x", 3, "node1", "error: x"),
        ("[2026-09-21T10:00:00.123] [12.batch] error: x", None, None, "error: x"),
        ("[2026-09-21T10:00:00.123] [12+1.0] error: x", None, None, "error: x"),
        ("[2026-09-21T10:00:00.123] [12_7.0] error: x", None, None, "error: x"),
        ("[1795953600.123456] [node1:77:0] x", None, None, "[node1:77:0] x"),
        ("P12: x", None, None, "P12: x"),
    ],
)
def test_prefixes_of_slurm_in_all_its_versions(line: str, task: int | None, node: str | None, body: str) -> None:
    """Labels of srun, padded and of heterogeneous jobs; slurmstepd before and since 25.05, and with its node's name."""
    place = place_of(line, NODES)
    assert (place.task, place.node, place.body) == (task, node, body)


@pytest.mark.parametrize("time", ["11:59:03", "11:59:03.123", "11:59:03,5", "9:05:03", "11:59", "11:59.5"])
def test_the_time_of_day_is_no_task(time: str) -> None:
    """Its hour is nobody's number, and stays in the text; behind a task it is the task's."""
    line = f"{time} ERROR boom"
    bare, labelled = place_of(line), place_of(f"11: {line}")
    assert (bare.task, bare.body) == (None, line)
    assert (labelled.task, labelled.body) == (11, line)
    assert place_of("11: text").task == place_of("11:text").task == 11
