"""`advisor simulate`: what recovery is worth, in seeded worlds around the real core and the real store."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, TextIO

import typer

from advisor.commands.options import FormatOption
from advisor.commands.output import CommandError, Format, print_json, print_table
from advisor.core.amounts import many
from advisor.simulate.runs import NAMES, USUAL, Lived, Result, run, shorter
from advisor.simulate.world import DAY, SCENARIOS, WorldError, read_noise, scenario_named

SILENT_SECONDS = 15.0  # between two words about how far a world is

app = typer.Typer(rich_markup_mode=None)


@app.command()
def simulate(
    scenario: Annotated[str, typer.Option(help="Which kind of world; `--list` shows them.")] = "small",
    seed: Annotated[int, typer.Option(help="The world, or the first of them.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many worlds, each with the next seed.")] = 1,
    operators: Annotated[str, typer.Option(help=f"Who lives through it, with commas: {', '.join(NAMES)}.")] = ",".join(
        USUAL
    ),
    days: Annotated[float | None, typer.Option(min=0.001, max=3650.0, help="Instead of the scenario's own.")] = None,
    noise: Annotated[Path | None, typer.Option(help='TOML or JSON file of rates: docs/simulator.md, "Noise".')] = None,
    listed: Annotated[bool, typer.Option("--list", help="The scenarios, and nothing else.")] = False,
    form: FormatOption = Format.TABLE,
) -> None:
    """Live through seeded worlds: without anybody, with simple scripts, with people, with the advisor, at best.

    Nothing outside is touched: the advisor's part runs on a Postgres of its own that is removed afterwards. Exit 0
    when every invariant held, 1 when one did not: the same command shows it again.

    \b
    Examples:
      advisor simulate --scenario training-256-nodes --seed 3 --days 0.5   (half a minute)
      advisor simulate --scenario training-256-nodes --seed 4 --days 0.5 --noise noise.toml
      advisor simulate --scenario training-256-nodes --seed 3 --days 0.5 --seeds 2 --format jsonl
      advisor simulate --scenario training-2048-nodes --seed 1 --format json (ten minutes)
      advisor simulate --list
    """
    if listed:
        _show_scenarios(form)
        return
    try:
        chosen = shorter(scenario_named(scenario, read_noise(noise) if noise is not None else None), days)
    except WorldError as error:
        raise CommandError(str(error), code=2) from None
    names = _names(operators)
    many = seeds > 1

    def done(result: Result) -> None:
        if form is Format.JSONL or (many and form is Format.JSON):
            print_json(result.document(), Format.JSONL)
            sys.stdout.flush()
        elif form is Format.JSON:
            print_json(result.document())
        else:
            _show(result)
            sys.stdout.flush()

    results = run(chosen, range(seed, seed + seeds), names, done=done, progress=Told(chosen.days, sys.stderr))
    broken = [(result.seed, breach) for result in results for breach in result.breaches]
    for number, breach in broken[:20]:
        again = f"advisor simulate --scenario {scenario} --seed {number} --operators advisor{_changed(days, noise)}"
        print(f"seed {number}, {breach.at:.1f} s: {breach.invariant}: {breach.detail}; again: {again}", file=sys.stderr)
    if broken:
        raise typer.Exit(1)


@dataclass(slots=True)
class Told:
    """What is said on stderr while a world takes long: now and then, how far it is."""

    days: float
    where: TextIO
    silent_seconds: float = SILENT_SECONDS
    _at: float = field(default_factory=monotonic)
    _seed: tuple[int, str] = (0, "")
    _began: tuple[float, float] = (0.0, 0.0)  # by the clock, and in days of the world

    def __call__(self, seed: int, name: str, days: float) -> None:
        now = monotonic()
        if self._seed != (seed, name):
            self._seed, self._began = (seed, name), (now, days)
        if now - self._at < self.silent_seconds:
            return
        self._at = now
        speed = (days - self._began[1]) * DAY / max(now - self._began[0], 1e-9)
        print(
            f"seed {seed}, {name}: day {days:.2f} of {self.days:g}, {speed:,.0f} times faster than real",
            file=self.where,
        )


def _changed(days: float | None, noise: Path | None) -> str:
    """What else made the world, as options."""
    return (f" --days {days:g}" if days is not None else "") + (f" --noise {noise}" if noise is not None else "")


def _names(given: str) -> Sequence[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise CommandError(f"--operators: {name!r} is not one of {', '.join(NAMES)}", code=2)
    if not names:
        raise CommandError("--operators: nobody is named", code=2)
    return names


def _show_scenarios(form: Format) -> None:
    if form is not Format.TABLE:
        print_json([{"name": item.name, "nodes": item.nodes, "days": item.days} for item in SCENARIOS.values()], form)
        return
    rows = [
        (item.name, str(item.nodes), f"{item.days:g}", str(item.big_job_nodes or ""), f"{item.small_jobs_per_day:g}")
        for item in SCENARIOS.values()
    ]
    print_table(("scenario", "nodes", "days", "big job", "small jobs a day"), rows, empty="none")


def _show(result: Result) -> None:
    print(f"{result.scenario.name}, seed {result.seed}, {result.scenario.days:g} days")
    print_table(
        ("operator", "ETTR", "failures", "retries", "GPU-hours lost", "false stops", "hopeless stopped"),
        [_row(lived) for lived in result.lived],
        empty="nobody",
    )
    if not any(lived.figures.failures for lived in result.lived):
        print("no failure happened in this world, so that nobody did anything: take more --days, or another --seed")
    ours = result.of("advisor")
    if ours is not None:
        speed = result.scenario.days * DAY / max(ours.took_seconds, 1e-9)
        print(
            f"advisor: {many(ours.isolated, 'node')} isolated, {ours.figures.healthy_nodes_isolated} of them healthy; "
            f"{ours.lemons_found} of {ours.lemons} lemons listed;\n"
            f"  {ours.ticks} ticks, {speed:,.0f} times faster than real; "
            f"{many(len(ours.breaches), 'invariant')} broken"
        )
        for shape, delay in ours.detection.items():
            middle = f"{delay.p50:.1f} s at the median, {delay.most:.1f} at most" if delay.seconds else "none"
            print(f"  {shape}: {delay.count - delay.missed} of {delay.count} detected, {middle}")
    beside = result.of("monitor")
    if beside is not None and beside.watched is not None and beside.watched.saved_p50_seconds is not None:
        seen = beside.watched
        print(
            f"monitor: the person did the same in {seen.agreed} of {seen.count}, {seen.saved_p50_seconds:,.0f} s later "
            "at the median"
        )


def _row(lived: Lived) -> tuple[str, ...]:
    figures = lived.figures
    return (
        lived.operator,
        f"{figures.ettr:.4f}",
        str(figures.failures),
        f"{figures.retries_per_incident:.2f}",
        f"{figures.gpu_hours_lost:,.0f}",
        str(figures.false_stops),
        f"{figures.hopeless_stopped} of {figures.hopeless}",
    )
