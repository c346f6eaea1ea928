"""The logs that `benchmarks.scan` reads: fixed recipes, the same size gives the same bytes.

`ordinary`: 1 progress line in 4, 1 error line in 20,000, the rest what training prints besides.
`storm`: 2,048 ranks print the same error over and over, in another order each time; nothing else is in it.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

RANKS = 2_048
NODES = tuple(f"node{number}" for number in range(1, RANKS // 8 + 1))
CHATTER = (
    "[rank{rank}]: INFO:megatron.data.gpt_dataset: loaded shard {a} of {b} in {c:.3f} s",
    "{time} - trainer - DEBUG - prefetch queue {a}/{b}, pinned {c:.1f} MiB, worker {rank}",
    "node{node}:{a}:{b} [{gpu}] NCCL INFO Channel 03/0 : {rank}[{gpu}] -> {rank}[{gpu}] via P2P/IPC/read",
    "(min, max) time across ranks (ms): forward-backward ................: ({c:.2f}, {c:.2f})",
    '{{"step_time": {c:.4f}, "tokens": {a}, "rank": {rank}, "memory_gib": {c:.2f}}}',
)
ERRORS = (
    "[rank{rank}]:[E1129 12:00:00.{a:06d} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={a}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 ms",
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {a}.00 MiB. GPU {gpu} has {c:.2f} GiB",
    "node{node}:{a}:{b} [{gpu}] NCCL WARN NET/IB : Got completion from peer 10.0.0.{gpu}<4{a}> with status=12 opcode=0",
    "[rank{rank}]: OSError: [Errno 116] Stale file handle: 'shard-{a}.arrow'",
)
_FRAME = '[rank{rank}]:   File "/opt/venv/lib/python3.11/site-packages/torch/{file}.py", line {line}, in {name}\n'
_FRAMES = "".join(
    _FRAME.replace("{file}", file).replace("{line}", str(line)).replace("{name}", name)
    for file, line, name in (
        ("nn/modules/module", 1751, "_wrapped_call_impl"),
        ("nn/modules/module", 1762, "_call_impl"),
        ("distributed/fsdp/fully_sharded_data_parallel", 864, "forward"),
        ("nn/modules/linear", 125, "forward"),
    )
)
# What one rank prints of each: a count of ranks, sizes that differ, a place, no tag but srun's, many lines.
STORMS = {
    "watchdog": (
        "[rank{rank}]:[E1129 12:{minute:02d}:07.{a:06d} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600{a:03d} milliseconds before timing out.\n"
    ),
    "out_of_memory": (
        "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {a}.00 MiB. GPU {gpu} has a total "
        "capacity of 79.11 GiB of which {c:.2f} GiB is free.\n"
    ),
    "fabric": (
        "node{node}:{pid}:{tid} [{gpu}] NCCL WARN NET/IB : Got completion from peer 10.0.0.{gpu}<4{pid}> with "
        "status=12 opcode=0 len=0 vendor err 129\n"
    ),
    "labelled": "{rank}: CUDA error: an illegal memory access was encountered\n",
    "traceback": (
        f"[rank{{rank}}]: Traceback (most recent call last):\n{_FRAMES}[rank{{rank}}]: RuntimeError: CUDA error: an "
        "illegal memory access was encountered\n[rank{rank}]: CUDA kernel errors might be asynchronously reported at "
        "some other API call, so the stacktrace below might be incorrect.\n"
    ),
}


def ordinary(path: Path, size: int) -> None:
    """About `size` bytes of a job that works and now and then reports an error."""
    dice = random.Random(20_261_129)
    numbers = iter(range(1, 1 << 60))

    def line() -> str:
        number = next(numbers)
        values = {
            "rank": dice.randrange(RANKS),
            "node": dice.randrange(1, len(NODES) + 1),
            "gpu": dice.randrange(8),
            "a": dice.randrange(100_000),
            "b": dice.randrange(100_000),
            "c": dice.random() * 1_000,
            "time": f"2026-11-29 {number // 3_600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d},123",
        }
        if number % 20_000 == 0:
            return dice.choice(ERRORS).format(**values) + "\n"
        if number % 4 == 0:
            return (
                f" iteration {number // 4:8d}/ 9000000 | consumed samples: {number * 8:12d} | elapsed time per "
                f"iteration (ms): {values['c']:.1f} | lm loss: {values['c']:.6E} | grad norm: 1.2 | number of "
                f"skipped iterations:   0 | number of nan iterations:   0 |\n"
            )
        return dice.choice(CHATTER).format(**values) + "\n"

    _write(path, size, line)


def storm(path: Path, size: int, kind: str) -> None:
    """About `size` bytes of one error, from every rank as often as from any other."""
    dice = random.Random(20_261_130)
    template = STORMS[kind]

    def printed() -> Iterator[str]:
        order = list(range(RANKS))
        while True:
            dice.shuffle(order)
            for rank in order:
                yield template.format(
                    rank=rank,
                    node=rank // 8 + 1,
                    gpu=rank % 8,
                    pid=10_000 + rank,
                    tid=40_000 + rank,
                    minute=dice.randrange(60),
                    a=dice.randrange(100_000),
                    c=dice.random() * 60,
                )

    _write(path, size, printed().__next__)


def _write(path: Path, size: int, line: Callable[[], str]) -> None:
    with path.open("wb") as file:
        written = 0
        while written < size:
            data = "".join(line() for _ in range(2_000)).encode()
            file.write(data)
            written += len(data)
