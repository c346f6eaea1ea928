"""What telemetry measures, by the names of dcgm-exporter and node_exporter, and what of it is an attempt's business."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from advisor.core.columns import Column, Mask, Whole, micros

XID = "DCGM_FI_DEV_XID_ERRORS"
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
POWER = "DCGM_FI_DEV_POWER_USAGE"
CLOCK = "DCGM_FI_DEV_SM_CLOCK"
THROTTLE = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"  # "…_CLOCKS_EVENT_REASONS" since DCGM 4, under the same number
THROTTLE_NEW = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
THERMAL = "DCGM_FI_DEV_THERMAL_VIOLATION"
NVLINK = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"  # a counter of bytes
MEMORY = "node_memory_MemAvailable_bytes"
PCIE_REPLAY = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
BEFORE = timedelta(seconds=5)  # clocks differ
AFTER = timedelta(minutes=5)  # what a scrape shows so long after the end may still be the cause
TAIL = 3  # samples at the end that must agree
POWER_FALL = 0.55  # of the highest: a GPU that spins draws about half of what it draws while it computes
TAIL_SPAN = timedelta(seconds=30)
PEERS_MIN = 4  # fewer GPUs have no usual value
SIGNALS_MAX = 200

# Field: the rule that an increase makes, and the smallest increase that counts.
COUNTERS: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("telemetry.double_bit_error", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("telemetry.row_remap_failure", 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("telemetry.row_remap_pending", 1),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("telemetry.rows_remapped", 1),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 1),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 100),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 100),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("telemetry.nvlink_errors", 100),
    PCIE_REPLAY: ("telemetry.pcie_replays", 100),
    THERMAL: ("telemetry.throttled", 1_000_000),
}
# Fields whose increase means something only where most peers show nothing like it.
_LINKS = "node_infiniband_symbol_error_total"
RELATIVE = frozenset({PCIE_REPLAY, THERMAL, _LINKS, *(name for name in COUNTERS if "NVLINK" in name)})
PEER_FACTOR = 10.0
# States of a GPU that the first sample shows already: they support other evidence, and began nothing.
STATES: Mapping[str, str] = {
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "telemetry.row_remap_pending",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "telemetry.row_remap_pending",
}
SLOWED_BY_HARDWARE = 0x08 | 0x40 | 0x80  # hardware slowdown, its thermal kind, the external power brake (nvml.h)
# How many of the newest samples say what holds now.
GAUGES: Mapping[str, int] = {
    UTILISATION: TAIL,
    TENSOR: TAIL,
    POWER: 3 * TAIL,
    CLOCK: TAIL,
    NVLINK: TAIL + 1,
    MEMORY: TAIL,
    THROTTLE: TAIL,
    THROTTLE_NEW: TAIL,
}
# What node_exporter counts for a whole node; counters of several devices are added up.
HOST = -1  # in place of a GPU's index
HOST_COUNTERS: dict[str, tuple[str, float]] = {
    "node_vmstat_oom_kill": ("telemetry.process_killed", 1),
    "node_edac_uncorrectable_errors_total": ("telemetry.memory_error", 1),
    "node_infiniband_link_downed_total": ("telemetry.link_down", 1),
    "node_infiniband_symbol_error_total": ("telemetry.link_errors", 100),
    "node_filesystem_readonly": ("telemetry.read_only", 1),
    "node_filesystem_device_error": ("telemetry.read_only", 1),
}
HOST_FIELDS = frozenset({MEMORY, *HOST_COUNTERS})
FIELDS = frozenset({XID, *GAUGES, *COUNTERS, *HOST_FIELDS})
SPINNING = "telemetry.spinning"
# What DCGM writes where it has no value.
BLANKS = frozenset(range(2_147_483_632, 2_147_483_648))
BLANK_FROM = 1.4e14

Gpu = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Which samples are the attempt's business, and where its ranks are.

    `blur`: how much older than the time that it carries a value may be.
    """

    nodes: tuple[str, ...] | None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    ranks_per_node: int | None = None
    blur: timedelta = timedelta(0)

    def covers(self, at: Whole) -> Mask:
        """Which of the moments are the attempt's."""
        covered: Mask = np.ones(len(at), np.bool_)
        if self.started_at is not None:
            covered &= at >= micros(self.started_at - BEFORE)
        if self.ended_at is not None:
            covered &= at <= micros(self.ended_at + AFTER)
        return covered

    def after(self, before_at: datetime) -> str:
        """The earliest moment of what a sample shows and the one before it, taken at `before_at`, did not."""
        return (before_at - self.blur).isoformat()

    def rank(self, gpu: Gpu) -> int | None:
        node, index = gpu
        per_node = self.ranks_per_node
        if self.nodes is None or per_node is None or not 0 <= index < per_node or node not in self.nodes:
            return None
        return self.nodes.index(node) * per_node + index


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened or holds, before its rule is known. `gpu`: None where it is about many."""

    rule: str
    at: datetime
    text: str
    gpu: Gpu | None = None
    fields: Mapping[str, str]
    count: int = 1


def place(gpu: Gpu) -> str:
    return gpu[0] if gpu[1] == HOST else f"{gpu[0]}: GPU {gpu[1]}"


def follows(column: Column) -> Mask:
    """Which samples have one of the same unit before them."""
    if not len(column.unit):
        return np.zeros(0, np.bool_)
    return np.append(False, column.unit[1:] == column.unit[:-1])


def increases(column: Column, span: Span) -> tuple[Whole, Column]:
    """How much a counter grew, and when, while the attempt ran: places of the samples, and the growth as a column of
    all units. One that fell was reset and counts from there.
    """
    grown = np.zeros(len(column.unit), np.float64)
    grown[1:] = column.value[1:] - column.value[:-1]
    grown[~(follows(column) & (grown > 0) & span.covers(column.at))] = 0.0
    return np.flatnonzero(grown), Column(column.unit, column.at, grown, column.starts, column.units)
