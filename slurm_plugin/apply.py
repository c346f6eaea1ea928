"""The one short-lived process that acts: fresh look, guard again, verbs, result. Standard library only.

It reads one JSON request on stdin and prints one JSON result; as long as stdin is open the request may be taken back.
A stale `requeue` kills the next attempt or revives a
cancelled job, so looking and acting must lie closer together than Slurm's requeue delay: the caller kills this
process group after `limit_seconds`, and should the caller be dead, an alarm in here does. What race remains (an RPC
that slurmctld has already queued when its sender is killed) is named in docs/slurm.md.

Run as a script by `python3 -I -S`, so that it starts fast and nothing of an environment can change what it imports.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: our own folder's parent is not on the path under -I
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slurm_plugin import guard, scope, sharing, silence, stop_file, telling, tending
from slurm_plugin.guard import Reason, Status
from slurm_plugin.squeue import JobRow, Output, Run, Slurm, SlurmError, first_line, rpcs_of, run_process

REQUEST_BYTES_MAX = 4 * 1024 * 1024
_VERB_NAMES = {
    guard.RequeueEnded: "requeue",
    guard.RequeueLive: "requeue_incomplete",
    guard.Update: "update",
    guard.Release: "release",
    guard.Cancel: "cancel",
    guard.Signal: "signal",
    guard.Down: "down",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb that the scheduler accepted, and when."""

    name: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`limits.in_scope` is judged again here, from a fresh comment, with `scope` and `account`.

    `companions` get the advice's exclusions besides; with `shares_only` nothing else is done. With `tends` the job only
    loses what of our exclusions keeps it from starting.
    """

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
    companions: tuple[sharing.Companion, ...] = ()
    shares_only: bool = False
    tends: bool = False
    tells_user: bool = False  # a line in the job's Comment


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
    shared: tuple[str, ...] = ()  # companions that were given exclusions, as Slurm names them
    rpcs: int = field(default=0, compare=False)  # that slurmctld served for it


WITHDRAWN = Result(
    status=Status.SUPERSEDED, reason=Reason.NEWER_GENERATION, detail="taken back just before it was acted on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    wall: Callable[[], float] = time.time  # noqa: TID251 - stdlib-only process: no Clock port here
    monotonic: Callable[[], float] = time.monotonic


def still_wanted() -> bool:
    return False


def carry_out(
    request: Request,
    run: Run = run_process,
    clocks: Clocks | None = None,
    withdrawn: Callable[[], bool] = still_wanted,
) -> Result:
    """Look at the job and its companions, ask the guard, act. Never raises for what Slurm does.

    `withdrawn` is asked right before the first thing that would change anything: an operator may have taken the advice
    back since we were started. Once Slurm has accepted a step the others follow, so that what we did bears our mark.
    """
    sent = 0

    def counting(argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        nonlocal sent
        sent += rpcs_of(argv)
        return run(argv, environment, timeout_seconds)

    result = _carried_out(request, counting, clocks or Clocks(), withdrawn)
    return replace(result, rpcs=sent)


def _carried_out(request: Request, run: Run, clocks: Clocks, withdrawn: Callable[[], bool]) -> Result:
    slurm = Slurm(
        conf=request.conf,
        bin_dir=request.bin_dir,
        timeout_seconds=request.timeout_seconds,
        run=run,
        wall=clocks.wall,
    )
    try:
        found = slurm.jobs(*_asked(request))
        job = next((row for row in found if row.shown_id == request.shown_id), None)
        comment = slurm.comment(job.job_id) if job is not None else ""
    except SlurmError as error:
        return Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error))
    limits = replace(request.limits, stopped=stop_file.engaged(request.stop_file))
    if job is not None:
        fresh = scope.judge(
            request.scope, comment=comment, partition=job.partition, user=job.user, account=request.account
        )
        # A component carries no comment of its own: its leader's was judged, and is read again only when it acts.
        inside = fresh.inside or bool(job.het_offset)
        limits = replace(limits, in_scope=limits.in_scope and inside, scope_reason=fresh.reason)
    if request.tends:
        return _tend(request, job, limits, slurm, clocks)
    result = _primary(request, job, comment, found, limits, slurm, clocks, withdrawn)
    if withdrawn() or job is None or limits.stopped or not sharing.wanted(request.advice, result.status, result.reason):
        return result
    if clocks.monotonic() >= request.advice.expires_monotonic:
        return result
    return _share(request, limits, found, result, slurm)


def _primary(
    request: Request,
    job: JobRow | None,
    comment: str,
    found: Sequence[JobRow],
    limits: guard.Limits,
    slurm: Slurm,
    clocks: Clocks,
    withdrawn: Callable[[], bool],
) -> Result:
    """What the advice wants of the job itself."""
    around = _around(request, job, found) if job is not None else guard.ALONE
    outcome = guard.plan(request.advice, job, limits, now=clocks.wall(), monotonic=clocks.monotonic(), around=around)
    match outcome:
        case guard.Steps():
            assert job is not None  # noqa: S101 - plan() returns no steps for a job that is gone
            if request.shares_only:
                return Result(status=Status.PENDING, reason=Reason.STILL_COMPLETING, detail="it changed meanwhile")
            if withdrawn():
                return WITHDRAWN
            stops = any(isinstance(step, guard.Cancel) for step in outcome.steps)
            if stops:  # a job that has ended takes no comment any more
                _tell_user(request, job, comment, slurm)
            result = _act(request, job, limits, outcome, around, slurm, clocks)
            if not stops and result.status is Status.APPLIED:
                _tell_user(request, job, comment, slurm)
            return result
        case guard.Satisfied():
            status = Status.VERIFIED if outcome.by_us else Status.ALREADY_SATISFIED
            return Result(status=status, reason=outcome.reason, detail=outcome.detail, by_us=outcome.by_us)
        case guard.Withheld():
            return Result(status=outcome.status, reason=outcome.reason, detail=outcome.detail)
        case guard.Wait():
            return Result(status=Status.PENDING, reason=outcome.reason, detail=outcome.detail)


def _tend(request: Request, job: JobRow | None, limits: guard.Limits, slurm: Slurm, clocks: Clocks) -> Result:
    """Give back as little as will do. Nothing is taken: so neither scope nor mode is asked, only that it is ours."""
    nothing = Result(status=Status.PENDING, reason=Reason.CAPACITY, detail="nothing keeps it any more")
    if job is None or limits.stopped or not request.limits.act or guard.identity(request.advice, job) is not None:
        return nothing
    found = tending.relief(job, limits.fitting, nodes_together=limits.nodes_together)
    if found is None:
        return nothing
    try:
        out = slurm.tool(*command(found.update, request.shown_id))
    except SlurmError as error:
        return Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error))
    if out.returncode != 0 or out.stderr.strip():
        return _refused(found.update, first_line(out.stderr), ())
    return Result(
        status=Status.APPLIED,
        reason=Reason.CAPACITY,
        detail=f"could not start, left out: {' '.join(found.dropped)} ({found.why})",
        done=(Verb(name="update", at=clocks.wall()),),
        excluded=found.update.excluded,
        dropped=found.dropped,
    )


def _group(shown_id: str) -> str:
    """What a requeue, a release and a cancel are told: all components of a heterogeneous job are one for them."""
    return shown_id.partition("+")[0]


def _asked(request: Request) -> tuple[str, ...]:
    waited = (companion.shown_id for companion in request.companions if companion.waited)
    return (_group(request.shown_id), *waited)


def _around(request: Request, job: JobRow, found: Sequence[JobRow]) -> guard.Around:
    """The rest of the same look. A companion that Slurm no longer has, or that is another job now, says nothing."""
    waited = [row for row in found for companion in request.companions if companion.waited and companion.is_row(row)]
    components = [row for row in found if row.het_job_id and row.het_job_id == job.het_job_id]
    return guard.Around(components=tuple(components), released=sharing.released(job, waited))


def _share(request: Request, limits: guard.Limits, found: Sequence[JobRow], result: Result, slurm: Slurm) -> Result:
    """Best effort, one by one: what a companion lacks is seen, and tried again, at the next pass."""
    shared: list[str] = []
    rows = {row.job_id: row for row in found}
    try:
        if result.done and any(not companion.waited for companion in request.companions):
            rows |= {row.job_id: row for row in slurm.jobs(_group(request.shown_id))}  # requeued since the first look
        for companion in request.companions:
            row = rows.get(companion.job_id)
            if row is None or not companion.is_row(row):
                continue
            comment = slurm.comment(row.job_id) if companion.waited else ""
            step = sharing.share(row, companion, request.advice, limits, request.scope, comment)
            if isinstance(step, guard.Update):
                out = slurm.tool(*command(step, row.shown_id))
                if out.returncode == 0 and not out.stderr.strip():
                    shared.append(row.shown_id)
    except SlurmError:
        pass
    return replace(result, shared=tuple(shared))


def _act(
    request: Request,
    job: JobRow,
    limits: guard.Limits,
    plan: guard.Steps,
    around: guard.Around,
    slurm: Slurm,
    clocks: Clocks,
) -> Result:
    done: list[Verb] = []
    excluded: tuple[str, ...] = ()
    notes = [f"left out: {' '.join(plan.dropped)}"] if plan.dropped else []
    for planned in plan.steps:
        if isinstance(planned, guard.Down):
            notes.append(_set_down(planned, request, slurm, done, clocks))
            continue
        step = _later(request, job, limits, planned, around, clocks) if done else planned
        if isinstance(step, guard.Update):
            excluded = step.excluded
        try:
            out = slurm.tool(*command(step, request.shown_id))
        except SlurmError as error:
            return Result(
                status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error), done=tuple(done)
            )
        if out.returncode != 0 or out.stderr.strip():
            if isinstance(step, guard.Signal):
                notes.append(f"{step.name}: {first_line(out.stderr)}")
                continue
            return _refused(step, first_line(out.stderr), tuple(done))
        done.append(Verb(name=_VERB_NAMES[type(step)], at=clocks.wall()))
        if isinstance(step, guard.RequeueEnded):
            undone = _undone(request, job, slurm, tuple(done), clocks)
            if undone is not None:
                return undone
    detail = "; ".join(note for note in notes if note)
    if all(isinstance(step, guard.Signal) for step in plan.steps):
        return Result(status=Status.PENDING, reason=Reason.SAVING, detail=detail, done=tuple(done))
    reason = plan.dropped_reason or Reason.OBSERVED
    return Result(
        status=Status.APPLIED, reason=reason, detail=detail, done=tuple(done), excluded=excluded, dropped=plan.dropped
    )


def _undone(request: Request, job: JobRow, slurm: Slurm, done: tuple[Verb, ...], clocks: Clocks) -> Result | None:
    """Slurm may have let a dependent go between our look and the requeue, and does so no more since: the job waits.

    Then the requeue is taken back, which can only hit the attempt that has not started: the job is over, as before.
    Could that not be seen, the requeue stands, as it was right by the look before it.
    """
    if not any(companion.waited for companion in request.companions):
        return None
    step = guard.Cancel(state="PENDING")
    try:
        released = _around(request, job, slurm.jobs(*_asked(request))).released
        if not released:
            return None
        out = slurm.tool(*command(step, request.shown_id))
    except SlurmError:
        return None
    if out.returncode != 0 or out.stderr.strip():
        return _refused(step, first_line(out.stderr), done)
    detail = f"{' '.join(released[:8])} was let go in the moment of the requeue: cancelled before it started beside it"
    return Result(
        status=Status.WITHHELD,
        reason=Reason.DEPENDENT_RELEASED,
        detail=detail,
        done=(*done, Verb(name="cancel", at=clocks.wall())),
    )


def _tell_user(request: Request, job: JobRow, comment: str, slurm: Slurm) -> None:
    """Best effort, in a call of its own: that nobody could be told changes nothing of what is done."""
    advice = request.advice
    told = telling.line(advice.explanation, job_id=job.shown_id, attempt=advice.attempt)
    text = telling.merged(comment, told) if request.tells_user else None
    if text is not None:
        with suppress(SlurmError):
            slurm.tool("scontrol", "update", f"JobId={request.shown_id}", f"Comment={text}")


def _set_down(step: guard.Down, request: Request, slurm: Slurm, done: list[Verb], clocks: Clocks) -> str:
    """Only what a fresh look still shows as silent. It lets the job go sooner; its restart does not rest on it."""
    if stop_file.engaged(request.stop_file):
        return ""
    try:
        taken = silence.taken_by_others(step.job_id, slurm.jobs())
        dead = tuple(node for node in silence.still_silent(step.nodes, slurm.nodes()) if node not in taken)
        if not dead:
            return "no node is silent any more, or others have it"
        out = slurm.tool(*command(guard.Down(nodes=dead, job_id=step.job_id), request.shown_id))
    except SlurmError as error:
        return f"down: {error}"
    if out.returncode != 0 or out.stderr.strip():
        return f"down: {first_line(out.stderr)}"
    done.extend(Verb(name="down", at=clocks.wall()) for _ in dead)
    return f"set DOWN: {' '.join(dead)}"


def _later(
    request: Request, job: JobRow, limits: guard.Limits, step: guard.Step, around: guard.Around, clocks: Clocks
) -> guard.Step:
    """The requeue took time, and the earliest legal start moved with it: the update, planned again at this moment."""
    if not isinstance(step, guard.Update) or step.start_time is None:
        return step
    again = guard.plan(request.advice, job, limits, now=clocks.wall(), monotonic=0.0, around=around)
    planned = again.steps if isinstance(again, guard.Steps) else ()
    return next((other for other in planned if isinstance(other, guard.Update)), step)


def command(step: guard.Step, shown_id: str) -> tuple[str, ...]:
    """One step as the argument vector of one of Slurm's tools."""
    match step:
        case guard.RequeueEnded():
            return ("scontrol", "requeue", _group(shown_id))
        case guard.RequeueLive():
            return ("scontrol", "requeue", "incomplete", _group(shown_id))
        case guard.Release():
            return ("scontrol", "release", _group(shown_id))
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
            return ("scancel", f"--state={step.state}", _group(shown_id))
        case guard.Signal():
            batch = ("--batch",) if step.batch else ()
            return ("scancel", "--state=RUNNING", f"--signal={step.name}", *batch, _group(shown_id))
        case guard.Down():
            reason = f"Reason={silence.DOWN_REASON} {step.job_id}"
            return ("scontrol", "update", f"NodeName={','.join(step.nodes)}", "State=DOWN", reason)


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
        "companions": tuple(sharing.Companion(**_tuples(item)) for item in value["companions"]),
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


@dataclass(slots=True, kw_only=True)
class Caller:
    """Whoever started us, at the other end of standard input: one line is the request, anything more takes it back.

    So does its end: a caller that died does not hear any more that an operator takes it back, and its successor asks
    again for what is still wanted.
    """

    fd: int
    gone: bool = False

    def request(self) -> bytes:
        data = b""
        while b"\n" not in data and len(data) < REQUEST_BYTES_MAX:
            more = os.read(self.fd, 65_536)
            if not more:
                break
            data += more
        line, _, more_words = data.partition(b"\n")
        self.gone = bool(more_words)
        return line

    def takes_it_back(self) -> bool:
        self.gone = self.gone or bool(select.select([self.fd], [], [], 0)[0])
        return self.gone


def main() -> int:
    """Read a request, act, print the result. The alarm is the second belt, in case nobody kills us."""
    caller = Caller(fd=sys.stdin.fileno())
    request = decode(caller.request())
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, request.limit_seconds)
    sys.stdout.buffer.write(encode_result(carry_out(request, withdrawn=caller.takes_it_back)))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
