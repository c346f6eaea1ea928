"""From a GPU's PCI address to its index on its node: what a job prints about both, for kernel lines that know only one.

NCCL says both when it starts (`nvmlDev 3 busId 3b000`), and so do listings of nvidia-smi. Without such a line the PCI
address stays the GPU's name; one that is told differently twice is not believed. The index is the one that the job saw:
that of nvidia-smi on the node, where the job has the whole node.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from advisor.core.model import Signal

INDICES_MAX = 1_024  # per file: 128 nodes with 8 GPUs; further nodes' GPUs keep their addresses
CONTRADICTED = -1
PATTERN = (
    rb"(?m)nvmlDev \d{1,2} busId [0-9a-f]{3,}|(?i:[ ,|][0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0 (?:off|on) +\|)"
    + (rb"|(?i:(?:^|[ \t\]):>|])\d{1,2}, ?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0(?:,|\r?$))")
)
_FORMS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"nvmlDev (?P<gpu>\d{1,2}) busId (?P<bus>[0-9a-f]{3,12})\b",
        # |   3  NVIDIA H100 80GB HBM3          On  | 00000000:3B:00.0 Off |
        r"^\| +(?P<gpu>\d{1,2}) [^|]{1,80}\| [0-9a-f]{4,8}:(?P<pci>[0-9a-f]{2}:[0-9a-f]{2})\.0 (?:off|on) +\|",
        # nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader
        r"^(?P<gpu>\d{1,2}), ?[0-9a-f]{4,8}:(?P<pci>[0-9a-f]{2}:[0-9a-f]{2})\.0(?:,|$)",
    )
)


def told(body: str) -> tuple[str, int] | None:
    """PCI address (bus and device, as in an Xid line) and index of the GPU that a line tells both of."""
    for form in _FORMS:
        match = form.search(body)
        if match is None:
            continue
        groups = match.groupdict()
        pci = groups.get("pci") or _address(int(groups["bus"], 16))
        return pci.lower(), int(match["gpu"])
    return None


def _address(bus: int) -> str:
    """NCCL's bus id is domain, bus, device and function in one number: 0x3b000 is 0000:3b:00.0."""
    return f"{bus >> 12 & 0xFF:02x}:{bus >> 4 & 0xFF:02x}"


def learn(known: Mapping[str, int], node: str, pci: str, gpu: int) -> Mapping[str, int]:
    """`known` with one more GPU, by `node/address`."""
    key = f"{node}/{pci}"
    held = known.get(key)
    if held in (gpu, CONTRADICTED) or (held is None and len(known) >= INDICES_MAX):
        return known
    return {**known, key: gpu if held is None else CONTRADICTED}


def with_indices(signals: Sequence[Signal], files: Iterable[Mapping[str, int]]) -> tuple[Signal, ...]:
    """Signals that name one node's GPU by its address only, with its index where some file of the attempt told it."""
    indices: dict[str, int] = {}
    for told_by_file in files:
        for key, gpu in told_by_file.items():
            indices[key] = gpu if indices.get(key, gpu) == gpu else CONTRADICTED
    if not indices:
        return tuple(signals)
    return tuple(_with_index(signal, indices) for signal in signals)


def _with_index(signal: Signal, indices: Mapping[str, int]) -> Signal:
    pci = signal.fields.get("pci", "").lower()
    if signal.gpu is not None or not pci or len(signal.nodes) != 1:
        return signal
    gpu = indices.get(f"{signal.nodes[0]}/{pci}", CONTRADICTED)
    return signal if gpu == CONTRADICTED else replace(signal, gpu=gpu)
