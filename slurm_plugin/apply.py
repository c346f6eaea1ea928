"""The one short-lived process that acts: fresh look, guard again, verbs, result. Standard library only.

It reads one JSON request on stdin and prints one JSON result. A stale `requeue` kills the next attempt or revives a
cancelled job, so looking and acting must lie closer together than Slurm's requeue delay: the caller kills this
process group after `limit_seconds`, and should the caller be dead, an alarm in here does. What race remains (an RPC
that slurmctld has already queued when its sender is killed) is named in docs/slurm.md.

Run as a script by `python3 -I -S`, so that it starts fast and nothing of an environment can change what it imports.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: our own folder's parent is not on the path under -I
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slurm_plugin import guard, scope, stop_file
from slurm_plugin.guard import Reason, Status
from slurm_plugin.squeue import JobRow, Run, Slurm, SlurmError, first_line, run_process

REQUEST_BYTES_MAX = 4 * 1024 * 1024
_VERB_NAMES = {
    guard.RequeueEnded: "requeue",
    guard.RequeueLive: "requeue_incomplete",
    guard.Update: "update",
    guard.Cancel: "cancel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb that the scheduler accepted, and when."""

    name: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`limits.in_scope` is judged again here, from a fresh comment, with `scope` and `account`."""

    advice: guard.Advice
    shown_id: str
    limits: guard.Limits
    scope: scope.ScopeConfig
    account: str = ""
    conf: str = ""
    bin_dir: str = ""
    timeout_seconds: float = 5.0
    limit_seconds: float = 4.0
    stop_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`status` APPLIED: every step was accepted. PENDING: look again, `done` says what was accepted already."""

    status: Status
    reason: Reason
    detail: str = ""
    done: tuple[Verb, ...] = ()
    excluded: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    by_us: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    wall: Callable[[], float] = time.time  # noqa: TID251 - stdlib-only process: no Clock port here
    monotonic: Callable[[], float] = time.monotonic


def carry_out(request: Request, run: Run = run_process, clocks: Clocks | None = None) -> Result:
    """Look at the job, ask the guard, act. Never raises for what Slurm does."""
    clocks = clocks or Clocks()
    slurm = Slurm(conf=request.conf, bin_dir=request.bin_dir, timeout_seconds=request.timeout_seconds, run=run)
    try:
        found = slurm.jobs(request.shown_id)
        job = next((row for row in found if row.shown_id == request.shown_id), None)
        comment = slurm.comment(request.shown_id) if job is not None else ""
    except SlurmError as error:
        return Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error))
    limits = replace(request.limits, stopped=stop_file.engaged(request.stop_file))
    if job is not None:
        fresh = scope.judge(
            request.scope, comment=comment, partition=job.partition, user=job.user, account=request.account
        )
        limits = replace(limits, in_scope=limits.in_scope and fresh.inside, scope_reason=fresh.reason)
    outcome = guard.plan(request.advice, job, limits, now=clocks.wall(), monotonic=clocks.monotonic())
    match outcome:
        case guard.Steps():
            assert job is not None  # noqa: S101 - plan() returns no steps for a job that is gone
            return _act(request, job, limits, outcome, slurm, clocks)
        case guard.Satisfied():
            status = Status.VERIFIED if outcome.by_us else Status.ALREADY_SATISFIED
            return Result(status=status, reason=outcome.reason, detail=outcome.detail, by_us=outcome.by_us)
        case guard.Withheld():
            return Result(status=outcome.status, reason=outcome.reason, detail=outcome.detail)
        case guard.Wait():
            return Result(status=Status.PENDING, reason=outcome.reason, detail=outcome.detail)


def _act(
    request: Request, job: JobRow, limits: guard.Limits, plan: guard.Steps, slurm: Slurm, clocks: Clocks
) -> Result:
    done: list[Verb] = []
    excluded: tuple[str, ...] = ()
    for planned in plan.steps:
        step = _later(request, job, limits, planned, clocks) if done else planned
        if isinstance(step, guard.Update):
            excluded = step.excluded
        try:
            out = slurm.tool(*command(step, request.shown_id))
        except SlurmError as error:
            return Result(
                status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error), done=tuple(done)
            )
        if out.returncode != 0 or out.stderr.strip():
            return _refused(step, first_line(out.stderr), tuple(done))
        done.append(Verb(name=_VERB_NAMES[type(step)], at=clocks.wall()))
    reason = plan.dropped_reason or Reason.OBSERVED
    detail = f"left out: {' '.join(plan.dropped)}" if plan.dropped else ""
    return Result(
        status=Status.APPLIED, reason=reason, detail=detail, done=tuple(done), excluded=excluded, dropped=plan.dropped
    )


def _later(request: Request, job: JobRow, limits: guard.Limits, step: guard.Step, clocks: Clocks) -> guard.Step:
    """The requeue took time, and the earliest legal start moved with it: the update, planned again at this moment."""
    if not isinstance(step, guard.Update) or step.start_time is None:
        return step
    again = guard.plan(request.advice, job, limits, now=clocks.wall(), monotonic=0.0)
    return again.steps[-1] if isinstance(again, guard.Steps) else step


def command(step: guard.Step, shown_id: str) -> tuple[str, ...]:
    """One step as the argument vector of one of Slurm's tools."""
    match step:
        case guard.RequeueEnded():
            return ("scontrol", "requeue", shown_id)
        case guard.RequeueLive():
            return ("scontrol", "requeue", "incomplete", shown_id)
        case guard.Update():
            start = () if step.start_time is None else (f"StartTime=uts{step.start_time}",)
            return (
                "scontrol",
                "update",
                f"JobId={shown_id}",
                f"ExcNodeList={','.join(step.excluded)}",
                *start,
                f"AdminComment={step.admin_comment}",
            )
        case guard.Cancel():
            return ("scancel", f"--state={step.state}", shown_id)


def _refused(step: guard.Step, complaint: str, done: tuple[Verb, ...]) -> Result:
    """Slurm said no. An update refused because the job moved on is a reason to look again, not an end."""
    detail = f"{_VERB_NAMES[type(step)]}: {complaint}"
    lowered = complaint.lower()
    if "permission denied" in lowered or "invalid user id" in lowered:
        return Result(status=Status.WITHHELD, reason=Reason.PERMISSION, detail=detail, done=done)
    moved = ("already finished", "no longer pending", "pending execution", "already completing", "already completed")
    if any(text in lowered for text in moved):
        return Result(status=Status.PENDING, reason=Reason.STILL_COMPLETING, detail=detail, done=done)
    transient = (
        "unable to contact",
        "connection refused",
        "timed out",
        "zero bytes",
        "communication",
        "try again",
        "invalid time",
    )
    if any(text in lowered for text in transient):
        return Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=detail, done=done)
    return Result(status=Status.WITHHELD, reason=Reason.SCHEDULER_REFUSED, detail=detail, done=done)


def encode(request: Request) -> bytes:
    """The request as the parent writes it."""
    return json.dumps(asdict(request)).encode()


def decode(raw: bytes) -> Request:
    """The request as this process reads it. Only our own agent writes it, so a wrong shape is a programmer error."""
    value = json.loads(raw)
    advice = _tuples(value["advice"])
    parts = {
        "advice": guard.Advice(**{**advice, "action": guard.Action(advice["action"])}),
        "limits": guard.Limits(**_tuples(value["limits"])),
        "scope": scope.ScopeConfig(**_tuples(value["scope"])),
    }
    return Request(**{**value, **parts})


def _tuples(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}


def encode_result(result: Result) -> bytes:
    return json.dumps(asdict(result)).encode()


def decode_result(raw: bytes) -> Result:
    """What the parent reads. Raises ValueError for anything else."""
    value = json.loads(raw)
    done = tuple(Verb(**verb) for verb in value["done"])
    words = {"status": Status(value["status"]), "reason": Reason(value["reason"])}
    return Result(**{**_tuples(value), **words, "done": done})


def main() -> int:
    """Read a request, act, print the result. The alarm is the second belt, in case nobody kills us."""
    request = decode(sys.stdin.buffer.read(REQUEST_BYTES_MAX))
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, request.limit_seconds)
    sys.stdout.buffer.write(encode_result(carry_out(request)))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
