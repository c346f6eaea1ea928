"""A seed and what it makes happen."""

from benchmarks.chaos.schedule import Kind, Story, make

HOUR = 3600.0


def test_a_seed_makes_the_same_happen_every_time() -> None:
    """And another seed something else."""
    assert make(1, 300.0, nodes=8) == make(1, 300.0, nodes=8)
    assert make(1, 300.0, nodes=8).injections != make(2, 300.0, nodes=8).injections


def test_a_kind_that_is_left_out_moves_no_job() -> None:
    """What is left is what it was."""
    all_of_it, without = make(3, 600.0, nodes=8), make(3, 600.0, nodes=8, without=frozenset({Kind.CLOCK}))
    assert without.jobs == all_of_it.jobs
    assert without.injections == [item for item in all_of_it.injections if item.kind is not Kind.CLOCK]


def test_an_hour_has_everything_in_it() -> None:
    """Every kind of injection and every story of a job, within the time."""
    schedule = make(7, HOUR, nodes=8)
    assert {item.kind for item in schedule.injections} == set(Kind)
    assert {job.story for job in schedule.jobs} == set(Story)
    times = [item.at for item in schedule.injections] + [job.at for job in schedule.jobs]
    assert 0 <= min(times) < max(times) < HOUR
    assert len({item.number for item in schedule.injections}) == len(schedule.injections) > 500
