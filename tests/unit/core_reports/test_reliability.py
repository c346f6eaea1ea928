"""Reliability figures, computed by hand."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from advisor.core.reliability import (
    AttemptFacts,
    Window,
    by_size,
    checkpoint_interval,
    daly,
    effective,
    false_alarms,
    figures,
    grouped,
    recoveries,
    restart_success,
    size_of,
    young,
)
from advisor.core.words import AttemptState, Category

T0 = datetime(2026, 11, 1, tzinfo=UTC)
WINDOW = Window(since=T0, until=T0 + timedelta(days=10))


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def attempt(number: int = 0, job: str = "k1", **changes: Any) -> AttemptFacts:
    """24 hours on 4 nodes with 32 GPUs, completed."""
    made = AttemptFacts(
        job_key=job,
        number=number,
        job_id=job[1:],
        cluster="alps",
        partition="gpu",
        user="ada",
        state=AttemptState.COMPLETED,
        submitted_at=at(0),
        eligible_at=at(0),
        started_at=at(0),
        ended_at=at(24),
        nodes=4,
        gpus=32,
    )
    return replace(made, **changes)


def failed(number: int = 0, job: str = "k1", **changes: Any) -> AttemptFacts:
    values = {"state": AttemptState.FAILED, "category": Category.GPU_HARDWARE, "kind": "crash"}
    return attempt(number, job, **(values | changes))


def test_failures_per_thousand_node_days() -> None:
    """Two jobs of four nodes for a day each and one failure: 8 node-days, 125 per 1,000."""
    found = figures([failed(), attempt(job="k2")], WINDOW)
    assert (found.node_days, found.failures, found.gpu_hours) == (8.0, 1, 48 * 32)
    assert found.failure_rate.value == pytest.approx(125.0)
    assert found.failure_rate.low == pytest.approx(0.025318 / 0.008, rel=1e-3)
    assert found.failure_rate.high == pytest.approx(5.5716 / 0.008, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "failure", "infrastructure"),
    [
        pytest.param({}, True, True, id="hardware"),
        pytest.param({"category": Category.APPLICATION}, True, False, id="its own fault"),
        pytest.param({"state": AttemptState.NODE_FAILURE, "category": Category.SCHEDULER_EVENT}, True, True, id="node"),
        pytest.param(
            {"state": AttemptState.PREEMPTED, "category": Category.SCHEDULER_EVENT}, False, False, id="preempted"
        ),
        pytest.param({"state": AttemptState.TIME_LIMIT}, False, False, id="time limit"),
        pytest.param({"state": AttemptState.CANCELLED, "kind": "hang"}, True, True, id="hung, then cancelled"),
        pytest.param({"state": AttemptState.CANCELLED, "category": Category.USER_CANCEL}, False, False, id="cancelled"),
        pytest.param({"state": AttemptState.COMPLETING}, True, True, id="requeued before its end was seen"),
        pytest.param(
            {"state": AttemptState.COMPLETING, "category": Category.NONE, "kind": ""}, False, False, id="none"
        ),
        pytest.param({"state": AttemptState.COMPLETED}, False, False, id="completed"),
        pytest.param({"state": AttemptState.RUNNING, "ended_at": None}, False, False, id="runs"),
    ],
)
def test_what_counts_as_a_failure(changes: dict[str, Any], failure: bool, infrastructure: bool) -> None:
    """What people, the scheduler and a plan ended did not fail."""
    found = failed(**changes)
    assert (found.failed, found.by_infrastructure) == (failure, infrastructure)


def test_only_what_lies_within_the_window_counts() -> None:
    """Half a day of the run, and no failure that came before."""
    window = Window(since=at(12), until=at(36))
    found = figures([failed(), failed(job="k2", started_at=at(0), ended_at=at(6))], window)
    assert (found.node_days, found.failures) == (2.0, 1)


def test_mttf_by_size_counts_censored_time() -> None:
    """64 GPUs: 24 h failed, 24 h completed and 24 h still running are 72 h per failure; 8 GPUs never failed."""
    runs = AttemptState.RUNNING
    jobs = [
        failed(gpus=64),
        attempt(job="k2", gpus=64),
        attempt(job="k3", gpus=33, state=runs, ended_at=None, started_at=at(216)),
        attempt(job="k4", gpus=8),
        attempt(job="k5", gpus=0),
        attempt(job="k6", gpus=None),
    ]
    unknown, small, large = by_size(jobs, WINDOW)
    assert (large.gpus, large.hours, large.failures, large.mttf_hours.value) == ((33, 64), 72.0, 1, 72.0)
    assert large.mttf_hours.low == pytest.approx(72 / 5.5716, rel=1e-3)
    assert large.mttf_hours.high == pytest.approx(72 / 0.025318, rel=1e-3)
    assert (small.gpus, small.mttf_hours.value) == ((8, 8), None)
    assert small.mttf_hours.low == pytest.approx(24 / 3.6889, rel=1e-3)
    assert unknown.gpus is None


def test_a_failure_after_the_window_is_none_of_its_failures() -> None:
    """Its time within counts, censored."""
    (row,) = by_size([failed(gpus=8, ended_at=at(300))], WINDOW)
    assert (row.hours, row.failures) == (240.0, 0)


@pytest.mark.parametrize(
    ("gpus", "size"), [(1, (1, 1)), (5, (2, 7)), (8, (8, 8)), (9, (9, 16)), (4096, (2049, 4096)), (5000, (4097, 8192))]
)
def test_sizes(gpus: int, size: tuple[int, int]) -> None:
    """Powers of two from a node on, without an upper end."""
    assert size_of(gpus) == size


def recovered() -> list[AttemptFacts]:
    """Failed at step 1000 after 10 h; visible then, seen 60 s later, advised at 90 s, requeued at 120 s, eligible at
    240 s, running at 300 s, first step (901) at 480 s, step 1000 again at 4080 s; then on to its end at 24 h.
    """
    fault = 10.0

    def moment(seconds: float) -> datetime:
        return at(fault + seconds / 3600)

    first = failed(
        ended_at=moment(5),
        first_step=1,
        last_step=1000,
        first_at=at(0.1),
        last_at=at(10.0),
        moments={
            "fault_visible": moment(0),
            "detected": moment(60),
            "advised": moment(90),
            "requeue_accepted": moment(120),
            "first_progress": moment(480),
            "caught_up": moment(4080),
        },
    )
    second = attempt(
        1,
        submitted_at=moment(121),
        eligible_at=moment(240),
        started_at=moment(300),
        ended_at=at(24),
        first_step=901,
        last_step=2000,
        first_at=moment(480),
        last_at=at(23.9),
    )
    return [first, second]


def test_a_recovery_in_its_parts() -> None:
    """The parts are the whole; what was lost is told in steps and in the time that these had taken."""
    (found,) = recoveries(recovered(), WINDOW)
    assert found.parts == {
        "detect": 60,
        "decide": 30,
        "act": 30,
        "slurm_delay": 120,
        "queue": 60,
        "start": 180,
        "catch_up": 3600,
    }
    assert found.total == 4080 == sum(found.parts.values())
    assert (found.lost_steps, found.succeeded) == (100.0, True)
    assert found.lost_seconds == pytest.approx(100 * 9.9 * 3600 / 999)


@pytest.mark.parametrize(
    ("failed_at", "first", "resumed", "lost"),
    [(14, 11, 10, 4), (14, 11, None, 4), (1400, 1100, 1000, 400), (1000, 1100, 1000, 0), (14, None, None, None)],
)
def test_lost_is_what_is_done_again(failed_at: int, first: int | None, resumed: int | None, lost: int | None) -> None:
    """From the step behind the checkpoint on, printed or not."""
    before, after = recovered()
    chain = replace(before, last_step=failed_at), replace(after, first_step=first, resumed_step=resumed)
    assert recoveries(chain, WINDOW)[0].lost_steps == lost


def test_a_step_that_was_done_again_unseen_was_not_productive() -> None:
    """It prints every hundredth: its first line is of a step that nobody had done, and those before it were done."""
    first, second = recovered()
    found = effective([first, replace(second, first_step=1100, resumed_step=500)], WINDOW)
    assert found is not None
    assert found[0] == pytest.approx((9.9 + 23.9 - 10 - 4080 / 3600) * 3600)


def test_what_was_not_measured_is_left_out() -> None:
    """No milestones: no total, no part but the queue, which the scheduler tells."""
    first, second = recovered()
    (found,) = recoveries([replace(first, moments={}), second], WINDOW)
    assert found.total is None
    assert set(found.parts) == {"slurm_delay", "queue"}


def test_ettr_leaves_out_queues_starts_and_what_was_done_twice() -> None:
    """9.9 h to the fault, and from being back until 23.9 h, of 24 h."""
    found = effective(recovered(), WINDOW)
    assert found is not None
    productive, total, weight = found
    back = 10 + 4080 / 3600
    assert productive == pytest.approx((9.9 + 23.9 - back) * 3600)
    assert (total, weight) == (86_400.0, 32.0)
    assert figures(recovered(), WINDOW).ettr == pytest.approx(productive / total)


def test_a_restart_that_never_got_back_was_not_productive() -> None:
    """It repeated steps all its life."""
    first, second = recovered()
    lost = replace(first, moments={}), replace(second, last_step=950)
    found = effective(lost, WINDOW)
    assert found is not None
    assert found[0] == pytest.approx(9.9 * 3600)


def test_a_job_whose_progress_cannot_be_read_has_no_ettr() -> None:
    """And is not counted among the jobs that it was measured on."""
    found = figures([attempt(), *[replace(item, job_key="k2") for item in recovered()]], WINDOW)
    assert found.ettr_runs == 1
    assert figures([attempt()], WINDOW).ettr is None


@pytest.mark.parametrize(
    ("after", "success"),
    [
        ({}, True),
        ({"last_step": 1000}, True),
        ({"state": AttemptState.FAILED, "last_step": 2000}, True),
        ({"state": AttemptState.FAILED, "last_step": 950, "ended_at": at(11)}, False),
        ({"state": AttemptState.FAILED, "last_step": 1000}, False),
        ({"state": AttemptState.FAILED, "last_step": 1010}, False),
        ({"state": AttemptState.FAILED, "last_step": 1011}, True),
        ({"state": AttemptState.FAILED, "first_step": 1000, "resumed_step": 900, "last_step": 1100}, False),
        ({"state": AttemptState.RUNNING, "ended_at": None, "last_step": 950}, None),
        ({"state": AttemptState.RUNNING, "ended_at": None, "last_step": 1001}, None),
        ({"state": AttemptState.RUNNING, "ended_at": None, "last_step": 1011}, True),
        ({"state": AttemptState.CANCELLED, "last_step": 950}, None),
        ({"state": AttemptState.PREEMPTED, "last_step": 1001}, None),
        ({"state": AttemptState.FAILED, "first_step": None, "last_step": None}, True),
        ({"state": AttemptState.FAILED, "first_step": None, "last_step": None, "ended_at": at(21)}, False),
        ({"state": AttemptState.FAILED, "first_step": None, "last_step": None, "ended_at": at(11)}, False),
    ],
    ids=[
        "completed",
        "completed at once",
        "failed much later",
        "failed again",
        "failed at the same step",
        "failed a tenth of what it repeated further on",
        "failed beyond that",
        "failed one line further on, of a job that prints each hundredth step",
        "on its way",
        "back, and not yet beyond",
        "beyond",
        "cancelled",
        "preempted where it had failed",
        "ran for hours unseen",
        "failed unseen after as long as before",
        "failed unseen before an hour",
    ],
)
def test_what_a_successful_restart_is(after: dict[str, Any], success: bool | None) -> None:
    """Beyond where it failed, completed, or ran for an hour where nobody can see its progress."""
    (found,) = recoveries([recovered()[0], replace(recovered()[1], **after)], WINDOW)
    assert found.succeeded is success


def test_a_job_that_hangs_at_one_step_was_never_restarted_with_success() -> None:
    """It is back at step 19 each time, and hangs there each time."""
    hung = {"kind": "hang", "category": Category.APPLICATION, "gpus": 8, "last_step": 19}
    back = {"moments": {"caught_up": at(9)}}
    chain = [
        replace(failed(**hung, **back), number=n, first_step=1 + 10 * (n > 0), resumed_step=10 * (n > 0))
        for n in range(26)
    ]
    found = restart_success(recoveries(chain, WINDOW))
    assert (found.value, found.count) == (0.0, 25)


def test_where_the_one_before_showed_no_step_an_hour_tells() -> None:
    """Nobody knows what to get beyond."""
    first, second = recovered()
    unseen = replace(first, last_step=None, first_step=None)
    ran = replace(second, state=AttemptState.FAILED, last_step=5, first_step=1)
    assert recoveries([unseen, ran], WINDOW)[0].succeeded is True
    assert recoveries([unseen, replace(ran, ended_at=at(10.5))], WINDOW)[0].succeeded is False


def test_false_alarms_are_of_attempts_that_nobody_touched() -> None:
    """Two were told of and left alone: one completed. What we restarted, and what was cancelled, tells nothing."""
    told = [
        attempt(advised=True, kind="hang", category=Category.UNKNOWN),
        failed(job="k2", advised=True),
        failed(job="k3", advised=True, acted=True),
        failed(job="k4", advised=True, state=AttemptState.CANCELLED),
        attempt(job="k5"),
    ]
    found = false_alarms(told, WINDOW)
    assert (found.value, found.count) == (0.5, 2)


def test_young_and_daly_are_the_published_formulae() -> None:
    """60 s of cost and a day between failures: 3,220 s by Young, 3,180 s by Daly."""
    assert young(60, 86_400) == pytest.approx(3219.94, abs=0.01)
    small = 60 / (2 * 86_400)
    assert daly(60, 86_400) == pytest.approx(young(60, 86_400) * (1 + math.sqrt(small) / 3 + small / 9) - 60)
    assert daly(60, 86_400) == pytest.approx(3180.06, abs=0.05)
    assert daly(1000, 400) == 400


def test_the_interval_needs_failures_and_saves() -> None:
    """Below three of each it says what is missing; above it gives the interval with bounds from the rate's."""
    assert "0 checkpoints" in checkpoint_interval([failed()], WINDOW).why_not
    few = [failed(save_seconds=(30.0, 60.0, 90.0))]
    assert checkpoint_interval(few, WINDOW).why_not == "1 failures of jobs that save, 3 are needed"
    jobs = [failed(job=f"k{n}", save_seconds=(60.0,)) for n in range(3)] + [attempt(job="k9")]
    found = checkpoint_interval(jobs, WINDOW)
    assert (found.why_not, found.cost_seconds, found.mttf_hours.value) == ("", 60.0, 24.0)
    assert found.daly_seconds == pytest.approx(3180.06, abs=0.05)
    assert found.low_seconds is not None
    assert found.high_seconds is not None
    assert found.daly_seconds is not None
    assert found.low_seconds < found.daly_seconds < found.high_seconds


def test_groups_are_parts_of_the_whole() -> None:
    """By user: two groups, whose attempts are all of them."""
    jobs = [attempt(), attempt(job="k2", user="bob")]
    assert {name: len(own) for name, own in grouped(jobs, lambda item: item.user).items()} == {"ada": 1, "bob": 1}


def test_of_less_than_a_node_day_there_is_no_rate_per_thousand() -> None:
    """One failure within seconds is no three million per 1,000 node-days."""
    found = figures([failed(nodes=1, ended_at=at(0.1))], WINDOW)
    assert (found.failure_rate.value, found.infrastructure_rate.value, found.failures) == (None, None, 1)


def test_nothing_is_made_of_nothing() -> None:
    """No attempts: no figure but counts."""
    found = figures([], WINDOW)
    assert (found.failure_rate.value, found.ettr, found.rto.median.value, found.restart_success.value) == (None,) * 4
    assert (found.sizes, found.node_days) == ((), 0.0)
