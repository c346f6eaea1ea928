"""A small distributed training program, standard library only, told to fail in given ways.

One process per rank, launched by srun. Rank 0 runs a rendezvous to which all ranks connect; every step ends in a real
barrier: a rank that dies keeps the others waiting for their collective time-out, after which they print what NCCL's
watchdog prints and abort. The time-out runs from the death on, so that a slow machine alone never causes one; a rank
that merely hangs keeps the others waiting for ever. Rank 0 saves checkpoints atomically and the next attempt resumes
from the newest.

It runs on a plain `python3 -IS`, as any user, from a copy: it imports nothing of ours.

Faults come from a plan file, a JSON list of objects:
`kind` (see `Faults.strike`), `step`, and optionally `attempt` (SLURM_RESTART_COUNT), `step_id` (the srun within the
attempt), `node`, `rank`; whatever is left out matches all. `text` and `code` are arguments of some kinds.
The hardware fault `xid79` is only *announced*: a user cannot write a kernel log, so root (the demo) writes the line.
"""

import argparse
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

RENDEZVOUS_SECONDS = 60.0
CONNECT_SECONDS = 30.0
ANNOUNCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who and where this process is, as srun tells it."""

    job_id: str
    step_id: str
    attempt: int
    rank: int
    world: int
    node: str

    @classmethod
    def from_environment(cls) -> "Place":
        env = os.environ
        return cls(
            job_id=env["SLURM_JOB_ID"],
            step_id=env["SLURM_STEP_ID"],
            attempt=int(env.get("SLURM_RESTART_COUNT", "0")),
            rank=int(env["SLURM_PROCID"]),
            world=int(env["SLURM_NTASKS"]),
            node=env["SLURMD_NODENAME"],
        )


class Output:
    """Lines to standard output, whole and at once; `mute` stops progress lines for the fault `silent`."""

    def __init__(self) -> None:
        self.mute = False

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def progress(self, text: str) -> None:
        if not self.mute:
            self.say(text)


# ---- the barrier --------------------------------------------------------------------------------------------------


class Rendezvous(threading.Thread):
    """Rank 0's server: answers `go STEP` to everybody once all ranks have said `at STEP`, `lost` when one is gone."""

    def __init__(self, world: int) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._listener = socket.create_server(("", 0), backlog=world)
        self._connected: list[socket.socket] = []
        self._arrived: dict[int, int] = {}
        self._lost = False
        self._changed = threading.Condition()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with self._changed:
                self._connected.append(connection)
                if self._lost:
                    self._tell("lost")
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("r", encoding="ascii") as lines:
            try:
                for line in lines:
                    self._arrive(int(line.split()[1]))
            except OSError:
                pass
            with self._changed:
                # After the last barrier nobody listens any more, so it does not matter that finished ranks go too.
                self._connected.remove(connection)
                self._lost = True
                self._tell("lost")
                self._changed.notify_all()

    def wait_until_all_left(self, seconds: float) -> None:
        """Before rank 0 goes: a server that goes with it may take the others' last `go` along."""
        with self._changed:
            self._changed.wait_for(lambda: not self._connected, timeout=seconds)

    def _arrive(self, step: int) -> None:
        with self._changed:
            self._arrived[step] = self._arrived.get(step, 0) + 1
            if self._arrived[step] == self._world:
                del self._arrived[step]
                self._tell(f"go {step}")

    def _tell(self, word: str) -> None:
        for connection in self._connected:
            try:
                connection.sendall(f"{word}\n".encode("ascii"))
            except OSError:
                continue


class CollectiveTimeoutError(Exception):
    """Somebody will never arrive, and the time-out has passed."""


class Barrier:
    """One rank's end of the barrier."""

    def __init__(self, address: tuple[str, int], seconds: float, server: Rendezvous | None) -> None:
        self._seconds = seconds
        self._server = server
        self._socket = socket.create_connection(address, timeout=CONNECT_SECONDS)
        self._socket.settimeout(None)
        self._lines = self._socket.makefile("r", encoding="ascii")

    def wait(self, step: int) -> None:
        try:
            self._socket.sendall(f"at {step}\n".encode("ascii"))
            if self._lines.readline().startswith("go"):
                return
        except OSError:
            pass
        # Somebody died, or the server with rank 0. NCCL does not notice: it waits its time out.
        time.sleep(self._seconds)
        raise CollectiveTimeoutError

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        if self._server is not None:
            self._server.wait_until_all_left(CONNECT_SECONDS)


def meet(place: Place, folder: Path, seconds: float) -> Barrier:
    """Rank 0 publishes its address in a file on the shared file system; everybody connects."""
    note = folder / f"rendezvous.{place.job_id}.{place.attempt}.{place.step_id}"
    server = Rendezvous(place.world) if place.rank == 0 else None
    if server is not None:
        server.start()
        write_atomically(note, f"{place.node} {server.port}")
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while not note.exists():
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError
        time.sleep(0.02)
    node, port = note.read_text(encoding="ascii").split()
    return Barrier((node, int(port)), seconds, server)


# ---- checkpoints --------------------------------------------------------------------------------------------------


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Checkpoints:
    def __init__(self, folder: Path, place: Place, output: Output) -> None:
        self._folder = folder
        self._place = place
        self._output = output
        self._tracker = folder / "latest_checkpointed_iteration.txt"

    def resume(self) -> int:
        """The iteration to go on from, 0 without a checkpoint. Every rank reads the same file."""
        if not self._tracker.exists():
            if self._place.rank == 0:
                self._output.say(f"WARNING: could not find the metadata file {self._tracker}")
                self._output.say("    will not load any checkpoints and will start from random")
            return 0
        step = int(self._tracker.read_text(encoding="ascii"))
        state = json.loads((self._folder / f"iter_{step:07d}.json").read_text(encoding="ascii"))
        if state["iteration"] != step:
            raise ValueError(f"checkpoint of iteration {state['iteration']} where {step} was expected")
        if self._place.rank == 0:
            self._output.say(f" loading checkpoint from {self._folder} at iteration {step}")
            self._output.say(f"  successfully loaded checkpoint from {self._folder} [ t 0, p 0 ] at iteration {step}")
        return step

    def save(self, step: int) -> None:
        if self._place.rank != 0:
            return
        self._output.say(f"saving checkpoint at iteration {step:7d} to {self._folder} in torch format")
        write_atomically(self._folder / f"iter_{step:07d}.json", json.dumps({"iteration": step}))
        write_atomically(self._tracker, str(step))
        self._output.say(f"  successfully saved checkpoint from iteration {step:7d} to {self._folder}")


# ---- faults -------------------------------------------------------------------------------------------------------


class Faults:
    def __init__(self, plan: Path | None, announce: Path | None, place: Place, output: Output) -> None:
        self._faults = json.loads(plan.read_text(encoding="utf-8")) if plan else []
        self._announce = announce
        self._place = place
        self._output = output

    def strike(self, step: int) -> None:
        """Do what the plan says for this rank at this step."""
        place = self._place
        me = {
            "attempt": place.attempt,
            "step_id": int(place.step_id),
            "node": place.node,
            "rank": place.rank,
            "step": step,
        }
        for fault in self._faults:
            if all(fault[key] == value for key, value in me.items() if key in fault):
                self._do(fault, step)

    def _do(self, fault: dict[str, object], step: int) -> None:
        rank = self._place.rank
        kind = fault["kind"]
        if kind == "line":
            self._output.say(str(fault["text"]))
        elif kind == "silent":
            self._output.mute = True
        elif kind == "hang":
            while True:
                time.sleep(3600)
        elif kind == "exit":
            sys.exit(int(str(fault.get("code", 1))))
        elif kind == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "keyerror":
            batch = {"tokens": step}
            batch["labels"]
        elif kind == "xid79":
            self._announce_and_wait(step)
            self._output.say(
                f"[rank{rank}]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
                f"[rank{rank}]: CUDA kernel errors might be asynchronously reported at some other API call"
            )
            os._exit(1)
        else:
            sys.exit(f"fault plan: unknown kind {kind!r}")

    def _announce_and_wait(self, step: int) -> None:
        """Tell the demo that the GPU is lost; it writes the driver's line and takes the note away."""
        if self._announce is None:
            sys.exit("fault plan: xid79 needs --announce")
        place = self._place
        note = self._announce / f"{place.job_id}.{place.attempt}.{place.node}.{place.rank}"
        note.write_text(str(step), encoding="ascii")
        deadline = time.monotonic() + ANNOUNCE_SECONDS
        while note.exists() and time.monotonic() < deadline:
            time.sleep(0.01)


# ---- training -----------------------------------------------------------------------------------------------------


def clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def nccl_timeout(place: Place, step: int, seconds: float, output: Output) -> NoReturn:
    """What PyTorch's NCCL watchdog prints, and its abort."""
    milliseconds = int(seconds * 1000)
    head = f"[rank{place.rank}]:[E{time.strftime('%m%d %H:%M:%S')}.000000000 ProcessGroupNCCL.cpp:"
    work = f"WorkNCCL(SeqNum={step}, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)={milliseconds})"
    output.say(
        f"{head}616] [Rank {place.rank}] Watchdog caught collective operation timeout: {work} "
        f"ran for {milliseconds + 7} milliseconds before timing out."
    )
    output.say(
        f"{head}681] [Rank {place.rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature "
        "of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
    )
    output.say(f"{head}695] [Rank {place.rank}] To avoid data inconsistency, we are taking the entire process down.")
    os.abort()


def train(options: argparse.Namespace, place: Place, output: Output) -> None:
    folder = Path(options.folder)
    checkpoints = Checkpoints(folder, place, output)
    faults = Faults(options.plan, options.announce, place, output)
    done = checkpoints.resume()
    barrier = meet(place, folder, options.collective_seconds)
    step = done
    try:
        for step in range(done + 1, options.steps + 1):
            began = time.monotonic()
            time.sleep(options.step_seconds)
            faults.strike(step)
            barrier.wait(step)
            taken = (time.monotonic() - began) * 1000
            output.progress(
                f" [{clock()}] iteration {step:8d}/{options.steps:8d} | consumed samples: {step * place.world:12d} | "
                f"elapsed time per iteration (ms): {taken:.1f} | learning rate: 1.500000E-04 | "
                f"global batch size: {place.world:5d} | lm loss: {2.0 + 8.0 / step:.6E} | loss scale: 1.0 | "
                "grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
            if step % options.checkpoint_every == 0:
                checkpoints.save(step)
        barrier.wait(options.steps + 1)
    except CollectiveTimeoutError:
        nccl_timeout(place, step, options.collective_seconds, output)
    if place.rank == 0:
        output.say(f"[after training is done] datetime: {clock()} ")
    barrier.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A pretended distributed training; run it with srun.")
    parser.add_argument("--folder", required=True, help="checkpoints and rendezvous, on a shared file system")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--collective-seconds", type=float, default=2.0)
    parser.add_argument("--plan", type=Path, help="fault plan, JSON")
    parser.add_argument("--announce", type=Path, help="folder in which hardware faults are announced")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    train(options, Place.from_environment(), Output())


if __name__ == "__main__":
    main()
