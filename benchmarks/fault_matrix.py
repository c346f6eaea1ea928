"""The fault matrix on the model of Slurm, printed: `python -m benchmarks.fault_matrix [--pairs] [--markdown FILE]`.

Every step of the protocol × {kill -9, SIGSTOP} × {advisor, Postgres, agent, watchdog, slurmctld, a slurmd}, in each
story of `tests/model/matrix.py`; with `--pairs` also every two of them at once. A cell holds how many calls the fault
kept from happening in time (summed over what was run for that cell), so that it is seen to have bitten, and `!` with
the number of broken invariants. A slurmd refuses nothing by itself: its cells hold a dash.
"""

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks._progress import now_at, telling
from tests.model.matrix import STEPS, STORIES, Combination, Fault, pairs, play, problems, singles

HEADINGS = {
    "failed": "The attempt fails; advice is to restart without node2",
    "leased": "Exclusions may change for 25 s after the failure: StartTime is leased, and a second generation comes",
    "hung": "The attempt hangs under a node that does not answer: it is ended by us",
    "cornered": "Nodes are drained until our exclusion keeps the job from starting, and the agent is dead",
    "two agents": "A fail-over pair: both agents act on the same advice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    combination: Combination
    bitten: int
    wrong: tuple[str, ...]


def one(combination: Combination) -> Cell:
    seen = play(combination)
    return Cell(
        combination=combination,
        bitten=sum(count or 0 for count in seen.bit.values()),
        wrong=tuple(problems(seen)),
    )


def every(*, with_pairs: bool) -> Iterator[Combination]:
    for story in STORIES.values():
        yield from singles(story)
        if with_pairs:
            yield from pairs(story)


def tables(cells: Sequence[Cell]) -> Iterator[str]:
    for name in STORIES:
        mine = [cell for cell in cells if cell.combination.story == name]
        alone = [cell for cell in mine if len(cell.combination.faults) == 1]
        double = [cell for cell in mine if len(cell.combination.faults) == 2]
        yield f"## {HEADINGS[name]}\n"
        yield f"{len(alone)} single faults, {len(double)} pairs.\n"
        yield from _table(alone, lambda faults: _short(faults[0]))
        if double:
            yield "Pairs, by what is struck (four combinations of kill -9 and SIGSTOP in each cell):\n"
            yield from _table(double, lambda faults: " + ".join(_target(fault) for fault in faults))


def _target(fault: Fault) -> str:
    return "slurmd" if fault.target == "node1" else fault.target


def _short(fault: Fault) -> str:
    kind = {"kill -9": "kill", "SIGSTOP": "stop"}[fault.kind]
    return f"{_target(fault)} {kind}" + (" for good" if fault.forever else " unsaved" if fault.loses else "")


def _table(cells: Iterable[Cell], name_of: Callable[[tuple[Fault, ...]], str]) -> Iterator[str]:
    """Faults down; steps across, by number, as their names are too long."""
    by: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        by[name_of(cell.combination.faults)][cell.combination.step].append(cell)
    steps = [step for step in STEPS if any(step in row for row in by.values())]
    numbers = {step: at for at, step in enumerate(steps, 1)}
    yield "; ".join(f"{at} {step}" for step, at in numbers.items()) + ".\n"
    yield f"| struck at step | {' | '.join(str(at) for at in numbers.values())} |"
    yield f"|---|{'---:|' * len(numbers)}"
    for name, row in by.items():
        yield f"| {name} | {' | '.join(_shown(row[step]) for step in steps)} |"
    yield ""


def _shown(cells: Sequence[Cell]) -> str:
    wrong = sum(len(cell.wrong) for cell in cells)
    bitten = sum(cell.bitten for cell in cells)
    quiet = all(fault.target == "node1" for cell in cells for fault in cell.combination.faults)
    return f"!{wrong}" if wrong else "–" if quiet else str(bitten)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fault_matrix", description=__doc__)
    parser.add_argument("--pairs", action="store_true", help="also two faults at once")
    parser.add_argument("--pairs-for", type=float, metavar="SECONDS", help="only pairs, in an order drawn, for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write it there instead of printing it")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.pairs_for is not None:
        return sampled_pairs(options.pairs_for, Random(options.seed))
    began = time.monotonic()
    combinations = list(every(with_pairs=options.pairs))
    with ProcessPoolExecutor(max_workers=options.processes) as pool:
        played, cells = pool.map(one, combinations, chunksize=20), list[Cell]()
        with telling():  # the processes are there: none is made beside a thread
            for cell in played:
                cells.append(cell)
                now_at(f"{len(cells)} of {len(combinations)} combinations")
    wrong = [cell for cell in cells if cell.wrong]
    by_number = {count: len(list(group)) for count, group in itertools.groupby(sorted(_faults(cells)))}
    head = (
        "# The fault matrix\n\n"
        f"`python -m benchmarks.fault_matrix{' --pairs' if options.pairs else ''}`: {by_number.get(1, 0)} combinations "
        f"with one fault, {by_number.get(2, 0)} with two, in {time.monotonic() - began:.0f} s; "
        f"{len(wrong)} of them break an invariant.\n\n"
        "A number is how many calls the faults of that cell kept from happening in time; a dash: a slurmd, which "
        "nobody calls.\n`!n`: n broken invariants.\n"
    )
    text = "\n".join((head, *tables(cells)))
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(text, encoding="utf-8")
    else:
        print(text)
    for cell in wrong:
        print(f"{cell.combination}: {'; '.join(cell.wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def sampled_pairs(seconds: float, order: Random) -> int:
    """In this process, until the time is up: how many of how many were played, and which broke what."""
    began, played, wrong = time.monotonic(), 0, 0
    combinations = [combination for story in STORIES.values() for combination in pairs(story)]
    order.shuffle(combinations)
    with telling():
        for combination in combinations:
            if time.monotonic() - began >= seconds:
                break
            cell = one(combination)
            played += 1
            now_at(f"{played} of {len(combinations)} pairs")
            if cell.wrong:
                wrong += 1
                print(f"{combination}: {'; '.join(cell.wrong)}", file=sys.stderr)
    print(f"{played} of {len(combinations)} pairs in {time.monotonic() - began:.0f} s; {wrong} break an invariant")
    return 1 if wrong else 0


def _faults(cells: Sequence[Cell]) -> list[int]:
    return [len(cell.combination.faults) for cell in cells]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
