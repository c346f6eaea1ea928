"""Doing what a schedule says, and undoing it in time; each with the moment at which it really was done."""

import contextlib
import heapq
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.demo.cluster import SLURM_USER, ClusterError
from benchmarks.chaos import tricks
from benchmarks.chaos.jobs import Launcher
from benchmarks.chaos.schedule import HOSTILE, Injection, Kind
from benchmarks.chaos.stage import DATABASE_RELAY_PORT, FAKETIME, Stage

Undo = Callable[[], None]
DRAIN_REASON = "rma {number}, do not touch"


@dataclass(slots=True, kw_only=True)
class Done:
    """`note` says on what, or why not. Epoch seconds: `began` and `ended`, of doing it and of having undone it; `held`
    and `released`, when doing it was over and undoing it began: a frozen slurmctld answers late.
    """

    what: Injection
    began: float
    ended: float | None = None
    held: float | None = None
    released: float | None = None
    note: str = ""
    done: bool = True


def missing_tools() -> Mapping[str, frozenset[Kind]]:
    """Debian packages that are not there, and what cannot be done without each."""
    needed = {
        "iptables": (frozenset({Kind.PARTITION, Kind.LOSS}), shutil.which("iptables") is not None),
        "libfaketime": (frozenset({Kind.CLOCK}), FAKETIME.exists()),
    }
    return {name: kinds for name, (kinds, there) in needed.items() if not there}


class NotNowError(Exception):
    """There is nothing to do it to at this moment; the text says what is missing."""


@dataclass(slots=True, kw_only=True)
class Injector:
    stage: Stage
    launcher: Launcher
    log: list[Done] = field(default_factory=list)
    hostile: dict[int, str] = field(default_factory=dict)  # job id -> trick
    frozen: dict[str, list[int]] = field(default_factory=dict)
    drained: dict[str, str] = field(default_factory=dict)  # node -> reason, as an administrator left it
    _undos: list[tuple[float, int, Done, Undo]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def play(self, injections: Sequence[Injection], began: float) -> None:
        """Blocks until all were done; `undo_all` ends those that last longer."""
        for item in injections:
            while (wait := began + item.at - time.monotonic()) > 0:
                self._undo_due()
                time.sleep(min(wait, 0.1))
            self._do(item)

    def undo_all(self) -> None:
        while self._undos:
            _, _, done, undo = heapq.heappop(self._undos)
            self._finish(done, undo)

    def _undo_due(self) -> None:
        while self._undos and self._undos[0][0] <= time.monotonic():
            _, _, done, undo = heapq.heappop(self._undos)
            self._finish(done, undo)

    @staticmethod
    def _finish(done: Done, undo: Undo) -> None:
        done.released = _now()
        try:
            undo()
        except (OSError, ClusterError, subprocess.SubprocessError) as error:
            done.note += f"; undoing it: {error}"
        done.ended = _now()

    def _do(self, item: Injection) -> None:
        done = Done(what=item, began=_now())
        self.log.append(done)
        try:
            done.note, undo = self._begin(item)
        except NotNowError as error:
            done.note, done.done, done.ended = str(error), False, done.began
            return
        except (OSError, ClusterError, subprocess.SubprocessError) as error:
            done.note, done.done, done.ended = f"{type(error).__name__}: {error}"[:200], False, done.began
            return
        done.held = _now()
        if undo is None:
            done.ended = done.held
        else:
            heapq.heappush(self._undos, (time.monotonic() + item.seconds, item.number, done, undo))

    def _begin(self, item: Injection) -> tuple[str, Undo | None]:
        match item.kind:
            case Kind.KILL | Kind.NODE:
                name = self._who(item)
                if not self.stage.pids(name):
                    raise NotNowError(f"{name} was not running")
                self._thaw(name)
                self.stage.lose(name, item.seconds)
                return name, lambda: None
            case Kind.FREEZE:
                return self._freeze(self._who(item))
            case Kind.PARTITION | Kind.LOSS:
                return self._drop(item)
            case Kind.HOLD | Kind.DELAY:
                name = item.target if item.target == "database" else f"agent{item.which % len(self.stage.advisors)}"
                file = self.stage.relay_file(name)
                file.write_text("hold" if item.kind is Kind.HOLD else f"delay {item.amount}", encoding="ascii")
                return name, lambda: _write(file, "pass")
            case Kind.CLOCK:
                return self._step_clock(item)
            case Kind.DISK:
                return self._fill(item.target)
            case Kind.LOG:
                return self._break_log(item)
            case Kind.DRAIN:
                return self._drain(item)
            case Kind.FLOOD:
                job_id = tricks.submit_flood(self.stage.cluster, item.number, item.amount, item.seconds)
                self.hostile[job_id] = "flood"
                return f"job {job_id}", None
            case Kind.TRICK:
                job_id = tricks.submit(self.stage.cluster, item.target, item.number)
                self.hostile[job_id] = item.target
                return f"job {job_id}", None

    def _who(self, item: Injection) -> str:
        match item.target:
            case "slurmd" | "node":
                return self.stage.cluster.nodes[item.which % len(self.stage.cluster.nodes)]
            case "advisor":
                return self.stage.advisors[item.which % len(self.stage.advisors)]
            case _:
                return item.target

    # ---- processes ----

    def _freeze(self, name: str) -> tuple[str, Undo]:
        pids = self.stage.pids(name)
        if not pids or name in self.frozen:
            raise NotNowError(f"{name} was not running")
        self.frozen[name] = pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return name, lambda: self._thaw(name)

    def _thaw(self, name: str) -> None:
        for pid in self.frozen.pop(name, []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _step_clock(self, item: Injection) -> tuple[str, Undo]:
        name = self._who(item)
        file = self.stage.clock_file(name)
        _write(file, f"{item.amount:+g}")
        return f"{name} by {item.amount:+g} s", lambda: _write(file, "+0")

    # ---- network ----

    def _drop(self, item: Injection) -> tuple[str, Undo]:
        rules, note = self._rules(item)
        for rule in rules:
            subprocess.run(["iptables", "-w", "-A", *rule, "-j", "DROP"], check=True, capture_output=True)

        def undo() -> None:
            for rule in rules:
                subprocess.run(["iptables", "-w", "-D", *rule, "-j", "DROP"], check=True, capture_output=True)

        return note, undo

    def _rules(self, item: Injection) -> tuple[list[list[str]], str]:
        ports = self._ports()
        some = ["-m", "statistic", "--mode", "random", "--probability", str(item.amount)]
        share = some if item.kind is Kind.LOSS else []
        match item.target:
            case "database":
                port = str(DATABASE_RELAY_PORT)
                return [["INPUT", "-p", "tcp", way, port] for way in ("--dport", "--sport")], "advisors - Postgres"
            case "nodes":
                node = self.stage.cluster.nodes[item.which % len(self.stage.cluster.nodes)]
                return [["INPUT", "-p", "tcp", "--dport", ports[node]]], f"everybody - slurmd of {node}"
            case _ if item.kind is Kind.LOSS:
                return [["INPUT", "-p", "tcp", "--dport", ports["slurmctld"], *share]], "everybody - slurmctld"
            case _:
                owner = ["-m", "owner", "--uid-owner", SLURM_USER]
                return [["OUTPUT", "-p", "tcp", "--dport", ports["slurmctld"], *owner]], "agent, watchdog - slurmctld"

    def _ports(self) -> dict[str, str]:
        found = {}
        for line in self.stage.cluster.conf.read_text(encoding="utf-8").splitlines():
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "SlurmctldPort" in words:
                found["slurmctld"] = words["SlurmctldPort"]
            if "NodeName" in words and "Port" in words:
                found[words["NodeName"]] = words["Port"]
        return found

    # ---- disks and logs ----

    def _fill(self, target: str) -> tuple[str, Undo]:
        ballast = self.stage.disk(target) / "ballast"
        if ballast.exists():
            raise NotNowError("it is full already")
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        return f"{target}, {ballast.stat().st_size >> 20} MB of it", ballast.unlink

    def _break_log(self, item: Injection) -> tuple[str, Undo | None]:
        running = [
            launched
            for launched in self.launcher.launched
            if (row := self.launcher.witness.last(launched.job_id)) is not None and row.state == "RUNNING"
        ]
        if not running:
            raise NotNowError("no job was running")
        launched = running[item.which % len(running)]
        log = launched.folder / f"train-{launched.job_id}.out"
        old = log.with_suffix(".out.1")
        match item.target:
            case "truncated":
                os.truncate(log, 0)
            case "binary":
                with log.open("ab") as file:
                    file.write(secrets.token_bytes(200_000) + b"\n")
            case "rotated":
                log.rename(old)
                _make_as(log, log.touch)
            case "folder":
                log.rename(old)
                _make_as(log, log.mkdir)
            case "fifo":
                log.rename(old)
                _make_as(log, lambda: os.mkfifo(log))
        undo: dict[str, Undo] = {"folder": log.rmdir, "fifo": log.unlink}
        return f"log of job {launched.job_id} {item.target}", undo.get(item.target)

    # ---- people ----

    def _drain(self, item: Injection) -> tuple[str, Undo]:
        node = self.stage.cluster.nodes[item.which % len(self.stage.cluster.nodes)]
        if node in self.drained:
            raise NotNowError(f"{node} is drained already")
        reason = DRAIN_REASON.format(number=item.number)
        self.stage.cluster.must("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")
        self.drained[node] = reason

        def undo() -> None:
            self.drained.pop(node, None)
            self.stage.cluster.must("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")

        return f"{node}: {reason}", undo


def _make_as(log: Path, make: Callable[[], None]) -> None:
    make()
    os.chown(log, log.parent.stat().st_uid, log.parent.stat().st_gid)


def _write(file: Path, text: str) -> None:
    """Whole or not at all: a program reads it at any moment."""
    new = file.with_suffix(".new")
    new.write_text(text, encoding="ascii")
    new.replace(file)


def _now() -> float:
    return time.time()  # noqa: TID251 - compared with Slurm's own times


__all__ = ["HOSTILE", "Done", "Injector"]
