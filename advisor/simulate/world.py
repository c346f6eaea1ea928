"""What will happen in one world, drawn from its seed before anybody decides anything.

Each kind of event has a random stream of its own, named by seed and kind, so that a change in one leaves the others as
they were, and so that all who are compared in one world meet the same failures (common random numbers). Times are
seconds since the world's beginning.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import sqrt
from pathlib import Path
from random import Random

from advisor.simulate.catalogue import (
    APPLICATION,
    FABRIC_EVENT,
    INFRASTRUCTURE,
    MISTAKES,
    STORAGE_EVENT,
    Cause,
    Place,
    Shape,
)

DAY = 86_400.0
HOUR = 3600.0
# Of nodes that were repaired and returned to service so many fail again within a day, and within a week.
RECUR_DAY, RECUR_WEEK = 0.095, 0.18


class WorldError(Exception):
    """A scenario or a noise file cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How badly the world is observed. Rates are shares; seconds where the name says so."""

    lines_lost: float = 0.02
    lines_late: float = 0.01
    late_seconds_max: float = 60.0
    reorder_seconds: float = 0.5  # each rank's lines wait for up to so long in a buffer: ranks overtake each other
    skew_seconds: float = 2.0  # standard deviation of a node's clock
    scrapes_missing: float = 0.005
    failures_silent: float = 0.05  # without any line
    healthy_alarming: float = 0.03  # attempts that print what looks alarming and is not


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job of the world. `mistake`: why it can never succeed, at what step it fails."""

    job_id: str
    user: str
    nodes: int
    submitted_at: float
    steps: int | None  # None: trains until the world ends
    step_seconds: float
    save_every: int  # steps
    mistake: Cause | None = None
    mistake_step: int = 0
    priority: int = 0
    array_job_id: str = ""
    array_task: int | None = None
    array_limit: int | None = None  # tasks of the array that may run at once
    avoids: frozenset[int] = frozenset()  # nodes that its user excludes
    full_text: bool = False  # every rank speaks, not only the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of world. Seconds, days and shares as their names say; all of it is printed with each result."""

    name: str
    nodes: int
    gpus_per_node: int = 8
    days: float = 1.0
    failures_per_1000_node_days: float = 6.5
    lemons: float = 0.012  # share of nodes that fail again and again
    lemon_failures_per_day: float = 0.2
    fabric_events_per_day: float = 0.05
    fabric_nodes: int = 32
    storage_events_per_day: float = 0.03
    application_failures_per_job_day: float = 0.15
    big_job_nodes: int | None = None  # one job of this size that trains until the end
    small_jobs_per_day: float = 0.0
    small_job_nodes: tuple[int, ...] = (1, 1, 2, 4, 8, 16)
    small_job_hours: float = 6.0
    mistakes: float = 0.15  # share of small jobs
    preemptions_per_day: float = 0.0
    cancels_per_day: float = 0.0  # by users, of what runs or waits
    drains_per_day: float = 0.0  # by administrators, for two hours
    own_exclusions: float = 0.1  # share of small jobs whose users exclude a node themselves
    arrays_per_day: float = 0.0
    array_tasks: int = 4
    array_limit: int = 2  # at once
    step_seconds: float = 10.0
    checkpoint_seconds: float = 5.0  # for which training stands still
    requeue_delay_seconds: float = 121.0  # Slurm's own: cred_expire + 1 by default
    schedule_seconds: float = 2.0
    initialise_seconds: float = 90.0  # from start to the first step: imports, communicators, checkpoint
    collective_timeout_seconds: float = 600.0
    node_timeout_seconds: float = 300.0  # SlurmdTimeout
    repair_hours: float = 20.0  # median, once somebody has noticed
    health_check_hours: float = 6.0  # mean until the site's own checks notice a bad node
    noise: Noise = field(default_factory=Noise)

    @property
    def save_every(self) -> int:
        """Steps between checkpoints of the big job, by Young and Daly: sqrt(2 × cost × mean time to failure)."""
        rate = self.failures_per_1000_node_days / 1000 / DAY * max(self.big_job_nodes or 1, 1)
        interval = sqrt(2 * self.checkpoint_seconds / rate) if rate > 0 else HOUR
        return max(1, round(interval / self.step_seconds))


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="training-2048-nodes", nodes=2112, big_job_nodes=2048, days=3.0),
        Scenario(
            name="training-256-nodes", nodes=272, big_job_nodes=256, days=2.0, small_jobs_per_day=12.0, fabric_nodes=16
        ),
        Scenario(
            name="mixed-2048-nodes",
            nodes=2048,
            days=2.0,
            big_job_nodes=512,
            small_jobs_per_day=400.0,
            small_job_nodes=(1, 2, 4, 8, 16, 32, 64),  # more than there is room for: jobs wait for each other
            preemptions_per_day=12.0,
            arrays_per_day=6.0,
            cancels_per_day=24.0,
            drains_per_day=6.0,
            fabric_events_per_day=0.5,
            storage_events_per_day=0.5,
        ),
        Scenario(
            name="lemons-90-days",
            nodes=256,
            big_job_nodes=192,
            days=90.0,
            lemons=0.04,
            small_jobs_per_day=12.0,
            fabric_nodes=16,
            failures_per_1000_node_days=6.5,
        ),
        Scenario(name="cluster-10000-nodes", nodes=10_000, big_job_nodes=8192, days=0.25, fabric_nodes=64),
        Scenario(
            name="small",
            nodes=20,
            big_job_nodes=12,
            days=2.0,
            failures_per_1000_node_days=80.0,
            small_jobs_per_day=8.0,
            small_job_nodes=(1, 2, 4),
            fabric_nodes=6,
            mistakes=0.3,
            arrays_per_day=1.0,
            preemptions_per_day=1.0,
            cancels_per_day=1.0,
            drains_per_day=0.5,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens to `nodes` at `at`. `bad_until`: the place stays bad so long unless it is repaired."""

    number: int
    at: float
    cause: Cause
    nodes: tuple[int, ...]
    gpu: int = 0
    bad_until: float = 0.0

    @property
    def own_hardware(self) -> bool:
        """Of one node, and what a node is to blame for."""
        return self.cause.place is Place.NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    seed: int
    scenario: Scenario
    faults: tuple[Fault, ...]  # in order
    jobs: tuple[JobSpec, ...]  # in order of submission
    lemons: frozenset[int]
    skews: tuple[float, ...]  # of each node's clock
    preemptions: tuple[float, ...]
    cancels: tuple[float, ...] = ()
    drains: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        return self.scenario.days * DAY

    def stream(self, *names: object) -> Random:
        """Random numbers for one purpose, the same whatever else was drawn."""
        return Random("/".join(map(str, (self.seed, *names))))  # noqa: S311 -- a world, not a secret

    def name_of(self, node: int) -> str:
        return f"n{node:05d}"


def draw(scenario: Scenario, seed: int) -> World:
    """The world of this seed. The same scenario and seed give the same world on every machine."""
    bare = World(seed=seed, scenario=scenario, faults=(), jobs=(), lemons=frozenset(), skews=(), preemptions=())
    order = bare.stream("lemons")
    lemons = frozenset(order.sample(range(scenario.nodes), round(scenario.lemons * scenario.nodes)))
    skew = bare.stream("skew")
    found = sorted((*_node_faults(bare, lemons), *_events(bare)), key=lambda fault: (fault.at, fault.nodes))
    return replace(
        bare,
        lemons=lemons,
        skews=tuple(skew.gauss(0.0, scenario.noise.skew_seconds) for _ in range(scenario.nodes)),
        faults=tuple(replace(fault, number=number) for number, fault in enumerate(found)),
        jobs=tuple(_jobs(bare)),
        preemptions=tuple(_arrivals(bare.stream("preemptions"), scenario.preemptions_per_day / DAY, bare.seconds)),
        cancels=tuple(_arrivals(bare.stream("cancels"), scenario.cancels_per_day / DAY, bare.seconds)),
        drains=tuple(_arrivals(bare.stream("drains"), scenario.drains_per_day / DAY, bare.seconds)),
    )


def _arrivals(random: Random, rate: float, until: float) -> Iterator[float]:
    """A Poisson process. `rate` per second."""
    at = 0.0
    while rate > 0:
        at += random.expovariate(rate)
        if at >= until:
            return
        yield at


def _node_faults(world: World, lemons: frozenset[int]) -> Iterator[Fault]:
    """Each node's own failures. What lemons and recurrence add is taken off: the mean rate is the scenario's."""
    scenario = world.scenario
    wanted = scenario.failures_per_1000_node_days / 1000
    of_lemons = scenario.lemon_failures_per_day * len(lemons) / scenario.nodes
    plain = max(wanted - of_lemons, wanted / 4)
    weights = [cause.weight for cause in INFRASTRUCTURE]
    stay = sum(cause.weight * cause.stays for cause in INFRASTRUCTURE) / sum(weights)
    plain *= 1.0 - stay * RECUR_WEEK
    for node in range(scenario.nodes):
        random = world.stream("node", node)
        rate = scenario.lemon_failures_per_day if node in lemons else plain
        # A lemon fails by the same part again and again.
        own = random.choices(INFRASTRUCTURE, weights)[0] if node in lemons else None
        while own is not None and (own.place is not Place.NODE or own.shape is Shape.GONE):
            own = random.choices(INFRASTRUCTURE, weights)[0]
        for at in _arrivals(random, rate / DAY, world.seconds):
            cause = own or random.choices(INFRASTRUCTURE, weights)[0]
            stays = random.random() < cause.stays
            fault = Fault(
                number=0,
                at=at,
                cause=cause,
                nodes=(node,),
                gpu=random.randrange(scenario.gpus_per_node),
                bad_until=at + random.expovariate(1 / (scenario.health_check_hours * HOUR)) if stays else at,
            )
            yield fault
            if node not in lemons:
                yield from _recurrences(world, fault)


def _recurrences(world: World, fault: Fault) -> Iterator[Fault]:
    """The same part again, after a repair that did not help: it was found, repaired, returned to service."""
    random = world.stream("recurs", fault.nodes[0], fault.at)
    while fault.bad_until > fault.at and fault.cause.place is Place.NODE and random.random() < RECUR_WEEK:
        returned = fault.bad_until + random.lognormvariate(0.0, 0.6) * world.scenario.repair_hours * HOUR
        soon = random.random() < RECUR_DAY / RECUR_WEEK
        at = returned + (random.uniform(0.0, DAY) if soon else random.uniform(DAY, 7 * DAY))
        if at >= world.seconds:
            return
        stays = random.random() < fault.cause.stays
        found = random.expovariate(1 / (world.scenario.health_check_hours * HOUR))
        fault = replace(fault, at=at, bad_until=at + found if stays else at)
        yield fault


def _events(world: World) -> Iterator[Fault]:
    """What hits many nodes at once: a switch with all below it, the file system with everybody."""
    scenario = world.scenario
    random = world.stream("fabric")
    for at in _arrivals(random, scenario.fabric_events_per_day / DAY, world.seconds):
        count = min(scenario.fabric_nodes, scenario.nodes)
        first = random.randrange(0, scenario.nodes - count + 1)
        yield Fault(number=0, at=at, cause=FABRIC_EVENT, nodes=tuple(range(first, first + count)), bad_until=at + 30.0)
    random = world.stream("storage")
    for at in _arrivals(random, scenario.storage_events_per_day / DAY, world.seconds):
        yield Fault(
            number=0,
            at=at,
            cause=STORAGE_EVENT,
            nodes=tuple(range(scenario.nodes)),
            bad_until=at + random.uniform(60.0, 600.0),
        )


def _jobs(world: World) -> Iterator[JobSpec]:
    scenario = world.scenario
    found = []
    if scenario.big_job_nodes:
        found.append(
            JobSpec(
                job_id="1",
                user="ada",
                nodes=scenario.big_job_nodes,
                submitted_at=0.0,
                steps=None,
                step_seconds=scenario.step_seconds,
                save_every=scenario.save_every,
                priority=10,
            )
        )
    random = world.stream("jobs")
    number = 100
    for at in _arrivals(random, scenario.small_jobs_per_day / DAY, world.seconds):
        number += 1
        mistake = random.choices(MISTAKES, [cause.weight for cause in MISTAKES])[0]
        wrong = random.random() < scenario.mistakes
        hours = random.expovariate(1 / scenario.small_job_hours)
        own = world.stream("own", number)
        avoids = {own.randrange(scenario.nodes)} if own.random() < scenario.own_exclusions else ()
        found.append(
            JobSpec(
                job_id=str(number),
                user=random.choice(("bob", "cyd", "dan", "eve", "fay")),
                nodes=random.choice(scenario.small_job_nodes),
                avoids=frozenset(avoids),
                submitted_at=at,
                steps=max(20, round(hours * HOUR / 20.0)),
                step_seconds=20.0,
                save_every=45,
                mistake=mistake if wrong else None,
                mistake_step=random.choice((0, 0, 3, 40)) if wrong else 0,
                full_text=random.random() < 0.1,
            )
        )
    found.extend(_arrays(world))
    yield from sorted(found, key=lambda job: (job.submitted_at, job.job_id))


def _arrays(world: World) -> Iterator[JobSpec]:
    """Sweeps: tasks of one array with one program, so that a mistake is everybody's."""
    scenario = world.scenario
    random = world.stream("arrays")
    number = 50_000
    for at in _arrivals(random, scenario.arrays_per_day / DAY, world.seconds):
        mistake = random.choices(MISTAKES, [cause.weight for cause in MISTAKES])[0]
        wrong = random.random() < scenario.mistakes
        hours = random.expovariate(1 / scenario.small_job_hours)
        step = random.choice((0, 0, 3, 40))
        for task in range(scenario.array_tasks):
            yield JobSpec(
                job_id=str(number + task + 1),
                user="gil",
                nodes=1,
                submitted_at=at,
                steps=max(20, round(hours * HOUR / 20.0)),
                step_seconds=20.0,
                save_every=45,
                mistake=mistake if wrong else None,
                mistake_step=step if wrong else 0,
                array_job_id=str(number + 1),
                array_task=task,
                array_limit=scenario.array_limit,
            )
        number += scenario.array_tasks


def application_failures(world: World, job: JobSpec) -> tuple[tuple[float, Cause], ...]:
    """When the program of a job would fail by itself, in seconds that it has trained, and of what."""
    random = world.stream("application", job.job_id)
    rate = world.scenario.application_failures_per_job_day / DAY
    weights = [cause.weight for cause in APPLICATION]
    return tuple((at, random.choices(APPLICATION, weights)[0]) for at in _arrivals(random, rate, world.seconds))


def scenario_named(name: str, noise: Noise | None) -> Scenario:
    """A scenario of the list, with another noise if one is given. Raises `WorldError`."""
    found = SCENARIOS.get(name)
    if found is None:
        raise WorldError(f"scenario: {name!r} is not one of {', '.join(SCENARIOS)}")
    return found if noise is None else replace(found, noise=noise)


def read_noise(path: Path) -> Noise:
    """Rates from a TOML or JSON file; those not given keep their default. Raises `WorldError`."""
    try:
        text = path.read_text(encoding="utf-8")
        given = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise WorldError(f"{path} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from None
    if isinstance(given, dict) and isinstance(given.get("noise"), dict) and len(given) == 1:
        given = given["noise"]  # as the settings that are printed with each result have it
    if not isinstance(given, dict):
        raise WorldError(f"{path}: a table of rates is wanted")
    known = {item.name for item in fields(Noise)}
    for name, value in given.items():
        if name not in known:
            raise WorldError(f"{path}: {name}: not one of {', '.join(sorted(known))}")
        most = DAY if "seconds" in name else 1.0
        if not (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most):
            what = "seconds from 0 to a day" if "seconds" in name else "a share from 0 to 1"
            raise WorldError(f"{path}: {name}: {value!r} is not {what}")
    return Noise(**{name: float(value) for name, value in given.items()})
