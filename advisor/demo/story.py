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
from typing import Any

from rich.console import Console
from rich.markup import escape

from advisor.demo.cluster import ClusterError, Shape
from advisor.demo.namespace import CannotEnterError
from advisor.demo.squeue import JobRow
from advisor.demo.stack import StackError
from advisor.demo.training import Training
from advisor.demo.waiting import TookTooLongError, wait_for
from advisor.demo.world import Run, World, running_cluster, running_world

USER = "alice"
BAD_NODE = "node2"
TRAINING = Training(
    name="llama",
    nodes=3,
    steps=30,
    step_seconds=0.2,
    collective_seconds=3.0,
    faults=({"kind": "xid79", "attempt": 0, "node": BAD_NODE, "step": 12},),
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

    def line(self, word: str, text: str, style: str = "") -> None:
        clock = "" if self._zero is None else f"{time.monotonic() - self._zero:+7.2f} s"
        head = f"  {clock:>10}  [bold {style}]{word:<9}[/]" if style else f"  {clock:>10}  [bold]{word:<9}[/]"
        self._console.print(f"{head} {escape(text)}", highlight=False, soft_wrap=True)

    def text(self, text: str) -> None:
        self._console.print(escape(text), highlight=False, soft_wrap=True)


def tell(world: World, narrator: Narrator) -> bool:
    """The story of one job; True when it ended well."""
    cluster, stack = world.cluster, world.stack
    narrator.heading("A training job starts")
    run = world.launch(USER, TRAINING)
    row = run.wait("RUNNING", seconds=30)
    narrator.line("submitted", f"job {run.job_id} of {USER} on {row.nodes}: {TRAINING.steps} steps, with checkpoints")
    wait_for("the first checkpoint", lambda: "successfully saved" in run.text, seconds=30)
    narrator.line("training", _last_progress(run.text))

    narrator.heading(f"{BAD_NODE} loses a GPU")
    kernel_log = cluster.kernel_log(BAD_NODE)
    record = wait_for("the fault", lambda: kernel_log.read_text().strip() or None, seconds=30, every_seconds=0.01)
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
    good = row.excluded == {BAD_NODE} and BAD_NODE not in run.nodes
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


def _play(world: World, narrator: Narrator) -> None:
    narrator.heading("It keeps running. To play with it, from a second terminal as root:")
    cluster, stack = world.cluster, world.stack
    root = cluster.runtime.root
    narrator.text(f"  {root}/enter                 a shell inside, SLURM_CONF set: squeue, sinfo, scontrol")
    narrator.text(f"  SLURM_CONF                   {cluster.conf}")
    narrator.text(f"  the advisor's socket         {stack.socket}")
    narrator.text(f"  export ADVISOR_CONFIG={stack.config_file}; advisor decisions list")
    narrator.text(f"  logs                         {root}/log/*.log, {cluster.controller_log}")
    narrator.text("Ctrl-C here stops everything and removes it.")
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()


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
            try:
                good = tell(world, narrator)
            except (TookTooLongError, StackError, ClusterError) as error:
                narrator.line("failed", str(error), "red")
                for program in world.stack.programs:
                    narrator.text(f"-- {program.name}\n{program.last_words()}")
                good = False
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
