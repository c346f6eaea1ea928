"""One seed, all operators: the same world lived through once by each of them."""

import asyncio
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from time import monotonic, process_time
from types import FrameType

from advisor.simulate.advised import POLICY, advise, quiet_log
from advisor.simulate.agent import ADVISOR
from advisor.simulate.checks import Breach, Checks
from advisor.simulate.cluster import Cluster
from advisor.simulate.delays import Delay, Watched, detection, watched
from advisor.simulate.figures import Figures, figures_of, lemons_of, was_ever_bad
from advisor.simulate.operators import OPERATORS, Bound, Nobody, Person
from advisor.simulate.outcome import Outcome
from advisor.simulate.world import DAY, Scenario, World, draw
from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from advisor.store.store import Store

MONITOR = "monitor"  # a person acts, the advisor watches
NAMES = (*(made.name for made in OPERATORS), MONITOR, ADVISOR)
USUAL = tuple(name for name in NAMES if name != MONITOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What one operator made of one world. `lemons`: nodes to be found; `lemons_found`: those of them that were on
    the list on some day; `lemons_wrong`: nodes on it whose own hardware never failed.
    """

    operator: str
    figures: Figures
    lemons: int
    lemons_found: int = 0
    lemons_wrong: int = 0
    isolated: int = 0
    ticks: int = 0
    detection: Mapping[str, Delay] = field(default_factory=dict)
    watched: Watched | None = None
    breaches: tuple[Breach, ...] = ()
    checks: Mapping[str, int] = field(default_factory=dict)  # how often something was done that the checks looked at
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
        """The figures that matter by their own names, and everything behind them. Every key is always there: null
        where nobody lived through this world who could tell. Without an acting advisor, what it saw is of `monitor`.
        """
        ours, nobody, bound = self.of(ADVISOR), self.of(Nobody.name), self.of(Bound.name)
        beside = self.of(MONITOR)
        seen = ours or beside
        figures = ours.figures if ours is not None else None
        watched = beside.watched if beside is not None else None
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "days": self.scenario.days,
            "ettr": figures and figures.ettr,
            # Who knows everything still may have worse luck with the nodes that he is given than others had.
            "ettr_bound": max(lived.figures.ettr for lived in self.lived) if bound is not None else None,
            "ettr_no_advisor": nobody and nobody.figures.ettr,
            "ettr_parts": figures and asdict(figures.parts),
            "healthy_nodes_isolated": figures and figures.healthy_nodes_isolated,
            "nodes_isolated": ours and ours.isolated,
            "node_days": self.lived[0].figures.node_days,
            "lemon_recall": seen.lemons_found / seen.lemons if seen is not None and seen.lemons else None,
            "lemons": seen and seen.lemons,
            "lemons_wrong": seen and seen.lemons_wrong,
            "false_stops": figures and figures.false_stops,
            "true_stop_recall": figures.hopeless_stopped / figures.hopeless if figures and figures.hopeless else None,
            "hopeless_jobs": figures and figures.hopeless,
            "wrong_exclusions": figures and figures.wrong_exclusions,
            "retries_per_incident": figures and figures.retries_per_incident,
            "gpu_hours_lost": figures and figures.gpu_hours_lost,
            "gpu_hours_lost_no_advisor": nobody and nobody.figures.gpu_hours_lost,
            "detection_seconds": seen and {shape: asdict(delay) for shape, delay in seen.detection.items()},
            "delay_saved_seconds": watched and watched.saved_p50_seconds,
            "invariants_broken": [asdict(breach) for breach in self.breaches],
            "checks": seen and dict(seen.checks),
            "cpu_seconds": seen and seen.cpu_seconds,
            "times_faster_than_real": seen and self.scenario.days * DAY / max(seen.took_seconds, 1e-9),
            "settings": settings_of(self.scenario),
            "operators": {lived.operator: lived.document() for lived in self.lived},
        }


def settings_of(scenario: Scenario) -> dict[str, object]:
    """Everything that the world was made with: costs and rates are printed with each result."""
    return {
        **{item.name: getattr(scenario, item.name) for item in fields(scenario) if item.name != "noise"},
        "save_every_steps": scenario.save_every,
        "noise": asdict(scenario.noise),
    }


Progress = Callable[[int, str, float], None]  # seed, who lives through it, how many days are over


def run(
    scenario: Scenario,
    seeds: Sequence[int],
    names: Sequence[str],
    *,
    done: Callable[[Result], None],
    progress: Progress = lambda seed, name, days: None,
) -> tuple[Result, ...]:
    """Live through each seed with each operator. `done` is told of a seed as soon as it is over, `progress` now and
    then of one that the advisor lives through.
    """
    results = []
    with ExitStack() as stack:
        url = stack.enter_context(own_database()) if {ADVISOR, MONITOR} & set(names) else ""
        stack.enter_context(quiet_log())
        for seed in seeds:
            world = draw(scenario, seed)
            lived = [_alone(world, name) for name in names if name not in {ADVISOR, MONITOR}]
            lived += [asyncio.run(_advised(world, url, name, progress)) for name in (MONITOR, ADVISOR) if name in names]
            result = Result(scenario=scenario, seed=seed, lived=tuple(lived))
            done(result)
            results.append(result)
    return tuple(results)


@contextmanager
def own_database() -> Iterator[str]:
    """A Postgres of our own for as long as it is used; each world is a cluster of its own name in it."""
    with _ended_as_by_hand(), tempfile.TemporaryDirectory(prefix="sim-") as folder:
        Path(folder).chmod(0o755)  # the database's own user must pass
        with EmbeddedPostgres(Path(folder) / "data") as server:
            # Nobody needs this database after a power cut: no commit waits for the disk.
            yield f"{server.url}&options=-csynchronous_commit%3Doff"


@contextmanager
def _ended_as_by_hand() -> Iterator[None]:
    """SIGTERM leaves as little behind as Ctrl-C does."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are somebody else's business
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


async def _advised(world: World, url: str, name: str, progress: Progress) -> Lived:
    await migrate(url)
    store = await Store.open(url, policy=POLICY)
    began, began_cpu = monotonic(), process_time()
    try:
        checks = Checks(POLICY)
        # A cluster of this name is not in the store yet, whatever seeds were lived through before.
        place = f"world-{world.seed}-{began:.6f}"
        cluster, advised = await advise(
            world,
            store,
            checks,
            acts=Person if name == MONITOR else None,
            name=place,
            progress=lambda seconds: progress(world.seed, name, seconds / DAY),
        )
    finally:
        await store.close()
    outcome: Outcome = advised.outcome
    lemons = lemons_of(cluster)
    return Lived(
        operator=name,
        figures=figures_of(cluster, isolated=outcome.isolated, until=world.seconds),
        lemons=len(lemons),
        lemons_found=len(lemons & outcome.lemons),
        lemons_wrong=sum(not was_ever_bad(cluster, index) for index in outcome.lemons),
        isolated=len(outcome.isolated),
        ticks=outcome.ticks,
        detection=detection(cluster, outcome, world.seconds),
        watched=watched(cluster, outcome, Person.name) if name == MONITOR else None,
        breaches=tuple(checks.breaches),
        checks=dict(sorted(checks.acts.items())),
        took_seconds=monotonic() - began,
        cpu_seconds=process_time() - began_cpu,
    )


def shorter(scenario: Scenario, days: float | None) -> Scenario:
    return scenario if days is None else replace(scenario, days=days)
