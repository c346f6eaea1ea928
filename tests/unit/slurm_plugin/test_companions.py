"""Jobs beside the one advised on: components, dependents, and jobs that Slurm itself holds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from slurm_plugin import apply, guard, holds, mark
from slurm_plugin.apply import Clocks, Request, Result, carry_out
from slurm_plugin.dependencies import Chains
from slurm_plugin.guard import Action, Advice, Around, Limits, Reason, Satisfied, Status, Steps, Wait, Withheld
from slurm_plugin.mark import Mark
from slurm_plugin.observe import Memory
from slurm_plugin.records import JobRow
from slurm_plugin.scope import ScopeConfig
from slurm_plugin.sharing import Companion, lacks, released, share
from slurm_plugin.squeue import Output, Slurm, SlurmError
from slurm_plugin.tending import relief
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm

ADVICE = Advice(
    advice_id="a",
    incarnation="i",
    job_key="k",
    job_id="17",
    attempt=0,
    submitted_at=1000,
    user="alice",
    generation=1,
    action=Action.RESTART,
    exclude=("node2", "node3"),
    autonomous=True,
    expires_monotonic=1e9,
)
LIMITS = Limits(act=True, in_scope=True, requeue_delay_seconds=6, requeue_exit_hold=(112,))
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
    nodes_wanted=1,
    batch=True,
    requeueable=True,
    nodes=("node1",),
    excluded=(),
)
LEADER = replace(FAILED, shown_id="17+0", het_job_id="17", het_offset=0)
OTHER = replace(FAILED, job_id="18", shown_id="17+1", het_job_id="17", het_offset=1)
WAITS = replace(FAILED, job_id="30", shown_id="30", state="PENDING", end=None, nodes=(), dependency="afterany:17")
KEPT = replace(
    FAILED, state="SPECIAL_EXIT", reason="JobHeldUser", restarts=1, submit=1900, end=None, priority=0, exit_status=28672
)
OPTED = '{"advisor": true}'
DEPENDENT = Companion(job_id="30", shown_id="30", user="alice", waited=True, in_scope=True)


def plan(job: JobRow, around: Around = guard.ALONE, advice: Advice = ADVICE) -> guard.Outcome:
    return guard.plan(advice, job, LIMITS, now=2000.0, monotonic=0.0, around=around)


# --- heterogeneous jobs --------------------------------------------------------------------------------------------


def test_only_the_leaders_advice_requeues_an_ended_job() -> None:
    """One requeue takes all components; the other's advice follows with its exclusions."""
    around = Around(components=(LEADER, OTHER))
    outcome = plan(LEADER, around)
    assert isinstance(outcome, Steps)
    assert isinstance(outcome.steps[0], guard.RequeueEnded)
    waits = plan(OTHER, around, replace(ADVICE, job_id="18"))
    assert isinstance(waits, Wait)
    assert waits.reason is Reason.LIVE_ATTEMPT


@pytest.mark.parametrize(
    ("state", "kind"), [("RUNNING", Wait), ("COMPLETING", Wait), ("CANCELLED", Withheld), ("FAILED", Steps)]
)
def test_a_requeue_waits_for_every_component(state: str, kind: type) -> None:
    """A plain requeue would end the one that runs, and revive the one that was cancelled."""
    assert isinstance(plan(LEADER, Around(components=(LEADER, replace(OTHER, state=state)))), kind)


def test_components_that_could_not_be_read_are_not_none() -> None:
    """Nothing is concluded from a leader alone."""
    assert isinstance(plan(LEADER), Wait)


def test_a_live_end_may_come_from_any_component() -> None:
    """The bad node is where it is."""
    running = replace(OTHER, state="RUNNING", end=None)
    advice = replace(ADVICE, job_id="18", may_end_live_attempt=True)
    outcome = plan(running, Around(components=(replace(LEADER, state="RUNNING"), running)), advice)
    assert isinstance(outcome, Steps)
    assert isinstance(outcome.steps[0], guard.RequeueLive)


# --- Slurm's own hold ----------------------------------------------------------------------------------------------


def test_slurms_own_hold_is_released_after_the_exclusions() -> None:
    """A death in between leaves what the site asked for; the next process only releases."""
    outcome = plan(KEPT)
    assert isinstance(outcome, Steps)
    update, release = outcome.steps
    assert isinstance(update, guard.Update)
    assert isinstance(release, guard.Release)
    again = plan(replace(KEPT, excluded=update.excluded, admin_comment=update.admin_comment))
    assert again == Steps(steps=(guard.Release(),))


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "JobHeldAdmin"},
        {"reason": "job requeued in held state"},
        {"exit_status": 5 << 8},
        {"exit_status": 9},
        {"state": "PENDING"},
        {"restarts": 0},
    ],
)
def test_nobody_elses_hold_is_released(changes: dict[str, object]) -> None:
    """An administrator's, a user's requeuehold, another exit code, a plain hold."""
    assert holds.by_requeue_exit(KEPT, (112,))
    job = replace(KEPT, **changes)  # type: ignore[arg-type]
    assert not holds.by_requeue_exit(job, (112,))
    outcome = plan(job)
    assert isinstance(outcome, Withheld)


def test_a_stop_leaves_slurms_hold_in_place() -> None:
    """It does not run: that is all a stop wants."""
    outcome = plan(KEPT, advice=replace(ADVICE, action=Action.STOP))
    assert outcome == Satisfied(reason=Reason.ALREADY_STOPPED, detail="held by Slurm's RequeueExitHold, and left so")


def test_what_slurm_holds_is_the_failed_attempt() -> None:
    """Slurm shows its end only as the next one; without a memory of it, it is what it is."""
    memory = Memory(requeue_exit_hold=(112,))
    first = memory.learn(replace(FAILED, state="RUNNING", end=None))
    assert memory.learn(KEPT) == first
    assert memory.allocation(KEPT, first) == ("node1",)
    assert memory.learn(replace(KEPT, state="PENDING", reason="None", exit_status=0)).number == 1
    assert Memory(requeue_exit_hold=(112,)).learn(KEPT).number == 1


# --- dependents ----------------------------------------------------------------------------------------------------


def test_who_waited_is_remembered_when_slurm_no_longer_shows_it() -> None:
    """afterany by id, singleton by user and name; of another attempt or name nothing is known."""
    alone = replace(WAITS, job_id="31", shown_id="31", dependency="singleton(unfulfilled)")
    names = {"17": "train", "30": "x", "31": "train"}
    chains = Chains()
    rows = {row.job_id: row for row in (replace(FAILED, state="RUNNING"), WAITS, alone)}
    chains.learn(rows, names)
    free = {"17": FAILED, "30": replace(WAITS, dependency=""), "31": replace(alone, state="RUNNING", dependency="")}
    chains.learn(free, names)
    found = chains.dependents(FAILED, 0, free)
    assert {row.job_id for row in found} == {"30", "31"}
    assert released(FAILED, found) == ("30", "31")
    assert released(FAILED, (WAITS, alone)) == ()
    chains.learn({"17": FAILED}, names)
    assert chains.dependents(FAILED, 0, free) == ()


def test_components_of_one_job_do_not_wait_for_each_other() -> None:
    """A heterogeneous job with `singleton` is requeued: its leader waits already while a component still ends."""
    chains, names = Chains(), {"17": "train", "18": "train"}
    leader = replace(LEADER, state="PENDING", restarts=1, nodes=(), dependency="singleton(unfulfilled)")
    ending = replace(OTHER, state="COMPLETING", restarts=1)
    chains.learn({"17": leader, "18": ending}, names)
    both = {"17": replace(LEADER, state="RUNNING", restarts=1), "18": replace(OTHER, state="RUNNING", restarts=1)}
    assert chains.dependents(both["18"], 1, both) == ()


def test_an_id_that_is_given_away_again_has_no_dependents() -> None:
    """Slurm has forgotten the job that was waited for; another one gets its number while the dependent still runs."""
    chains = Chains()
    chains.learn({"17": replace(FAILED, state="RUNNING"), "30": WAITS}, {})
    runs = replace(WAITS, state="RUNNING", dependency="")
    chains.learn({"17": FAILED, "30": runs}, {})
    chains.learn({"30": runs}, {})
    again = replace(FAILED, submit=9000, user="bob")
    chains.learn({"17": again, "30": runs}, {})
    assert chains.dependents(again, 0, {"17": again, "30": runs}) == ()


def test_a_released_dependent_forbids_the_requeue() -> None:
    """It was let go when the job failed: the requeued job would run beside it."""
    outcome = plan(FAILED, Around(released=("30",)))
    assert isinstance(outcome, Withheld)
    assert outcome.reason is Reason.DEPENDENT_RELEASED
    assert isinstance(plan(replace(KEPT), Around(released=("30",))), Withheld)


def test_a_waiting_dependent_inherits_beside_what_it_has() -> None:
    """Its user's list stays; the mark says what is ours, and that no advice on itself stands behind it."""
    row = replace(WAITS, excluded=("node9",), admin_comment="note")
    step = share(row, DEPENDENT, ADVICE, LIMITS, ScopeConfig(), '{"advisor": true}')
    assert isinstance(step, guard.Update)
    assert step.excluded == ("node9", "node2", "node3")
    assert step.start_time is None
    found = mark.find(step.admin_comment)
    assert found == Mark(job="", attempt=0, generation=0, nodes=("node2", "node3"), inherited=("node2", "node3"))
    assert not found.advised
    assert not lacks(replace(row, excluded=step.excluded), ADVICE.exclude)


@pytest.mark.parametrize(
    ("row", "comment", "why"),
    [
        (WAITS, "", "out of scope"),
        (replace(WAITS, user="bob"), '{"advisor": true}', "another user's"),
        (replace(WAITS, state="RUNNING"), '{"advisor": true}', "nothing to add"),
        (replace(WAITS, excluded=None), '{"advisor": true}', "nothing to add"),
        (
            replace(WAITS, admin_comment=mark.render(Mark(job="", attempt=0, generation=0, returned=True))),
            '{"advisor": true}',
            "nothing to add",
        ),
    ],
)
def test_who_does_not_inherit(row: JobRow, comment: str, why: str) -> None:
    """Out of scope, another user's, no longer waiting, not readable, or given back by the watchdog."""
    step = share(row, DEPENDENT, ADVICE, LIMITS, ScopeConfig(), comment)
    assert isinstance(step, str)
    assert step.startswith(why)


def test_what_kept_a_job_from_starting_is_not_shared_again() -> None:
    """Slurm says that its exclusions are too many: what was given back for that stays so, or it would never start."""
    inherits = share(WAITS, DEPENDENT, ADVICE, LIMITS, ScopeConfig(), '{"advisor": true}')
    assert isinstance(inherits, guard.Update)
    row = replace(WAITS, excluded=inherits.excluded, admin_comment=inherits.admin_comment)
    relieved = relief(replace(row, reason="BadConstraints", priority=0, dependency=""), None)
    assert relieved is not None
    assert relieved.dropped == ("node3",)
    after = replace(row, excluded=relieved.update.excluded, admin_comment=relieved.update.admin_comment)
    assert not lacks(after, ADVICE.exclude)
    step = share(after, DEPENDENT, replace(ADVICE, exclude=("node2", "node3", "node4")), LIMITS, ScopeConfig(), OPTED)
    assert isinstance(step, guard.Update)
    assert step.excluded == ("node2", "node4")
    found = mark.find(step.admin_comment)
    assert found is not None
    assert found.spared == ("node3",)


def test_nothing_is_shared_on_advice_whose_time_is_over() -> None:
    """The advisor has been dead for hours: a job that waited since then gets nothing any more."""
    slurm = FakeSlurm()
    slurm.add(FakeJob(requeueable=False))
    slurm.add(FakeJob(job_id="30", state="PENDING", end=None, nodes="", dependency="afterany:17"))
    old = replace(ADVICE, action=Action.NONE, cause="not_restartable", expires_monotonic=0.0)
    assert run(slurm, DEPENDENT, advice=old, only=True).shared == ()
    assert run(slurm, DEPENDENT, advice=replace(old, expires_monotonic=1.0), only=True).shared == ("30",)


def test_sharing_is_bounded_by_cap_and_capacity() -> None:
    """Both cut the least certain; what is there already counts."""
    opted = '{"advisor": true}'
    capped = share(WAITS, DEPENDENT, ADVICE, replace(LIMITS, exclusions_per_job=1), ScopeConfig(), opted)
    assert isinstance(capped, guard.Update)
    assert capped.excluded == ("node2",)
    two = replace(DEPENDENT, fitting=("node2", "node3"))
    fits = share(WAITS, two, ADVICE, LIMITS, ScopeConfig(), opted)
    assert isinstance(fits, guard.Update)
    assert fits.excluded == ("node2",)


def test_inherited_exclusions_survive_the_jobs_own_advice_and_go_first() -> None:
    """Ours of before are replaced, what another job's advice named is kept as long as there is room."""
    pending = replace(
        FAILED,
        state="PENDING",
        restarts=1,
        submit=1998,
        eligible=2004,
        end=None,
        excluded=("node7",),
        admin_comment=mark.render(Mark(job="", attempt=0, generation=0, nodes=("node7",), inherited=("node7",))),
    )
    outcome = plan(pending)
    assert isinstance(outcome, Steps)
    update = outcome.steps[0]
    assert isinstance(update, guard.Update)
    assert update.excluded == ("node2", "node3", "node7")
    found = mark.find(update.admin_comment)
    assert found is not None
    assert (found.job, found.inherited) == ("k", ("node7",))
    tight = guard.plan(ADVICE, pending, replace(LIMITS, exclusions_per_job=2), now=2000.0, monotonic=0.0)
    assert isinstance(tight, Steps)
    assert tight.dropped == ("node7",)


# --- the acting process --------------------------------------------------------------------------------------------


def run(
    slurm: FakeSlurm, *companions: Companion, advice: Advice = ADVICE, shown: str = "17", only: bool = False
) -> Result:
    request = Request(
        advice=advice, shown_id=shown, limits=LIMITS, scope=ScopeConfig(), companions=companions, shares_only=only
    )
    request = apply.decode(apply.encode(request))
    return carry_out(request, slurm, Clocks(wall=lambda: slurm.now, monotonic=lambda: 0.0))


def waiting(**changes: object) -> FakeJob:
    values = {"job_id": "30", "state": "PENDING", "end": None, "nodes": "", "dependency": "afterany:17(unfulfilled)"}
    return FakeJob(**(values | changes))  # type: ignore[arg-type]


def test_the_requeue_and_its_dependents_in_one_go() -> None:
    """Requeue, update, and then the one that waits."""
    slurm = FakeSlurm()
    slurm.add(FakeJob())
    after = slurm.add(waiting())
    result = run(slurm, DEPENDENT)
    assert (result.status, result.shared) == (Status.APPLIED, ("30",))
    assert (after.excluded, after.state, after.restarts) == ("node2,node3", "PENDING", 0)


def test_a_dependent_that_is_let_go_just_before_is_seen() -> None:
    """The agent's look was older: the acting process looks again, and the one let go still gets the exclusions."""
    slurm = FakeSlurm()
    job = slurm.add(FakeJob())
    after = slurm.add(waiting(dependency=""))
    result = run(slurm, DEPENDENT)
    assert (result.status, result.reason) == (Status.WITHHELD, Reason.DEPENDENT_RELEASED)
    assert (slurm.requeues, job.state) == (0, "FAILED")
    assert after.excluded == "node2,node3"


def test_a_requeue_beside_one_that_is_let_go_in_that_moment_is_taken_back() -> None:
    """Waiting at the look, let go before slurmctld served the requeue: the job is over, as it was, and nothing else."""
    slurm = FakeSlurm()
    job, after = slurm.add(FakeJob()), slurm.add(waiting())

    def let_go(argv: Sequence[str]) -> None:
        if "requeue" in argv:
            after.dependency = ""
            slurm.started(after)

    slurm.before = let_go
    result = run(slurm, DEPENDENT)
    assert (result.status, result.reason) == (Status.WITHHELD, Reason.DEPENDENT_RELEASED)
    assert [verb.name for verb in result.done] == ["requeue", "cancel"]
    assert (job.state, job.restarts, job.admin_comment, after.state) == ("CANCELLED", 1, "", "RUNNING")


def test_a_requeue_stands_when_nothing_can_be_seen_right_after_it() -> None:
    """slurmctld does not answer the look behind the requeue: what the look before it showed holds."""
    slurm = FakeSlurm()
    job = slurm.add(FakeJob())
    slurm.add(waiting())

    def silent(argv: Sequence[str]) -> None:
        if slurm.requeues and argv[0].endswith("squeue") and not job.admin_comment:
            raise SlurmError("timeout", "squeue")

    slurm.before = silent
    result = run(slurm, DEPENDENT)
    assert (result.status, job.state, job.excluded) == (Status.APPLIED, "PENDING", "node2,node3")


def test_sharing_alone_does_nothing_else() -> None:
    """Also when the job itself would need something by now."""
    slurm = FakeSlurm()
    slurm.add(FakeJob())
    after = slurm.add(waiting())
    assert run(slurm, DEPENDENT, only=True).status is Status.PENDING
    assert (slurm.requeues, after.excluded) == (0, "")
    none = replace(ADVICE, action=Action.NONE, cause="not_restartable")
    assert run(slurm, DEPENDENT, advice=none, only=True).shared == ("30",)
    assert after.excluded == "node2,node3"
    assert run(slurm, DEPENDENT, advice=replace(none, cause="user_cancelled"), only=True).shared == ()


def test_a_heterogeneous_job_is_requeued_once_and_excluded_everywhere() -> None:
    """The leader by its id, each component by its own name."""
    slurm = FakeSlurm()
    leader = slurm.add(FakeJob(het=("17", 0), nodes_wanted=1))
    other = slurm.add(FakeJob(job_id="18", het=("17", 1), nodes_wanted=1, comment="", excluded="node9"))
    component = Companion(job_id="18", shown_id="17+1", user="alice", waited=False, in_scope=True)
    result = run(slurm, component, shown="17+0")
    assert (result.status, result.shared) == (Status.APPLIED, ("17+1",))
    assert (leader.excluded, other.excluded) == ("node2,node3", "node9,node2,node3")
    assert (leader.restarts, other.restarts, slurm.requeues) == (1, 1, 1)


def test_slurms_hold_is_released_by_the_acting_process() -> None:
    """Update, then release; an administrator's hold that came in between stays."""
    slurm = FakeSlurm()
    kept = {"state": "SPECIAL_EXIT", "reason": "JobHeldUser", "restarts": 1, "submit": 1190, "end": None, "priority": 0}
    job = slurm.add(FakeJob(exit_status=112 << 8, **kept))  # type: ignore[arg-type]
    assert [verb.name for verb in run(slurm).done] == ["update", "release"]
    assert (job.state, job.excluded) == ("PENDING", "node2,node3")
    assert run(slurm).by_us
    slurm = FakeSlurm()
    job = slurm.add(FakeJob(exit_status=112 << 8, **(kept | {"reason": "JobHeldAdmin"})))  # type: ignore[arg-type]
    assert run(slurm).reason is Reason.HELD
    assert job.state == "SPECIAL_EXIT"


def test_what_the_job_insists_on_is_left_out() -> None:
    """--nodelist: excluding it would only keep the job from ever starting."""
    outcome = guard.plan(ADVICE, FAILED, replace(LIMITS, required=("node3",)), now=2000.0, monotonic=0.0)
    assert isinstance(outcome, Steps)
    assert (outcome.dropped, outcome.dropped_reason) == (("node3",), Reason.CAPACITY)


def test_an_empty_answer_about_a_job_is_no_answer() -> None:
    """Slurm says so when it does not know a job; of several it says nothing, and is asked about the first."""

    def empty(argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        return Output(returncode=0, stdout=b"", stderr=b"")

    with pytest.raises(SlurmError, match="did not call unknown"):
        Slurm(run=empty).jobs("17", "30")
    assert Slurm(run=FakeSlurm()).jobs("17") == ()
    assert Slurm(run=empty).jobs("19_2") == ()
