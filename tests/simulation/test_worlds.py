"""Seeded worlds: drawn alike every time, lived through without an advisor, and their figures."""

import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from advisor.core.words import AttemptState
from advisor.simulate.catalogue import INFRASTRUCTURE, MISTAKES, Place, Shape
from advisor.simulate.cluster import Cluster, Move
from advisor.simulate.figures import figures_of, lemons_of, parts_of
from advisor.simulate.operators import OPERATORS, Bound, Nobody
from advisor.simulate.world import (
    DAY,
    HOUR,
    SCENARIOS,
    Fault,
    JobSpec,
    Noise,
    Scenario,
    World,
    WorldError,
    draw,
    read_noise,
    scenario_named,
)

QUIET = Scenario(
    name="quiet",
    nodes=4,
    days=1.0,
    failures_per_1000_node_days=0.0,
    lemons=0.0,
    fabric_events_per_day=0.0,
    storage_events_per_day=0.0,
    application_failures_per_job_day=0.0,
    noise=Noise(failures_silent=0.0),
)
CAUSES = {cause.name: cause for cause in (*INFRASTRUCTURE, *MISTAKES)}


def world(*faults: Fault, jobs: tuple[JobSpec, ...], scenario: Scenario = QUIET) -> World:
    numbered = tuple(replace(fault, number=number) for number, fault in enumerate(faults))
    return replace(draw(scenario, 1), faults=numbered, jobs=jobs)


def job(**fields: object) -> JobSpec:
    given: dict[str, object] = {
        "job_id": "1",
        "user": "ada",
        "nodes": 2,
        "submitted_at": 0.0,
        "steps": None,
        "step_seconds": 10.0,
        "save_every": 30,
    }
    return JobSpec(**(given | fields))  # type: ignore[arg-type]  # of the right types


def fault(name: str, at: float, node: int = 0, bad_until: float = 0.0) -> Fault:
    return Fault(number=0, at=at, cause=CAUSES[name], nodes=(node,), bad_until=max(bad_until, at))


def test_a_seed_is_one_world() -> None:
    """The same seed draws the same faults and jobs, another one others, and more jobs change no failure."""
    small = SCENARIOS["small"]
    assert draw(small, 3) == draw(small, 3)
    assert draw(small, 3).faults != draw(small, 4).faults
    more = replace(small, small_jobs_per_day=small.small_jobs_per_day * 2)
    assert draw(more, 3).faults == draw(small, 3).faults


def test_failures_come_as_often_as_the_scenario_says() -> None:
    """Lemons included, nodes fail at the rate that was asked for, within four standard deviations."""
    scenario = replace(SCENARIOS["training-2048-nodes"], days=20.0)
    faults = [fault for fault in draw(scenario, 5).faults if fault.cause in INFRASTRUCTURE]
    expected = 6.5 / 1000 * scenario.nodes * scenario.days
    assert abs(len(faults) - expected) < 4 * expected**0.5


@pytest.mark.parametrize("made", OPERATORS, ids=lambda made: made.name)
def test_the_parts_of_a_job_s_time_are_all_of_it(made: object) -> None:
    """Useful, saving, starting, noticing, deciding, waiting, repeated: nothing is lost or counted twice."""
    drawn = draw(SCENARIOS["small"], 2)
    cluster = Cluster(drawn)
    cluster.operator = made.make(cluster)  # type: ignore[attr-defined]
    cluster.advance(drawn.seconds)
    big = cluster.jobs["1"]
    assert len(big.attempts) > 2
    assert parts_of(cluster, big, drawn.seconds).wall == pytest.approx(drawn.seconds, abs=30.0)


def test_the_bound_is_better_than_any_habit() -> None:
    """Over some worlds who knows everything loses least, and blind requeues lose most."""
    scenario = replace(SCENARIOS["small"], failures_per_1000_node_days=200.0, small_jobs_per_day=0.0)
    sums = dict.fromkeys((made.name for made in OPERATORS), 0.0)
    for seed in range(1, 13):
        drawn = draw(scenario, seed)
        for made in OPERATORS:
            cluster = Cluster(drawn)
            cluster.operator = made.make(cluster)
            cluster.advance(drawn.seconds)
            sums[made.name] += figures_of(cluster, until=drawn.seconds).ettr
    assert max(sums, key=lambda name: sums[name]) == Bound.name
    assert min(sums, key=lambda name: sums[name]) == Nobody.name


def test_a_requeued_job_waits_for_the_scheduler_and_goes_on_at_its_checkpoint() -> None:
    """The next attempt starts after Slurm's delay, on other nodes where some are excluded, from the last save."""
    cluster = Cluster(world(fault("gpu_fell_off", 2 * HOUR), jobs=(job(),)))
    cluster.advance(2 * HOUR + 60)
    first = cluster.jobs["1"].last
    assert first.state is AttemptState.FAILED
    assert cluster.requeue(cluster.jobs["1"], by="test", exclude=[0]) is Move.DONE
    assert cluster.requeue(cluster.jobs["1"], by="test") is Move.REFUSED  # it waits already
    asked = cluster.now
    cluster.advance(asked + 600)
    second = cluster.jobs["1"].last
    assert second.started_at == pytest.approx(asked + QUIET.requeue_delay_seconds + QUIET.schedule_seconds)
    assert second.nodes == (1, 2)
    assert second.resume == cluster.saved(cluster.jobs["1"], first, asked)
    assert 0 < second.resume <= cluster.steps(cluster.jobs["1"], first, asked)
    assert second.resume % 30 == 0


def test_a_bad_node_fails_whoever_starts_on_it() -> None:
    """Until it is repaired: a job that is requeued onto it fails of the same fault again."""
    cluster = Cluster(world(fault("gpu_fell_off", HOUR, bad_until=DAY), jobs=(job(),)))
    cluster.operator = Nobody(cluster)
    cluster.advance(4 * HOUR)
    attempts = cluster.jobs["1"].attempts
    assert len(attempts) > 5
    assert {attempt.fault.number for attempt in attempts if attempt.fault is not None} == {0}


def test_a_dead_node_is_noticed_then_given_up_and_the_scheduler_requeues() -> None:
    """First it does not respond, after SlurmdTimeout it is down and its job starts elsewhere by itself."""
    cluster = Cluster(world(fault("node_lost_power", HOUR), jobs=(job(),)))
    cluster.advance(HOUR + QUIET.node_timeout_seconds / 2)
    assert (cluster.nodes[0].silent, cluster.nodes[0].down) == (True, False)
    cluster.advance(HOUR + 2 * HOUR)
    first, second = cluster.jobs["1"].attempts
    assert first.state is AttemptState.NODE_FAILURE
    assert 0 not in second.nodes


def test_a_dead_node_holds_the_job_that_it_ran_until_it_is_down() -> None:
    """Who requeues at once waits for the scheduler, which waits for the node; who sets it down does not."""
    cluster = Cluster(world(fault("node_lost_power", HOUR), jobs=(job(),)))
    cluster.advance(HOUR + 1.0)
    cluster.requeue(cluster.jobs["1"], by="test", exclude=[0])
    cluster.advance(2 * HOUR)
    down_at = HOUR + QUIET.node_timeout_seconds
    assert cluster.jobs["1"].last.started_at == pytest.approx(down_at)
    bound = Cluster(world(fault("node_lost_power", HOUR), jobs=(job(),)))
    bound.operator = Bound(bound)
    bound.advance(2 * HOUR)
    assert bound.jobs["1"].last.started_at == pytest.approx(HOUR + QUIET.requeue_delay_seconds, abs=3.0)


def test_repaired_nodes_fail_again_as_often_as_published() -> None:
    """Of nodes that stayed broken and were repaired some have the same part fail again within a week."""
    scenario = replace(SCENARIOS["training-2048-nodes"], days=60.0, lemons=0.0)
    found: dict[int, list[Fault]] = {}
    for one in draw(scenario, 7).faults:
        if one.own_hardware:
            found.setdefault(one.nodes[0], []).append(one)
    stayed = again = 0
    for faults in found.values():
        for one, after in zip(faults, (*faults[1:], None), strict=True):
            if one.bad_until > one.at and one.bad_until < 40 * DAY:
                stayed += 1
                again += after is not None and after.cause is one.cause and after.gpu == one.gpu
    assert stayed > 100
    assert 0.12 < again / stayed < 0.25


def test_users_cancel_and_administrators_drain() -> None:
    """What its user cancelled counts as nobody's stop; a drained node is back after a while; own exclusions hold."""
    drawn = replace(world(jobs=(job(avoids=frozenset({0})), job(job_id="2", nodes=1))), cancels=(HOUR,), drains=(10.0,))
    cluster = Cluster(drawn)
    cluster.advance(HOUR - 1.0)
    assert [node.drained for node in cluster.nodes].count("admin") == 1
    assert 0 not in cluster.jobs["1"].last.nodes
    cluster.advance(4 * HOUR)
    assert [node.drained for node in cluster.nodes].count("admin") == 0
    assert [one.stopped_by for one in cluster.jobs.values()].count("user") == 1
    assert figures_of(cluster, until=4 * HOUR).false_stops == 0


def test_the_mixed_world_has_all_that_schedulers_do() -> None:
    """Arrays, preemption, drains, dead nodes, cancels, mistakes, jobs that wait, events of many nodes."""
    drawn = draw(
        replace(SCENARIOS["mixed-2048-nodes"], days=0.5, failures_per_1000_node_days=30.0, storage_events_per_day=6.0),
        1,
    )
    cluster = Cluster(drawn)
    cluster.operator = Nobody(cluster)
    waited = 0
    for hour in range(12):
        cluster.advance(hour * HOUR)
        waited += sum(one.last.eligible_at < cluster.now - 600.0 for one in cluster.pending)
    states = {attempt.state for one in cluster.jobs.values() for attempt in one.attempts}
    assert {AttemptState.PREEMPTED, AttemptState.NODE_FAILURE, AttemptState.CANCELLED, AttemptState.COMPLETED} <= states
    assert waited > 10
    assert any(one.spec.array_task for one in cluster.jobs.values())
    assert any(one.spec.mistake for one in cluster.jobs.values())
    assert drawn.drains
    assert {Place.FABRIC, Place.STORAGE} & {fault.cause.place for fault in drawn.faults}


def test_a_hang_ends_with_the_collective_s_own_time_out() -> None:
    """Without anybody, a job that stands still does so for ten minutes, and trains nothing meanwhile."""
    cluster = Cluster(world(fault("gpu_gsp", HOUR), jobs=(job(),)))
    cluster.advance(2 * HOUR)
    attempt = cluster.jobs["1"].last
    assert attempt.ended_at == pytest.approx(HOUR + QUIET.collective_timeout_seconds)
    assert cluster.steps(cluster.jobs["1"], attempt, 2 * HOUR) == cluster.steps(cluster.jobs["1"], attempt, HOUR)


def test_a_mistake_fails_at_the_same_point_every_time() -> None:
    """And a cancel ends it for good."""
    cluster = Cluster(world(jobs=(job(mistake=CAUSES["shape"], mistake_step=3),)))
    cluster.operator = Nobody(cluster)
    cluster.advance(2 * HOUR)
    found = cluster.jobs["1"]
    assert len(found.attempts) > 3
    cluster.cancel(found, by="test")
    count = len(found.attempts)
    cluster.advance(4 * HOUR)
    assert len(found.attempts) == count


def test_a_hopeless_job_counts_when_its_retry_is_over() -> None:
    """One whose only retry still runs when the world ends was neither missed nor found."""
    cluster = Cluster(world(jobs=(job(mistake=CAUSES["shape"], mistake_step=3),)))
    cluster.operator = Nobody(cluster)
    cluster.advance(60.0)
    assert figures_of(cluster, until=60.0).hopeless == 0
    cluster.advance(200.0)
    assert figures_of(cluster, until=200.0).hopeless == 0
    cluster.advance(800.0)
    found = figures_of(cluster, until=800.0)
    assert (found.hopeless, found.hopeless_stopped) == (1, 0)


def test_lemons_are_nodes_that_failed_three_times_in_a_month() -> None:
    """Own hardware, with a job on the node, within thirty days: nothing else makes a lemon."""
    scenario = replace(QUIET, days=90.0)
    days = (1, 12, 25)
    faults = [fault("hbm", day * DAY) for day in days] + [fault("hbm", day * DAY, node=1) for day in (1, 40, 80)]
    cluster = Cluster(world(*sorted(faults, key=lambda one: one.at), jobs=(job(),), scenario=scenario))
    cluster.operator = Nobody(cluster)
    cluster.advance(80 * DAY + HOUR)
    assert lemons_of(cluster) == {0}


def test_one_fault_that_many_jobs_meet_is_one_failure() -> None:
    """A node that stays broken is no lemon for it, however often a job is sent there."""
    cluster = Cluster(world(fault("gpu_fell_off", HOUR, bad_until=DAY), jobs=(job(),)))
    cluster.operator = Nobody(cluster)
    cluster.advance(4 * HOUR)
    assert len(cluster.jobs["1"].attempts) > 5
    assert lemons_of(cluster) == frozenset()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lines_lost = 1.5", "lines_lost: 1.5"),
        ("lines_list = 0.1", "lines_list: not one of"),
        ("late_seconds_max = -1", "late_seconds_max: -1"),
        ("lines_lost = 'many'", "lines_lost: 'many'"),
        ("lines_lost = nan", "lines_lost: nan"),
        ("skew_seconds = inf", "skew_seconds: inf"),
        ("lines_lost = true", "lines_lost: True"),
        ("[lines_lost]", "lines_lost: {}"),
        ("lines_lost =", "noise.toml"),
    ],
)
def test_bad_noise_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    """The file, the key and the value are in the message."""
    path = tmp_path / "noise.toml"
    path.write_text(text)
    with pytest.raises(WorldError, match=complaint):
        read_noise(path)


def test_noise_of_a_file_replaces_what_it_names(tmp_path: Path) -> None:
    """The others keep their default; JSON is taken as well."""
    path = tmp_path / "noise.json"
    path.write_text('{"noise": {"lines_lost": 0.5}}')
    assert read_noise(path) == replace(Noise(), lines_lost=0.5)
    path.write_text('{"lines_lost": 0.5}')
    assert read_noise(path) == replace(Noise(), lines_lost=0.5)
    assert scenario_named("small", read_noise(path)).noise.lines_lost == 0.5
    with pytest.raises(WorldError, match="'nowhere' is not one of"):
        scenario_named("nowhere", None)


def test_the_example_of_noise_names_every_rate_and_none_as_it_is_by_default() -> None:
    """Who copies it sees all that can be changed."""
    path = Path(__file__).parents[2] / "docs" / "examples" / "noise.toml"
    read, usual = asdict(read_noise(path)), asdict(Noise())
    assert set(tomllib.loads(path.read_text())) == set(usual)
    assert all(read[name] > usual[name] for name in usual)


def test_causes_of_nodes_say_where_they_are() -> None:
    """Every kernel record and every line of the catalogue can be filled in, and blames no other place."""
    for cause in INFRASTRUCTURE:
        assert cause.weight > 0
        assert cause.place in {Place.NODE, Place.NOWHERE}
        if cause.shape is Shape.CRASH:
            assert cause.culprit
