"""What is decided in the situations that operators argue about."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from advisor.core.course import Pace, Phase
from advisor.core.model import (
    Attempt,
    Attribution,
    Decision,
    ExitStatus,
    Isolation,
    NodeFact,
    PastAttempt,
    Progress,
    SourceReport,
    Successor,
)
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Mode, NodeState, OrderKind, Reason, Trust
from tests.unit.core_decide.worlds import (
    LATER,
    NOON,
    World,
    advice,
    after,
    attempt,
    attribution,
    bad_gpu,
    incident,
    job,
    order,
    past,
    progress,
    signal,
    successor,
    unreadable,
    world,
)

S, K, C = AttemptState, IncidentKind, Category
KEY_ERROR = attribution(C.APPLICATION, deterministic=True, root_cause="KeyError: 'labels'")


def _short(decision: Decision) -> tuple[Action, Reason]:
    return decision.action, decision.reason


# --- people


@pytest.mark.parametrize("cause", [bad_gpu("node2"), attribution(C.USER_CANCEL), attribution(C.APPLICATION)])
@pytest.mark.parametrize("applied", [False, True])
def test_a_cancelled_attempt_is_left_alone_for_ever(cause: Attribution, applied: bool) -> None:
    """Whatever the evidence says and whatever was advised before, a cancel is the user's last word."""
    case = world(S.CANCELLED, cause=cause, exclude=("node2",), advice=advice(applied=applied))
    assert _short(case.decide()) == (Action.NONE, Reason.USER_CANCELLED)


@pytest.mark.parametrize("state", [S.FAILED, S.COMPLETING])
def test_what_the_scheduler_itself_keeps_is_judged_like_any_failure(state: AttemptState) -> None:
    """Put back and kept by a rule of the site's: our word is waited for. The same with somebody's hold is theirs."""
    kept = successor(S.REQUEUE_HELD)
    assert _short(world(state, successor=kept).decide())[0] is Action.RESTART
    bad = world(state, successor=kept, cause=attribution(C.APPLICATION, certain=True))
    assert _short(bad.decide())[0] is Action.STOP
    held = world(state, successor=replace(kept, held=True))
    assert _short(held.decide()) == (Action.NONE, Reason.HELD_BY_OTHERS)


def test_a_cancelled_successor_is_not_restarted() -> None:
    """The user cancels what we requeued: the advice for the attempt before falls with it."""
    case = world(advice=advice(), successor=successor(S.CANCELLED, by_us=True), exclude=("node2",))
    assert _short(case.decide()) == (Action.NONE, Reason.USER_CANCELLED)


def test_a_log_line_about_cancelling_does_not_outrank_the_scheduler() -> None:
    """Slurm prints CANCELLED for a preemption too; its state says which it was."""
    case = world(S.PREEMPTED, cause=attribution(C.USER_CANCEL))
    assert _short(case.decide()) == (Action.RESTART, Reason.SCHEDULER_EVENT)


def test_a_successor_held_by_somebody_is_left_alone() -> None:
    """We never place a hold, so every hold is somebody's decision."""
    case = world(successor=successor(held=True), exclude=("node2",), cause=bad_gpu("node2"))
    assert _short(case.decide()) == (Action.NONE, Reason.HELD_BY_OTHERS)


@pytest.mark.parametrize(
    ("after_it", "exclude", "action"),
    [
        (successor(S.PENDING), ("node2",), Action.RESTART),
        (successor(S.COMPLETING), ("node2",), Action.RESTART),
        (successor(S.PENDING), (), Action.NONE),
        (successor(S.RUNNING), ("node2",), Action.NONE),
        (successor(S.FAILED), ("node2",), Action.NONE),
    ],
)
def test_a_requeue_by_others_gets_exclusions_only(
    after_it: Successor, exclude: tuple[str, ...], action: Action
) -> None:
    """A successor that others made is never requeued again; while it waits it can still be told whom to avoid."""
    decision = world(successor=after_it, exclude=exclude, cause=bad_gpu("node2")).decide()
    assert _short(decision) == (action, Reason.ALREADY_REQUEUED)
    assert decision.free == (action is Action.RESTART)


# --- our own restart


def test_an_accepted_restart_stays_a_restart() -> None:
    """What was requeued stays requeued, though later evidence would have said stop; its exclusions follow evidence."""
    case = world(
        cause=replace(KEY_ERROR, certain=True),
        advice=advice(reason=Reason.WITHIN_BUDGET),
        successor=successor(by_us=True),
        exclude=("node3",),
    )
    decision = case.decide()
    assert _short(decision) == (Action.RESTART, Reason.WITHIN_BUDGET)
    assert decision.isolation.exclude_for_job == ("node3",)


def test_a_restart_that_was_only_advised_may_still_be_withdrawn() -> None:
    """Advice that no scheduler accepted yet does not bind the next decision."""
    case = world(cause=replace(KEY_ERROR, certain=True), advice=advice(applied=False))
    assert _short(case.decide()) == (Action.STOP, Reason.CERTAIN_STARTUP_ERROR)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.AUTONOMOUS, (Action.RESTART, Reason.HANG)),
        (Mode.MONITOR, (Action.NONE, Reason.ALREADY_REQUEUED)),
    ],
)
def test_a_requeue_that_was_advised_and_bears_no_mark_yet_is_ours(mode: Mode, expected: tuple[Action, Reason]) -> None:
    """An agent that died between requeue and mark must not make the restart look like somebody else's, and free."""
    case = world(advice=advice(applied=False), successor=successor(by_us=False), job=job(mode=mode))
    assert _short(case.decide()) == expected


def test_an_accepted_restart_ends_with_its_successor() -> None:
    """Once the next attempt is over as well, advice for this one says nothing any more."""
    case = world(advice=advice(), successor=successor(S.FAILED, by_us=True))
    assert _short(case.decide()) == (Action.NONE, Reason.ALREADY_REQUEUED)


def test_a_free_restart_stays_free_when_it_was_accepted() -> None:
    """Keeping a restart keeps what it costs."""
    case = world(S.PREEMPTED, advice=advice(reason=Reason.SCHEDULER_EVENT), successor=successor(by_us=True))
    assert case.decide().free


# --- live attempts


def test_a_crash_in_the_log_of_a_live_attempt_waits_for_its_exit() -> None:
    """`while ! srun` loops and elastic launchers go on: a printed crash is not the end."""
    decision = world(S.RUNNING, cause=bad_gpu("node2", trust=Trust.LOG), exclude=("node2",)).decide()
    assert _short(decision) == (Action.NONE, Reason.AWAITING_EXIT)
    assert not decision.may_end_live_attempt


def test_an_in_job_restart_is_recorded() -> None:
    """A training script that restarts its ranks itself is not requeued, and its restarts are counted."""
    decision = world(S.RUNNING, progress=progress(9, in_job_restarts=2)).decide()
    assert _short(decision) == (Action.NONE, Reason.IN_JOB_RESTART)
    assert decision.in_job_restarts == 2


@pytest.mark.parametrize(
    "unclear",
    [attempt(S.COMPLETING), attempt(S.OTHER), attempt(S.COMPLETING, ended_at=NOON), attempt(S.RUNNING, ended_at=NOON)],
)
def test_no_restart_on_an_outcome_that_is_not_visible(unclear: Attempt) -> None:
    """Completing may be a cancel: even with a dead GPU nothing is decided until the outcome shows."""
    decision = world(cause=bad_gpu("node2"), exclude=("node2",), now=after(80), attempt=unclear).decide()
    assert _short(decision) == (Action.NONE, Reason.OUTCOME_NOT_VISIBLE)
    assert not decision.settled


@pytest.mark.parametrize(("mode", "action"), [(Mode.AUTONOMOUS, Action.RESTART), (Mode.MONITOR, Action.NONE)])
def test_a_restart_under_way_is_not_taken_back_before_its_answer_arrives(mode: Mode, action: Action) -> None:
    """The attempt we are ending shows COMPLETING before the agent's report does; in monitor mode nobody ends it."""
    told = advice(applied=False)
    decision = world(S.COMPLETING, K.HANG, job=job(mode=mode), advice=told, now=after(80)).decide()
    assert decision.action is action


@pytest.mark.parametrize(
    ("quiet_seconds", "sources", "ends"),
    [(599, (), False), (602, (), True), (5000, (unreadable(),), False), (5000, (unreadable(Trust.KERNEL),), True)],
)
def test_a_hang_ends_a_live_attempt_only_past_its_limit(
    quiet_seconds: float, sources: tuple[SourceReport, ...], ends: bool
) -> None:
    """The limit is policy's, and the silence of a log that cannot be read is not the job's."""
    seen = progress(5, last_at=LATER - timedelta(seconds=quiet_seconds), interval_seconds=1.0)
    decision = world(S.RUNNING, K.HANG, progress=seen, sources=sources).decide()
    assert _short(decision) == ((Action.RESTART, Reason.HANG) if ends else (Action.NONE, Reason.AWAITING_EXIT))
    assert decision.may_end_live_attempt == ends


def test_start_up_has_its_own_hang_limit() -> None:
    """Before the first step a job compiles and loads: it gets the longer limit, from what announced its start."""

    def announced(seconds: float, started: float | None = -9000) -> Action:
        at = None if started is None else after(started)
        seen = progress(pace=Pace(phase=Phase.START, sign_at=after(seconds)))
        return world(S.RUNNING, K.HANG, attempt=attempt(S.RUNNING, started_at=at), progress=seen).decide().action

    assert [announced(-3000), announced(-4000), announced(-3000, None)] == [Action.NONE, Action.RESTART, Action.NONE]


def test_a_job_whose_steps_nobody_can_read_hangs_only_by_what_libraries_say() -> None:
    """An hour after they said so, and after the newest line that said something new; by its silence alone never."""

    def said(seconds: float | None, news: float = -9000) -> Action:
        told = () if seconds is None else (signal(seen_at=after(seconds)),)
        case = world(S.RUNNING, K.HANG, attempt=attempt(S.RUNNING, started_at=after(-9000)), signals=told)
        seen = replace(case.snapshot, progress=progress(news_at=after(news)))
        return replace(case, snapshot=seen).decide().action

    assert [said(None), said(-3000), said(-4000), said(-4000, -60)] == [
        Action.NONE,
        Action.NONE,
        Action.RESTART,
        Action.NONE,
    ]


@pytest.mark.parametrize(
    ("fatal_at", "last_step_at", "interval", "ends"),
    [
        (-20, -25, 1.0, True),
        (-19, -25, 1.0, False),
        (-60, -10, 1.0, False),  # it goes on: the GPU was not this job's
        (-60, -21, 1.0, True),
        (-60, -70, 60.0, False),  # the next step is not due yet
        (-130, -130, 60.0, True),
    ],
)
def test_trusted_fatal_hardware_ends_a_live_attempt_that_stands_still(
    fatal_at: float, last_step_at: float, interval: float, ends: bool
) -> None:
    """A dead GPU is acted on before NCCL's time-out, unless steps still come or are not due yet."""
    case = world(
        S.RUNNING,
        cause=bad_gpu("node2"),
        exclude=("node2",),
        signals=(signal(trust=Trust.KERNEL, at=after(fatal_at)),),
        progress=progress(5, last_at=after(last_step_at), interval_seconds=interval),
        now=NOON,
    )
    decision = case.decide()
    assert _short(decision) == ((Action.RESTART, Reason.TRUSTED_FATAL) if ends else (Action.NONE, Reason.AWAITING_EXIT))
    assert decision.may_end_live_attempt == ends


def test_a_log_that_mostly_comes_late_gets_longer_to_show_that_the_job_lives() -> None:
    """Where minutes without a line are usual, twenty seconds of silence after a record of a fault say nothing."""
    record = signal("s1", trust=Trust.KERNEL, at=after(-120))
    case = world(S.RUNNING, cause=bad_gpu("node2"), exclude=("node2",), signals=(record,), now=NOON)
    seen = [
        progress(40, first=1, last_at=after(-100), interval_seconds=5.0, pace=Pace(gaps=(gap,) * 32))
        for gap in (5.0, 90.0)
    ]
    decisions = [replace(case, snapshot=replace(case.snapshot, progress=some)).decide() for some in seen]
    assert [item.reason for item in decisions] == [Reason.TRUSTED_FATAL, Reason.AWAITING_EXIT]


@pytest.mark.parametrize(
    ("at", "seen_at", "last_at", "ends"),
    [
        (-300, -295, -200, True),  # read at once: steps that went on for a while do not make the GPU whole
        (-300, -60, -200, False),
        (-300, -60, -310, True),  # none since
        (-690, -60, -650, True),  # and then none for ten minutes
    ],
)
def test_a_record_that_is_read_late_ends_no_attempt_that_went_on(
    at: float, seen_at: float, last_at: float, ends: bool
) -> None:
    """It may be of the attempt before, by a clock that is ahead: then only a hang's own limit ends this one."""
    record = signal("s1", trust=Trust.KERNEL, at=after(at), seen_at=after(seen_at))
    case = world(S.RUNNING, cause=bad_gpu("node2"), exclude=("node2",), signals=(record,), now=NOON)
    seen = progress(40, first=1, last_at=after(last_at), interval_seconds=5.0)
    decision = replace(case, snapshot=replace(case.snapshot, progress=seen)).decide()
    assert decision.may_end_live_attempt == ends


def test_the_first_of_many_kernel_records_counts() -> None:
    """A dead GPU floods the kernel log: the wait counts from its first record, also where only reading has a time."""
    flood = tuple(signal(f"s{n}", trust=Trust.KERNEL, at=after(-25 + n)) for n in range(25))
    cause = bad_gpu("node2", evidence=tuple(item.id for item in flood))
    case = world(S.RUNNING, cause=cause, exclude=("node2",), signals=flood, now=NOON)
    assert case.decide().reason is Reason.TRUSTED_FATAL
    timeless = tuple(replace(item, at=None) for item in flood)
    assert replace(case, incident=replace(case.incident, signals=timeless)).decide().reason is Reason.TRUSTED_FATAL
    reread = tuple(replace(item, seen_at=NOON) for item in flood)
    assert replace(case, incident=replace(case.incident, signals=reread)).decide().reason is Reason.TRUSTED_FATAL


@pytest.mark.parametrize(
    ("written_at", "seen_at", "others", "now", "ends"),
    [
        (-102.5, -99.5, 0, -50, False),  # of the job that had the node just before
        (-102.5, -99.5, 0, 1000, False),
        (-70, -99.5, 1, 150, False),  # by a clock that is half a minute ahead: it was there at the first look
        (-98, -97.5, 1, 150, False),  # by one that is a little ahead, perhaps: it has time to show that it lives
        (-98, -97.5, 1, 250, True),
        (-99, -98.5, 0, -50, True),  # nobody else has suffered from the node: its own
        (-94, -93, 1, -50, True),
    ],
)
def test_what_the_attempt_found_on_its_node_does_not_end_its_start_up(
    written_at: float, seen_at: float, others: int, now: float, ends: bool
) -> None:
    """A node goes from the job that it has failed to the next within seconds, and the kernel log comes with it."""
    record = signal(trust=Trust.KERNEL, at=after(written_at), seen_at=after(seen_at), nodes=("node2",))
    case = world(
        S.RUNNING,
        cause=bad_gpu("node2"),
        exclude=("node2",),
        signals=(record,),
        now=after(now),
        attempt=attempt(S.RUNNING, started_at=after(-100)),
        nodes=(NodeFact(name="node2", state=NodeState.UP, other_jobs=others),),
    )
    assert case.decide().may_end_live_attempt == ends


def test_trusted_evidence_that_ends_no_gpu_waits_for_the_exit() -> None:
    """A contained error implicates its node when the attempt is over; it does not end a live one."""
    contained = (signal(trust=Trust.KERNEL, at=after(-60)),)
    case = world(S.RUNNING, cause=bad_gpu("node2"), exclude=("node2",), signals=contained, fatal=False)
    assert _short(case.decide()) == (Action.NONE, Reason.AWAITING_EXIT)
    software = bad_gpu("node2", category=C.SYSTEM_SOFTWARE)
    case = world(S.RUNNING, cause=software, exclude=("node2",), signals=contained)
    assert _short(case.decide()) == (Action.NONE, Reason.AWAITING_EXIT)


def test_log_evidence_never_ends_a_live_attempt() -> None:
    """Anybody can print "Xid 79": without trusted evidence a live attempt waits for its exit or the hang limit."""
    case = world(S.RUNNING, cause=bad_gpu("node2", trust=Trust.LOG), exclude=("node2",), now=after(500))
    assert not case.decide().may_end_live_attempt


# --- budgets and stops


def test_a_deterministic_failure_is_stopped_after_one_confirmation_retry() -> None:
    """A KeyError at the same step: one retry to be sure, then a stop."""
    first = world(cause=KEY_ERROR, progress=progress(40)).decide()
    assert _short(first) == (Action.RESTART, Reason.CONFIRMATION_RETRY)
    before = past(0, C.APPLICATION, reason=first.reason, last_step=40)
    again = world(cause=KEY_ERROR, progress=progress(40), past=(before,)).decide()
    assert _short(again) == (Action.STOP, Reason.SAME_FAILURE_SAME_PROGRESS)
    further = world(cause=KEY_ERROR, progress=progress(41), past=(before,)).decide()
    assert _short(further) == (Action.RESTART, Reason.CONFIRMATION_RETRY)


@pytest.mark.parametrize(
    "category", [C.GPU_HARDWARE, C.NODE_HARDWARE, C.INTERCONNECT, C.STORAGE, C.SYSTEM_SOFTWARE, C.SCHEDULER_EVENT]
)
def test_an_infrastructure_failure_is_not_stopped_for_looking_alike(category: Category) -> None:
    """Two equal start-up failures of the machines prove nothing about the job: the budget applies, not the stop."""
    case = world(cause=attribution(category, certain=False), past=(past(0, category),))
    assert case.decide().action is Action.RESTART


def test_unknown_failures_without_steps_are_not_taken_for_the_same() -> None:
    """ "Exit code 1" twice, from a job whose progress we cannot read, may be two different failures."""
    assert world(past=(past(0),)).decide().action is Action.RESTART
    known = world(past=(past(0, last_step=7),), progress=progress(7))
    assert _short(known.decide()) == (Action.STOP, Reason.SAME_FAILURE_SAME_PROGRESS)
    blind = world(past=(past(0, last_step=7),), progress=progress(7), sources=(unreadable(),))
    assert blind.decide().action is Action.RESTART


def test_a_guess_is_no_proof_against_a_job() -> None:
    """Twice killed at the same step, and nobody says by whom: it may be the node. The budget bounds it."""
    before = past(0, C.HOST_OUT_OF_MEMORY, reason=Reason.CONFIRMATION_RETRY, last_step=9)
    guess = attribution(C.HOST_OUT_OF_MEMORY, confidence=0.45, deterministic=True)
    assert world(cause=guess, past=(before,), progress=progress(9)).decide().action is Action.RESTART
    sure = replace(guess, confidence=0.9)
    stopped = world(cause=sure, past=(before,), progress=progress(9)).decide()
    assert _short(stopped) == (Action.STOP, Reason.SAME_FAILURE_SAME_PROGRESS)


@pytest.mark.parametrize(("retries", "alike", "stops"), [(0, 0, False), (0, 1, True), (2, 1, False), (2, 2, True)])
def test_a_failure_that_only_repeats_is_stopped_after_the_retries_too(retries: int, alike: int, stops: bool) -> None:
    """One that does not look deterministic needs at least one equal failure before it, whatever policy says."""
    history = tuple(past(n, C.NUMERICS, last_step=9) for n in range(alike))
    case = world(
        cause=attribution(C.NUMERICS),
        past=history,
        progress=progress(9),
        policy=Policy(confirmation_retries=retries),
    )
    assert (case.decide().reason is Reason.SAME_FAILURE_SAME_PROGRESS) == stops


def test_a_start_up_error_of_a_job_that_once_ran_is_not_certain() -> None:
    """Its configuration was good enough before: something around it changed, and it gets its retries."""
    broken = replace(KEY_ERROR, certain=True)
    assert _short(world(cause=broken).decide()) == (Action.STOP, Reason.CERTAIN_STARTUP_ERROR)
    ran = world(cause=broken, past=(past(0, C.NUMERICS, last_step=900),))
    assert _short(ran.decide()) == (Action.RESTART, Reason.CONFIRMATION_RETRY)
    quota = world(cause=broken, past=(past(0, C.NUMERICS, last_step=900),), progress=progress(950))
    assert quota.decide().action is Action.STOP


def test_a_different_bad_node_each_time_is_bad_luck() -> None:
    """Each node with its own trusted evidence is its own place: only the ceiling bounds such restarts."""
    history = tuple(
        past(n, C.GPU_HARDWARE, trusted=True, implicated_nodes=(f"node{n}",), reason=Reason.NODES_IMPLICATED)
        for n in range(10, 18)
    )
    assert world(cause=bad_gpu("node2"), exclude=("node2",), past=history).decide().action is Action.RESTART
    same = tuple(replace(item, implicated_nodes=("node2",)) for item in history)
    assert _short(world(cause=bad_gpu("node2"), exclude=("node2",), past=same).decide()) == (
        Action.STOP,
        Reason.BUDGET_EXHAUSTED,
    )
    by_log = world(cause=bad_gpu("node2", trust=Trust.LOG), exclude=("node2",), past=history)
    assert by_log.decide().reason is Reason.BUDGET_EXHAUSTED


def test_what_left_no_trace_is_tried_longer() -> None:
    """Nothing but an exit code is no more a word against the job than against a node: six restarts instead of three."""
    exit_code = signal("exit", trust=Trust.SCHEDULER)
    silent = attribution(evidence=("exit",))
    tried = [tuple(past(n) for n in range(count)) for count in (3, 5, 6)]
    assert [world(cause=silent, past=some, signals=(exit_code,)).decide().action for some in tried] == [
        Action.RESTART,
        Action.RESTART,
        Action.STOP,
    ]
    assert world(past=tried[0]).decide().reason is Reason.BUDGET_EXHAUSTED  # it said something


def test_the_jobs_own_limit_lowers_the_ceiling() -> None:
    """A job that asked for two restarts gets two, however far it comes."""
    history = tuple(past(n, last_step=n * 100) for n in range(2))
    case = world(job=job(restarts_max=2), past=history, progress=progress(900))
    assert _short(case.decide()) == (Action.STOP, Reason.RESTART_CEILING)
    assert world(job=job(restarts_max=3), past=history, progress=progress(900)).decide().action is Action.RESTART


def test_a_log_that_claims_preemption_gets_no_free_restart() -> None:
    """Free restarts need the scheduler's own word; otherwise a job could print itself an endless supply."""
    printed = world(cause=attribution(C.SCHEDULER_EVENT)).decide()
    assert _short(printed) == (Action.RESTART, Reason.WITHIN_BUDGET)
    assert not printed.free
    both = (signal(trust=Trust.SCHEDULER), signal("s2"))
    told = world(cause=attribution(C.SCHEDULER_EVENT, evidence=("s1", "s2")), signals=both).decide()
    assert told.free


@pytest.mark.parametrize(
    ("steps", "history", "expected"),
    [
        (progress(100, 1), (), Reason.SCHEDULER_EVENT),
        (progress(200, 91), (past(0, C.SCHEDULER_EVENT, first_step=1, last_step=100),), Reason.SCHEDULER_EVENT),
        (
            progress(102, 1, checkpoint_step=100),
            (past(0, C.SCHEDULER_EVENT, first_step=1, last_step=100, checkpoint_step=50),),
            Reason.SCHEDULER_EVENT,
        ),
        (progress(), (), Reason.CONFIRMATION_RETRY),
        (progress(1, 1), (), Reason.CONFIRMATION_RETRY),
        # Without a checkpoint it begins anew each time and gets about as far.
        (progress(102, 1), (past(0, C.SCHEDULER_EVENT, first_step=1, last_step=100),), Reason.CONFIRMATION_RETRY),
        (
            progress(103, 1),
            (
                past(0, C.SCHEDULER_EVENT, first_step=1, last_step=100, reason=Reason.SCHEDULER_EVENT),
                past(1, C.SCHEDULER_EVENT, first_step=1, last_step=102, reason=Reason.CONFIRMATION_RETRY),
            ),
            Reason.TIME_LIMIT_WITHOUT_PROGRESS,
        ),
    ],
)
def test_a_time_limit_is_free_only_when_the_next_attempt_starts_further_on(
    steps: Progress, history: tuple[PastAttempt, ...], expected: Reason
) -> None:
    """A job that gets further each time may go on for ever; one that does not gets one more try and is stopped."""
    case = world(S.TIME_LIMIT, cause=attribution(C.SCHEDULER_EVENT), progress=steps, past=history)
    decision = case.decide()
    assert decision.reason is expected
    assert decision.free == (expected is Reason.SCHEDULER_EVENT)


@pytest.mark.parametrize("cause", [attribution(C.SCHEDULER_EVENT), bad_gpu("node2")])
def test_where_the_site_says_so_a_job_ends_with_its_time_limit(cause: Attribution) -> None:
    """Whatever was found besides; other acts of the scheduler are no time limit, and an operator may still order it."""
    policy = Policy(restart_at_time_limit=False)
    case = world(S.TIME_LIMIT, cause=cause, progress=progress(100, 1), policy=policy)
    decision = case.decide()
    assert _short(decision) == (Action.NONE, Reason.TIME_LIMIT)
    assert "its time limit ended it" in decision.explanation
    assert _short(replace(case, policy=Policy()).decide()) == (Action.RESTART, Reason.SCHEDULER_EVENT)
    preempted = world(S.PREEMPTED, cause=attribution(C.SCHEDULER_EVENT), policy=policy)
    assert _short(preempted.decide()) == (Action.RESTART, Reason.SCHEDULER_EVENT)
    ordered = replace(case, snapshot=replace(case.snapshot, orders=(order(OrderKind.OVERRIDE, action=Action.RESTART),)))
    assert ordered.decide().action is Action.RESTART


# --- settling


def test_a_restart_that_no_later_fact_can_undo_is_decided_at_once() -> None:
    """Trusted evidence requeues immediately; exclusions may be refined until it has settled."""
    decision = world(cause=bad_gpu("node2"), exclude=("node2",), now=NOON).decide()
    assert _short(decision) == (Action.RESTART, Reason.NODES_IMPLICATED)
    assert not decision.settled
    assert decision.settles_at == after(2)
    assert decision.decision_deadline == after(90)


@pytest.mark.parametrize("cause", [attribution(C.UNKNOWN), KEY_ERROR, replace(KEY_ERROR, certain=True)])
def test_what_later_facts_may_change_waits_until_they_have_settled(cause: Attribution) -> None:
    """Neither a stop nor a restart that might have been a stop is decided before the settle time has passed."""
    waiting = world(cause=cause, now=after(1.9)).decide()
    assert _short(waiting) == (Action.NONE, Reason.OUTCOME_NOT_VISIBLE)
    assert (waiting.settled, waiting.settles_at) == (False, after(2))
    decided = world(cause=cause, now=after(2)).decide()
    assert decided.action is not Action.NONE
    assert decided.settled


def test_each_category_has_its_settle_time() -> None:
    """A category that slow sources may change waits longer, and never beyond the decision deadline."""
    slow = Policy(settle_seconds={C.UNKNOWN: 20.0, C.APPLICATION: 200.0})
    assert world(policy=slow, now=after(19)).decide().settles_at == after(20)
    assert world(policy=slow, now=after(19), cause=KEY_ERROR).decide().settles_at == after(90)
    unnamed = Policy(settle_seconds={C.STORAGE: 5.0, C.APPLICATION: 20.0})
    assert world(policy=unnamed, now=after(19)).decide().settles_at == after(20)


def test_evidence_that_keeps_coming_does_not_postpone_a_decision() -> None:
    """Settling counts from the first evidence, not from the newest."""
    flood = tuple(signal(f"s{n}", at=after(n / 10)) for n in range(60))
    case = world(signals=flood, now=after(4))
    late = replace(case, incident=replace(case.incident, visible_at=None))
    assert late.decide().action is Action.RESTART


@pytest.mark.parametrize(
    ("eligible_at", "settle_seconds", "lease"),
    [
        (after(121), 60.0, None),  # the scheduler's own delay covers it
        (after(10), 60.0, after(61)),
        (after(10), 9.0, None),
        (after(10), 9.5, after(10.5)),
        (after(10), 89.5, after(90)),  # never beyond the deadline
        (None, 60.0, None),
    ],
)
def test_time_is_leased_only_where_the_requeue_delay_is_too_short(
    eligible_at: datetime | None, settle_seconds: float, lease: datetime | None
) -> None:
    """The successor's start is moved only when refinement ends after it, and then no further than needed."""
    case = world(
        cause=bad_gpu("node2"),
        exclude=("node2",),
        successor=successor(eligible_at=eligible_at),
        policy=Policy(settle_seconds={C.GPU_HARDWARE: settle_seconds}),
        now=after(1),
    )
    assert case.decide().start_not_before == lease
    assert replace(case, now=after(95)).decide().start_not_before is None


def test_shared_storage_waits_longer_each_time() -> None:
    """An outage may last longer than a few retries in a row."""
    down = attribution(C.STORAGE, transient_storage=True)
    history = tuple(past(n, C.STORAGE, reason=Reason.STORAGE_DELAY) for n in range(2))
    delays = [world(cause=down, past=history[:n]).decide().delay_until for n in range(3)]
    assert delays == [after(300), after(600), after(1200)]
    timeless = world(S.OTHER, offline=True, cause=down)
    bundle = replace(timeless, incident=replace(timeless.incident, signals=(), visible_at=None, detected_at=None))
    assert bundle.decide().delay_until == LATER + timedelta(seconds=300)


def test_the_deadline_of_a_live_attempt_counts_from_when_it_could_be_ended() -> None:
    """It must not move from tick to tick, or every tick would be a new generation."""
    seen = progress(5, last_at=after(-700), interval_seconds=1.0)
    first, second = (world(S.RUNNING, K.HANG, progress=seen, now=after(s)).decide() for s in (0, 1))
    assert first == second
    assert first.decision_deadline == after(-10)


def test_a_hang_on_dead_hardware_counts_from_the_earlier_limit() -> None:
    """The deadline belongs to the first moment at which the attempt could be ended."""
    seen = progress(5, last_at=after(-700), interval_seconds=1.0)
    case = world(S.RUNNING, K.HANG, progress=seen, signals=(signal(trust=Trust.KERNEL, at=after(-690)),))
    hung = replace(case, attribution=bad_gpu("node2"))
    assert hung.decide().decision_deadline == after(-690 + 20 + 90)
    assert case.decide().decision_deadline == after(-100 + 90)


# --- what else a decision carries


def test_the_resume_step_is_the_newest_checkpoint_known() -> None:
    """An attempt that died before its first save resumes from an earlier attempt's."""
    history = (past(0, checkpoint_step=100), past(1, checkpoint_step=200), past(2))
    assert world(past=history).decide().resume_step == 200
    assert world(past=history, progress=progress(260, checkpoint_step=250)).decide().resume_step == 250
    assert world().decide().resume_step is None


def test_the_mode_is_the_jobs() -> None:
    """Monitor advises the same and touches nothing: the mode goes with the decision."""
    monitor, autonomous = (
        world(cause=bad_gpu("node2"), exclude=("node2",), job=job(mode=mode)).decide()
        for mode in (Mode.MONITOR, Mode.AUTONOMOUS)
    )
    assert replace(monitor, mode=Mode.AUTONOMOUS) == autonomous
    assert autonomous.mode is Mode.AUTONOMOUS


def test_the_explanation_is_one_safe_sentence() -> None:
    """It names nodes and cause; control characters and length of a log line do not get through."""
    hostile = bad_gpu("node2", root_cause="GPU \x1b[31mlost\r\n" + "x" * 5000)
    text = world(cause=hostile, exclude=("node2",)).decide().explanation
    assert text.startswith("Restart without node2: trusted evidence implicates nodes that can be avoided; cause: GPU")
    assert text.isprintable()
    assert len(text) < 400
    crowd = tuple(f"n{i}" for i in range(12))
    assert "n7 and 4 more" in world(cause=hostile, exclude=crowd, advice=advice()).decide().explanation


# --- bundles


@pytest.mark.parametrize(
    ("state", "kind", "silent_seconds", "exit_status", "action"),
    [
        (S.OTHER, K.CRASH, None, None, Action.RESTART),
        (S.OTHER, K.HANG, 2400.0, None, Action.RESTART),
        (S.OTHER, K.NONE, None, None, Action.NONE),
        (S.OTHER, K.STRAGGLER, None, None, Action.NONE),
        (S.OTHER, K.DIVERGENCE, None, None, Action.NONE),
        (S.OTHER, K.DIVERGENCE, None, ExitStatus(code=1), Action.RESTART),
        (S.RUNNING, K.CRASH, 8.0, None, Action.NONE),
        (S.RUNNING, K.CRASH, 90.0, None, Action.RESTART),
        (S.RUNNING, K.HANG, 2400.0, None, Action.RESTART),
        (S.CANCELLED, K.CRASH, 90.0, None, Action.NONE),
    ],
)
def test_a_bundle_is_decided_from_its_evidence(
    state: AttemptState,
    kind: IncidentKind,
    silent_seconds: float | None,
    exit_status: ExitStatus | None,
    action: Action,
) -> None:
    """Nobody will come back to see the exit: an unknown state counts as ended when something failed."""
    case = world(
        state,
        kind,
        offline=True,
        attempt=attempt(state, silent_seconds=silent_seconds, exit=exit_status),
    )
    assert case.decide().action is action


def test_a_bundle_waits_for_nothing() -> None:
    """There are no slower facts than those in the bundle."""
    decision = world(S.OTHER, offline=True, now=NOON, cause=replace(KEY_ERROR, certain=True)).decide()
    assert _short(decision) == (Action.STOP, Reason.CERTAIN_STARTUP_ERROR)


@pytest.mark.parametrize(("saved", "action"), [(900, Action.NONE), (800, Action.RESTART), (None, Action.NONE)])
def test_training_that_finished_and_was_saved_is_complete(saved: int | None, action: Action) -> None:
    """A crash in teardown loses nothing then, unless saves are known and the last step is in none of them."""
    done = progress(900, checkpoint_step=saved, finished=True)
    assert world(S.FAILED, K.NONE, progress=done).decide().action is action
    assert world(S.FAILED, K.CRASH, progress=done).decide().action is Action.RESTART
    assert world(S.PREEMPTED, K.NONE, progress=done).decide().action is Action.RESTART


def test_a_bundle_in_which_nothing_failed_needs_nothing() -> None:
    """The verdict on a bundle does not contradict itself: no incident, no advice."""
    assert _short(world(S.FAILED, K.NONE, offline=True).decide()) == (Action.NONE, Reason.HEALTHY)


def test_an_ended_attempt_is_never_healthy() -> None:
    """A failed state without any evidence is a failure of unknown cause."""
    case = World(
        snapshot=world().snapshot,
        incident=incident(K.NONE),
        attribution=attribution(C.NONE),
        isolation=Isolation(),
        policy=Policy(),
        now=LATER,
    )
    assert _short(case.decide()) == (Action.RESTART, Reason.WITHIN_BUDGET)
