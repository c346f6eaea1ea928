"""The guard: every row of the table in docs/architecture.md, and what must hold whatever the world looks like."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin import guard, mark
from slurm_plugin.guard import (
    Action,
    Advice,
    Cancel,
    Limits,
    Phase,
    Reason,
    RequeueEnded,
    RequeueLive,
    Satisfied,
    Status,
    Steps,
    Update,
    Wait,
    Withheld,
    phase_of,
    plan,
)
from slurm_plugin.mark import Mark
from slurm_plugin.squeue import JobRow

NOW, MONOTONIC = 2000.0, 500.0

ADVICE = Advice(
    advice_id="a1",
    incarnation="i1",
    job_key="k1",
    job_id="17",
    attempt=0,
    submitted_at=1000,
    user="alice",
    generation=3,
    action=Action.RESTART,
    exclude=("node2",),
    autonomous=True,
    expires_monotonic=MONOTONIC + 60,
)
FAILED = JobRow(
    job_id="17",
    shown_id="17",
    state="FAILED",
    restarts=0,
    submit=1000,
    eligible=1000,
    start=1001,
    end=1900,
    priority=10,
    user="alice",
    user_id=1,
    partition="main",
    nodes_wanted=2,
    batch=True,
    requeueable=True,
    nodes=("node1", "node2"),
    excluded=(),
)
PENDING = replace(
    FAILED, state="PENDING", restarts=1, submit=1998, eligible=2004, end=None, nodes=(), reason="BeginTime"
)
RUNNING = replace(FAILED, state="RUNNING", end=None)
LIMITS = Limits(act=True, in_scope=True, requeue_delay_seconds=6)


def go(
    advice: Advice = ADVICE, job: JobRow | None = FAILED, limits: Limits = LIMITS, *, now: float = NOW
) -> guard.Outcome:
    return plan(advice, job, limits, now=now, monotonic=MONOTONIC)


def update_of(outcome: guard.Outcome) -> Update:
    assert isinstance(outcome, Steps), outcome
    update = outcome.steps[-1]
    assert isinstance(update, Update)
    return update


def marked(job: JobRow, **changes: object) -> JobRow:
    values = {"job": "k1", "attempt": 0, "generation": 3, "nodes": ("node2",), "incarnation": "i1"}
    fragment = Mark(**(values | changes))  # type: ignore[arg-type]
    return replace(job, admin_comment=mark.render(fragment), excluded=(*(job.excluded or ()), *fragment.nodes))


# --- RESTART -------------------------------------------------------------------------------------------------------


def test_ended_attempt_is_requeued_and_updated() -> None:
    """First the requeue, then at once the update with exclusions and mark."""
    outcome = go()
    assert isinstance(outcome, Steps)
    assert outcome.steps[0] == RequeueEnded()
    update = update_of(outcome)
    assert (update.excluded, update.start_time) == (("node2",), None)
    found = mark.find(update.admin_comment)
    assert found is not None
    assert (found.job, found.attempt, found.generation, found.nodes) == ("k1", 0, 3, ("node2",))


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL"])
def test_other_ends_are_restarted_too(state: str) -> None:
    """Every end that is neither success nor cancellation."""
    assert isinstance(go(job=replace(FAILED, state=state)), Steps)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_cancelled_job_is_never_revived(restarts: int) -> None:
    """Neither the attempt nor its successor."""
    outcome = go(job=replace(FAILED, state="CANCELLED", restarts=restarts))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.CANCELLED


def test_a_completed_attempt_is_not_restarted() -> None:
    """Whatever the advice says."""
    assert isinstance(go(job=replace(FAILED, state="COMPLETED")), Withheld)


def test_completing_attempt_waits() -> None:
    """It is not known yet whether somebody cancelled it."""
    outcome = go(job=replace(FAILED, state="COMPLETING"))
    assert outcome == Wait(reason=Reason.STILL_COMPLETING, detail="whether somebody cancelled it is not visible yet")


@pytest.mark.parametrize("state", ["SOMETHING_NEW", "REVOKED", "DEADLINE", ""])
def test_nothing_is_concluded_from_an_unknown_state(state: str) -> None:
    """A later Slurm may have more words."""
    assert phase_of(state) is Phase.OTHER
    assert isinstance(go(job=replace(FAILED, state=state)), Wait)
    assert isinstance(go(job=replace(PENDING, state=state)), Withheld | Wait)


def test_live_attempt_only_when_the_advice_says_so() -> None:
    """`requeue incomplete`, never a plain requeue."""
    assert isinstance(go(job=RUNNING), Wait)
    outcome = go(replace(ADVICE, may_end_live_attempt=True), RUNNING)
    assert isinstance(outcome, Steps)
    assert outcome.steps[0] == RequeueLive()
    assert isinstance(outcome.steps[1], Update)


def test_pending_successor_is_only_updated() -> None:
    """Requeued by Slurm, the user, or by us just before we died."""
    outcome = go(job=PENDING)
    assert isinstance(outcome, Steps)
    assert [type(step) for step in outcome.steps] == [Update]


def test_successor_being_requeued_is_updated_while_completing() -> None:
    """The count is already the next one and there is no end: Slurm accepts and honours the update."""
    outcome = go(job=replace(RUNNING, state="COMPLETING", restarts=1))
    assert isinstance(outcome, Steps)
    assert [type(step) for step in outcome.steps] == [Update]


def test_completing_successor_with_an_end_waits() -> None:
    """It was cancelled, or it ran and ends."""
    assert isinstance(go(job=replace(FAILED, state="COMPLETING", restarts=1)), Wait)


def test_successor_with_nothing_wanted_is_satisfied() -> None:
    """Somebody requeued it, and there is nothing to exclude."""
    outcome = go(replace(ADVICE, exclude=()), PENDING)
    assert outcome == Satisfied(reason=Reason.ALREADY_REQUEUED)


@pytest.mark.parametrize("job", [PENDING, replace(PENDING, state="RUNNING")])
def test_our_mark_of_this_generation_means_done(job: JobRow) -> None:
    """That is what makes a restart of the agent harmless."""
    outcome = go(job=marked(job))
    assert outcome == Satisfied(reason=Reason.OBSERVED, by_us=True)


def test_a_mark_while_completing_waits_for_the_nodes() -> None:
    """Nothing is done twice while a dead node holds the job."""
    assert isinstance(go(job=marked(replace(RUNNING, state="COMPLETING", restarts=1))), Wait)


def test_a_newer_generation_on_the_job_supersedes() -> None:
    """A late message must not take exclusions away."""
    outcome = go(job=marked(PENDING, generation=4))
    assert isinstance(outcome, Withheld)
    assert (outcome.status, outcome.reason) == (Status.SUPERSEDED, Reason.NEWER_GENERATION)


def test_generations_of_another_store_do_not_compare() -> None:
    """A restored backup counts again from below."""
    job = marked(PENDING, generation=9, nodes=("node3",), incarnation="older store")
    assert update_of(go(job=job)).excluded == ("node2",)


def test_a_higher_generation_refines_the_exclusions() -> None:
    """Ours of before are subtracted, the user's stay."""
    job = marked(replace(PENDING, excluded=("node9",)), generation=2, nodes=("node3", "node4"))
    update = update_of(go(job=job))
    assert update.excluded == ("node9", "node2")


def test_what_the_watchdog_gave_back_stays_given_back() -> None:
    """No tug of war: a later generation for the same attempt does not take it again."""
    given = replace(marked(PENDING, nodes=(), generation=2, returned=True))
    outcome = go(job=given)
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.CAPACITY
    assert isinstance(go(job=marked(PENDING, nodes=(), returned=True)), Satisfied)


def test_running_without_our_exclusions_is_too_late() -> None:
    """A running attempt is never ended for exclusions."""
    outcome = go(job=replace(PENDING, state="RUNNING"))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.TOO_LATE


def test_running_with_the_exclusions_in_force_is_satisfied() -> None:
    """Somebody set them already."""
    outcome = go(job=replace(PENDING, state="RUNNING", excluded=("node2", "node5")))
    assert outcome == Satisfied(reason=Reason.ALREADY_REQUEUED)


def test_users_exclusions_and_those_of_earlier_attempts() -> None:
    """Scenario b: the user's plus node2 plus node3, and the mark names only ours."""
    job = replace(marked(replace(FAILED, restarts=1, submit=1500, excluded=("node4",))), end=1900)
    advice = replace(ADVICE, attempt=1, submitted_at=1500, exclude=("node2", "node3"))
    update = update_of(go(advice, job))
    assert update.excluded == ("node4", "node2", "node3")
    found = mark.find(update.admin_comment)
    assert found is not None
    assert (found.attempt, found.nodes) == (1, ("node2", "node3"))


def test_a_node_that_the_user_excluded_is_not_marked_as_ours() -> None:
    """Or the watchdog would take the user's own away."""
    update = update_of(go(job=replace(FAILED, excluded=("node2",))))
    found = mark.find(update.admin_comment)
    assert found is not None
    assert (update.excluded, found.nodes) == (("node2",), ())


def test_unknown_exclusions_wait() -> None:
    """Not known is not empty: the user's list would be lost."""
    assert isinstance(go(job=replace(FAILED, excluded=None)), Wait)


def test_hold_of_others_is_left_alone() -> None:
    """An administrator's hold, or a user's, is not ours to touch."""
    outcome = go(job=replace(PENDING, priority=0))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.HELD
    assert isinstance(go(job=replace(PENDING, priority=0, reason="BadConstraints")), Steps)


# --- caps ------------------------------------------------------------------------------------------------------------


def dropped(limits: Limits, exclude: tuple[str, ...], job: JobRow = FAILED) -> tuple[tuple[str, ...], Reason | None]:
    outcome = go(replace(ADVICE, exclude=exclude), job, limits)
    assert isinstance(outcome, Steps)
    return outcome.dropped, outcome.dropped_reason


def test_cap_on_exclusions_drops_the_least_certain() -> None:
    """The order is the advice's."""
    found = dropped(replace(LIMITS, exclusions_per_job=1), ("node3", "node1", "node2"))
    assert found == (("node2", "node1"), Reason.CAP_EXCLUSIONS)


def test_capacity_drops_until_the_job_can_start() -> None:
    """Four nodes fit, two are asked for, one is the user's: one exclusion is left."""
    limits = replace(LIMITS, fitting=("node1", "node2", "node3", "node4"))
    job = replace(FAILED, excluded=("node4",))
    assert dropped(limits, ("node2", "node3"), job) == (("node3",), Reason.CAPACITY)


def test_unknown_node_names_are_left_out() -> None:
    """Slurm would refuse the whole update for one of them."""
    assert dropped(replace(LIMITS, known=("node2",)), ("node2", "nodeX")) == (("nodeX",), Reason.SCHEDULER_REFUSED)


def test_cap_on_requeues_waits() -> None:
    """It is tried again within the time to live; updates are not requeues."""
    limits = replace(LIMITS, requeues_left=0)
    outcome = go(limits=limits)
    assert isinstance(outcome, Wait)
    assert outcome.reason is Reason.CAP_REQUEUES
    assert isinstance(go(job=PENDING, limits=limits), Steps)


# --- who may, what for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advice", "job", "limits", "status", "reason"),
    [
        (replace(ADVICE, autonomous=False), FAILED, LIMITS, Status.WITHHELD, Reason.MONITOR_MODE),
        (ADVICE, FAILED, replace(LIMITS, act=False), Status.WITHHELD, Reason.AGENT_OBSERVES),
        (ADVICE, FAILED, replace(LIMITS, in_scope=False), Status.WITHHELD, Reason.OUT_OF_SCOPE),
        (replace(ADVICE, expires_monotonic=MONOTONIC), FAILED, LIMITS, Status.EXPIRED, Reason.TIME_TO_LIVE),
        (ADVICE, replace(FAILED, batch=False), LIMITS, Status.WITHHELD, Reason.NOT_BATCH),
        (ADVICE, replace(FAILED, requeueable=False), LIMITS, Status.WITHHELD, Reason.NOT_REQUEUEABLE),
        (ADVICE, None, LIMITS, Status.ABANDONED, Reason.GONE),
        (ADVICE, replace(FAILED, user="bob"), LIMITS, Status.ABANDONED, Reason.OTHER_JOB),
        (ADVICE, replace(FAILED, submit=1001), LIMITS, Status.ABANDONED, Reason.OTHER_JOB),
        (ADVICE, replace(PENDING, submit=999), LIMITS, Status.ABANDONED, Reason.OTHER_JOB),
        (ADVICE, replace(PENDING, restarts=2), LIMITS, Status.SUPERSEDED, Reason.ATTEMPT_MOVED_ON),
        (replace(ADVICE, attempt=1), FAILED, LIMITS, Status.ABANDONED, Reason.OTHER_JOB),
        (ADVICE, replace(FAILED, restarts=1, submit=1500), LIMITS, Status.SUPERSEDED, Reason.ATTEMPT_MOVED_ON),
        (ADVICE, replace(FAILED, state="PENDING"), LIMITS, Status.WITHHELD, Reason.LIVE_ATTEMPT),
    ],
)
def test_withheld(advice: Advice, job: JobRow | None, limits: Limits, status: Status, reason: Reason) -> None:
    """Nothing is done, and the reason is a word."""
    outcome = go(advice, job, limits)
    assert isinstance(outcome, Withheld)
    assert (outcome.status, outcome.reason) == (status, reason)


def test_an_unread_comment_waits() -> None:
    """Not known is not out of scope."""
    outcome = go(limits=replace(LIMITS, in_scope=False, scope_known=False))
    assert isinstance(outcome, Wait)
    assert outcome.reason is Reason.SCHEDULER_UNAVAILABLE


def test_none_is_satisfied_by_anything() -> None:
    """Also by a job that is gone."""
    assert go(replace(ADVICE, action=Action.NONE), None) == Satisfied(reason=Reason.NOTHING_TO_DO)


# --- STOP ------------------------------------------------------------------------------------------------------------

STOP = replace(ADVICE, action=Action.STOP, exclude=())


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "COMPLETED", "TIMEOUT"])
def test_stop_of_an_ended_attempt_is_satisfied(state: str) -> None:
    """It is stopped; nothing is cancelled."""
    assert go(STOP, replace(FAILED, state=state)) == Satisfied(reason=Reason.ALREADY_STOPPED)


def test_stop_cancels_a_pending_successor_of_ours_or_a_live_attempt() -> None:
    """Only while it is in the state that was read; a live one only when the advice may end it."""
    assert go(STOP, marked(PENDING, generation=2)) == Steps(steps=(Cancel(state="PENDING"),))
    assert isinstance(go(STOP, RUNNING), Wait)
    live = replace(STOP, may_end_live_attempt=True)
    assert go(live, RUNNING) == Steps(steps=(Cancel(state="RUNNING"),))
    assert isinstance(go(live, replace(FAILED, state="COMPLETING")), Wait)


def test_a_stop_waits_for_the_same_cap_as_a_requeue() -> None:
    """However many jobs an advisor wants ended, the agent ends no more of them within a minute than it may requeue."""
    used_up = replace(LIMITS, requeues_left=0)
    for job in (RUNNING, marked(PENDING, generation=2)):
        outcome = go(replace(STOP, may_end_live_attempt=True), job, used_up)
        assert isinstance(outcome, Wait)
        assert outcome.reason is Reason.CAP_REQUEUES


def test_stop_leaves_a_successor_that_others_requeued() -> None:
    """Its user ran the failed job again before the stop was heard, or while no agent was there to hear it."""
    other = mark.render(Mark(job="k1", attempt=1, generation=2, incarnation="i1"))
    for comment in ("", other):
        outcome = go(STOP, replace(PENDING, admin_comment=comment))
        assert isinstance(outcome, Withheld)
        assert outcome.reason is Reason.ALREADY_REQUEUED


def test_stop_leaves_a_running_successor_alone() -> None:
    """The advice was for the attempt before it."""
    outcome = go(replace(STOP, may_end_live_attempt=True), replace(PENDING, state="RUNNING"))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.ATTEMPT_MOVED_ON


def test_stop_leaves_a_held_successor_to_its_holder() -> None:
    """A hold says that a person is at it."""
    outcome = go(STOP, replace(PENDING, priority=0))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.HELD


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 2**53},
        {"job_key": "k" * 201},
        {"incarnation": "i" * 201},
        {"decision_deadline": -5, "start_not_before": 3000},
    ],
)
def test_nothing_is_done_that_the_watchdog_could_not_undo(changes: dict[str, object]) -> None:
    """An advisor that says absurd things is not followed half: the requeue is planned only with a mark behind it."""
    outcome = go(replace(ADVICE, **changes))  # type: ignore[arg-type]
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.SCHEDULER_REFUSED


def test_a_list_that_cannot_be_sent_is_seen_before_the_requeue() -> None:
    """A user may exclude half of a very large cluster by name: Slurm takes a range, the update would be too long."""
    theirs = tuple(f"node{number:05}" for number in range(14_000))
    outcome = go(job=replace(FAILED, excluded=theirs))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.SCHEDULER_REFUSED


# --- StartTime -------------------------------------------------------------------------------------------------------


def lease(
    job: JobRow = PENDING, limits: Limits = LIMITS, *, now: float = NOW, **changes: int
) -> tuple[int | None, Mark]:
    update = update_of(go(replace(ADVICE, **changes), job, limits, now=now))  # type: ignore[arg-type]
    found = mark.find(update.admin_comment)
    assert found is not None
    return update.start_time, found


def test_a_lease_moves_start_time_and_remembers_what_it_found() -> None:
    """Slurm starts the job then by itself if we die."""
    start, found = lease(start_not_before=2030, decision_deadline=2040)
    assert (start, found.start, found.found, found.deadline) == (2030, 2030, 2004, 2040)


def test_a_lease_never_passes_the_deadline_or_the_local_cap() -> None:
    """Whoever asks for it."""
    assert lease(start_not_before=2900, decision_deadline=2040)[0] == 2040
    assert lease(start_not_before=9000, decision_deadline=9000)[0] == 2600
    assert lease(start_not_before=9000)[0] == 2600
    start, found = lease(delay_until=9000, decision_deadline=2040)
    assert (start, found.deadline) == (2600, 2600)


def test_a_lease_is_not_renewed_for_ever() -> None:
    """The local cap counts from when Slurm would have started the job: a new generation each minute gains nothing."""
    job, latest = PENDING, 0
    for number, now in enumerate(range(2000, 6000, 60), start=4):
        outcome = go(replace(ADVICE, generation=number, start_not_before=now + 500), job, now=float(now))
        update = update_of(outcome)
        begin = update.start_time if update.start_time is not None else job.eligible
        job = replace(job, eligible=begin, admin_comment=update.admin_comment)
        latest = max(latest, begin or 0)
        found = mark.find(update.admin_comment)
        assert found is not None
        assert found.deadline is not None
        assert found.deadline <= 2004 + LIMITS.lease_seconds_max
    assert 2500 < latest <= 2004 + LIMITS.lease_seconds_max


def test_slurms_own_delay_is_lease_enough() -> None:
    """Never earlier than submit time plus the requeue delay: slurmd would refuse the launch."""
    start, found = lease(start_not_before=2003, decision_deadline=2040)
    assert (start, found.start, found.found) == (None, None, None)


def test_a_later_begin_of_the_user_is_kept() -> None:
    """Never to before the one found."""
    start, found = lease(replace(PENDING, eligible=3000), start_not_before=2030, decision_deadline=2040)
    assert (start, found.start) == (None, None)


def test_a_lease_of_ours_is_given_back_by_the_next_generation() -> None:
    """To the one found then, the earliest legal one, or now, whichever is latest."""
    job = marked(replace(PENDING, eligible=2030), generation=2, start=2030, found=2004)
    assert lease(job)[0] == 2004
    assert lease(job, now=2010.5)[0] == 2011
    assert lease(replace(job, submit=2001))[0] == 2007
    later = marked(replace(PENDING, eligible=2030), generation=2, start=2030, found=2020)
    assert lease(later)[0] == 2020


def test_a_start_time_that_is_no_longer_ours_is_left_alone() -> None:
    """Users edit their jobs too."""
    job = marked(replace(PENDING, eligible=2500), generation=2, start=2030, found=2004)
    assert lease(job)[0] is None


def test_a_prolonged_lease_keeps_what_was_found_first() -> None:
    """Our own StartTime is not what we found."""
    job = marked(replace(PENDING, eligible=2030), generation=2, start=2030, found=2004)
    start, found = lease(job, start_not_before=2035, decision_deadline=2040)
    assert (start, found.start, found.found) == (2035, 2035, 2004)


def test_a_lease_while_completing_counts_from_now() -> None:
    """The submit time is rewritten only when the last node has answered."""
    job = replace(RUNNING, state="COMPLETING", restarts=1)
    assert lease(job, start_not_before=2005)[0] is None
    assert lease(job, start_not_before=2020)[0] == 2020


# --- whatever the world looks like -----------------------------------------------------------------------------------

NODES = st.sampled_from(("node1", "node2", "node3", "node4"))
STATES = st.sampled_from(
    (
        "PENDING",
        "RUNNING",
        "COMPLETING",
        "FAILED",
        "CANCELLED",
        "COMPLETED",
        "TIMEOUT",
        "SUSPENDED",
        "SPECIAL_EXIT",
        "X",
    )
)
TIMES = st.none() | st.integers(1900, 2700)


@st.composite
def rows(draw: st.DrawFn) -> JobRow:
    job = replace(
        FAILED,
        state=draw(STATES),
        restarts=draw(st.integers(0, 3)),
        submit=draw(st.sampled_from((900, 1000, 1998))),
        eligible=draw(TIMES),
        end=draw(st.sampled_from((None, 1900))),
        priority=draw(st.integers(0, 1)),
        reason=draw(st.sampled_from(("", "BadConstraints"))),
        batch=draw(st.booleans()),
        requeueable=draw(st.booleans()),
        excluded=draw(st.none() | st.lists(NODES, unique=True).map(tuple)),
    )
    if draw(st.booleans()) and job.excluded is not None:
        fragment = Mark(
            job="k1",
            attempt=draw(st.integers(0, 2)),
            generation=draw(st.integers(1, 5)),
            nodes=tuple(draw(st.lists(NODES, unique=True))),
            start=draw(TIMES),
            found=draw(TIMES),
            returned=draw(st.booleans()),
        )
        job = replace(job, admin_comment=f"text {mark.render(fragment)}")
    return job


ADVICES = st.builds(
    lambda **values: replace(ADVICE, **values),
    action=st.sampled_from(tuple(Action)),
    exclude=st.lists(NODES, unique=True).map(tuple),
    autonomous=st.booleans(),
    may_end_live_attempt=st.booleans(),
    start_not_before=TIMES,
    decision_deadline=TIMES,
    delay_until=TIMES,
    attempt=st.integers(0, 1),
    expires_monotonic=st.sampled_from((MONOTONIC - 1, MONOTONIC + 60)),
)
LIMITS_ANY = st.builds(
    lambda **values: replace(LIMITS, **values),
    act=st.booleans(),
    in_scope=st.booleans(),
    exclusions_per_job=st.integers(0, 3),
    requeues_left=st.integers(0, 2),
    lease_seconds_max=st.sampled_from((1.0, 600.0)),
    fitting=st.none() | st.lists(NODES, unique=True).map(tuple),
)


@given(ADVICES, rows(), LIMITS_ANY)
def test_invariants(advice: Advice, job: JobRow, limits: Limits) -> None:
    """What no world may make the guard do."""
    outcome = plan(advice, job, limits, now=NOW, monotonic=MONOTONIC)
    if not isinstance(outcome, Steps):
        return
    phase = phase_of(job.state)
    assert advice.autonomous
    assert limits.act
    assert limits.in_scope
    assert advice.expires_monotonic > MONOTONIC
    assert advice.attempt <= job.restarts <= advice.attempt + 1
    assert phase not in {Phase.CANCELLED, Phase.COMPLETED, Phase.OTHER}
    for at, step in enumerate(outcome.steps):
        if isinstance(step, RequeueEnded):
            assert at == 0
            assert phase in guard.RESTARTABLE
            assert job.restarts == advice.attempt
        if isinstance(step, RequeueLive):
            assert at == 0
            assert phase is Phase.RUNNING
            assert advice.may_end_live_attempt
        if isinstance(step, Cancel) and job.restarts > advice.attempt:
            assert guard.own_mark(advice, job) is not None
        if isinstance(step, RequeueEnded | RequeueLive):
            assert job.batch
            assert job.requeueable
            assert limits.requeues_left > 0
            assert job.submit == advice.submitted_at
            assert len(outcome.steps) == 2
        if isinstance(step, Update):
            check_update(step, advice, job, limits)


def check_update(step: Update, advice: Advice, job: JobRow, limits: Limits) -> None:
    before, after = mark.find(job.admin_comment), mark.find(step.admin_comment)
    assert after is not None
    assert job.excluded is not None
    assert job.submit is not None
    users = set(job.excluded) - set(before.nodes if before is not None else ())
    assert users <= set(step.excluded)
    assert set(step.excluded) - users == set(after.nodes) <= set(advice.exclude)
    assert len(after.nodes) <= limits.exclusions_per_job
    assert mark.remove(step.admin_comment) == mark.remove(job.admin_comment)
    assert after.deadline is not None
    assert after.deadline <= NOW + limits.lease_seconds_max
    if step.start_time is not None:
        assert step.start_time >= job.submit + limits.requeue_delay_seconds
        latest = max(after.deadline, job.eligible or 0)
        assert step.start_time <= latest
    if after.start is not None and step.start_time is not None:
        assert after.start == step.start_time <= after.deadline
