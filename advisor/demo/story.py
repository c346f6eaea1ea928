"""The narrated demo: a real job fails on a bad node and finishes on others, while you watch.

Runs inside the namespace (`advisor demo` brings it there). Exit status 0: the job finished elsewhere and the decision
says why. Anything else: 1, with what was seen and what the programs said last.
"""

import argparse
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from advisor.demo.cluster import SLURM_USER, ClusterError, Shape
from advisor.demo.namespace import CannotEnterError
from advisor.demo.squeue import JobRow
from advisor.demo.stack import StackError
from advisor.demo.training import Training
from advisor.demo.waiting import TookTooLongError, wait_for
from advisor.demo.world import Run, World, running_cluster, running_world

USER = "alice"
BAD_NODE = "node2"
NODES_OF_A_JOB = 3  # of four: one is left to take a bad node's place
BREAK_EVERY_SECONDS = 0.3


def training(number: int, bad_node: str) -> Training:
    """The job of the story, whose first attempt loses a GPU of `bad_node`."""
    return Training(
        name="llama" if number == 1 else f"llama-{number}",
        nodes=NODES_OF_A_JOB,
        steps=30,
        step_seconds=0.2,
        faults=({"kind": "xid79", "attempt": 0, "node": bad_node, "step": 12},),
    )


class Narrator:
    """Prints what happens with the seconds since the fault."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._zero: float | None = None

    def heading(self, text: str) -> None:
        self._console.print(f"\n[bold]{escape(text)}[/bold]", highlight=False, soft_wrap=True)

    def zero(self) -> None:
        self._zero = time.monotonic()

    def no_zero(self) -> None:
        self._zero = None

    def line(self, word: str, text: str, style: str = "") -> None:
        clock = "" if self._zero is None else f"{time.monotonic() - self._zero:+7.2f} s"
        head = f"  {clock:>10}  [bold {style}]{word:<9}[/]" if style else f"  {clock:>10}  [bold]{word:<9}[/]"
        self._console.print(f"{head} {escape(text)}", highlight=False, soft_wrap=True)

    def text(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


def tell(world: World, narrator: Narrator, job: Training, bad_node: str) -> bool:
    """The story of one job; True when it ended well."""
    cluster, stack = world.cluster, world.stack
    narrator.no_zero()
    narrator.heading("A training job starts")
    kernel_log = cluster.kernel_log(bad_node)
    before = kernel_log.read_text()
    run = world.launch(USER, job)
    row = run.wait("RUNNING", seconds=30)
    narrator.line("submitted", f"job {run.job_id} of {USER} on {row.nodes}: {job.steps} steps, with checkpoints")
    wait_for("the first checkpoint", lambda: "successfully saved" in run.text, seconds=30)
    narrator.line("training", _last_progress(run.text))

    narrator.heading(f"{bad_node} loses a GPU")
    record = wait_for(
        "the fault", lambda: kernel_log.read_text()[len(before) :].strip() or None, seconds=30, every_seconds=0.01
    )
    narrator.zero()
    narrator.line("fault", record.partition("kernel: ")[2], "red")
    seen = run.wait_decision("the detection", lambda item: item["analysis"]["incident"]["kind"] != "none", 60)
    narrator.line("detected", f"{seen['analysis']['attribution']['root_cause']}{_at(seen, 'DETECTED')}", "yellow")
    if seen["advice"].get("action") != "ACTION_RESTART":
        narrator.line("waiting", seen["advice"].get("explanation", ""), "yellow")
    decision = run.wait_decision("a restart", lambda item: item["advice"].get("action") == "ACTION_RESTART", 60)
    advice = decision["advice"]
    nodes = ",".join(advice.get("exclude_nodes", [])) or "nobody"
    narrator.line("advised", f"restart, excluding {nodes}: {advice['reason']}{_at(decision, 'ADVISED')}", "yellow")
    row = wait_for("the requeue", lambda: _restarted(run), seconds=60)
    narrator.line("requeued", f"Slurm's own record: {row.state}, not on {','.join(sorted(row.excluded))}", "cyan")

    narrator.heading("Slurm starts it again")
    row = run.wait("RUNNING", "COMPLETED", restarts=1)
    narrator.line("running", f"on {row.nodes}", "green")
    wait_for("the checkpoint being loaded", lambda: "successfully loaded" in run.text, seconds=30)
    narrator.line("resumed", _line_with(run.text, "successfully loaded"), "green")
    row = run.wait("COMPLETED", restarts=1)
    narrator.line("finished", _last_progress(run.text), "green")

    decision_id = decision["advice"]["advice_id"]
    narrator.heading(f"Why: advisor decisions show {decision_id}")
    shown = stack.cli("decisions", "show", decision_id)
    narrator.text(shown.stdout or shown.stderr)
    narrator.heading(f"And again, from the stored inputs: advisor replay {decision_id}")
    replay = stack.cli("replay", decision_id)
    narrator.text(replay.stdout or replay.stderr)
    good = row.excluded == {bad_node} and bad_node not in run.nodes
    return good and shown.returncode == 0 and replay.returncode == 0


def _restarted(run: Run) -> JobRow | None:
    row = run.row
    return row if row.restarts == 1 and row.excluded else None


def _at(decision: dict[str, Any], milestone: str) -> str:
    """When the advisor says that it was, which is before we could ask."""
    for item in decision.get("milestones", []):
        if item["kind"] == f"MILESTONE_KIND_{milestone}":
            return f"  [{datetime.fromisoformat(item['at']).astimezone():%H:%M:%S.%f}"[:-3] + "]"
    return ""


def _last_progress(text: str) -> str:
    lines = [line for line in text.splitlines() if "] iteration" in line]
    return lines[-1].split("|")[0].strip() if lines else ""


def _line_with(text: str, wanted: str) -> str:
    return next(line for line in text.splitlines() if wanted in line).strip()


def _tell_safely(world: World, narrator: Narrator, job: Training, bad_node: str) -> bool:
    try:
        return tell(world, narrator, job, bad_node)
    except (TookTooLongError, StackError, ClusterError) as error:
        narrator.line("failed", str(error), "red")
        for program in world.stack.programs:
            narrator.text(f"-- {program.name}\n{program.last_words()}")
        return False


def _play(world: World, narrator: Narrator) -> None:
    """Until Ctrl-C: the cluster is somebody else's, and a node that they name breaks under the next job."""
    cluster, stack = world.cluster, world.stack
    root = cluster.runtime.root
    wishes = _wishes_folder(root)
    narrator.heading("It keeps running. To play with it, from a second terminal as root:")
    narrator.text(f"  {root}/enter                 a shell inside; there:")
    narrator.text("    squeue, sinfo, scontrol    this Slurm")
    narrator.text("    advisor decisions list     what was decided; also: decisions show ID, mode get, doctor")
    narrator.text(
        "    break-node node3           another job of three nodes, and node3 loses a GPU under it; told here"
    )
    check = f"advisor-agent check --config {root}/etc/agent.toml --watchdog-config {root}/etc/watchdog.toml"
    narrator.text(f"    runuser -u {SLURM_USER} -- {check}    as Slurm's user, or it has not the agent's files")
    narrator.text(f"  stop and go                  touch {root}/agent/stop holds every action up; rm it again")
    narrator.text(f"  logs                         {root}/log/*.log, {cluster.controller_log}")
    narrator.text(f"  the advisor's socket         {stack.socket}")
    narrator.text("Ctrl-C here stops everything and removes it.")
    number = 1
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(BREAK_EVERY_SECONDS)
            for wish in sorted(wishes.iterdir()):
                wish.unlink()
                number += 1
                _tell_safely(world, narrator, training(number, wish.name), wish.name)
                narrator.heading("Another one: break-node NODE. Ctrl-C stops everything and removes it.")


def _wishes_folder(root: Path) -> Path:
    """Where `break-node` leaves its wish, a file named after the node. Root's only, as breaking nodes is."""
    folder = root / "break"
    folder.mkdir(mode=0o700)
    names = [f"node{number}" for number in range(1, NODES_OF_A_JOB + 1)]
    program = root / "bin" / "break-node"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in {"|".join(names)}) : > {folder}/"$1" && echo "see the first terminal" ;;\n'
        f'*) echo "usage: break-node {"|".join(names)}" >&2; exit 2 ;; esac\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return folder


def _interrupt(*_: object) -> None:
    """SIGTERM ends the demo as Ctrl-C does: everything is stopped in order."""
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="advisor demo")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    narrator = Narrator(Console())
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        narrator.heading("Setting up")
        with (
            running_cluster(Shape(), narrator.line) as (cluster, kernel),
            running_world(cluster, kernel, report=narrator.line) as world,
        ):
            good = _tell_safely(world, narrator, training(1, BAD_NODE), BAD_NODE)
            narrator.heading("The job was recovered." if good else "The job was NOT recovered as it should have been.")
            if options.keep:
                _play(world, narrator)
    except (CannotEnterError, ClusterError, StackError, TookTooLongError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
