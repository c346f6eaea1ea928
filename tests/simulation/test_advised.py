"""The real advisor in seeded worlds: it breaks no invariant, and who breaks one is caught."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from advisor.cli import main
from advisor.core.words import Action
from advisor.simulate.advised import POLICY, advise, quiet_log
from advisor.simulate.agent import Agent
from advisor.simulate.catalogue import INFRASTRUCTURE, MISTAKES
from advisor.simulate.checks import Breach, Checks
from advisor.simulate.cluster import Cluster, SimJob
from advisor.simulate.delays import detection, watched
from advisor.simulate.figures import figures_of, lemons_of
from advisor.simulate.operators import Person
from advisor.simulate.outcome import Outcome
from advisor.simulate.runs import own_database, run
from advisor.simulate.world import DAY, HOUR, SCENARIOS, Fault, JobSpec, Noise, Scenario, World, draw
from advisor.store.migrate import migrate
from advisor.store.records import AdviceRow, StoredIsolation
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
    url: str,
    world: World,
    *,
    agent: type[Agent] = Agent,
    acts: Callable[[Cluster], Person] | None = None,
    leap: bool = True,
) -> Seen:
    async def through() -> Seen:
        store = await Store.open(url, policy=POLICY)
        try:
            checks = Checks(POLICY)
            name = f"world-{next(_numbers)}"
            cluster, advised = await advise(world, store, checks, name=name, agent=agent, acts=acts, leap=leap)
        finally:
            await store.close()
        return Seen(cluster=cluster, outcome=advised.outcome, breaches=tuple(checks.breaches))

    return asyncio.run(through())


def made(
    *,
    at: float = 400.0,
    until: float = 1700.0,
    jobs: tuple[JobSpec, ...] = (BIG,),
    seed: int = 1,
    cancels: tuple[float, ...] = (),
    drains: tuple[float, ...] = (),
) -> World:
    """A GPU falls off the bus of the first node at that time, and stays so."""
    fault = Fault(number=0, at=at, cause=CAUSES["gpu_fell_off"], nodes=(0,), bad_until=DAY)
    drawn = draw(replace(QUIET, days=until / DAY), seed)
    return replace(drawn, faults=(fault,), jobs=jobs, cancels=cancels, drains=drains)


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


def acts_of(found: Seen) -> list[tuple[object, ...]]:
    """What became of each attempt."""
    return [
        (job.spec.job_id, job.stopped_by, attempt.number, attempt.requeued_by, attempt.nodes, attempt.state)
        for job in found.cluster.jobs.values()
        for attempt in job.attempts
    ]


def assert_alike(leaping: Seen, every_second: Seen) -> None:
    assert acts_of(leaping) == acts_of(every_second)
    assert [node for node, _ in leaping.outcome.isolated] == [node for node, _ in every_second.outcome.isolated]
    for job_id, job in leaping.cluster.jobs.items():
        for one, other in zip(job.attempts, every_second.cluster.jobs[job_id].attempts, strict=True):
            # Whoever reads many steps at once knows their pace less well, and the grace of broken hardware goes by it.
            assert abs(one.submitted_at - other.submitted_at) <= 10.0


def decisions(found: Seen) -> list[tuple[object, ...]]:
    """Of one second in the order of jobs: which of them a tick commits first is nobody's business."""
    said = sorted(found.outcome.said, key=lambda s: (round(s.at), s.job_id))
    return [(s.job_id, s.attempt, s.action, s.reason, s.exclude, s.ends_live, round(s.at)) for s in said]


def test_leaping_decides_what_every_second_decides(database: str) -> None:
    """The same decisions at the same seconds as with every tick of life, in a tenth of the ticks."""
    world = made(at=60.0, until=260.0, jobs=(BIG, replace(WRONG, submitted_at=5.0)))
    leaping, every_second = (live(database, world, leap=leap) for leap in (True, False))
    assert decisions(leaping) == decisions(every_second) != []
    assert_alike(leaping, every_second)
    assert leaping.outcome.ticks < every_second.outcome.ticks / 4


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 5])
def test_leaping_in_worlds_full_of_failures(database: str, seed: int) -> None:
    """Also where jobs hang, nodes die and lines are late: the same acts on the same nodes, within ten seconds."""
    world = draw(BUSY, seed)
    leaping, every_second = (live(database, world, leap=leap) for leap in (True, False))
    assert_alike(leaping, every_second)


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


class RevivesTheCancelled(Agent):
    """Takes a job that its user has cancelled for one that failed."""

    async def apply(self, row: AdviceRow) -> None:
        job = self.cluster.jobs[row.attempt.job_id]
        if job.stopped_by:
            self.checks.requeuing(self.cluster, job, row)
        await Agent.apply(self, row)


class ActsInMonitorMode(Agent):
    def is_told(self, row: AdviceRow) -> bool:
        return True


class ForgetsTheUser(Agent):
    """Writes its own exclusions over those of the job's user."""

    def wanted(self, row: AdviceRow, job: SimJob) -> set[int]:
        return super().wanted(row, job) - job.spec.avoids


class ExcludesBystanders(Agent):
    def wanted(self, row: AdviceRow, job: SimJob) -> set[int]:
        return super().wanted(row, job) | {50}


class IsolatesTheHealthy(Agent):
    async def tend_nodes(self, wanted: tuple[StoredIsolation, ...]) -> None:
        if not self.isolated and self.cluster.now > 300.0:
            self.isolated.append((30, self.cluster.now))
            self.checks.isolating(self.cluster, 30)
            self.cluster.drain(30, by="advisor")


class IsolatesWithoutMeasure(Agent):
    """All nodes of a job that has failed."""

    async def tend_nodes(self, wanted: tuple[StoredIsolation, ...]) -> None:
        for index in self.cluster.jobs["1"].attempts[0].nodes if self.ours and not self.isolated else ():
            self.isolated.append((index, self.cluster.now))
            self.checks.isolating(self.cluster, index)
            self.cluster.drain(index, by="advisor")


class EndsDrainsOfOthers(Agent):
    async def tend_nodes(self, wanted: tuple[StoredIsolation, ...]) -> None:
        for node in self.cluster.nodes:
            if node.drained:
                self.checks.undraining(self.cluster, node.index)
                self.cluster.undrain(node.index)


@dataclass(slots=True, kw_only=True)
class KeepsOldAdvice(Agent):
    """Follows the first advice that it was given for a job for ever."""

    first: dict[str, AdviceRow] = field(default_factory=dict)

    async def apply(self, row: AdviceRow) -> None:
        if row.decision.action is Action.RESTART:
            self.first.setdefault(row.attempt.job_id, row)
        await Agent.apply(self, row)

    def tend_jobs(self) -> None:
        for job_id, row in self.first.items():
            job = self.cluster.jobs[job_id]
            if job.last.live and job.last.number > row.attempt.number:
                self.checks.requeuing(self.cluster, job, row)


@pytest.mark.parametrize(
    ("agent", "invariant", "until"),
    [
        (RequeuesTwice, "only what failed is restarted", 400.0),
        (ExcludesEverything, "exclusions are bounded", 400.0),
        (KeepsItWaiting, "fail open", 650.0),
        (StopsOnHardware, "no false stop", 400.0),
        (EndsWhatLives, "no healthy attempt is ended", 650.0),
        (RevivesTheCancelled, "a user's cancel stands", 400.0),
        (ForgetsTheUser, "a user's own exclusions are kept", 400.0),
        (ExcludesBystanders, "evidence names the job's own nodes", 400.0),
        (IsolatesTheHealthy, "no healthy node is isolated", 400.0),
        (IsolatesWithoutMeasure, "isolation is capped", 400.0),
        (EndsDrainsOfOthers, "drains of others stay", 400.0),
        (KeepsOldAdvice, "advice is for its own attempt", 650.0),
        (KeepsOldAdvice, "no act without open advice", 650.0),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_agent_that_breaks_a_rule_is_caught(database: str, agent: type[Agent], invariant: str, until: float) -> None:
    """The checks know the truth from the world, not from who acts."""
    cancels = (340.0,) if agent is RevivesTheCancelled else ()
    world = made(at=300.0, until=until, jobs=(replace(BIG, avoids=frozenset({40})),), cancels=cancels, drains=(50.0,))
    found = live(database, world, agent=agent)
    assert invariant in {breach.invariant for breach in found.breaches}


def test_who_keeps_the_rules_breaks_none_of_them(database: str) -> None:
    """In the world of those who break them: cancels, drains and a user's exclusions are left alone."""
    world = made(at=300.0, until=650.0, jobs=(replace(BIG, avoids=frozenset({40})),), drains=(50.0,))
    found = live(database, world)
    assert found.breaches == ()
    assert found.cluster.jobs["1"].excluded == {0, 40}


def test_acting_in_monitor_mode_is_caught(database: str) -> None:
    """A person acts; an agent that acts as well has no right to."""
    found = live(database, made(at=300.0, until=400.0), agent=ActsInMonitorMode, acts=Person)
    assert "monitor mode touches nothing" in {breach.invariant for breach in found.breaches}


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
    beside = json.loads(json.dumps(run(quiet, [1], ["monitor"], done=lambda _: None)[0].document()))
    assert beside.keys() == document.keys()
    for key in ("ettr", "ettr_bound", "ettr_no_advisor", "false_stops", "lemon_recall", "healthy_nodes_isolated"):
        assert beside[key] is None
    assert beside["detection_seconds"] == {}
    assert beside["operators"]["monitor"]["figures"]["ettr"] > 0.0


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
    broken = tmp_path / "broken.toml"
    broken.write_text("lines_lost\n")
    for arguments, said in (
        (("--scenario", "moon"), "'moon'"),
        (("--operators", "nobody,ghost"), "'ghost'"),
        (("--noise", str(bad)), "lines_lost: 2"),
        (("--noise", str(tmp_path / "none.toml")), "none.toml cannot be read: No such file or directory"),
        (("--noise", str(broken)), "broken.toml is not TOML: "),
    ):
        assert told(*arguments) == 2
        line = capsys.readouterr().err
        assert said in line
        assert line.count("\n") == 1


@pytest.mark.parametrize(("days", "said"), [("0.01", True), ("1", False)])
def test_a_world_without_a_failure_says_so(capsys: pytest.CaptureFixture[str], days: str, said: bool) -> None:
    """Its lines are all alike; a world with one shows what it was worth."""
    assert told("--scenario", "small", "--seed", "1", "--days", days, "--operators", "nobody,bound") == 0
    assert ("no failure happened in this world" in capsys.readouterr().out) == said


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


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "days"),
    [("training-256-nodes", 2.0), ("mixed-2048-nodes", 0.5), ("cluster-10000-nodes", 0.25), ("lemons-90-days", 30.0)],
)
def test_every_scenario_holds(database: str, name: str, days: float) -> None:
    """A night's share of each: nothing breaks, nobody healthy is isolated or stopped, lemons are on the list."""
    world = draw(replace(SCENARIOS[name], days=days), 3)
    found = live(database, world)
    figures = figures_of(found.cluster, isolated=found.outcome.isolated, until=world.seconds)
    assert (figures.false_stops, figures.healthy_nodes_isolated, found.breaches) == (0, 0, ())
    lemons = lemons_of(found.cluster)
    assert len(lemons & found.outcome.lemons) >= 0.9 * len(lemons)
    assert figures.hopeless_stopped >= 0.9 * figures.hopeless


HARSH = Noise(
    lines_lost=0.1,
    lines_late=0.1,
    late_seconds_max=300.0,
    reorder_seconds=2.0,
    skew_seconds=30.0,
    scrapes_missing=0.05,
    failures_silent=0.2,
    healthy_alarming=0.2,
)
NOISES = {
    "none": Noise(**dict.fromkeys(asdict(Noise()), 0.0)),
    "all": HARSH,
    **{
        key: Noise(**{key: value})
        for key, value in asdict(HARSH).items()
        if key not in {"late_seconds_max", "lines_late"}
    },
    "late": Noise(lines_late=0.1, late_seconds_max=300.0),
}


@pytest.mark.long
@pytest.mark.parametrize("noise", NOISES)
def test_harsh_noise_breaks_nothing(database: str, noise: str) -> None:
    """Each rate alone, all together, and none: fewer failures are explained, and nothing wrong is done."""
    busy = replace(SCENARIOS["small"], nodes=60, days=0.15, failures_per_1000_node_days=1500.0)
    for seed in (2, 3):
        world = draw(replace(busy, small_jobs_per_day=60.0, noise=NOISES[noise]), seed)
        found = live(database, world)
        figures = figures_of(found.cluster, isolated=found.outcome.isolated, until=world.seconds)
        assert (figures.false_stops, figures.healthy_nodes_isolated, found.breaches) == (0, 0, ())
