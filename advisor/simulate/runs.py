"""One seed, all operators: the same world lived through once by each of them."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from time import monotonic, process_time

from advisor.simulate.advised import POLICY, Outcome, advise, quiet_log
from advisor.simulate.agent import ADVISOR
from advisor.simulate.checks import Breach, Checks
from advisor.simulate.cluster import Cluster
from advisor.simulate.delays import Delay, Watched, detection, watched
from advisor.simulate.figures import Figures, figures_of, lemons_of
from advisor.simulate.operators import OPERATORS, Bound, Nobody, Person
from advisor.simulate.world import DAY, Scenario, World, draw
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.store.store import Store

MONITOR = "monitor"  # a person acts, the advisor watches
NAMES = (*(made.name for made in OPERATORS), MONITOR, ADVISOR)
USUAL = tuple(name for name in NAMES if name != MONITOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What one operator made of one world. `lemons`: nodes to be found; `lemons_found`: those of them on the list."""

    operator: str
    figures: Figures
    lemons: int
    lemons_found: int = 0
    isolated: int = 0
    ticks: int = 0
    detection: Mapping[str, Delay] = field(default_factory=dict)
    watched: Watched | None = None
    breaches: tuple[Breach, ...] = ()
    took_seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process; the advisor's database is not in it

    def document(self) -> dict[str, object]:
        return {**asdict(self), "breaches": [asdict(breach) for breach in self.breaches]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One seed."""

    scenario: Scenario
    seed: int
    lived: tuple[Lived, ...]

    def of(self, name: str) -> Lived | None:
        return next((lived for lived in self.lived if lived.operator == name), None)

    @property
    def breaches(self) -> tuple[Breach, ...]:
        return tuple(breach for lived in self.lived for breach in lived.breaches)

    def document(self) -> dict[str, object]:
        """The figures that matter by their own names, and everything behind them."""
        ours, nobody, bound = self.of(ADVISOR), self.of(Nobody.name), self.of(Bound.name)
        watching = self.of(MONITOR)
        found: dict[str, object] = {"scenario": self.scenario.name, "seed": self.seed, "days": self.scenario.days}
        if ours is not None:
            figures = ours.figures
            found |= {
                "ettr": figures.ettr,
                "healthy_nodes_isolated": figures.healthy_nodes_isolated,
                "node_days": figures.node_days,
                "lemon_recall": ours.lemons_found / ours.lemons if ours.lemons else None,
                "lemons": ours.lemons,
                "false_stops": figures.false_stops,
                "true_stop_recall": figures.hopeless_stopped / figures.hopeless if figures.hopeless else None,
                "hopeless_jobs": figures.hopeless,
                "wrong_exclusions": figures.wrong_exclusions,
                "retries_per_incident": figures.retries_per_incident,
                "gpu_hours_lost": figures.gpu_hours_lost,
                "detection_seconds": {shape: asdict(delay) for shape, delay in ours.detection.items()},
                "invariants_broken": [asdict(breach) for breach in ours.breaches],
                "cpu_seconds": ours.cpu_seconds,
                "times_faster_than_real": self.scenario.days * DAY / max(ours.took_seconds, 1e-9),
            }
        if bound is not None:
            # Who knows everything still may have worse luck with the nodes that he is given than others had.
            found["ettr_bound"] = max(lived.figures.ettr for lived in self.lived)
        if watching is not None and watching.watched is not None:
            found["delay_saved_seconds"] = watching.watched.saved_p50_seconds
        if nobody is not None:
            found["ettr_no_advisor"] = nobody.figures.ettr
            found["gpu_hours_lost_no_advisor"] = nobody.figures.gpu_hours_lost
        found["settings"] = settings_of(self.scenario)
        found["operators"] = {lived.operator: lived.document() for lived in self.lived}
        return found


def settings_of(scenario: Scenario) -> dict[str, object]:
    """Everything that the world was made with: costs and rates are printed with each result."""
    return {
        **{item.name: getattr(scenario, item.name) for item in fields(scenario) if item.name != "noise"},
        "save_every_steps": scenario.save_every,
        "noise": asdict(scenario.noise),
    }


def run(
    scenario: Scenario, seeds: Sequence[int], names: Sequence[str], *, done: Callable[[Result], None]
) -> tuple[Result, ...]:
    """Live through each seed with each operator. `done` is told of a seed as soon as it is over."""
    results = []
    with ExitStack() as stack:
        url = stack.enter_context(own_database()) if {ADVISOR, MONITOR} & set(names) else ""
        stack.enter_context(quiet_log())
        for seed in seeds:
            world = draw(scenario, seed)
            lived = [_alone(world, name) for name in names if name not in {ADVISOR, MONITOR}]
            lived += [asyncio.run(_advised(world, url, name)) for name in (MONITOR, ADVISOR) if name in names]
            result = Result(scenario=scenario, seed=seed, lived=tuple(lived))
            done(result)
            results.append(result)
    return tuple(results)


@contextmanager
def own_database() -> Iterator[str]:
    """A Postgres of our own for as long as it is used; each world is a cluster of its own name in it."""
    with tempfile.TemporaryDirectory(prefix="sim-") as folder:
        Path(folder).chmod(0o755)  # the database's own user must pass
        with EmbeddedPostgres(Path(folder) / "data") as server:
            # Nobody needs this database after a power cut: no commit waits for the disk.
            yield f"{server.url}&options=-csynchronous_commit%3Doff"


def _alone(world: World, name: str) -> Lived:
    began = monotonic()
    cluster = Cluster(world)
    (made,) = (made for made in OPERATORS if made.name == name)
    cluster.operator = made.make(cluster)
    cluster.advance(world.seconds)
    return Lived(
        operator=name,
        figures=figures_of(cluster, until=world.seconds),
        lemons=len(lemons_of(cluster)),
        took_seconds=monotonic() - began,
    )


async def _advised(world: World, url: str, name: str) -> Lived:
    await migrate(url)
    store = await Store.open(url, policy=POLICY)
    began, began_cpu = monotonic(), process_time()
    try:
        checks = Checks(POLICY)
        # A cluster of this name is not in the store yet, whatever seeds were lived through before.
        place = f"world-{world.seed}-{began:.6f}"
        cluster, advised = await advise(world, store, checks, acts=Person if name == MONITOR else None, name=place)
    finally:
        await store.close()
    outcome: Outcome = advised.outcome
    lemons = lemons_of(cluster)
    return Lived(
        operator=name,
        figures=figures_of(cluster, isolated=outcome.isolated, until=world.seconds),
        lemons=len(lemons),
        lemons_found=len(lemons & outcome.lemons),
        isolated=len(outcome.isolated),
        ticks=outcome.ticks,
        detection=detection(cluster, outcome, world.seconds),
        watched=watched(cluster, outcome, Person.name) if name == MONITOR else None,
        breaches=tuple(checks.breaches),
        took_seconds=monotonic() - began,
        cpu_seconds=process_time() - began_cpu,
    )


def shorter(scenario: Scenario, days: float | None) -> Scenario:
    return scenario if days is None else replace(scenario, days=days)
