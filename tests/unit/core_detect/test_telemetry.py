"""GPU telemetry: changes while the attempt ran, and GPUs that differ from their peers. Everything else is weather."""

import json
import os
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.bundle import BundleError, read_bundle
from advisor.core.columns import Columns, Sample
from advisor.core.hypotheses import score
from advisor.core.measured import (
    CLOCK,
    FIELDS,
    HOST,
    HOST_FIELDS,
    MEMORY,
    PCIE_REPLAY,
    POWER,
    SIGNALS_MAX,
    TENSOR,
    UTILISATION,
    XID,
    Span,
)
from advisor.core.measured import NVLINK as NVLINK_TRAFFIC
from advisor.core.model import Attempt, Incident, Job, Signal, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import rule_of
from advisor.core.telemetry import telemetry_signals as signals_of
from advisor.core.telemetry_watch import Watched, watch
from advisor.core.words import AttemptState, Category, IncidentKind, Role, Trust
from tests.unit.core_detect import slow_telemetry
from tests.unit.core_detect.logs import NODES, NOON, RULES, SCANNER, judge
from tests.unit.core_detect.test_bundle import bundle

HOUR_AGO = NOON - timedelta(hours=1)
SPAN = Span(nodes=NODES, started_at=HOUR_AGO, ended_at=NOON, ranks_per_node=8)
DBE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
PENDING = "DCGM_FI_DEV_ROW_REMAP_PENDING"
NVLINK = "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"


def points(
    field: str,
    values: Iterable[float],
    node: str = "node2",
    gpu: int = 3,
    since: datetime = HOUR_AGO,
    step: float = 60.0,
) -> list[Sample]:
    return [
        Sample(at=since + timedelta(seconds=step * number), node=node, gpu=gpu, field=field, value=value)
        for number, value in enumerate(values)
    ]


def everywhere(field: str, value: Callable[[str, int], Iterable[float]]) -> list[Sample]:
    """A field of all 32 GPUs."""
    return [sample for node in NODES for gpu in range(8) for sample in points(field, value(node, gpu), node, gpu)]


def made(samples: Iterable[Sample], span: Span = SPAN) -> tuple[Signal, ...]:
    return signals_of(samples, RULES.by_id(), RULES.xids, span, source="metrics.json", seen_at=NOON)[0]


def test_a_new_xid_is_an_event_and_an_old_one_is_not() -> None:
    """The gauge sticks: what it shows from the first sample on may be weeks old."""
    (signal,) = made(points(XID, [0, 0, 79, 79, 79]))
    assert (signal.rule, signal.fields["xid"], signal.trust) == ("telemetry.xid", "79", Trust.TELEMETRY)
    assert (signal.nodes, signal.gpu, signal.rank) == (("node2",), 3, 11)
    assert signal.at == HOUR_AGO + timedelta(minutes=2)
    assert signal.category is Category.GPU_HARDWARE
    assert made(points(XID, [79, 79, 79])) == ()
    assert [s.fields["xid"] for s in made(points(XID, [31, 31, 79]))] == ["79"]


def test_the_gauge_that_swings_is_one_event_for_each_code() -> None:
    """Two codes in turn are two signals, counted."""
    assert [(s.fields["xid"], s.count) for s in made(points(XID, [0, 13, 43, 13, 43, 13]))] == [("13", 3), ("43", 2)]


@pytest.mark.parametrize("shift", [timedelta(hours=-3), timedelta(hours=2)], ids=["before", "after"])
def test_what_is_not_of_this_attempt_is_left_out(shift: timedelta) -> None:
    """Events before its start, or long after its end; the value before its start is still the one to compare with."""
    assert made(points(XID, [0, 79], since=HOUR_AGO + shift)) == ()
    assert len(made(points(XID, [0, 0, 79], since=HOUR_AGO - timedelta(seconds=90)))) == 1


def test_nodes_outside_the_allocation_are_counted_and_dropped() -> None:
    """A query that was too wide blames nobody."""
    samples = points(XID, [0, 79], node="node9")
    assert signals_of(samples, RULES.by_id(), RULES.xids, SPAN, source="m", seen_at=NOON) == ((), 2)


@pytest.mark.parametrize(
    ("field", "values", "rule"),
    [
        (DBE, [0, 0, 2], "telemetry.double_bit_error"),
        (DBE, [5, 5, 5], None),
        (DBE, [5, 0, 0], None),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", [0, 1, 1], "telemetry.row_remap_failure"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", [1, 1, 1], "telemetry.row_remap_pending"),
        (PENDING, [0, 1], "telemetry.row_remap_pending"),
        (PENDING, [1, 1], "telemetry.row_remap_pending"),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", [1, 2], "telemetry.rows_remapped"),
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", [0, 1], "telemetry.nvlink_errors"),
        (NVLINK, [0, 50, 90], None),
        (NVLINK, [0, 500], "telemetry.nvlink_errors"),
        (PCIE_REPLAY, [10, 12, 15], None),
        (PCIE_REPLAY, [10, 900], "telemetry.pcie_replays"),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", [0, 10_000], None),
        (DBE, [0, 9_223_372_036_854_775_794], None),
        (DBE, [0, 2_147_483_632], None),
        (DBE, [0, float("nan")], None),
    ],
)
def test_counters_count_what_they_gained(field: str, values: list[float], rule: str | None) -> None:
    """From their first sample; a fall is a reset; blanks of DCGM are no values; corrected errors are no matter."""
    assert [signal.rule for signal in made(points(field, values))] == ([rule] if rule else [])


@pytest.mark.parametrize("field", [NVLINK, PCIE_REPLAY])
def test_what_all_links_do_at_once_names_nobody(field: str) -> None:
    """A storm on every GPU is the fabric; one GPU far beyond its peers is that GPU."""
    assert made(everywhere(field, lambda node, gpu: [0, 1_000 + gpu])) == ()
    found = made(everywhere(field, lambda node, gpu: [0, 90_000 if (node, gpu) == ("node3", 1) else 1_000]))
    assert [(signal.nodes, signal.gpu) for signal in found] == [(("node3",), 1)]


def stalled(idle: Iterable[tuple[str, int]], *, power: float = 250.0) -> list[Sample]:
    """Half an hour of training, then all GPUs spin except the idle ones."""
    late = frozenset(idle)
    samples = everywhere(UTILISATION, lambda n, g: [98] * 30 + [0 if (n, g) in late else 100] * 5)
    samples += everywhere(TENSOR, lambda n, g: [0.55] * 30 + [0.0] * 5)
    return samples + everywhere(POWER, lambda n, g: [650] * 30 + [90 if (n, g) in late else power] * 5)


def test_the_gpu_that_is_idle_while_all_others_spin_is_the_late_one() -> None:
    """Busy without tensor work at a third of the power is waiting; not busy at all is not having come."""
    idle, spinning = made(stalled([("node3", 4)]))
    assert (spinning.rule, spinning.nodes, spinning.fields) == ("telemetry.spinning", (), {"gpus": "31"})
    assert (idle.rule, idle.nodes, idle.rank) == ("telemetry.idle_while_others_spin", ("node3",), 20)
    assert idle.fields["missing"] == "20"


def test_busy_gpus_at_full_power_do_not_spin() -> None:
    """Work without the tensor pipe is work."""
    assert made(stalled([("node3", 4)], power=640.0)) == ()


def test_training_and_idling_together_are_no_hang() -> None:
    """All compute, or all are idle (evaluation, data): nobody waits for anybody."""
    assert made(everywhere(UTILISATION, lambda n, g: [99] * 9) + everywhere(TENSOR, lambda n, g: [0.4] * 9)) == ()
    assert made(everywhere(UTILISATION, lambda n, g: [0] * 9) + everywhere(TENSOR, lambda n, g: [0.0] * 9)) == ()


def test_a_gpu_far_below_its_peers_is_shown_and_half_of_them_are_not() -> None:
    """A throttled GPU among its peers; a power cap on half of the machine is somebody's decision."""

    def clocks(slow: int) -> list[Sample]:
        clock = everywhere(CLOCK, lambda n, g: [600 if n == "node1" and g < slow else 1_900] * 9)
        return clock + everywhere(UTILISATION, lambda n, g: [99] * 9)

    assert [(s.rule, s.nodes, s.gpu) for s in made(clocks(1))] == [("telemetry.low_clock", ("node1",), 0)]
    half = everywhere(CLOCK, lambda n, g: [600 if n in {"node1", "node2"} else 1_900] * 9)
    assert made(half + everywhere(UTILISATION, lambda n, g: [99] * 9)) == ()
    assert made(everywhere(CLOCK, lambda n, g: [300 if (n, g) == ("node1", 0) else 1_900] * 9)) == ()


@given(
    samples=st.lists(
        st.builds(
            Sample,
            at=st.integers(-5_000, 5_000).map(lambda seconds: NOON + timedelta(seconds=seconds)),
            node=st.sampled_from([*NODES, "node9"]),
            gpu=st.integers(0, 9),
            field=st.sampled_from([*sorted(FIELDS), "OTHER"]),
            value=st.floats() | st.integers(-5, 200).map(float),
        ),
        max_size=60,
    ),
    nodes=st.none() | st.just(NODES),
)
@settings(deadline=None, max_examples=300)
def test_any_samples_give_signals_of_the_allocation(samples: list[Sample], nodes: tuple[str, ...] | None) -> None:
    """In any order, with any value; the same samples in another order give the same signals."""
    span = Span(nodes=nodes, ended_at=NOON, ranks_per_node=8)
    found = made(samples, span)
    assert all(nodes is None or set(signal.nodes) <= set(NODES) for signal in found)
    if len({(s.at, s.node, s.gpu, s.field) for s in samples}) == len(samples):
        assert made(reversed(samples), span) == found


LEVELS = {
    UTILISATION: (0.0, 3.0, 95.0, 100.0),
    TENSOR: (0.0, 0.01, 0.5),
    POWER: (90.0, 300.0, 650.0),
    CLOCK: (600.0, 1_900.0),
    XID: (0.0, 13.0, 79.0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": (0.0, 4.0, 64.0),
}
WAITING = {UTILISATION: 100.0, TENSOR: 0.0, POWER: 90.0}
ALONE = frozenset({NVLINK_TRAFFIC, MEMORY, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"})  # what the oracle does not know


def attempt_of(random: Random) -> list[Sample]:
    """Up to 24 GPUs in step, most of them alike; fields and samples may be missing."""
    found: list[Sample] = []
    seconds, length = random.choice((5, 15, 60)), random.randint(1, 14)
    gpus = {(random.choice([*NODES, "node9"]), random.randint(0, 7)) for _ in range(random.randint(1, 24))}
    hangs = random.random() < 0.3
    names = random.sample(sorted(FIELDS - ALONE), random.randint(1, 8))
    for name in sorted({*names, *random.choice(((), (UTILISATION, POWER, TENSOR), (UTILISATION, POWER, CLOCK)))}):
        levels = LEVELS.get(name, (0.0, 1.0, 50.0, 400.0, 9_000.0))
        steady = random.random() < 0.5
        usual = [random.choice(levels)] * length if steady else random.choices(levels, k=length)
        if hangs and name in WAITING:
            usual[-3:] = [WAITING[name]] * len(usual[-3:])
        for node, index in sorted(gpus):
            own = random.choices(levels, k=length) if random.random() < 0.2 else usual
            gpu = HOST if name in HOST_FIELDS else index
            found += [
                Sample(at=NOON + timedelta(seconds=seconds * at - 120), node=node, gpu=gpu, field=name, value=value)
                for at, value in enumerate(own)
                if random.random() > 0.03
            ]
    return list({(s.at, s.node, s.gpu, s.field): s for s in found}.values())


def test_in_columns_is_as_gpu_by_gpu() -> None:
    """The array operations find what looking at one GPU after the other finds, event for event."""
    rules = set()
    for seed in range(250):
        random = Random(seed)
        samples = attempt_of(random)
        facts: dict[str, Any] = {
            "nodes": random.choice((None, NODES)),
            "started_at": NOON - timedelta(seconds=60),
            "ended_at": random.choice((None, NOON)),
            "ranks_per_node": 8,
        }
        slow = slow_telemetry.events_of(samples, slow_telemetry.Span(**facts))
        found = made(samples, Span(**facts))
        assert [(s.rule, s.at, s.text, dict(s.fields), s.count) for s in found] == [
            (event.rule, event.at, event.text, dict(event.fields), event.count) for event in slow[:SIGNALS_MAX]
        ], seed
        rules |= {event.rule for event in slow}
    assert {"telemetry.spinning", "telemetry.low_clock", "telemetry.low_power", "telemetry.throttled"} <= rules


def rows(samples: Iterable[Sample]) -> bytes:
    return json.dumps(
        [
            {
                "t": s.at.timestamp(),
                "node": f"{s.node}.cluster.example",
                "gpu": s.gpu,
                "field": s.field,
                "value": s.value,
            }
            for s in samples
        ]
    ).encode()


JOB: dict[str, Any] = {
    "job_id": "7",
    "user": "u",
    "state": "FAILED",
    "exit_code": "1:0",
    "nodes": "node[1-4]",
    "world_size": 32,
    "start": HOUR_AGO.isoformat(),
    "end": NOON.isoformat(),
}
LAUNCH_FAILURE = b"[rank11]: RuntimeError: CUDA error: unspecified launch failure\n"


def test_telemetry_in_a_bundle_is_trusted_and_names_the_node(tmp_path: Path) -> None:
    """A log that cannot tell an application error from a dying GPU, and a double-bit error that can."""
    plain = read_bundle(bundle(tmp_path, JOB, logs__a=LAUNCH_FAILURE), SCANNER, NOON)
    assert judge(plain)[1].nodes == ()
    path = tmp_path / "bundle" / "metrics.json"
    path.write_bytes(rows(points(DBE, [0, 0, 1])))
    world = read_bundle(tmp_path / "bundle", SCANNER, NOON)
    _, blame = judge(world)
    assert (blame.category, blame.nodes, blame.trusted) == (Category.GPU_HARDWARE, ("node2",), True)
    assert blame.gpus == ("node2:3",)
    source = next(source for source in world.sources if source.source == "metrics")
    assert (source.trust, source.lines, source.unavailable) == (Trust.TELEMETRY, 3, None)


def test_a_stuck_gauge_blames_nobody(tmp_path: Path) -> None:
    """An Xid of last week beside the error of a program."""
    log = b"[rank3]: Traceback (most recent call last):\n[rank3]: KeyError: 'x'\n"
    files = {"logs__a": log, "metrics.json": rows(points(XID, [79, 79, 79]))}
    _, blame = judge(read_bundle(bundle(tmp_path, JOB, **files), SCANNER, NOON))
    assert (blame.category, blame.nodes) == (Category.APPLICATION, ())


@pytest.mark.parametrize("support", [False, True])
def test_a_conditional_xid_needs_another_kind_of_evidence(tmp_path: Path, support: bool) -> None:
    """The kernel and the telemetry that show one Xid are not two; a row that waits for a reset is."""
    kernel = b"[ 1.5] NVRM: Xid (PCI:0000:3b:00): 8, pid=1, Ch 00000008\n"
    samples = points(XID, [0, 8]) + (points(PENDING, [1, 1]) if support else [])
    files = {"logs__a": LAUNCH_FAILURE, "kernel__node2.log": kernel, "metrics.json": rows(samples)}
    _, blame = judge(read_bundle(bundle(tmp_path, JOB, **files), SCANNER, NOON))
    assert RULES.xids[8].implicates.value == "conditional"
    assert blame.nodes == (("node2",) if support else ())


def test_the_idle_gpu_names_the_rank_of_a_silent_hang(tmp_path: Path) -> None:
    """Nothing printed, nothing recorded: who did not spin is who did not come."""
    job = {**JOB, "state": "RUNNING", "silent_seconds": 1_800}
    del job["exit_code"], job["end"]
    log = b"".join(f" iteration {n}/ 900 | loss: 2.1 |\n".encode() for n in range(5))
    files = {"logs__a": log, "metrics.json": rows(stalled([("node3", 4)]))}
    incident, blame = judge(read_bundle(bundle(tmp_path, job, **files), SCANNER, NOON))
    assert incident.kind is IncidentKind.HANG
    assert (blame.category, blame.ranks, blame.nodes) == (Category.UNKNOWN, (20,), ())
    assert "idle while the others waited" in blame.root_cause


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "metrics.json: not JSON"),
        ("[" * 100_000, "metrics.json: not JSON"),
        ("{}", "metrics.json: must be a JSON list"),
        ("[3]", "metrics.json: sample 0: must be an object"),
        ('[{"t":1,"node":"a","gpu":0,"field":"F","value":1},{"field":3}]', "metrics.json: sample 1: field and node"),
        ('[{"t":1,"node":"a","gpu":-1,"field":"F","value":1}]', "sample 0: gpu: must be a small whole number"),
        ('[{"t":1,"node":"a","gpu":0,"field":"F","value":"x"}]', "sample 0: value: must be a number"),
        ('[{"t":"soon","node":"a","gpu":0,"field":"F","value":1}]', "sample 0: t: must be epoch seconds"),
        ('[{"t":1e300,"node":"a","gpu":0,"field":"F","value":1}]', "sample 0: t: must be epoch seconds"),
    ],
)
def test_bad_metrics_are_one_located_line(tmp_path: Path, text: str, message: str) -> None:
    """File, sample, key, and what is wrong."""
    path = bundle(tmp_path, JOB, **{"logs__a": b"x\n", "metrics.json": text.encode()})
    with pytest.raises(BundleError) as caught:
        read_bundle(path, SCANNER, NOON)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_in_place_of_metrics_is_refused(tmp_path: Path) -> None:
    """It would block for ever."""
    path = bundle(tmp_path, JOB, logs__a=b"x\n")
    os.mkfifo(path / "metrics.json")
    with pytest.raises(BundleError, match="not a regular file"):
        read_bundle(path, SCANNER, NOON)


def test_a_deep_fall_of_power_stands_in_for_profiling_fields() -> None:
    """They are often switched off: busy GPUs at half of their own power wait; at three quarters they may compute."""
    for power, spinning in ((320.0, True), (520.0, False)):
        samples = [s for s in stalled((), power=power) if s.field != TENSOR]
        assert [s.rule for s in made(samples)] == (["telemetry.spinning"] if spinning else []), power


@pytest.mark.parametrize("field", ["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"])
def test_a_gpu_that_its_hardware_slows_down(field: str) -> None:
    """Hardware and thermal slowdown only: a power cap is how GPUs run; what most have is the room, or the power."""
    slow = everywhere(field, lambda n, g: [0x40] * 5 if (n, g) == ("node3", 1) else [0x4] * 5)
    found = made(slow)
    assert [(s.rule, s.nodes, s.gpu) for s in found] == [("telemetry.throttled", ("node3",), 1)]
    assert made(everywhere(field, lambda n, g: [0x40] * 5)) == ()


def watched(recent: Columns, samples: Iterable[Sample]) -> Watched:
    return watch(recent, samples, RULES.by_id(), RULES.xids, SPAN, source="dcgm", seen_at=NOON)


def test_a_running_attempt_is_watched_scrape_by_scrape() -> None:
    """Each event once, conditions as long as they hold, and no more kept than the next scrape needs."""
    everything = [*stalled(()), *points(XID, [0] * 20 + [79] * 15), *points(NVLINK, [0] * 10 + [500] * 25)]
    moments = sorted({sample.at for sample in everything})
    recent = Columns()
    events: list[str] = []
    held = []
    for at in moments:
        scrape = [sample for sample in everything if sample.at == at]
        found = watched(recent, [*scrape, *scrape[:3]])
        recent = found.recent
        events += [signal.rule for signal in found.events]
        held.append({signal.rule for signal in found.conditions})
    assert sorted(events) == ["telemetry.nvlink_errors", "telemetry.xid"]
    assert held[0] == held[20] == set()
    assert held[-1] == {"telemetry.spinning"}
    assert recent.count == 32 * (3 + 3 + 9) + 2


def test_a_counter_that_goes_on_growing_is_one_signal() -> None:
    """However many scrapes see it grow; a second Xid is a second event."""
    recent = Columns()
    ids: set[str] = set()
    for number, sample in enumerate(points(NVLINK, [0, 500, 1100, 1700])):
        found = watched(recent, [sample])
        recent, ids = found.recent, ids | {signal.id for signal in found.events}
        assert len(found.events) == (number > 0)
    assert len(ids) == 1


def test_samples_of_other_nodes_are_counted_and_not_kept() -> None:
    """A query that was too wide."""
    found = watched(Columns(), points(XID, [0, 79], node="node9"))
    assert (found.recent.count, found.events, found.foreign) == (0, (), 2)


def at_minute(field: str, minute: int, gpus: Iterable[tuple[str, int]], value: float = 1.0) -> list[Sample]:
    at = HOUR_AGO + timedelta(minutes=minute)
    return [Sample(at=at, node=node, gpu=gpu, field=field, value=value) for node, gpu in gpus]


ALL = tuple((node, gpu) for node in NODES for gpu in range(8))


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ({("node2", 3)}, [("node2", 3)]),
        ({("node2", gpu) for gpu in range(8)}, [("node2", None)]),
        ({(node, gpu) for node in NODES[:2] for gpu in range(8)}, []),
    ],
    ids=["one GPU", "a whole node", "half of all"],
)
def test_who_is_measured_no_more_while_others_are(
    gone: set[tuple[str, int]], named: list[tuple[str, int | None]]
) -> None:
    """A GPU that fell off its bus has no values. Of many at once, the monitoring is the one that failed."""
    found = watched(Columns(), at_minute(UTILISATION, 0, ALL, 50.0))
    for minute in (1, 2, 3):
        left = [gpu for gpu in ALL if gpu not in gone]
        found = watched(found.recent, at_minute(UTILISATION, minute, left, 50.0))
    signals = [signal for signal in found.conditions if signal.rule == "telemetry.vanished"]
    assert [(signal.nodes[0], signal.gpu) for signal in signals] == named
    back = watched(found.recent, at_minute(UTILISATION, 4, ALL, 50.0))
    assert not [signal for signal in back.conditions if signal.rule == "telemetry.vanished"]


def test_an_nvlink_that_carries_far_less_than_its_peers() -> None:
    """A counter as traffic; pipelines talk unequally, and a few per cent of what is usual is no pipeline."""
    traffic = everywhere(
        NVLINK_TRAFFIC, lambda n, g: [at * (1e9 if (n, g) == ("node3", 2) else 9e9) for at in range(9)]
    )
    busy = everywhere(UTILISATION, lambda n, g: [99] * 9)
    assert [(s.rule, s.nodes, s.gpu) for s in made(traffic + busy)] == [("telemetry.low_nvlink", ("node3",), 2)]
    half = everywhere(NVLINK_TRAFFIC, lambda n, g: [at * (4e9 if n == "node3" else 9e9) for at in range(9)])
    assert made(half + busy) == ()


@pytest.mark.parametrize(
    ("field", "values", "rule", "category"),
    [
        ("node_vmstat_oom_kill", [3, 3, 4], "telemetry.process_killed", Category.HOST_OUT_OF_MEMORY),
        ("node_edac_uncorrectable_errors_total", [0, 1], "telemetry.memory_error", Category.NODE_HARDWARE),
        ("node_infiniband_link_downed_total", [7, 8], "telemetry.link_down", Category.INTERCONNECT),
        ("node_filesystem_readonly", [1, 2, 2], "telemetry.read_only", Category.STORAGE),
        (MEMORY, [9e9, 1e8, 1e8, 1e8], "telemetry.memory_low", Category.HOST_OUT_OF_MEMORY),
    ],
)
def test_what_a_node_counts_is_the_nodes(field: str, values: list[float], rule: str, category: Category) -> None:
    """node_exporter's counters by what they gained while the attempt ran; no GPU and no rank is named."""
    (signal,) = made(points(field, values, gpu=HOST))
    assert (signal.rule, signal.category, signal.nodes, signal.gpu, signal.rank) == (
        rule,
        category,
        ("node2",),
        None,
        None,
    )
    assert "GPU" not in signal.text


def test_what_happened_between_two_samples_says_since_when() -> None:
    """At the first sample that shows it, at the earliest after the one before, less what that one may have hidden."""
    span = Span(nodes=NODES, started_at=HOUR_AGO, blur=timedelta(seconds=45))
    (signal,) = made(points(XID, [0, 0, 79, 79]), span)
    assert signal.at == HOUR_AGO + timedelta(minutes=2)
    assert datetime.fromisoformat(signal.fields["after"]) == HOUR_AGO + timedelta(minutes=1) - timedelta(seconds=45)


@pytest.mark.parametrize(("scraped", "may_be"), [(100, True), (200, False)])
def test_an_event_between_two_samples_may_be_what_the_wait_began_with(scraped: int, may_be: bool) -> None:
    """The collective waited from NOON on; the Xid was seen later: whether it can have been then is in its samples."""
    (xid,) = made(points(XID, [0, 48], since=NOON + timedelta(seconds=scraped - 60)), Span(nodes=NODES))
    stalled_at = NOON + timedelta(minutes=10)
    time_out = Signal(
        id="t", rule="nccl.watchdog_timeout", trust=Trust.LOG, source="l", seen_at=stalled_at, at=stalled_at,
        fields={"timeout": "600000"},
    )  # fmt: skip
    index = RULES.by_id()
    hang = next(rule for rule in RULES.rules if rule.kind is IncidentKind.HANG and rule.role is Role.SYMPTOM)
    judged = [(xid, rule_of(xid, RULES, index)), (time_out, hang)]
    snapshot = Snapshot(
        job=Job(key="k", cluster="c", job_id="7", user="u"), attempt=Attempt(number=0, state=AttemptState.FAILED)
    )
    incident = Incident(kind=IncidentKind.HANG, signals=(xid, time_out))
    (scored,) = score(snapshot, incident, [(s, r) for s, r in judged if r is not None], Policy())
    (alone,) = score(snapshot, incident, [(s, r) for s, r in judged[:1] if r is not None], Policy())
    assert (scored.score > alone.score) is may_be


def test_a_late_scrape_is_no_later_cause(tmp_path: Path) -> None:
    """The GPU's Xid is seen a scrape after the crash that it caused: it may have been before, and is the root."""
    crash = NOON - timedelta(seconds=20)
    log = f"{crash:%Y-%m-%dT%H:%M:%S}.000000Z [rank11]: RuntimeError: CUDA error: unspecified launch failure\n".encode()
    samples = [
        Sample(at=crash + timedelta(seconds=after), node="node2", gpu=3, field=XID, value=value)
        for after, value in ((-30, 0.0), (15, 79.0))
    ]
    files = {"logs__a": log, "metrics.json": rows(samples)}
    _, blame = judge(read_bundle(bundle(tmp_path, JOB, **files), SCANNER, NOON))
    assert (blame.category, blame.nodes, blame.trusted) == (Category.GPU_HARDWARE, ("node2",), True)
