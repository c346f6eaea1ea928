"""What sixteen thousand ranks print when all of them fail within a second: for the capacity benchmark."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks._capacity_store import node_name

FRAMES = 96
LINES_PER_RANK = 2 * FRAMES + 8


def traceback_of(rank: int, ranks_per_node: int) -> Iterator[str]:
    """About two hundred lines: NCCL's complaint, a deep Python traceback, and the error itself."""
    node = node_name(0, rank // ranks_per_node)
    gpu = rank % ranks_per_node
    yield f"{node}:{4000 + gpu}:{4100 + gpu} [{gpu}] NCCL WARN Call to recv from {node}<4{rank:05d}> failed\n"
    yield (
        f"[rank{rank}]:[E1129 10:00:31.{rank:06d} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective"
        f" operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=25165824, Timeout(ms)=600000)\n"
    )
    yield f"[rank{rank}]: Traceback (most recent call last):\n"
    for frame in range(FRAMES):
        yield f'[rank{rank}]:   File "/opt/train/megatron/layer_{frame:03d}.py", line {100 + frame}, in forward\n'
        yield f"[rank{rank}]:     return self.block_{frame}(hidden_states, attention_mask=attention_mask)\n"
    yield f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote error\n"
    for number in range(4):
        yield f"[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error ({number})\n"


def write_ranks(folder: Path, ranks: int, ranks_per_node: int, how: str) -> int:
    """All of it, into `job.out`, or into a file for each `node` or each rank. Returns how many bytes."""
    together = {"one": ranks, "node": ranks_per_node, "each": 1}[how]
    (folder / "ranks").mkdir()
    size = 0
    for first in range(0, ranks, together):
        path = folder / "job.out" if how == "one" else folder / "ranks" / f"rank-{first}.log"
        with path.open("a", encoding="ascii") as file:
            for rank in range(first, min(first + together, ranks)):
                size += file.write("".join(traceback_of(rank, ranks_per_node)))
    return size
