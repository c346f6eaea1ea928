"""The four steps together, with the shipped rules: the scenarios a site would ask about first."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.core.codec import decode, encode
from advisor.core.decide import decide
from advisor.core.model import Decision, ExitStatus, NodeFact, PastAttempt, Progress, Signal, Snapshot, SourceReport
from advisor.core.policy import Policy
from advisor.core.rules import XID_RULE, RuleSet
from advisor.core.words import Action, AttemptState, Category, NodeState, Reason, Trust
from advisor.rules.loader import load_rules
from tests.unit.core_decide.worlds import LATER, NOON, after, attempt, progress, snapshot, successor

RULES = load_rules()
S = AttemptState


def _signal(rule_id: str, trust: Trust = Trust.LOG, at: float = 0.0, **changes: Any) -> Signal:
    rule = RULES.by_id()[rule_id]
    plain = Signal(
        id=f"{rule_id}-{at}-{changes.get('rank')}",
        rule=rule_id,
        trust=trust,
        source="kernel" if trust is Trust.KERNEL else "files",
        seen_at=after(at),
        at=after(at),
        role=rule.role,
        category=rule.category,
        text=rule.title,
    )
    return replace(plain, **changes)


def _xid(node: str, at: float = -5.0, trust: Trust = Trust.KERNEL) -> Signal:
    entry = RULES.xids[79]
    return _signal(XID_RULE, trust, at, nodes=(node,), fields={"xid": "79"}, role=entry.role, category=entry.category)


LOG_READ = (SourceReport(source="files", trust=Trust.LOG, newest_at=NOON),)


def _decide(case: Snapshot, seconds: float = 30.0) -> Decision:
    return decide(case, RULES, Policy(), after(seconds))


def test_a_dead_gpu_restarts_without_its_node() -> None:
    """The kernel blames node2; time-outs of the others are symptoms."""
    timeouts = tuple(_signal("torch.collective_timeout", rank=rank) for rank in (0, 1, 3))
    case = snapshot(S.FAILED, signals=(_xid("node2"), *timeouts), sources=LOG_READ)
    decision = _decide(case, 0.1)
    assert (decision.action, decision.reason) == (Action.RESTART, Reason.NODES_IMPLICATED)
    assert decision.attribution.category is Category.GPU_HARDWARE
    assert decision.isolation.exclude_for_job == ("node2",)


def test_a_bad_node_that_cannot_be_spared_is_named() -> None:
    """The job runs on it again: why must not be looked for in the evidence."""
    case = snapshot(S.FAILED, signals=(_xid("node2"),), sources=LOG_READ, nodes_fitting=4)
    decision = _decide(case, 400.0)
    assert (decision.action, decision.isolation.exclude_for_job) == (Action.RESTART, ())
    assert "node2 cannot be avoided (nodes that fit the job: 4; it needs 4)" in decision.explanation
    own = _decide(replace(case, nodes_fitting=7, user_excluded=("node7", "node8", "node9")), 400.0)
    assert own.isolation.exclude_for_job == ()
    says = "nodes that fit the job beside those that it excludes itself: 4; it needs 4, so its own list leaves no other"
    assert f"node2 cannot be avoided ({says})" in own.explanation


def test_a_job_that_keeps_its_exclusions_gathers_them() -> None:
    """The next bad node joins the one before; the user's own stays the user's."""
    before = PastAttempt(
        number=0,
        category=Category.GPU_HARDWARE,
        fingerprint="x",
        reason=Reason.NODES_IMPLICATED,
        action=Action.RESTART,
        implicated_nodes=("node9",),
        excluded_nodes=("node9",),
        trusted=True,
    )
    case = snapshot(S.FAILED, signals=(_xid("node3"),), past=(before,), user_excluded=("node8",))
    assert _decide(case).isolation.exclude_for_job == ("node3", "node9")


def test_another_jobs_log_reaches_nobody() -> None:
    """A log line about a node outside the allocation excludes nothing, live or ended."""
    forged = _xid("node77", trust=Trust.LOG)
    for state in (S.RUNNING, S.FAILED):
        decision = _decide(snapshot(state, signals=(forged,), sources=LOG_READ))
        assert decision.isolation.exclude_for_job == ()
        assert decision.isolation.isolate_for_cluster == ()


def test_a_node_that_is_gone_ends_a_hanging_job() -> None:
    """The scheduler itself says that node2 is down while the job runs on: requeued without it."""
    down = NodeFact(name="node2", state=NodeState.DOWN, since=after(-60))
    case = snapshot(S.RUNNING, nodes=(down,), progress=progress(9, 1, last_at=after(-70)), sources=LOG_READ)
    decision = _decide(case, 0.0)
    assert (decision.action, decision.reason) == (Action.RESTART, Reason.TRUSTED_FATAL)
    assert decision.may_end_live_attempt
    assert decision.isolation.exclude_for_job == ("node2",)
    stepping = replace(case, progress=progress(99, 1, last_at=after(-1), interval_seconds=1.0))
    assert _decide(stepping, 0.0).action is Action.NONE


@pytest.mark.parametrize(
    ("state", "action", "reason"),
    [
        (S.COMPLETED, Action.NONE, Reason.COMPLETED),
        (S.CANCELLED, Action.NONE, Reason.USER_CANCELLED),
        (S.PREEMPTED, Action.RESTART, Reason.SCHEDULER_EVENT),
        (S.NODE_FAILURE, Action.RESTART, Reason.SCHEDULER_EVENT),
        (S.COMPLETING, Action.NONE, Reason.OUTCOME_NOT_VISIBLE),
        (S.OTHER, Action.NONE, Reason.OUTCOME_NOT_VISIBLE),
        (S.PENDING, Action.NONE, Reason.HEALTHY),
        (S.RUNNING, Action.NONE, Reason.HEALTHY),
        (S.SUSPENDED, Action.NONE, Reason.HELD_BY_OTHERS),
        (S.REQUEUE_HELD, Action.NONE, Reason.HELD_BY_OTHERS),
        (S.FAILED, Action.RESTART, Reason.WITHIN_BUDGET),
        (S.OUT_OF_MEMORY, Action.RESTART, Reason.CONFIRMATION_RETRY),
        (S.LAUNCH_FAILURE, Action.RESTART, Reason.WITHIN_BUDGET),
    ],
)
def test_what_the_scheduler_alone_leads_to(state: AttemptState, action: Action, reason: Reason) -> None:
    """Without any log each state has its plain consequence."""
    decision = _decide(snapshot(state))
    assert (decision.action, decision.reason) == (action, reason)


def test_the_decision_replays_from_stored_bytes() -> None:
    """Snapshot, rules and policy, read back from what was stored, give the same bytes."""
    case = snapshot(
        S.FAILED,
        signals=(_xid("node2"), _signal("torch.collective_timeout", rank=3, fields={"z": "1", "a": "2"})),
        attempt=attempt(S.FAILED, rank_nodes={31: "node4", 8: "node2", 0: "node1"}),
        progress=Progress(cleared_lines={"b.log": 3, "a.log": 4}),
        successor=successor(),
    )
    first = encode(_decide(case))
    rules = decode(RuleSet, encode(RULES))
    assert rules == RULES
    again = decide(decode(Snapshot, encode(case)), rules, decode(Policy, encode(Policy())), LATER)
    assert encode(again) == first
    assert decode(Decision, first) == again


@pytest.mark.parametrize("preempted_before", [None, 1, 3])
def test_a_job_whose_output_cannot_be_opened_is_tried_elsewhere_and_later_before_it_is_stopped(
    preempted_before: int | None,
) -> None:
    """Slurm's 0:53, again and again: without the first node at once, then after longer and longer waits without
    avoiding another one, and the budget ends it: a file system that is away for half an hour stops no job. A preemption
    between changes nothing."""
    earlier: list[PastAttempt] = []
    told = []
    for number in range(4):
        node = f"node{number + 1}"
        if number == preempted_before:
            event = Reason.SCHEDULER_EVENT
            earlier.append(replace(earlier[-1], category=Category.SCHEDULER_EVENT, fingerprint="gone", reason=event))
        case = snapshot(S.FAILED, past=tuple(earlier), sources=LOG_READ)
        case = replace(
            case, attempt=replace(case.attempt, number=number, nodes=(node,), exit=ExitStatus(code=0, signal=53))
        )
        decision = _decide(case, 60.0)
        waits = (decision.delay_until - NOON).total_seconds() if decision.delay_until is not None else 0.0
        told.append((decision.action, decision.reason, waits))
        assert decision.isolation.exclude_for_job == ("node1",)
        assert "could not open the job's output" in decision.explanation
        earlier.append(
            PastAttempt(
                number=number,
                category=decision.attribution.category,
                fingerprint=decision.attribution.fingerprint,
                reason=decision.reason,
                action=decision.action,
                implicated_nodes=decision.attribution.nodes,
                excluded_nodes=decision.isolation.exclude_for_job,
                nodes=(node,),
            )
        )
    assert told == [
        (Action.RESTART, Reason.NODES_IMPLICATED, 0.0),
        (Action.RESTART, Reason.STORAGE_DELAY, 600.0),
        (Action.RESTART, Reason.STORAGE_DELAY, 1200.0),
        (Action.STOP, Reason.BUDGET_EXHAUSTED, 0.0),
    ]


def _missing(*ranks: int | None, **changes: Any) -> Snapshot:
    """Ranks of sixteen, four on each of four of six nodes, that cannot import a module a minute after the start."""
    fields = {"exception": "ModuleNotFoundError", "message": "No module named 'apex'"}
    return snapshot(
        signals=tuple(_signal("python.import_error", at=-5.0, rank=rank, fields=fields) for rank in ranks),
        sources=LOG_READ,
        nodes_fitting=6,
        attempt=attempt(started_at=after(-60), world_size=16, rank_nodes={n: f"node{n // 4 + 1}" for n in range(16)}),
        **changes,
    )


def test_a_start_up_failure_of_one_node_only_is_confirmed_on_another() -> None:
    """A module may be missing on one node. Its own retry shows it: there it passes, or it is the job's own."""
    case = _missing(8, 9, 11)
    decision = _decide(case, 400.0)
    assert (decision.action, decision.reason) == (Action.RESTART, Reason.CONFIRMATION_RETRY)
    assert decision.isolation.exclude_for_job == ("node3",)
    assert decision.attribution.nodes == decision.attribution.implications == ()
    assert "tried without node3, alone in this failure" in decision.explanation
    before = PastAttempt(
        number=0,
        category=decision.attribution.category,
        fingerprint=decision.attribution.fingerprint,
        reason=decision.reason,
        action=decision.action,
        excluded_nodes=("node3",),
        nodes=("node1", "node2", "node3", "node4"),
    )
    elsewhere = replace(
        case, past=(before,), attempt=replace(case.attempt, number=1, nodes=("node1", "node2", "node4", "node5"))
    )
    again = _decide(elsewhere, 400.0)
    assert (again.action, again.reason) == (Action.STOP, Reason.SAME_FAILURE_SAME_PROGRESS)
    # Where it ran on node3 all the same nothing is confirmed: once more, and then it is stopped.
    there = replace(case, past=(before,), attempt=replace(case.attempt, number=1))
    once_more = _decide(there, 400.0)
    assert (once_more.action, once_more.isolation.exclude_for_job) == (Action.RESTART, ("node3",))
    twice = (before, replace(before, number=1, reason=once_more.reason))
    assert _decide(replace(there, past=twice), 400.0).action is Action.STOP


def test_failures_of_ever_other_kinds_cost_a_job_one_node() -> None:
    """The second is met by one node, too, and the first is still tried without."""
    case = _missing(8)
    before = PastAttempt(
        number=0,
        category=Category.APPLICATION,
        fingerprint="another",
        reason=Reason.CONFIRMATION_RETRY,
        action=Action.RESTART,
        excluded_nodes=("node5",),
        nodes=("node1", "node2", "node3", "node5"),
    )
    assert _decide(replace(case, past=(before,)), 400.0).isolation.exclude_for_job == ("node5",)


def test_a_line_of_several_nodes_says_of_no_rank_where_it_was() -> None:
    """Rank 13 is on the fourth node by their order; that both of two nodes ended does not speak against it."""
    both = _signal(
        "slurm.task_exited", at=-4.0, nodes=("node3", "node4"), fields={"tasks": "8-15", "code": "1"}, rank=None
    )
    run = attempt(world_size=16, tasks_per_node=4)
    case = snapshot(
        signals=(_signal("cuda.ecc_uncorrectable", at=-5.0, rank=13), both),
        sources=LOG_READ,
        nodes_fitting=6,
        attempt=run,
    )
    assert _decide(case, 400.0).isolation.exclude_for_job in {(), ("node4",)}


def _launched(*exits: tuple[str, int, str], rank: int | None = 2, count: int = 1) -> Snapshot:
    """One launcher on each node, whose ranks nobody places: a program that is not there, and which tasks then ended."""
    signals = [_signal("host.command_missing", at=-5.0, rank=rank, count=count)]
    signals += (
        _signal(
            "slurm.task_exited",
            at=-4.0,
            nodes=tuple(node.split(",")),
            fields={"tasks": str(task), "code": code},
            rank=task,
        )
        for node, task, code in exits
    )
    run = attempt(started_at=after(-60), tasks_per_node=1)
    return snapshot(signals=tuple(signals), sources=LOG_READ, nodes_fitting=6, attempt=run)


@pytest.mark.parametrize("rank", [2, None])
def test_the_node_of_a_launcher_that_could_not_start_is_left_out(rank: int | None) -> None:
    """The scheduler says where its task ended by itself; the others were ended for it."""
    case = _launched(("node3", 2, "127"), ("node1", 0, "143"), ("node4", 3, "137"), rank=rank)
    assert _decide(case, 400.0).isolation.exclude_for_job == ("node3",)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_launched(("node3", 2, "127"), ("node4", 3, "1")), id="two ended by themselves"),
        pytest.param(_launched(("node3", 2, "127"), rank=1), id="another rank printed it"),
        pytest.param(_launched(("node3", 2, "127"), rank=None, count=2), id="more printed it"),
        pytest.param(_launched(("node1", 0, "127"), rank=None), id="the first has work of its own"),
        pytest.param(_launched(("node3", 2, "143")), id="ended by a signal"),
        pytest.param(_launched(("node3,node4", 2, "127"), rank=None), id="one line for two nodes"),
    ],
)
def test_no_node_is_left_out_by_exits_that_may_be_anybodys(case: Snapshot) -> None:
    """Only one that ended by itself, and nobody else's line."""
    assert _decide(case, 400.0).isolation.exclude_for_job == ()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_missing(0), id="rank 0 has work of its own"),
        pytest.param(_missing(0, 8), id="two nodes"),
        pytest.param(_missing(8, None), id="others somewhere"),
        pytest.param(_missing(8, progress=progress(5, first=1)), id="after steps"),
        pytest.param(replace(_missing(8), nodes_fitting=None), id="nobody knows whether others fit"),
        pytest.param(replace(_missing(8), nodes_fitting=4), id="no others fit"),
    ],
)
def test_no_node_is_tried_without_where_it_was_not_alone(case: Snapshot) -> None:
    """Nor where another one could not take its place."""
    decision = _decide(case, 400.0)
    assert decision.reason in {Reason.CONFIRMATION_RETRY, Reason.CERTAIN_STARTUP_ERROR}
    assert decision.isolation.exclude_for_job == ()
