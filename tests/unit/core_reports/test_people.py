"""What people did, as inferred from the scheduler's records, and what could be mistaken for it."""

from typing import Any

import pytest

from advisor.core.people import Did, DrainedBy, Said, drained_by, infer
from advisor.core.words import Action, AttemptState, Category, NodeState
from tests.unit.core_reports.shadow_cases import (
    RULES,
    advised,
    at,
    change,
    follower,
    namesake,
    run,
    watched,
)

LATER = at(100_000)


def did(now: Any = LATER, **changes: Any) -> Did:
    return infer(watched(**changes), now, RULES).did


def test_a_failed_job_that_waits_again_was_requeued_by_somebody() -> None:
    """It was seen to have failed: Slurm never does that by itself."""
    act = infer(watched(followers=(follower(),)), LATER, RULES)
    assert (act.did, act.at, act.sure) == (Did.REQUEUED, at(600), 0.95)


def test_a_running_job_that_waits_again_was_likely_requeued_by_somebody() -> None:
    """Its end was not seen, and nothing says that Slurm or its script did it: less sure."""
    ended = run(state=AttemptState.COMPLETING)
    act = infer(watched(run=ended, exit_code=None, fault_at=at(-400), followers=(follower(),)), LATER, RULES)
    assert (act.did, act.sure) == (Did.REQUEUED, 0.7)


@pytest.mark.parametrize("state", [AttemptState.NODE_FAILURE, AttemptState.PREEMPTED])
def test_slurms_own_requeue_is_nobodys_action(state: AttemptState) -> None:
    """After a node's failure and a preemption Slurm requeues by itself."""
    assert did(run=run(state=state), exit_code=None, fault_at=at(-400), followers=(follower(),)) is Did.SCHEDULER


def test_a_node_that_went_down_explains_the_requeue() -> None:
    """Slurm never shows NODE_FAIL of a job that it requeues: the node's own state tells."""
    changes = (change("node3", -30, NodeState.DOWN, "Not responding"),)
    unseen = run(state=AttemptState.COMPLETING)
    assert did(run=unseen, exit_code=None, changes=changes, followers=(follower(),)) is Did.SCHEDULER
    elsewhere = (change("node9", -30, NodeState.DOWN),)
    assert did(run=unseen, exit_code=None, changes=elsewhere, followers=(follower(),)) is Did.REQUEUED


def test_a_node_that_went_down_does_not_explain_the_requeue_of_a_job_that_was_seen_to_fail() -> None:
    """The automatic requeue never shows FAILED, so somebody did it."""
    changes = (change("node3", -30, NodeState.DOWN),)
    assert did(changes=changes, followers=(follower(),)) is Did.REQUEUED


def test_requeue_exit_of_the_site_is_nobodys_action() -> None:
    """An exit code, and never seen to have failed: RequeueExit in slurm.conf."""
    unseen = run(state=AttemptState.COMPLETING)
    act = infer(watched(run=unseen, exit_code=111, followers=(follower(),)), LATER, RULES)
    assert act.did is Did.SCHEDULER
    assert "RequeueExit" in act.why


def test_a_script_that_requeues_itself_is_nobodys_action() -> None:
    """Two seconds after its fault no person has understood anything yet."""
    unseen = run(state=AttemptState.COMPLETING)
    again = (follower(submitted_at=at(1)),)
    assert did(run=unseen, exit_code=None, fault_at=at(-1), followers=again) is Did.JOB
    assert did(run=unseen, exit_code=None, fault_at=at(-60), followers=again) is Did.REQUEUED


def test_our_own_action_is_nobodys() -> None:
    """The scheduler accepted our advice, or our mark is on the next attempt."""
    assert did(advised=(advised(autonomous=True, applied=True),), followers=(follower(),)) is Did.ADVISOR
    assert did(followers=(follower(ours=True),)) is Did.ADVISOR
    assert did(advised=(advised(autonomous=True, applied=False),), followers=(follower(),)) is Did.REQUEUED


@pytest.mark.parametrize(
    ("action", "recorded", "found"),
    [
        (Action.RESTART, Did.REQUEUED, Did.ADVISOR),
        (Action.RESTART, Did.CANCELLED, Did.CANCELLED),
        (Action.STOP, Did.CANCELLED, Did.ADVISOR),
        (Action.STOP, Did.RESUBMITTED, Did.RESUBMITTED),
    ],
)
def test_a_record_of_what_we_did_is_no_act_of_peoples(action: Action, recorded: Did, found: Did) -> None:
    """Our own restart, recorded as a requeue, would agree with itself; anything else that is said wins over it."""
    ours = (advised(autonomous=True, applied=True, action=action),)
    assert did(advised=ours, said=Said(did=recorded, did_at=at(700), who="ada")) is found


def test_a_cancel_is_a_cancel_of_the_attempt_or_of_the_one_that_waits() -> None:
    """Also after somebody had requeued it."""
    assert did(run=run(state=AttemptState.CANCELLED)) is Did.CANCELLED
    waiting = follower(state=AttemptState.CANCELLED, started_at=None, ended_at=at(700))
    act = infer(watched(followers=(waiting,)), LATER, RULES)
    assert (act.did, act.at) == (Did.CANCELLED, at(700))
    ran = follower(state=AttemptState.CANCELLED, ended_at=at(9000))
    assert did(followers=(ran,)) is Did.REQUEUED


def test_a_resubmission_is_told_by_user_name_and_shape() -> None:
    """The same name, nodes, partition and output, within the hour: as sure as an inference gets."""
    act = infer(watched(namesakes=(namesake(),)), LATER, RULES)
    assert (act.did, act.job_id, act.at, act.sure) == (Did.RESUBMITTED, "9", at(900), 0.95)


def test_a_cancelled_job_that_is_submitted_again_was_restarted() -> None:
    """Cancel and sbatch is how people restart a job that hangs."""
    assert did(run=run(state=AttemptState.CANCELLED), namesakes=(namesake(),)) is Did.RESUBMITTED


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"submitted_at": at(-60)}, id="submitted before the fault"),
        pytest.param({"submitted_at": at(90_000)}, id="after the time for it"),
        pytest.param({"number": 1}, id="not a first attempt"),
        pytest.param({"job_key": "k1"}, id="itself"),
    ],
)
def test_what_is_no_resubmission(other: dict[str, Any]) -> None:
    """Then the job was left as it was."""
    assert did(namesakes=(namesake(**other),)) is Did.NOTHING


def test_tasks_of_the_same_array_and_components_of_the_same_job_are_no_resubmission() -> None:
    """A task that Slurm splits off later appears as a new job id, and is none."""
    array = watched(run=run(array_job_id="5"), namesakes=(namesake(array_job_id="5"),))
    assert infer(array, LATER, RULES).did is Did.NOTHING
    het = watched(run=run(het_job_id="5"), namesakes=(namesake(het_job_id="5"),))
    assert infer(het, LATER, RULES).did is Did.NOTHING


def test_a_user_who_submits_for_another_reason_is_not_taken_for_one_who_restarts() -> None:
    """Others of the name ran beside it, and the new one has another size: too unsure to count for anything."""
    beside = [namesake(job_key=f"k{n}", submitted_at=at(-500), ended_at=None) for n in (2, 3)]
    new = namesake(nodes_requested=1, stdout="/home/ada/other.out")
    act = infer(watched(namesakes=(*beside, new)), LATER, RULES)
    assert act.sure < RULES.sure_min
    assert "ran beside it" in act.why


def test_another_job_of_the_name_beside_it_makes_a_copy_unsure() -> None:
    """A sweep's next job looks like a resubmission in everything else."""
    beside = namesake(job_key="k2", submitted_at=at(-500), ended_at=None)
    over = namesake(job_key="k2", submitted_at=at(-500), ended_at=at(-100))
    assert infer(watched(namesakes=(beside, namesake())), LATER, RULES).sure < RULES.sure_min
    assert infer(watched(namesakes=(over, namesake())), LATER, RULES).sure == 0.95


def test_a_name_that_many_jobs_have_says_little() -> None:
    """`python` and `wrap` are not names of one job."""
    act = infer(watched(name="wrap", namesakes=(namesake(nodes_requested=None, stdout=""),)), LATER, RULES)
    assert act.sure < RULES.sure_min


def test_a_reused_job_id_is_another_job() -> None:
    """The same number under another key is a resubmission if it is its user's and name's, never an attempt of it."""
    act = infer(watched(namesakes=(namesake(job_id="7"),)), LATER, RULES)
    assert (act.did, act.job_id) == (Did.RESUBMITTED, "7")


def test_nothing_is_an_answer_only_when_there_was_time_for_another() -> None:
    """Before the window is over nobody has said anything."""
    assert did(now=at(3600)) is Did.WAITING
    assert did(now=at(86_400)) is Did.NOTHING


def test_a_live_attempt_waits_and_a_forgotten_one_is_unknown() -> None:
    """What the scheduler no longer shows is not an answer."""
    live = run(state=AttemptState.RUNNING, ended_at=None)
    assert did(run=live) is Did.WAITING
    assert did(run=live, forgotten=True) is Did.UNKNOWN
    assert did(run=run(state=AttemptState.COMPLETED)) is Did.FINISHED


def test_nodes_that_people_exclude_are_theirs_only_when_new() -> None:
    """What the user always excluded says nothing about this failure."""
    excluding = follower(excluded=("node2", "node8"))
    act = infer(watched(run=run(excluded=("node8",)), followers=(excluding,)), LATER, RULES)
    assert act.excluded == ("node2",)


@pytest.mark.parametrize(
    ("drain", "told"),
    [
        pytest.param(change("node2", 300, NodeState.DRAINING, "gpu 3 is gone"), True, id="by a person"),
        pytest.param(change("node2", 300, NodeState.DRAINING, "NHC: gpu missing"), False, id="by a tool"),
        pytest.param(change("node2", 300, NodeState.DRAINING, "Kill task failed"), False, id="by Slurm"),
        pytest.param(change("node2", 300, NodeState.DRAINING, "advisor: 0190 gpu_hardware"), False, id="by us"),
        pytest.param(change("node2", -9000, NodeState.DRAINING, "gpu 3 is gone"), False, id="long before"),
        pytest.param(change("node2", 90_000, NodeState.DRAINING, "gpu 3 is gone"), False, id="long after"),
        pytest.param(change("node9", 300, NodeState.DRAINING, "gpu 3 is gone"), False, id="of another job's node"),
        pytest.param(
            change("node2", 300, NodeState.DRAINED, "gpu 3 is gone", NodeState.DRAINING), False, id="drained before"
        ),
    ],
)
def test_a_drain_is_peoples_answer_only_from_the_fault_on(drain: Any, told: bool) -> None:
    """Of a node of the attempt, by somebody who is not a program."""
    assert infer(watched(changes=(drain,), followers=(follower(),)), LATER, RULES).drained == (
        ("node2",) if told else ()
    )


def test_whose_a_drain_is() -> None:
    """By the reason's beginning; an unknown one is a person's."""
    reasons = {
        "advisor: 0190 gpu_hardware": DrainedBy.ADVISOR,
        "Prolog error": DrainedBy.SLURM,
        "NHC: check_hw failed": DrainedBy.TOOL,
        "bob: replacing DIMM": DrainedBy.PEOPLE,
        "": DrainedBy.PEOPLE,
    }
    assert {text: drained_by(text, RULES) for text in reasons} == reasons


def test_what_somebody_recorded_wins_over_what_is_inferred() -> None:
    """Also over a requeue that the scheduler shows."""
    said = Said(did=Did.OTHER, did_at=at(50), who="bob", why="moved to the other cluster", nodes=("node4",))
    act = infer(watched(said=said, followers=(follower(),)), LATER, RULES)
    assert (act.did, act.by, act.sure, act.nodes) == (Did.OTHER, "bob", 1.0, ("node4",))


def test_an_event_of_the_scheduler_is_nobodys_action() -> None:
    """Trusted evidence said that the scheduler ended it, and its end was not seen."""
    event = (advised(category=Category.SCHEDULER_EVENT),)
    unseen = run(state=AttemptState.COMPLETING)
    assert did(run=unseen, exit_code=None, fault_at=at(-400), advised=event, followers=(follower(),)) is Did.SCHEDULER
