"""The fault matrix on the model of Slurm, with the real agent, guard and watchdog (`tests/model/matrix.py`)."""

import itertools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.model import matrix
from tests.model.matrix import STORIES, Combination, Fault, pairs, play, problems, singles
from tests.model.storm import Storm

QUICK = 40  # combinations of each story, and of pairs, in `make test`


def _failures(combinations: list[Combination]) -> list[str]:
    return [f"{one}: {problem}" for one in combinations for problem in problems(play(one))]


def _some(combinations: list[Combination], count: int) -> list[Combination]:
    return random.Random(5).sample(combinations, min(count, len(combinations)))


def test_without_a_fault_every_story_ends_well() -> None:
    """What the faults are compared with: one requeue, the exclusions in force, advice concluded, nothing else."""
    for story in STORIES:
        seen = play(Combination(story=story, step="", faults=()))
        assert problems(seen) == []
        assert (seen.job.state, seen.job.restarts) == ("RUNNING", 1)
        assert seen.site.database.said


def test_every_story_reaches_every_step_that_it_claims() -> None:
    """A step that is never reached would make its whole row of the matrix empty."""
    for story in STORIES.values():
        reached: set[str] = set()
        matrix.play(Combination(story=story.name, step="", faults=()), also=reached.add)
        assert set(story.steps) <= reached


@pytest.mark.parametrize("story", STORIES)
def test_single_faults(story: str) -> None:
    """Some of every story's steps × faults in `make test`; all of them in `make test-long`."""
    assert _failures(_some(list(singles(STORIES[story])), QUICK)) == []


def test_pairs_of_faults() -> None:
    """Two parts at once, from all stories."""
    every = list(itertools.chain.from_iterable(pairs(story) for story in STORIES.values()))
    assert _failures(_some(every, QUICK)) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("story", STORIES)
def test_all_single_faults(story: str) -> None:
    """Every step × {kill -9, SIGSTOP} × every part, coming back and (ours) gone for good."""
    assert _failures(list(singles(STORIES[story]))) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", STORIES)
def test_all_pairs_of_faults(story: str) -> None:
    """Every step × two parts × {kill -9, SIGSTOP} each."""
    assert _failures(list(pairs(STORIES[story]))) == []


def test_the_checks_can_fail() -> None:
    """Each invariant is broken once by hand, and says so."""
    seen = play(Combination(story="failed", step="", faults=()))
    slurm = seen.site.slurm
    slurm.changes += [change for change in slurm.changes if change.verb == "requeue"]
    assert any("was requeued by" in problem for problem in problems(seen))
    seen = play(Combination(story="failed", step="", faults=()))
    seen.site.slurm.job(matrix.JOB).state = "PENDING"
    assert any("in the end the job is PENDING" in problem for problem in problems(seen))
    seen = play(Combination(story="failed", step="", faults=()))
    seen.site.database.said.clear()
    assert any("is not on record" in problem for problem in problems(seen))
    seen = play(Combination(story="failed", step="", faults=()))
    seen.after = (*seen.after[:-1], "idle")
    assert any("belongs to others" in problem for problem in problems(seen))
    seen = play(Combination(story="failed", step="no such step", faults=(Fault("agent", "kill -9"),)))
    assert any("was never reached" in problem for problem in problems(seen))


def test_an_agent_that_starts_without_slurmctld_gives_nothing_up() -> None:
    """It does not know Slurm's settings yet, and waits: "observes" would close the advice for good."""
    both = (Fault("agent", "kill -9"), Fault("slurmctld", "kill -9"))
    assert problems(play(Combination(story="two agents", step="advice heard", faults=both))) == []


def test_the_race_that_remains_is_the_one_that_is_named() -> None:
    """docs/slurm.md: a second agent's requeue that a stopped slurmctld serves only after the next attempt's start."""
    stopped = (Fault("slurmctld", "SIGSTOP"),)
    race = Combination(story="two agents", step="applying process: requeue accepted", faults=stopped)
    assert problems(play(race)) == []
    assert any("attempt 1, which had not failed" in problem for problem in problems(play(race, scheduler_first=True)))
    alone = Combination(story="failed", step="applying process: requeue accepted", faults=stopped)
    assert problems(play(alone, scheduler_first=True)) == []


class StormMachine(RuleBasedStateMachine):
    """Faults and people in any order, at any moment: the invariants hold all the while and everything ends well."""

    @initialize(story=st.sampled_from(sorted(set(STORIES) - {"cornered"})))
    def begin(self, story: str) -> None:
        self.storm = Storm(STORIES[story])

    @rule(tenths=st.integers(0, 80))
    def time_passes(self, tenths: int) -> None:
        self.storm.wait(tenths / 10)

    @rule(part=st.sampled_from(matrix.TARGETS), kind=st.sampled_from(matrix.KINDS))
    def something_dies(self, part: str, kind: str) -> None:
        self.storm.strike(part, kind)

    @rule(part=st.sampled_from(matrix.TARGETS))
    def something_comes_back(self, part: str) -> None:
        self.storm.back(part)

    @rule(what=st.sampled_from(["cancel", "hold", "release", "requeue", "exclude"]))
    def somebody_does_something(self, what: str) -> None:
        self.storm.person(what)

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "storm"):
            assert self.storm.problems() == []

    def teardown(self) -> None:
        if hasattr(self, "storm"):
            try:
                assert self.storm.end() == []
            finally:
                self.storm.close()


def test_any_storm_is_weathered() -> None:
    """A few histories in `make test`; the long run has hundreds."""
    run_state_machine_as_test(StormMachine, settings=settings(_settings(12), derandomize=True))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_any_of_many_storms_is_weathered() -> None:
    """The same, longer."""
    run_state_machine_as_test(StormMachine, settings=_settings(300))


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
