"""The real advisor in seeded worlds: it breaks no invariant, and who breaks one is caught."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from advisor.cli import main
from advisor.core.words import Action
from advisor.simulate.advised import POLICY, Outcome, advise, quiet_log
from advisor.simulate.agent import Agent
from advisor.simulate.catalogue import INFRASTRUCTURE, MISTAKES
from advisor.simulate.checks import Breach, Checks
from advisor.simulate.cluster import Cluster, SimJob
from advisor.simulate.delays import detection, watched
from advisor.simulate.figures import figures_of
from advisor.simulate.operators import Person
from advisor.simulate.runs import own_database, run
from advisor.simulate.world import DAY, HOUR, SCENARIOS, Fault, JobSpec, Noise, Scenario, World, draw
from advisor.store.migrate import migrate
from advisor.store.records import AdviceRow
from advisor.store.store import Store

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]
CAUSES = {cause.name: cause for cause in (*INFRASTRUCTURE, *MISTAKES)}
QUIET = Scenario(
    name="quiet",
    nodes=60,  # two per cent of them are one
    days=3000.0 / DAY,
    failures_per_1000_node_days=0.0,
    lemons=0.0,
    fabric_events_per_day=0.0,
    storage_events_per_day=0.0,
    application_failures_per_job_day=0.0,
    noise=Noise(failures_silent=0.0, lines_lost=0.0),
)
BUSY = replace(SCENARIOS["small"], days=0.04, failures_per_1000_node_days=3000.0, small_jobs_per_day=30.0, lemons=0.0)
BIG = JobSpec(job_id="1", user="ada", nodes=6, submitted_at=0.0, steps=None, step_seconds=10.0, save_every=30)
WRONG = replace(BIG, job_id="2", user="bob", nodes=1, submitted_at=100.0, mistake=CAUSES["import"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    cluster: Cluster
    outcome: Outcome
    breaches: tuple[Breach, ...]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with own_database() as url, quiet_log():
        asyncio.run(migrate(url))
        yield url


_numbers = iter(range(10_000))


def live(
    url: str, world: World, *, agent: type[Agent] = Agent, acts: Callable[[Cluster], Person] | None = None
) -> Seen:
    async def through() -> Seen:
        store = await Store.open(url, policy=POLICY)
        try:
            checks = Checks(POLICY)
            name = f"world-{next(_numbers)}"
            cluster, advised = await advise(world, store, checks, name=name, agent=agent, acts=acts)
        finally:
            await store.close()
        return Seen(cluster=cluster, outcome=advised.outcome, breaches=tuple(checks.breaches))

    return asyncio.run(through())


def made(*, at: float = 400.0, until: float = 1700.0, jobs: tuple[JobSpec, ...] = (BIG,), seed: int = 1) -> World:
    """A GPU falls off the bus of the first node at that time, and stays so."""
    fault = Fault(number=0, at=at, cause=CAUSES["gpu_fell_off"], nodes=(0,), bad_until=DAY)
    return replace(draw(replace(QUIET, days=until / DAY), seed), faults=(fault,), jobs=jobs)


@pytest.fixture(scope="module")
def seen(database: str) -> Seen:
    return live(database, made(jobs=(BIG, WRONG)))


def test_a_broken_gpu_costs_one_restart_elsewhere(seen: Seen) -> None:
    """The job goes on without the node, which is isolated; nobody else is blamed, and no invariant is broken."""
    attempts = seen.cluster.jobs["1"].attempts
    assert len(attempts) == 2
    assert attempts[1].requeued_by == "advisor"
    assert 0 not in attempts[1].nodes
    assert [node for node, _ in seen.outcome.isolated] == [0]
    figures = figures_of(seen.cluster, isolated=seen.outcome.isolated, until=1700.0)
    assert (figures.wrong_exclusions, figures.healthy_nodes_isolated, figures.false_stops) == (0, 0, 0)
    assert seen.breaches == ()


def test_a_hopeless_job_is_stopped_after_its_confirmation(seen: Seen) -> None:
    """A module that is missing is missing again: two attempts, then no more."""
    job = seen.cluster.jobs["2"]
    assert job.stopped_by == "advisor"
    assert len(job.attempts) == 2


def test_the_failure_is_detected_within_seconds(seen: Seen) -> None:
    """From the moment that the world made it happen; nothing is missed."""
    delay = detection(seen.cluster, seen.outcome, 1700.0)["crash"]
    assert (delay.count, delay.missed) == (3, 0)
    assert delay.most is not None
    assert 0.0 <= delay.most < 15.0


def test_a_seed_gives_the_same_decisions(database: str) -> None:
    """Moment, action, reason, nodes: the second life of a world is like the first."""
    world = made(at=300.0, until=700.0)
    first, second = (live(database, world).outcome.said for _ in range(2))
    assert len(first) > 1
    assert first == second


@pytest.mark.parametrize("seed", [2])
def test_small_worlds_hold(database: str, seed: int) -> None:
    """Failures, noise, mistakes and arrays: no invariant breaks, no healthy node is isolated, no stop is false."""
    world = draw(BUSY, seed)
    found = live(database, world)
    figures = figures_of(found.cluster, isolated=found.outcome.isolated, until=world.seconds)
    assert figures.failures > 0
    assert (figures.false_stops, figures.healthy_nodes_isolated) == (0, 0)
    assert found.breaches == ()


class RequeuesTwice(Agent):
    """Also the successor that its own requeue has made."""

    def may_requeue(self, row: AdviceRow, job: SimJob) -> bool:
        return True

    async def settle(self, row: AdviceRow, *_: object) -> None:  # and never calls it done
        pass


class ExcludesEverything(Agent):
    def wanted(self, row: AdviceRow, job: SimJob) -> set[int]:
        return set(range(9))


class KeepsItWaiting(Agent):
    """Excludes all but too few nodes, again and again, whatever can be spared."""

    def wanted(self, row: AdviceRow, job: SimJob) -> set[int]:
        job.excluded = set(range(55))
        return job.excluded

    def tend_jobs(self) -> None:
        pass


class StopsOnHardware(Agent):
    async def restart(self, row: AdviceRow, job: SimJob) -> None:
        await self.stop(row, job)


class EndsWhatLives(Agent):
    """Takes "wait for its exit" for "end it"."""

    async def apply(self, row: AdviceRow) -> None:
        job = self.cluster.jobs[row.attempt.job_id]
        if row.decision.action is Action.RESTART and job.last.number == row.attempt.number + 1:
            self.checks.requeuing(self.cluster, job, row)
            self.cluster.requeue(job, by="advisor")
        else:
            await Agent.apply(self, row)


@pytest.mark.parametrize(
    ("agent", "invariant", "until"),
    [
        (RequeuesTwice, "only what failed is restarted", 400.0),
        (ExcludesEverything, "exclusions are bounded", 400.0),
        (KeepsItWaiting, "fail open", 650.0),
        (StopsOnHardware, "no false stop", 400.0),
        (EndsWhatLives, "no healthy attempt is ended", 650.0),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_agent_that_breaks_a_rule_is_caught(database: str, agent: type[Agent], invariant: str, until: float) -> None:
    """The checks know the truth from the world, not from who acts."""
    found = live(database, made(at=300.0, until=until), agent=agent)
    assert invariant in {breach.invariant for breach in found.breaches}


def test_beside_a_person_it_only_watches(database: str) -> None:
    """The person's requeue comes later than the advice that it agrees with; nothing was done by us."""
    found = live(database, made(at=300.0, until=800.0, seed=5), acts=Person)
    beside = watched(found.cluster, found.outcome, "person")
    assert found.outcome.isolated == []
    assert (beside.count, beside.agreed) == (1, 1)
    assert beside.saved_p50_seconds is not None
    assert beside.saved_p50_seconds > 0


KEYS = {
    "ettr": float,
    "ettr_bound": float,
    "ettr_no_advisor": float,
    "healthy_nodes_isolated": int,
    "false_stops": int,
    "wrong_exclusions": int,
    "retries_per_incident": float,
    "gpu_hours_lost": float,
    "node_days": float,
    "detection_seconds": dict,
    "invariants_broken": list,
    "times_faster_than_real": float,
    "settings": dict,
}


def test_json_has_what_others_read() -> None:
    """The keys of the stable surface, each of its kind; shares of nothing are null."""
    quiet = replace(QUIET, days=600.0 / DAY, big_job_nodes=6)
    results = run(quiet, [1], ["nobody", "bound", "advisor"], done=lambda _: None)
    document = json.loads(json.dumps(results[0].document()))
    assert {key: type(document[key]) for key in KEYS} == KEYS
    assert document["lemon_recall"] is None
    assert document["true_stop_recall"] is None
    assert 0.0 < document["ettr"] <= document["ettr_bound"] <= 1.0
    assert document["settings"]["checkpoint_seconds"] == 5.0


def told(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *arguments])
    return caught.value.code


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """And runs none of them."""
    assert told("--list") == 0
    assert set(SCENARIOS) <= set(capsys.readouterr().out.split())


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and the value is in the line."""
    bad = tmp_path / "noise.toml"
    bad.write_text("lines_lost = 2\n")
    for arguments, said in (
        (("--scenario", "moon"), "'moon'"),
        (("--operators", "nobody,ghost"), "'ghost'"),
        (("--noise", str(bad)), "lines_lost: 2"),
        (("--noise", str(tmp_path / "none.toml")), "none.toml"),
    ):
        assert told(*arguments) == 2
        line = capsys.readouterr().err
        assert said in line
        assert line.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
def test_small_worlds_of_two_days_hold(database: str, seed: int) -> None:
    """As the scenario is, to its end."""
    world = draw(SCENARIOS["small"], seed)
    found = live(database, world)
    figures = figures_of(found.cluster, isolated=found.outcome.isolated, until=world.seconds)
    assert (figures.false_stops, figures.healthy_nodes_isolated, found.breaches) == (0, 0, ())


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_two_thousand_nodes_hold(database: str, seed: int) -> None:
    """Half a day of the large training: nothing breaks, and it is close to what nobody can beat."""
    world = draw(replace(SCENARIOS["training-2048-nodes"], days=12 * HOUR / DAY), seed)
    found = live(database, world)
    figures = figures_of(found.cluster, isolated=found.outcome.isolated, until=world.seconds)
    assert (figures.false_stops, figures.healthy_nodes_isolated, found.breaches) == (0, 0, ())
    assert figures.ettr > 0.9
