"""Flight-recorder dumps: who kept the others waiting, found without torch and without trusting a byte."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.bundle import read_bundle
from advisor.core.flight_recorder import DumpError, rank_of_name, read_dump
from advisor.core.stalled import Finding, Stall, compare
from advisor.core.words import Category, IncidentKind, Trust
from tests.cost import within
from tests.unit.core_detect.dumps import as_json, at, contents, entry, pickled
from tests.unit.core_detect.logs import NOON, SCANNER, judge
from tests.unit.core_detect.test_bundle import bundle


def found(values: Mapping[int, Any], world: int | None = None) -> Finding | None:
    return compare([read_dump(pickled(value), rank) for rank, value in values.items()], world)


def test_the_rank_that_did_not_come_is_named() -> None:
    """Seven wait in the 43rd collective, the fifth has finished the 42nd and done nothing since."""
    finding = found({rank: at(42, 8, "completed") if rank == 5 else at(43, 8) for rank in range(8)})
    assert finding is not None
    assert (finding.stall, finding.ranks, finding.seq, finding.waiting) == (Stall.MISSING, (5,), 43, 7)
    assert (finding.op, finding.where) == ("all_reduce", "train_step (train.py:88)")
    assert finding.since is not None
    assert finding.since.isoformat() == "2026-11-29T15:06:10+00:00"


def test_ranks_run_ahead_and_still_wait_at_one_place() -> None:
    """The CPU enqueues on: who has enqueued more is no further."""
    values = {rank: at(43, 4) for rank in range(4)}
    ahead = [entry(41), entry(42), entry(43, "started"), entry(44, "scheduled"), entry(45, "scheduled")]
    values[0] = contents(ahead, {"0": range(4)}, {"0": (45, 43, 42)})
    values[2] = at(42, 4, "completed")
    finding = found(values)
    assert finding is not None
    assert (finding.ranks, finding.seq) == ((2,), 43)


def test_a_rank_without_a_dump_is_evidence() -> None:
    """Its process was gone, or too stuck to write; where most dumps are missing they were not collected."""
    finding = found({rank: at(9, 8) for rank in range(8) if rank != 3})
    assert finding is not None
    assert (finding.stall, finding.ranks, finding.absent) == (Stall.MISSING, (3,), (3,))
    assert "left no dump" in finding.how
    assert found({rank: at(9, 8) for rank in range(3)}) is None


def test_a_broken_dump_is_not_a_missing_one() -> None:
    """That rank was alive to write it; what it says is not known."""
    dumps = [read_dump(pickled(at(9, 4)), rank) for rank in range(3)]
    assert compare(dumps, 4, unreadable=[3]) is None
    assert compare(dumps, 4) is not None


def test_blame_is_passed_on_to_who_waits_for_nobody() -> None:
    """Rank 1 is late in the default group because it waits for rank 3 in a group of two: rank 3 began it."""
    sub: dict[str, Any] = {"process_group": ("7", "tp"), "pg_id": 1}
    ranks = {"0": range(4), "7": [1, 3]}
    waits = contents([entry(5), entry(6, "started")], ranks, {"0": (6, 6, 5)})
    passes = contents([entry(5), entry(2, "started", **sub)], ranks, {"0": (5, 5, 5), "1": (2, 2, 1)})
    begins = contents([entry(5), entry(1, **sub)], ranks, {"0": (5, 5, 5), "1": (1, 1, 1)})
    finding = found({0: waits, 1: passes, 2: waits, 3: begins})
    assert finding is not None
    assert (finding.stall, finding.ranks) == (Stall.MISSING, (3,))


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    """Two groups in two orders: the program's own deadlock."""
    ranks = {"a": [0, 1], "b": [0, 1]}
    a: dict[str, Any] = {"process_group": ("a", ""), "pg_id": 1}
    b: dict[str, Any] = {"process_group": ("b", ""), "pg_id": 2}
    first = contents([entry(1, **a), entry(1, **b), entry(2, "started", **a)], ranks, {"1": (2, 2, 1), "2": (1, 1, 1)})
    second = contents([entry(1, **a), entry(1, **b), entry(2, "started", **b)], ranks, {"1": (1, 1, 1), "2": (2, 2, 1)})
    finding = found({0: first, 1: second})
    assert finding is not None
    assert (finding.stall, finding.ranks) == (Stall.CIRCLE, (0, 1))


def test_another_operation_at_the_same_place_is_a_mismatch() -> None:
    """The odd one out is named, with what it does and what the others do."""
    values = {rank: at(7, 4, profiling_name="nccl:broadcast") if rank == 2 else at(7, 4) for rank in range(4)}
    finding = found(values)
    assert finding is not None
    assert (finding.stall, finding.ranks) == (Stall.MISMATCH, (2,))
    assert "(broadcast)" in finding.how
    assert "(all_reduce)" in finding.how


def test_another_size_is_a_mismatch_and_another_shape_is_not() -> None:
    """The library counts elements; [2, 2] and [4] are the same to it."""
    odd = {rank: at(7, 4, input_sizes=[[8]] if rank == 1 else [[4]]) for rank in range(4)}
    finding = found(odd)
    assert finding is not None
    assert (finding.stall, finding.ranks) == (Stall.MISMATCH, (1,))
    assert found({rank: at(7, 4, input_sizes=[[2, 2]] if rank == 1 else [[4]]) for rank in range(4)}) is None
    gather = {"profiling_name": "nccl:gather"}
    assert found({rank: at(7, 4, input_sizes=[[rank]], **gather) for rank in range(4)}) is None


def test_half_against_half_names_everybody() -> None:
    """Nobody can say which side is right."""
    finding = found({rank: at(7, 4, profiling_name="nccl:reduce") if rank < 2 else at(7, 4) for rank in range(4)})
    assert finding is not None
    assert finding.ranks == (0, 1, 2, 3)


def test_a_minority_that_did_not_finish_or_begin_is_named() -> None:
    """All came; what one rank's GPU did not do is worth saying."""
    values = {rank: at(7, 8, "started" if rank == 6 else "completed") for rank in range(8)}
    finding = found(values)
    assert finding is not None
    assert (finding.stall, finding.ranks, finding.how) == (
        Stall.UNFINISHED,
        (6,),
        "have not finished what others have",
    )
    finding = found({rank: at(7, 8, "scheduled" if rank == 6 else "started") for rank in range(8)})
    assert finding is not None
    assert (finding.ranks, finding.how) == ((6,), "have not begun it on their GPU")


@pytest.mark.parametrize("state", ["completed", "started"])
def test_all_alike_is_no_finding(state: str) -> None:
    """Healthy, or all in one collective: nobody is behind."""
    assert found({rank: at(7, 8, state) for rank in range(8)}) is None


def test_a_receiver_waits_for_its_sender() -> None:
    """Pipelines stall in transfers: who began one alone waits for the other end, ranks counted within the group."""
    ranks = {"0": range(4), "pp": [1, 3]}
    transfer = entry(0, "started", is_p2p=True, process_group=("pp", ""), pg_id=4, profiling_name="nccl:recv 1<-0")
    begun = {**transfer, "profiling_name": "nccl:send 0->1"}
    idle = contents([entry(3)], ranks, {"0": (3, 3, 3)})
    finding = found({0: idle, 1: idle, 2: idle, 3: contents([entry(3), transfer], ranks, {"0": (3, 3, 3)})})
    assert finding is not None
    assert (finding.ranks, finding.op) == ((1,), "a transfer")
    both = {1: contents([entry(3), begun], ranks), 3: contents([entry(3), transfer], ranks)}
    assert found(both) is None


def test_what_gloo_records_is_understood() -> None:
    """Its group is called '' in one place and '0' in another, and its states never advance: counts alone tell."""

    def gloo(seq: int) -> dict[str, Any]:
        entries = [entry(n, "scheduled", retired=True, profiling_name="gloo:all_reduce") for n in range(1, seq + 1)]
        config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return contents(entries, None, {"0": (seq, -1, seq)}, pg_config=config)

    finding = found({0: gloo(4), 1: gloo(4), 2: gloo(3)}, 3)
    assert finding is not None
    assert (finding.stall, finding.ranks, finding.seq) == (Stall.MISSING, (2,), 4)
    finding = found({0: gloo(4), 1: gloo(4)}, 3)
    assert finding is not None
    assert finding.absent == (2,)
    assert found({0: gloo(4), 1: gloo(4), 2: gloo(4)}, 3) is None


def test_json_dumps_say_the_same() -> None:
    """The other form of the same trace."""
    values = {rank: at(42, 4, "completed") if rank == 1 else at(43, 4) for rank in range(4)}
    dumps = [read_dump(as_json(value), rank) for rank, value in values.items()]
    assert compare(dumps, 4) == found(values, 4)


def test_versions_that_say_less_are_read() -> None:
    """No status, no configuration, other names: what there is, is used."""

    def old(seq: int, state: str) -> dict[str, Any]:
        entries = [
            {"seq_id": n, "process_group": "0", "profiling_name": "nccl:all_reduce", "state": "completed"}
            for n in range(1, seq)
        ]
        return {"version": "1.0", "entries": [*entries, {**entries[0], "seq_id": seq, "state": state}]}

    finding = found({0: old(5, "started"), 1: old(5, "started"), 2: old(4, "completed")})
    assert finding is not None
    assert finding.ranks == (2,)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_12", 12), ("trace7.json", 7), ("fr_0.pkl", 0), ("3", 3), ("README", None), ("a12b", None)],
)
def test_a_dumps_name_carries_its_rank(name: str, rank: int | None) -> None:
    """torch appends it to a prefix of the job's choice."""
    assert rank_of_name(name) == rank


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"[" * 100_000, b"\x80\x02N.", b"{'a'", b'{"entries": 3}'])
def test_what_is_no_dump_is_said_so(data: bytes) -> None:
    """One kind of error, whatever is wrong."""
    with pytest.raises(DumpError):
        read_dump(data, 0)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = (*entry(1), "pg_name", "seq_id")
ENTRIES = st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=8).map(lambda more: {**entry(3, "started"), **more})
DUMPS = st.fixed_dictionaries(
    {"entries": st.lists(ENTRIES | JUNK, max_size=6)},
    optional=dict.fromkeys(("version", "pg_config", "pg_status", "rank", "host_name"), JUNK),
)


@given(values=st.lists(DUMPS, min_size=2, max_size=5), world=st.none() | st.integers(0, 9))
@settings(deadline=None, max_examples=300)
def test_no_content_breaks_the_comparison(values: list[Any], world: int | None) -> None:
    """Every field of every type, in some dumps and not in others."""
    dumps = [read_dump(pickle.dumps(value), rank) for rank, value in enumerate(values)]
    finding = compare(dumps, world)
    assert finding is None or finding.ranks


def test_the_work_grows_with_the_ranks() -> None:
    """Two thousand ranks in hundreds of groups take well under the time of reading their files."""
    dumps = []
    for rank in range(2_048):
        group: dict[str, Any] = {"process_group": (f"tp{rank // 8}", ""), "pg_id": 1}
        ranks = {"0": range(2_048), f"tp{rank // 8}": range(rank // 8 * 8, rank // 8 * 8 + 8)}
        behind = rank == 99
        entries = [entry(8 if behind else 9, "completed" if behind else "started"), entry(5, **group)]
        status = {"0": (8, 8, 8) if behind else (9, 9, 8), "1": (5, 5, 5)}
        dumps.append(read_dump(pickled(contents(entries, None, status, pg_config=config(ranks))), rank))
    finding = within(30.0, lambda: compare(dumps, 2_048))
    assert finding is not None
    assert (finding.ranks, finding.waiting) == ((99,), 2_047)


def config(ranks: Mapping[str, range]) -> dict[str, Any]:
    return {name: {"name": name, "desc": "", "ranks": str(list(members))} for name, members in ranks.items()}


TIMEOUT = (
    "[rank{0}]:[E1129 15:16:10.1 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=43, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600010 ms\n"
)
JOB = {"job_id": "7", "user": "u", "state": "FAILED", "exit_code": "1:0", "nodes": "node[1-2]", "world_size": 8}


def recorded(folder: Path, log: str, late: int, **files: bytes) -> Any:
    dumps = {
        f"flight_recorder__trace_{rank}": pickled(at(42, 8, "completed") if rank == late else at(43, 8))
        for rank in range(8)
    }
    return read_bundle(bundle(folder, JOB, logs__a=log.encode(), **{**dumps, **files}), SCANNER, NOON)


def test_a_bundles_dumps_name_the_rank_of_a_hang(tmp_path: Path) -> None:
    """All ranks print the time-out, so that the log names nobody; the dumps do."""
    world = recorded(tmp_path, "".join(TIMEOUT.format(rank) for rank in range(8)), late=5)
    incident, blame = judge(world)
    assert incident.kind is IncidentKind.HANG
    assert (blame.category, blame.ranks, blame.nodes) == (Category.UNKNOWN, (5,), ())
    assert "did not come to it" in blame.root_cause
    signal = next(s for s in world.signals if s.rule == "flight_recorder.missing_rank")
    assert (signal.rank, signal.trust) == (5, Trust.LOG)
    assert signal.id in blame.evidence
    source = next(source for source in world.sources if source.source == "flight_recorder")
    assert (source.lines, source.capped) == (8, False)


def test_the_late_ranks_own_error_is_the_cause(tmp_path: Path) -> None:
    """What the rank that all waited for printed is no aftermath, though it was printed last."""
    log = "".join(TIMEOUT.format(rank) for rank in range(8) if rank != 5)
    log += "[rank5]: Traceback (most recent call last):\n[rank5]: ValueError: bad shard\n"
    _, blame = judge(recorded(tmp_path, log, late=5))
    assert (blame.category, blame.ranks) == (Category.APPLICATION, (5,))


def test_the_error_of_another_rank_after_the_time_out_stays_aftermath(tmp_path: Path) -> None:
    """The dumps say who began it, and it was not that rank."""
    log = "".join(TIMEOUT.format(rank) for rank in range(8) if rank != 5)
    log += "[rank2]: Traceback (most recent call last):\n[rank2]: ValueError: bad shard\n"
    _, blame = judge(recorded(tmp_path, log, late=5))
    assert blame.ranks == (5,)


def test_hostile_dumps_cost_only_themselves(tmp_path: Path) -> None:
    """Of eight files one is a program and one is cut off: the source is incomplete, the others are used."""
    evil = b"cos\nsystem\n(S'true'\ntR."
    files = {"flight_recorder__trace_0": evil, "flight_recorder__trace_1": pickled(at(43, 8))[:90]}
    world = recorded(tmp_path, TIMEOUT.format(2), late=5, **files)
    assert judge(world)[1].ranks == (5,)
    source = next(source for source in world.sources if source.source == "flight_recorder")
    assert (source.lines, source.capped, source.unavailable) == (6, True, None)


def test_an_error_file_of_torchelastic_is_read_as_what_it_holds(tmp_path: Path) -> None:
    """A traceback within JSON, with its time."""
    stack = "Traceback (most recent call last):\n  File \"t.py\", line 3, in f\nKeyError: 'x'\n"
    info = {"py_callstack": stack, "timestamp": "1795964730"}
    text = json.dumps({"message": {"message": "KeyError: 'x'", "extraInfo": info}})
    world = read_bundle(bundle(tmp_path, JOB, **{"logs__rank3_error.json": text.encode()}), SCANNER, NOON)
    (signal,) = world.signals
    assert (signal.rule, signal.rank, signal.line) == ("python.program_error", 3, 3)
    assert signal.at is not None
    assert signal.at.isoformat() == "2026-11-29T15:05:30+00:00"
    assert "t.py" in signal.fields["frames"]
