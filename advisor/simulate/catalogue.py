"""What goes wrong in training, how often, and how it shows.

Shares of infrastructure causes are those of Llama 3's pre-training (arXiv 2407.21783, table 5: 466 interruptions in 54
days), planned maintenance left out; its 12.9 % of software bugs are application crashes here. What stays broken until
repaired follows recurrence after return to service (9.5 % within a day, 18 % within a week) from a public trace.
"""

from dataclasses import dataclass
from enum import StrEnum

from advisor.core.words import Category


class Place(StrEnum):
    NODE = "node"  # a node's own hardware: what a node is blamed for
    FABRIC = "fabric"  # several nodes at once, none of them at fault
    STORAGE = "storage"
    JOB = "job"  # the program, whatever it runs on
    NOWHERE = "nowhere"


class Shape(StrEnum):
    CRASH = "crash"  # the ranks of the place die, the others notice, the job ends
    HANG = "hang"  # nothing is printed until the collective's own time-out
    GONE = "gone"  # the node does not answer any more; the scheduler finds out
    NUMERICS = "numerics"  # training goes on and is worth nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`weight`: share in per cent of the failures of its kind. `stays`: chance that the place is bad until repaired."""

    name: str
    weight: float
    place: Place
    shape: Shape
    categories: frozenset[Category]
    stays: float = 0.0
    kernel: tuple[str, ...] = ()  # records of the culprit's kernel
    culprit: tuple[str, ...] = ()  # what its ranks print
    others: tuple[str, ...] = ()  # what ranks elsewhere print
    hopeless: bool = False  # fails again at the same point whatever is done


_GPU = frozenset({Category.GPU_HARDWARE})
_LOST = "{stamp} {node}:{pid}:{tid} [{gpu}] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer {peer} with status=12 opcode=0 len=0 vendor err 129 (Recv)"
_REMOTE = "[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2356, remote process exited or there was a network error, NCCL version 2.21.5"
_BUS = "[rank{rank}]: RuntimeError: CUDA error: unspecified launch failure"

# Failures of nodes, and of what lies between them.
INFRASTRUCTURE: tuple[Cause, ...] = (
    Cause(
        name="gpu_fell_off",
        weight=18.0,
        place=Place.NODE,
        shape=Shape.CRASH,
        categories=_GPU,
        stays=0.5,
        kernel=("NVRM: Xid (PCI:0000:{pci}:00): 79, pid={pid}, name=python3, GPU has fallen off the bus.",),
        culprit=("[rank{rank}]: RuntimeError: CUDA error: GPU is lost. Reboot the system to recover this GPU",),
        others=(_LOST, _REMOTE),
    ),
    Cause(
        name="gpu_gsp",
        weight=12.1,
        place=Place.NODE,
        shape=Shape.HANG,
        categories=_GPU,
        stays=0.3,
        kernel=(
            "NVRM: Xid (PCI:0000:{pci}:00): 119, pid={pid}, name=python3, Timeout after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802002 0x8).",
        ),
    ),
    Cause(
        name="hbm",
        weight=17.2,
        place=Place.NODE,
        shape=Shape.CRASH,
        categories=_GPU,
        stays=0.25,
        kernel=(
            "NVRM: Xid (PCI:0000:{pci}:00): 48, pid={pid}, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 0.",
            "NVRM: Xid (PCI:0000:{pci}:00): 63, pid={pid}, name=python3, Row Remapper: New row marked for remapping, reset gpu to activate.",
        ),
        culprit=("[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered",),
        others=(_LOST, _REMOTE),
    ),
    Cause(
        name="sram",
        weight=4.5,
        place=Place.NODE,
        shape=Shape.CRASH,
        categories=_GPU,
        stays=0.3,
        kernel=(
            "NVRM: Xid (PCI:0000:{pci}:00): 95, pid={pid}, name=python3, Uncontained: SM (0x1). RST: Yes, D-RST: No",
        ),
        culprit=("[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered",),
        others=(_LOST, _REMOTE),
    ),
    Cause(
        name="host_memory",
        weight=4.1,
        place=Place.NODE,
        shape=Shape.GONE,
        categories=frozenset({Category.NODE_HARDWARE, Category.SCHEDULER_EVENT}),
        stays=0.6,
        kernel=("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 9: be00000000800400",),
    ),
    Cause(
        name="node_lost_power",
        weight=12.0,
        place=Place.NODE,
        shape=Shape.GONE,
        categories=frozenset({Category.NODE_HARDWARE, Category.SCHEDULER_EVENT}),
        stays=0.4,
    ),
    Cause(
        name="nic",
        weight=1.7,
        place=Place.NODE,
        shape=Shape.CRASH,
        categories=frozenset({Category.INTERCONNECT, Category.NODE_HARDWARE}),
        stays=0.5,
        kernel=("mlx5_core 0000:3b:00.0: poll_health:801:(pid 0): Fatal error 1 detected",),
        culprit=(
            "{stamp} {node}:{pid}:{tid} [{gpu}] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
        ),
        others=(_LOST, _REMOTE),
    ),
    Cause(
        name="link",
        weight=8.4,
        place=Place.NODE,
        shape=Shape.CRASH,
        categories=frozenset({Category.INTERCONNECT}),
        stays=0.1,
        kernel=("mlx5_core 0000:3b:00.0 ib0: Link down",),
        culprit=(
            "{stamp} {node}:{pid}:{tid} [{gpu}] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error",
        ),
        others=(_LOST, _REMOTE),
    ),
    Cause(
        name="silent",  # the share that shows nothing at all is added by the world's noise
        weight=1.7,
        place=Place.NOWHERE,
        shape=Shape.HANG,
        categories=frozenset({Category.UNKNOWN, Category.INTERCONNECT}),
    ),
    Cause(
        name="corrupt_result",
        weight=1.4,
        place=Place.NOWHERE,
        shape=Shape.NUMERICS,
        categories=frozenset({Category.NUMERICS}),
    ),
)

# Failures of the program that come and go: the next attempt works.
APPLICATION: tuple[Cause, ...] = (
    Cause(
        name="data_loader",
        weight=40.0,
        place=Place.JOB,
        shape=Shape.CRASH,
        categories=frozenset({Category.APPLICATION, Category.HOST_OUT_OF_MEMORY, Category.UNKNOWN}),
        culprit=(
            "[rank{rank}]: Traceback (most recent call last):",
            '[rank{rank}]:   File "/opt/train/data.py", line 212, in __next__',
            "[rank{rank}]: RuntimeError: DataLoader worker (pid {pid}) is killed by signal: Segmentation fault. ",
        ),
        others=(_REMOTE,),
    ),
    Cause(
        name="connection",
        weight=60.0,
        place=Place.JOB,
        shape=Shape.CRASH,
        categories=frozenset({Category.APPLICATION, Category.STORAGE, Category.UNKNOWN, Category.SYSTEM_SOFTWARE}),
        culprit=(
            "[rank{rank}]: Traceback (most recent call last):",
            '[rank{rank}]:   File "/opt/train/tracker.py", line 88, in log',
            "[rank{rank}]: ConnectionResetError: [Errno 104] Connection reset by peer",
        ),
        others=(_REMOTE,),
    ),
)

# Mistakes: the next attempt fails at the same point.
MISTAKES: tuple[Cause, ...] = (
    Cause(
        name="import",
        weight=35.0,
        place=Place.JOB,
        shape=Shape.CRASH,
        categories=frozenset({Category.APPLICATION}),
        hopeless=True,
        culprit=(
            "[rank{rank}]: Traceback (most recent call last):",
            '[rank{rank}]:   File "/opt/train/pretrain.py", line 14, in <module>',
            "[rank{rank}]: ModuleNotFoundError: No module named 'flash_atn'",
        ),
    ),
    Cause(
        name="shape",
        weight=35.0,
        place=Place.JOB,
        shape=Shape.CRASH,
        categories=frozenset({Category.APPLICATION}),
        hopeless=True,
        culprit=(
            "[rank{rank}]: Traceback (most recent call last):",
            '[rank{rank}]:   File "/opt/train/model.py", line 301, in forward',
            "[rank{rank}]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4096x5120 and 4096x13824)",
        ),
        others=(_REMOTE,),
    ),
    Cause(
        name="gpu_memory",
        weight=30.0,
        place=Place.JOB,
        shape=Shape.CRASH,
        categories=frozenset({Category.GPU_OUT_OF_MEMORY}),
        hopeless=True,
        culprit=(
            "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {gpu} has a total capacity of 79.11 GiB of which 1.21 GiB is free. Process {pid} has 77.89 GiB memory in use.",
        ),
        others=(_REMOTE,),
    ),
)

FABRIC_EVENT = Cause(
    name="switch",
    weight=100.0,
    place=Place.FABRIC,
    shape=Shape.CRASH,
    categories=frozenset({Category.INTERCONNECT}),
    kernel=("mlx5_core 0000:3b:00.0 ib0: Link down",),
    culprit=(
        "{stamp} {node}:{pid}:{tid} [{gpu}] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    ),
    others=(_LOST, _REMOTE),
)
STORAGE_EVENT = Cause(
    name="file_system",
    weight=100.0,
    place=Place.STORAGE,
    shape=Shape.CRASH,
    categories=frozenset({Category.STORAGE}),
    kernel=(
        "Lustre: scratch-OST0003-osc-ffff: Connection to scratch-OST0003 (at 10.0.0.9@o2ib) was lost; in progress operations using this service will wait",
    ),
    culprit=("[rank{rank}]: OSError: [Errno 5] Input/output error: '/scratch/run/checkpoints/latest'",),
    others=(_REMOTE,),
)

# What healthy runs print now and then.
ALARMING = (
    "[rank{rank}]: UserWarning: NCCL watchdog is enabled; set TORCH_NCCL_ASYNC_ERROR_HANDLING=0 to disable",
    "WARNING: data shard 1734 failed checksum once, retrying (1/5)",
    "{stamp} {node}:{pid}:{tid} [{gpu}] NCCL INFO NET/IB : No device found for interface ib9, skipping",
    "INFO: retrying request after ConnectionResetError (attempt 1 of 10)",
    "error rate over the last 1000 samples: 0.0",
)
