"""Chaos on this host, from a seed:

    python -m benchmarks.chaos --minutes N --seed S [--replicas R] [--report FILE] [--log FOLDER] [--without KIND,…]

Needs root and a real Slurm; it makes its own namespaces and leaves nothing behind. Exit 0: every failure was accounted
for and every invariant held; 1: the breaches are in the report.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from advisor.demo import namespace
from advisor.demo.namespace import CannotEnterError
from benchmarks.chaos import injections, report, run
from benchmarks.chaos.schedule import Kind, make


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--minutes", type=float, default=5.0, help="how long things befall jobs and programs (%(default)g)"
    )
    made.add_argument("--seed", type=int, default=1, help="which jobs, and what befalls whom when (%(default)s)")
    made.add_argument("--replicas", type=int, default=1, help="advisors over one database (%(default)s)")
    made.add_argument("--report", type=Path, help="Markdown, appended to what is there (only printed)")
    made.add_argument(
        "--log", type=Path, help="a folder for every injection with its times and our programs' logs (not kept)"
    )
    made.add_argument(
        "--without",
        type=_kinds,
        default=frozenset(),
        metavar="KIND,…",
        help=f"injections to leave out (none), of: {', '.join(Kind)}",
    )
    return made


def _kinds(text: str) -> frozenset[Kind]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in list(Kind):
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(Kind)}")
    return frozenset(map(Kind, words))


def main(arguments: list[str]) -> int:
    made = parser()
    options = made.parse_args(arguments)
    for missing, kinds in injections.missing_tools().items():
        if not kinds <= options.without:
            words = ",".join(sorted(kinds))
            made.error(
                f"{missing} is not installed: `deploy/debian-packages {missing}`, or leave out --without {words}"
            )
    if not _apart():
        return _enter(arguments)
    _furnish()
    schedule = make(options.seed, options.minutes * 60, nodes=run.NODES, without=options.without)
    runtime = namespace.require().apart(f"x{os.getpid()}")
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    outcome = run.play(runtime, schedule, replicas=options.replicas, tell=tell, keep=options.log)
    command = f"python -m benchmarks.chaos --minutes {options.minutes:g} --seed {options.seed}"
    command += f" --replicas {options.replicas}" if options.replicas > 1 else ""
    command += f" --without {','.join(sorted(options.without))}" if options.without else ""
    text = report.write(outcome, command)
    print(text)
    if options.report is not None:
        with options.report.open("a", encoding="utf-8") as file:
            file.write("\n" + text)
    if options.log is not None:
        (options.log / "injections.txt").write_text(report.write_log(outcome), encoding="utf-8")
    return 1 if outcome.account.breaches else 0


def _apart() -> bool:
    """In the demo's namespace, and in a network namespace that is not pid 1's?"""
    return namespace.inside() is not None and Path("/proc/self/ns/net").readlink() != Path("/proc/1/ns/net").readlink()


def _enter(arguments: list[str]) -> int:
    absolute = list(arguments)
    for at, word in enumerate(absolute[:-1]):
        if word in ("--report", "--log"):
            absolute[at + 1] = str(Path(absolute[at + 1]).absolute())
    command = ["unshare", "--net", "--mount", sys.executable, "-m", "benchmarks.chaos", *absolute]
    if namespace.inside() is not None:
        return subprocess.run(command, check=False).returncode
    try:
        return namespace.run(command)
    except CannotEnterError as error:
        print(error, file=sys.stderr)
        return 2


def _furnish() -> None:
    """Loopback, and an address that is not loopback's: without one the resolver answers nobody, Slurm included.

    And shared memory of our own: libfaketime leaves a segment there for each process, named by its pid.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "chaos", "/dev/shm"], check=True)  # noqa: S108
    for words in (
        "link set lo up",
        "link add chaos0 type veth peer name chaos1",
        "addr add 10.255.0.1/24 dev chaos0",
        "link set chaos0 up",
        "link set chaos1 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
