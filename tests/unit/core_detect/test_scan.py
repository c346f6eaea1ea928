"""The scanner: what it finds does not depend on how the bytes arrive, and what it remembers is bounded."""

import itertools
import re
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.core import codec
from advisor.core.repeats import REPEATS_MAX
from advisor.core.scan import FileState, fold_signals, set_pattern
from advisor.core.words import Category, Role, Trust
from tests.unit.core_detect.logs import NODES, NOON, SCANNER, context, kernel, one, scan

XID79 = (
    "2026-11-29T12:00:01.123456+00:00 node2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, "
    "GPU has fallen off the bus.\n"
)


def test_a_rank_is_placed_on_its_node() -> None:
    """Rank 9 of 8 per node runs on the second node; line and text say where it was read."""
    signal = one(" iteration 12/ 100 | x\n[rank9]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert (signal.rule, signal.rank, signal.nodes, signal.line) == ("cuda.ecc_uncorrectable", 9, ("node2",), 2)
    assert signal.role is Role.INITIATING
    assert signal.category is Category.GPU_HARDWARE


def test_labels_of_srun_are_ranks_where_tasks_are_ranks() -> None:
    """With one task per rank the label is the rank; with one launcher per node it is the node."""
    text = "3: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert one(text).rank == 3
    launcher = one(text, context(tasks_per_node=1))
    assert (launcher.rank, launcher.nodes) == (None, ("node4",))


def test_the_map_from_ranks_to_nodes_wins_over_counting() -> None:
    """Where the scheduler says which rank runs where, nothing is computed."""
    signal = one("[rank9]: CUDA error: uncorrectable ECC error encountered\n", context(rank_nodes={9: "node4"}))
    assert signal.nodes == ("node4",)


@pytest.mark.parametrize(
    "line",
    [
        "Xid 79 on node9",
        "2026-11-29T12:00:01+00:00 node9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "srun: error: Node failure on node9",
        "srun: error: node9: task 9: Exited with exit code 1",
    ],
)
def test_evidence_about_nodes_of_others_is_dropped_and_counted(line: str) -> None:
    """A user can print any node's name: outside the allocation it is foreign, and no signal."""
    scanned = scan(line + "\n")
    assert scanned.signals == ()
    assert scanned.foreign == 1
    assert scanned.state.foreign == 1


def test_the_node_of_a_kernel_log_is_its_transports() -> None:
    """The text of a kernel record may name whatever it likes."""
    signal = one(XID79.replace("node2", "node1"), kernel("node2"))
    assert (signal.rule, signal.trust, signal.nodes) == ("kernel.xid", Trust.KERNEL, ("node2",))
    assert signal.fields["xid"] == "79"
    assert signal.fields["pci"] == "3b:00"


def test_kernel_logs_carry_kernel_rules_only() -> None:
    """A process name in a kernel record cannot pass for an application's line."""
    assert scan("node2 kernel: torch.OutOfMemoryError: CUDA out of memory\n", kernel("node2")).signals == ()


def test_kernel_lines_from_before_the_attempt_are_not_its_business() -> None:
    """An Xid of yesterday does not end a job of today."""
    where = kernel("node2", started_at=NOON + timedelta(hours=1))
    assert scan(XID79, where).signals == ()
    assert len(scan(XID79, kernel("node2", started_at=NOON)).signals) == 1


def test_repeats_are_counted_with_their_ranks() -> None:
    """What 32 ranks print alike is one signal that knows all 32."""
    work = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={0})"
    line = "[rank{0}]:[E1129 12:00:00.0 P.cpp:1] [Rank {0}] " + work + "\n"
    scanned = scan("".join(line.format(rank) for rank in range(32)))
    (signal,) = scanned.signals
    assert signal.count == 32
    assert signal.fields["ranks"] == "0-31"


def test_counts_go_on_over_reads() -> None:
    """A later read of the same error raises the count of the signal that is known."""
    line = "[rank{}]: KeyError: 'x'\n"
    first = scan(line.format(1), final=False)
    second = scan(line.format(2), state=first.state, final=False)
    assert second.signals == ()
    (signal,) = fold_signals(first.signals, second, 100)
    assert (signal.count, signal.fields["ranks"]) == (2, "1-2")


def test_what_is_remembered_is_bounded() -> None:
    """Ten thousand different errors leave a bounded state, and the drop is visible."""
    words = ("".join(chr(97 + (number // 26**place) % 26) for place in range(4)) for number in range(10_000))
    scanned = scan("".join(f"ValueError: {word}\n" for word in words))
    assert len(scanned.state.repeats) <= REPEATS_MAX
    assert scanned.state.dropped > 0
    assert len(codec.encode(scanned.state)) < 200_000


def test_a_replaced_file_starts_afresh() -> None:
    """After truncation the unfinished line of before does not glue itself to the new text."""
    first = scan("RuntimeError: CUDA error: uncorre", final=False)
    assert first.state.tail
    second = scan("ctable ECC error encountered\n", state=first.state, fresh=True)
    assert second.signals == ()


def test_a_state_survives_being_stored() -> None:
    """A takeover continues from the written state, broken bytes and all."""
    first = scan(b"[rank1]: boom \xff\xfe half a li", final=False)
    back = codec.decode(FileState, codec.encode(first.state))
    assert back == first.state


def test_the_root_cause_block_of_torchelastic_is_one_signal() -> None:
    """Rank, host and exit code stand in different lines."""
    text = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_12:00:01\n  host      : node3.local\n"
        "  rank      : 17 (local_rank: 1)\n  exitcode  : -9 (pid: 4242)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 4242\n"
    )
    for cut in (0, 80, 120, 200):
        first = scan(text[:cut], final=False)
        second = scan(text[cut:], state=first.state)
        found = {signal.rule: signal for signal in (*first.signals, *second.signals)}
        signal = found["torchelastic.root_cause"]
        assert (signal.rank, signal.nodes, signal.fields["exitcode"]) == (17, ("node3",), "-9")


def test_tracebacks_give_the_projects_own_frames() -> None:
    """Frames identify a failure; libraries and line numbers do not."""
    text = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/a/b/train.py", line 10, in <module>\n'
        '[rank3]:   File "/a/b/data.py", line 77, in fetch\n'
        '[rank3]:   File "/usr/lib/python3.11/site-packages/torch/x.py", line 9, in run\n'
        "[rank3]: KeyError: 'x'\n"
    )
    signal = one(text)
    assert signal.fields["frames"] == "train.py:<module>;data.py:fetch"
    assert (signal.fields["exception"], signal.rank) == ("KeyError", 3)


def test_errors_of_a_closing_interpreter_are_silent() -> None:
    """'Exception ignored in' is printed while Python shuts down."""
    text = (
        "Exception ignored in: <function Pool.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "x.py", line 3, in __del__\nAttributeError: gone\n'
    )
    assert scan(text).signals == ()


TEXT = (
    b" iteration 1/ 9 | loss\n[rank3]: Traceback (most recent call last):\r\n[rank3]: KeyError: 'x'\n"
    b" 10%|#| 1/9\r 20%|#| 2/9\rsrun: error: node2: task 9: Exited with exit code 1\n\xff\xfe\n"
    b"[rank1]:[E P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\nlast"
)


@given(st.lists(st.integers(0, len(TEXT)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_how_bytes_arrive_does_not_matter(cuts: list[int]) -> None:
    """Any split of a file into reads gives the signals of reading it at once."""
    whole = scan(TEXT)
    state, found = FileState(), ()
    edges = [0, *sorted(cuts), len(TEXT)]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        part = scan(TEXT[start:end], state=state, final=number == len(edges) - 2)
        state, found = part.state, fold_signals(found, part, 100)
    assert [(s.rule, s.line, s.rank, s.nodes) for s in found] == [
        (s.rule, s.line, s.rank, s.nodes) for s in whole.signals
    ]


LINES = [
    *(line for rule in SCANNER.rules for line in (*rule.positive, *rule.negative) if "\n" not in line),
    *(f" iteration {n}/ 100 | consumed samples: {n} | lm loss: 1.0" for n in range(5)),
    "nothing to see",
    "",
    "x" * 9_000,
]


@given(st.lists(st.sampled_from(LINES), max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_fast_matcher_agrees_with_the_obvious_one(lines: list[str]) -> None:
    """Chunks through one set find the lines that every pattern tried on every line would find."""
    text = "\n".join(lines) + "\n"
    fast = {line for signal in scan(text).signals for line in [signal.line]}
    hits = [
        number
        for number, line in enumerate(lines, 1)
        if any(re.search(set_pattern(rule.pattern), line[:9_000]) for rule in SCANNER.rules)
    ]
    assert fast <= set(hits)
    # A line that the obvious way finds alone is found among others, unless it repeats an earlier one.
    for number in hits:
        if scan(lines[number - 1] + "\n").signals and lines.index(lines[number - 1]) == number - 1:
            alike = {s.rule for s in scan("\n".join(lines[: number - 1]) + "\n").signals}
            assert number in fast or {s.rule for s in scan(lines[number - 1] + "\n").signals} <= alike


@given(st.binary(max_size=4_000))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_it(data: bytes) -> None:
    """Whatever a file holds, scanning ends without an error and within its bounds."""
    scanned = scan(data, final=False)
    assert len(scanned.state.tail) <= 65_536
    assert scanned.state.line == data.count(b"\n")


def test_allocations_are_never_exceeded() -> None:
    """Whatever lines say, a signal names nodes of the allocation only."""
    for rule in SCANNER.rules:
        for line in rule.positive:
            for signal in scan(line + "\n").signals:
                assert set(signal.nodes) <= set(NODES)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-29T11:00:00 ***", "slurm.cancelled"),
        ("slurmstepd: error: *** STEP 12+0.0 ON node1 CANCELLED AT 2026-11-29T11:00:00 ***", "slurm.cancelled"),
        (
            "slurmstepd-node1: error: *** JOB 12_7 ON node1 CANCELLED AT 2026-11-29T11:00:00 DUE TO TIME LIMIT ***",
            "slurm.time_limit",
        ),
        (
            "[2026-11-29T11:00:00.123] error: *** JOB 12 ON node1 CANCELLED AT 2026-11-29T11:00 DUE TO PREEMPTION ***",
            "slurm.preempted",
        ),
        (
            "[2026-11-29T11:00:00] [12.0] error: *** STEP 12.0 ON node1 CANCELLED AT 11 DUE to SIGNAL Terminated ***",
            "slurm.cancelled",
        ),
        (
            "0: slurmstepd: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-29T11:00:00 DUE TO JOB REQUEUE ***",
            "slurm.requeued_banner",
        ),
        ("P0 3: srun: error: node1: task 3: Exited with exit code 1", "slurm.task_exited"),
        ("srun: launch/slurm: _step_signal: Terminating StepId=12+0.0", "slurm.step_aborted"),
        (
            "slurmstepd: error: *** STEP 12.0 ON node1 UNCORRECTABLE MEMORY ERROR AT 2026-11-29T11:00:00 ***",
            "slurm.uncorrectable_memory",
        ),
        ("srun: job 12 queued and waiting for resources", None),
        ("srun: job 12 has been allocated resources", None),
        ("srun: StepId=12.0 tasks 0-3: running", None),
    ],
)
def test_the_same_event_in_the_wording_of_every_version_of_slurm(line: str, rule: str | None) -> None:
    """Jobs, steps, array tasks and heterogeneous components, whoever prints it and with which prefix."""
    assert [signal.rule for signal in scan(line + "\n").signals] == ([rule] if rule else [])
