"""Causes and culprits: the lessons of the field, one test each."""

from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core.attribution import attribute
from advisor.core.detection import detect
from advisor.core.model import ExitStatus, NodeFact, PastAttempt
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, Implicates, IncidentKind, NodeState, Reason, Role
from tests.unit.core_detect.logs import NOON, RULES, context, judge, kernel, snapshot

XID = "2026-11-29T11:59:00+00:00 {} kernel: NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python3, x\n"
ECC = "[rank{}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
TIMEOUT = (
    "[rank{0}]:[E1129 12:00:00.1 P.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600001 milliseconds\n"
)
KEY_ERROR = (
    "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 3, in go\n[rank3]: KeyError: 'x'\n"
)


UNOPENED = ExitStatus(code=0, signal=53)


def timeouts(*missing: int) -> str:
    return "".join(TIMEOUT.format(rank) for rank in range(32) if rank not in missing)


def test_the_kernel_outranks_everything_the_ranks_say() -> None:
    """A lost GPU on node2, its ranks dead, all others in a time-out: node2 and nothing else."""
    world = snapshot((context(), KEY_ERROR + timeouts(8, 9)), (kernel("node2"), XID.format("node2", 79)))
    _, blame = judge(world)
    assert (blame.category, blame.nodes, blame.trusted) == (Category.GPU_HARDWARE, ("node2",), True)
    assert blame.gpus == ("node2:3b:00",)
    assert blame.alternatives[0].category is Category.APPLICATION
    assert "trusted" in blame.alternatives[0].why_not
    (implication,) = blame.implications
    assert (implication.node, implication.role) == ("node2", Role.INITIATING)
    assert implication.weight > 0.9


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_the_table_decides_not_the_word_xid(code: int) -> None:
    """Application and clean-up Xids blame no node, however trusted the kernel is."""
    _, blame = judge(snapshot((context(), KEY_ERROR), (kernel("node2"), XID.format("node2", code))))
    assert blame.nodes == ()
    assert blame.category is Category.APPLICATION


def test_xid_45_on_every_node_is_teardown() -> None:
    """It follows any crash."""
    parts = [(kernel(node), XID.format(node, 45)) for node in ("node1", "node2", "node3")]
    _, blame = judge(snapshot((context(), ECC.format(9)), *parts))
    assert blame.nodes == ("node2",)


def test_suspects_of_a_hang_are_those_who_did_not_report() -> None:
    """The ranks that print the time-out are healthy."""
    incident, blame = judge(snapshot((context(), timeouts(5, 6))))
    assert incident.kind is IncidentKind.HANG
    assert (blame.category, blame.ranks, blame.nodes) == (Category.UNKNOWN, (5, 6), ())


def test_ready_lists_are_complemented_and_missing_lists_are_not() -> None:
    """Horovod prints either."""
    ready = f"Stalled ops: allreduce.w [ready ranks: {', '.join(str(r) for r in range(32) if r != 4)}]\n"
    assert judge(snapshot((context(), ready), state=AttemptState.RUNNING))[1].ranks == (4,)
    missing = "[1,0]<stderr>:Stalled ops:x [missing ranks: 7]\n"
    assert judge(snapshot((context(), missing), state=AttemptState.RUNNING))[1].ranks == (7,)


def test_what_comes_after_the_time_out_is_aftermath() -> None:
    """A segmentation fault of a process that the watchdog is ending is no cause."""
    text = timeouts(5) + "[rank0]: RuntimeError: Tried to allocate more than 1EB memory\n[rank1]: ValueError: bad\n"
    incident, blame = judge(snapshot((context(), text)))
    assert blame.ranks == (5,) or blame.category is Category.UNKNOWN
    assert blame.category is not Category.GPU_OUT_OF_MEMORY
    assert incident.kind in {IncidentKind.HANG, IncidentKind.CRASH}


def test_a_hang_while_a_checkpoint_is_saved_points_at_the_save() -> None:
    """The rank that writes is the one that is late."""
    text = " iteration 5/ 9 | x\nsaving checkpoint at iteration       5 to /c in torch format\n" + TIMEOUT.format(4)
    _, blame = judge(snapshot((context(), text)))
    assert (blame.category, blame.ranks) == (Category.STORAGE, (0,))


def test_the_error_of_the_same_rank_before_the_crash_decides() -> None:
    """A full /dev/shm ends in an illegal memory access; the first link of the chain is the cause."""
    text = (
        "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-ab to 1 bytes, "
        "error: No space left on device (28)\nRuntimeError: an illegal memory access was encountered\n"
    )
    _, blame = judge(snapshot((context(), text), started_at=NOON - timedelta(minutes=1)))
    assert (blame.category, blame.certain) == (Category.SYSTEM_SOFTWARE, True)


def test_a_peers_closed_connection_is_not_the_cause() -> None:
    """NCCL prints it before the other process prints why it died."""
    text = (
        "node1:30:33 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node1<5>\n"
        "node1:31:34 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    )
    assert judge(snapshot((context(), text)))[1].category is Category.GPU_OUT_OF_MEMORY


def test_many_nodes_at_once_are_the_fabric() -> None:
    """Port errors on three of four nodes exclude nobody."""
    line = "{}:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
    _, blame = judge(snapshot((context(), "".join(line.format(n) for n in ("node1", "node2", "node4")))))
    assert (blame.category, blame.nodes) == (Category.INTERCONNECT, ())
    assert "not the nodes' fault" in blame.root_cause


BIG = tuple(f"node{number}" for number in range(1, 33))


@pytest.mark.parametrize(
    ("line", "count", "blamed"),
    [
        ("{}:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n", 2, True),
        ("{}:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n", 3, False),
        ("{}:1:2 [0] x.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n", 4, True),
        ("{}:1:2 [0] x.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n", 5, False),
    ],
)
def test_how_many_nodes_may_be_guilty_at_once(line: str, count: int, blamed: bool) -> None:
    """Few of a large allocation may; ports of three and GPUs of five at once have a common cause."""
    text = "".join(line.format(node) for node in BIG[:count])
    _, blame = judge(snapshot((context(nodes=BIG), text), nodes=BIG))
    assert blame.nodes == (BIG[:count] if blamed else ())


def test_most_of_a_small_allocation_is_not_guilty() -> None:
    """Three of four nodes with the same GPU fault: something that they share."""
    text = "".join(
        f"{node}:1:2 [0] x.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n" for node in BIG[:3]
    )
    assert judge(snapshot((context(), text)))[1].nodes == ()


def test_trust_outranks_a_louder_log() -> None:
    """The log is surer of its own error than the table is of this Xid, but only the kernel is trusted."""
    world = snapshot((context(), ECC.format(1)), (kernel("node3"), XID.format("node3", 119)))
    assert judge(world)[1].nodes[0] == "node3"
    assert judge(snapshot((context(), ECC.format(1))))[1].nodes == ("node1",)


def test_a_code_that_the_table_does_not_know_proves_nothing() -> None:
    """New drivers bring new codes."""
    _, blame = judge(snapshot((kernel("node2"), XID.format("node2", 999))))
    assert (blame.category, blame.nodes) == (Category.UNKNOWN, ())


def test_one_end_of_a_broken_pair_is_not_blamed_alone() -> None:
    """Status 12 cannot tell the two ends apart; many peers failing towards one node can."""
    line = "{}:1:2 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer {}<4> with status=12 opcode=0 len=0\n"
    assert judge(snapshot((context(), line.format("node1", "10.0.0.9"))))[1].nodes == ()
    text = "".join(line.format("node1", f"10.0.0.{n}") for n in (2, 3, 4))
    assert judge(snapshot((context(), text)))[1].nodes == ("node1",)


def test_a_node_failure_names_the_node_not_the_reporter() -> None:
    """The banner's host is the batch host."""
    text = (
        "slurmstepd-node1: error: *** JOB 9 ON node1 CANCELLED AT 2026-11-29T12:00:00 DUE TO NODE FAILURE, SEE ***\n"
        "srun: error: Node failure on node3\n"
    )
    _, blame = judge(snapshot((context(), text), state=AttemptState.NODE_FAILURE))
    assert (blame.category, blame.nodes) == (Category.NODE_HARDWARE, ("node3",))


def test_conditional_evidence_needs_a_second_kind_or_a_history() -> None:
    """A contained ECC error alone excludes nobody; with the node's history it does."""
    world = snapshot((kernel("node2"), XID.format("node2", 94)))
    _, blame = judge(world)
    assert (blame.nodes, [i.node for i in blame.implications]) == ((), ["node2"])
    known = NodeFact(name="node2", state=NodeState.UP, score=0.9, other_jobs=2)
    assert judge(replace(world, nodes=(known,)))[1].nodes == ("node2",)


def test_the_same_failure_on_other_nodes_is_the_applications() -> None:
    """Without trusted evidence; with it, it is bad luck with nodes."""
    world = snapshot((context(), "[rank9]: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"))
    _, first = judge(world)
    assert first.nodes == ("node2",)
    before = PastAttempt(
        number=0,
        category=first.category,
        fingerprint=first.fingerprint,
        reason=None,
        action=None,
        implicated_nodes=("node7",),
    )
    _, second = judge(replace(world, past=(before,)))
    assert (second.category, second.nodes) == (Category.APPLICATION, ())
    assert judge(replace(world, past=(replace(before, trusted=True),)))[1].nodes == ("node2",)


def test_unplaced_hardware_evidence_belongs_to_the_only_node_that_failed() -> None:
    """The error has no prefix, Slurm's exit line has."""
    text = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    exit_line = "srun: error: {}: task {}: Exited with exit code 1\n"
    assert judge(snapshot((context(), text + exit_line.format("node3", 17))))[1].nodes == ("node3",)
    both = exit_line.format("node3", 17) + exit_line.format("node1", 2)
    assert judge(snapshot((context(), text + both)))[1].nodes == ()


def test_foreign_memory_makes_the_node_dirty_not_the_batch_big() -> None:
    """Another process holds half of the GPU."""
    text = (
        "[rank9]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
        "of 79.11 GiB of which 1.12 GiB is free. Process 118222 has {} memory in use. Including non-PyTorch memory, "
        "this process has 38.97 GiB memory in use.\n"
    )
    _, dirty = judge(snapshot((context(), text.format("39.02 GiB"))))
    assert (dirty.category, dirty.nodes) == (Category.SYSTEM_SOFTWARE, ("node2",))
    _, plain = judge(snapshot((context(), text.format("474.00 MiB"))))
    assert (plain.category, plain.nodes) == (Category.GPU_OUT_OF_MEMORY, ())


def test_an_application_error_looks_deterministic_and_keeps_its_fingerprint() -> None:
    """The same traceback on another rank, attempt or line number is the same failure; another key is another."""
    _, first = judge(snapshot((context(), KEY_ERROR)))
    assert (first.category, first.deterministic, first.certain, first.ranks) == (
        Category.APPLICATION,
        True,
        False,
        (3,),
    )
    again = KEY_ERROR.replace("rank3", "rank12").replace("line 3", "line 44")
    assert judge(snapshot((context(), again)))[1].fingerprint == first.fingerprint
    assert judge(snapshot((context(), KEY_ERROR.replace("'x'", "'weights'"))))[1].fingerprint != first.fingerprint


def test_a_start_up_error_is_certain_only_before_the_first_step() -> None:
    """What ran once, or for so long that it may have, can start; a quota stays exceeded."""
    usage = "train.py: error: unrecognized arguments: --lrr\n"
    began = NOON - timedelta(minutes=1)
    assert judge(snapshot((context(), usage), started_at=began))[1].certain
    assert not judge(snapshot((context(), usage), started_at=NOON - timedelta(hours=1)))[1].certain
    step = " iteration 5/ 9 | x\n"
    assert not judge(snapshot((context(), step + usage), started_at=began))[1].certain
    assert judge(snapshot((context(), step + "OSError: [Errno 122] Disk quota exceeded\n")))[1].certain


def test_silence_after_signal_9_is_a_guess() -> None:
    """Mostly the OOM killer, said with little confidence."""
    _, blame = judge(snapshot(exit=ExitStatus(code=137)))
    assert blame.category is Category.HOST_OUT_OF_MEMORY
    assert blame.confidence < 0.5
    assert judge(snapshot(exit=ExitStatus(code=1)))[1].category is Category.UNKNOWN


@pytest.mark.parametrize(
    "line",
    [
        "Killed\n",
        "srun: error: node2: task 9: Killed\n",
        "[rank9]: failed (exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python\n",
    ],
)
def test_a_line_that_tells_of_signal_9_alone_is_a_guess(line: str) -> None:
    """Who sent it is not told: only where a word says that memory ran out is that more than a guess."""
    bare = judge(snapshot((context(), line), exit=ExitStatus(code=0, signal=9)))[1]
    assert (bare.category, bare.confidence <= 0.5) == (Category.HOST_OUT_OF_MEMORY, True)
    assert "mostly the host's memory ran out" in bare.root_cause
    told = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    by_slurm = judge(snapshot((context(), line + told)))[1]
    assert (by_slurm.category, by_slurm.confidence > 0.9) == (Category.HOST_OUT_OF_MEMORY, True)
    oom = "node2 kernel: Out of memory: Killed process 4242 (python3) total-vm:98304kB, anon-rss:98000kB\n"
    by_kernel = judge(snapshot((context(), line), (kernel("node2"), oom)))[1]
    assert (by_kernel.category, by_kernel.confidence > 0.9) == (Category.HOST_OUT_OF_MEMORY, True)


def test_a_guess_is_worth_its_weight_whoever_says_it() -> None:
    """A site's own rule may be one of what only kernels say: who says it is trusted, what it means is guessed."""
    oom = "node2 kernel: Out of memory: Killed process 4242 (python3) total-vm:98304kB, anon-rss:98000kB\n"
    world = snapshot((kernel("node2"), oom))
    guesses = {"guess": True, "weight": 0.6, "implicates": Implicates.NODE}
    rules = replace(RULES, rules=tuple(replace(rule, **guesses) for rule in RULES.rules))
    incident = detect(world, rules, Policy(), NOON)
    found = attribute(world, incident, rules, Policy(), NOON)
    assert (found.category, found.trusted, found.confidence) == (Category.HOST_OUT_OF_MEMORY, True, 0.6)


def past_io(*nodes: str) -> tuple[PastAttempt, ...]:
    """Earlier attempts whose output could not be opened, each on one node, each restarted."""
    print_ = judge(snapshot(exit=UNOPENED))[1].fingerprint
    return tuple(
        PastAttempt(
            number=number,
            category=Category.STORAGE,
            fingerprint=print_,
            reason=Reason.NODES_IMPLICATED,
            action=Action.RESTART,
            implicated_nodes=(node,),
            excluded_nodes=(node,),
            nodes=(node,),
        )
        for number, node in enumerate(nodes)
    )


@pytest.mark.parametrize("status", [UNOPENED, ExitStatus(code=15, signal=53)])
def test_output_that_could_not_be_opened_is_named_and_the_batch_node_avoided(status: ExitStatus) -> None:
    """Slurm's 0:53, as it is printed and as squeue tells it: the path or that node; trusted against nobody, and no
    other job hears of it."""
    _, blame = judge(snapshot(exit=status))
    assert blame.category is Category.STORAGE
    assert "could not open the job's output" in blame.root_cause
    assert (blame.nodes, blame.trusted, blame.certain, blame.transient_storage) == (("node1",), False, False, False)
    assert blame.implications == ()


def test_output_that_no_node_could_open_is_waited_for_on_any_node() -> None:
    """The path is nowhere, or what it lies on is away: no further node is avoided."""
    _, blame = judge(snapshot(exit=UNOPENED, past=past_io("node9")))
    assert (blame.category, blame.nodes, blame.transient_storage) == (Category.STORAGE, (), True)
    assert "on other nodes too" in blame.root_cause
    assert blame.deterministic, "no attempt of this job has ever opened it"
    ran = replace(past_io("node9")[0], fingerprint="other:1")
    later = replace(past_io("node9")[0], number=1)
    assert not judge(snapshot(exit=UNOPENED, past=(ran, later)))[1].deterministic, "one that failed otherwise had"
    again = judge(snapshot(exit=UNOPENED, past=past_io("node1")))[1]
    assert again.nodes == ("node1",), "the same node once more says nothing about others"


def test_a_program_that_ends_by_another_signal_opened_its_output() -> None:
    """Signal 53 stands for an error of Slurm's; others, and codes of a program's own, do not."""
    for status in (ExitStatus(code=53), ExitStatus(code=0, signal=9), ExitStatus(code=1, signal=53)):
        assert judge(snapshot(exit=status))[1].category is not Category.STORAGE
    trusted = judge(snapshot((kernel("node2"), XID.format("node2", 79)), exit=UNOPENED))[1]
    assert trusted.category is Category.GPU_HARDWARE


def test_every_attribution_names_a_runner_up_and_why_it_lost() -> None:
    """Also when there is only one idea."""
    for text in (KEY_ERROR, timeouts(5), ""):
        _, blame = judge(snapshot((context(), text)))
        assert blame.alternatives
        assert blame.alternatives[0].why_not


def test_blamed_nodes_are_of_the_allocation_and_unknown_live_allocations_blame_nobody() -> None:
    """Whatever the log says."""
    _, blame = judge(snapshot((context(nodes=None), "srun: error: Node failure on node3\n"), nodes=None))
    assert blame.nodes == ()
    offline = snapshot((context(nodes=None), "srun: error: Node failure on node3\n"), nodes=None)
    assert judge(replace(offline, offline=True, attempt=replace(offline.attempt, nodes=None)))[1].nodes == ("node3",)


def test_order_of_signals_given_does_not_matter() -> None:
    """Sources are read in any order."""
    world = snapshot((context(), KEY_ERROR + timeouts(8, 9)), (kernel("node2"), XID.format("node2", 79)))
    assert judge(world) == judge(replace(world, signals=tuple(reversed(world.signals))))
    assert world.attempt.ended_at == NOON


def test_a_time_out_looks_back_to_when_it_began_to_wait() -> None:
    """Of two errors that were survived, the one at that moment made somebody late; the older one did not."""
    step = " iteration {:8d}/     100 | consumed samples: 1 | elapsed time per iteration (ms): 9.1 | lm loss: 2.0 |\n"
    steps = "".join(step.format(number) for number in (1, 2, 3))
    adapter = "2026-11-29 11:09:40 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
    upload = (
        "2026-11-29 11:29:40 ERROR botocore.exceptions.ClientError: An error occurred (SlowDown) "
        "when calling the PutObject operation: Please reduce your request rate\n"
    )
    more = "".join(step.format(number) for number in (4, 5, 6))
    watchdog = (
        "2026-11-29 12:00:00 [rank1]:[E P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1800000) ran for 1800001 ms\n"
    )
    incident, blame = judge(snapshot((context(), adapter + steps + upload + more + watchdog)))
    assert (incident.kind, blame.category) == (IncidentKind.HANG, Category.STORAGE)
    assert blame.alternatives[0].why_not == "training went on after it"


STEP = " iteration {:8d}/     900 | elapsed time per iteration (ms): 9.1 | lm loss: 2.0 |\n"
LOADED = "successfully loaded checkpoint from /ckpt at iteration 200\n"
EXITED = "srun: error: node{}: task {}: Exited with exit code 1\n"
REQUEUED = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-29T11:00:00 DUE TO JOB REQUEUE ***\n"
DIVIDED = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 8, in main\n    x = 1 / 0\n'
    "ZeroDivisionError: division by zero\n"
)


def steps(first: int, last: int) -> str:
    return "".join(STEP.format(number) for number in range(first, last))


@pytest.mark.parametrize("between", [EXITED.format(2, 1), EXITED.format(2, 1) + REQUEUED])
@pytest.mark.parametrize("end", [DIVIDED, "RuntimeError: it is odd\n"])
def test_a_log_of_two_attempts_is_judged_by_what_ended_the_last(between: str, end: str) -> None:
    """The GPU's fault ended the first, of which the second is the recovery."""
    text = steps(1, 210) + ECC.format(9) + between + LOADED + steps(201, 590) + end + EXITED.format(3, 2)
    incident, blame = judge(snapshot((context(), text)))
    assert (incident.kind, blame.category, blame.nodes) == (IncidentKind.CRASH, Category.APPLICATION, ())
    assert blame.ranks == (2,)
    told = {other.category: other.why_not for other in blame.alternatives}
    assert told[Category.GPU_HARDWARE] == "training went on after it"


@pytest.mark.parametrize("between", ["", STEP.format(210), LOADED, LOADED + STEP.format(201)])
def test_an_error_right_behind_a_broken_gpu_does_not_hide_it(between: str) -> None:
    """No progress came after it, or no more than another rank was just finishing."""
    _, blame = judge(snapshot((context(), steps(1, 210) + ECC.format(9) + between + DIVIDED + EXITED.format(3, 2))))
    assert (blame.category, blame.nodes) == (Category.GPU_HARDWARE, ("node2",))


FAILED = "torch/distributed/elastic/api.py:826] failed (exitcode: {}) local_rank: {} (pid: 126) of binary\n"
FOOTER = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_11:59:31\n  host      : node3\n"
    "  rank      : 18 (local_rank: 2)\n  exitcode  : {0} (pid: 126)\n  error_file: <N/A>\n"
    "  traceback : Signal {0} received by PID 126\n"
)


@pytest.mark.parametrize("nodes", [("node1", "node2", "node3", "node4"), None])
def test_a_workers_number_on_its_node_is_not_its_rank(nodes: tuple[str, ...] | None) -> None:
    """torchrun's `local_rank`, and the number that it puts before lines, are counted on each node anew."""
    where = context(nodes=nodes)
    for text, told in (
        (FAILED.format(-9, 2), "(local rank 2)"),
        ("[default2]:" + KEY_ERROR.splitlines()[-1].removeprefix("[rank3]: ") + "\n", "(local rank 2)"),
        ("[default2]:RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "(local rank 2)"),
    ):
        world = replace(snapshot((where, text), nodes=nodes), offline=True)
        _, blame = judge(world)
        assert (blame.ranks, blame.nodes) == ((), ())
        assert told in blame.root_cause
    alone = snapshot((context(nodes=("node1",), world_size=8), FAILED.format(-9, 2)), nodes=("node1",), world_size=8)
    assert judge(alone)[1].ranks == (2,)


@pytest.mark.parametrize(
    "line", [FAILED.format(-9, 2), "[default2]:RuntimeError: CUDA error: uncorrectable ECC error encountered\n"]
)
def test_the_agents_footer_tells_which_rank_a_local_rank_was(line: str) -> None:
    """Its rank and its host are told; that is the job's word, which alone blames no node."""
    _, blame = judge(snapshot((context(), line + FOOTER.format(-9))))
    assert (blame.ranks, blame.nodes) == ((18,), ())
    assert "(rank 18 on node3)" in blame.root_cause
    elsewhere = line + FOOTER.format(-9).replace("node3", "login1")
    _, blame = judge(snapshot((context(world_size=None, tasks_per_node=None), elsewhere)))
    assert "(rank 18)" in blame.root_cause  # a host that is none of the job's


def test_the_footer_of_another_worker_tells_nothing_of_this_one() -> None:
    """On which node it was, nobody says."""
    line = "[default5]:RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert judge(snapshot((context(), line + FOOTER.format(1))))[1].ranks == ()


def test_tasks_of_which_each_starts_a_nodes_ranks_are_no_ranks() -> None:
    """One launcher a node, of eight GPUs: task 2 is the third node's launcher."""
    line = "srun: error: node3: task 2: Exited with exit code 1\n"
    assert judge(snapshot((context(), line)))[1].ranks == (2,)
    assert judge(snapshot((context(tasks_per_node=1), line), tasks_per_node=1))[1].ranks == ()


def test_a_vague_error_behind_steps_that_come_late_does_not_hide_a_broken_gpu() -> None:
    """Standard output is written later than standard error: steps behind an error may be from before it."""
    text = steps(1, 210) + ECC.format(9) + steps(210, 215) + "RuntimeError: it is odd\n" + EXITED.format(2, 1)
    assert judge(snapshot((context(), text)))[1].category is Category.GPU_HARDWARE


def test_a_gpu_that_breaks_again_after_a_recovery_is_not_hidden_by_a_vague_error() -> None:
    """Both are one signal, which stands where it came first."""
    text = steps(1, 210) + ECC.format(9) + LOADED + steps(201, 300) + ECC.format(9) + "RuntimeError: it is odd\n"
    assert judge(snapshot((context(), text)))[1].nodes == ("node2",)


@pytest.mark.parametrize(
    ("units", "implicated"),
    [
        (("3b:00",), True),
        (("86:00",), False),
        (("86:00", "3b:00"), True),
        (("gpu3",), True),  # cannot be compared
        ((), True),  # the whole node was meant
    ],
)
def test_an_xid_that_must_repeat_counts_on_the_same_gpu(units: tuple[str, ...], implicated: bool) -> None:
    """Another job's failure on another GPU of the node says nothing of this one."""
    world = snapshot((kernel("node2"), XID.format("node2", 39)))
    alone = judge(world)[1]
    assert alone.nodes == ()
    assert [item.unit for item in alone.implications] == ["3b:00"]
    fact = NodeFact(name="node2", state=NodeState.UP, other_jobs=1, score=0.45, units=units)
    assert (judge(replace(world, nodes=(fact,)))[1].nodes == ("node2",)) == implicated


CONTAINED = "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error\n"


def test_of_nodes_that_see_one_link_error_only_the_first_is_excluded() -> None:
    """A contained error ends all that use the GPU's memory, on every node of the link's domain."""
    parts = [
        (context(file=f"{node}.log", node=node), f"2026-11-29 11:59:0{second} {CONTAINED}")
        for node, second in (("node3", 5), ("node1", 2), ("node4", 4))
    ]
    assert judge(snapshot(*parts))[1].nodes == ("node1",)


def test_of_nodes_that_see_one_link_error_at_no_known_time_none_is_excluded() -> None:
    """Which of them began is not visible."""
    parts = [(context(file=f"{node}.log", node=node), CONTAINED) for node in ("node3", "node1")]
    assert judge(snapshot(*parts))[1].nodes == ()


def test_the_only_worker_that_a_launcher_saw_dying_of_a_gpu_is_the_rank() -> None:
    """On one node a worker's number is its rank."""
    text = (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        "E1129 11:59:31.222000 99 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) "
        "local_rank: 5 (pid: 99) of binary: /usr/bin/python\n"
    )
    blame = judge(snapshot((context(nodes=("node1",), world_size=8), text), nodes=("node1",), world_size=8))[1]
    assert (blame.nodes, blame.ranks) == (("node1",), (5,))


def test_where_slurm_saw_a_rank_end_counts_for_more_than_the_order_of_nodes() -> None:
    """`srun -m cyclic` puts rank 14 elsewhere; of launchers, one on each node, the number is no rank's."""
    ended = "srun: error: node3: task 14: Exited with exit code 1\n"
    assert judge(snapshot((context(), ECC.format(14))))[1].nodes == ("node2",)
    assert judge(snapshot((context(), ECC.format(14) + ended), tasks_per_node=8))[1].nodes == ("node3",)
    launcher = "srun: error: node3: task 2: Exited with exit code 1\n"
    one_each = context(tasks_per_node=1)
    assert judge(snapshot((one_each, ECC.format(17) + launcher), tasks_per_node=1))[1].nodes == ("node3",)


@pytest.mark.parametrize("line", ["[default3]:" + ECC.split(": ", 1)[1], ECC.format(3), ECC.format(14)])
def test_whose_file_it_is_counts_for_more_than_the_order_of_nodes(line: str) -> None:
    """A file, or a stream, that is one node's: what it says is of that node, whatever the number."""
    parts = [(context(file=f"{node}.out", node=node), line if node == "node3" else "") for node in ("node1", "node3")]
    assert judge(snapshot(*parts))[1].nodes == ("node3",)
