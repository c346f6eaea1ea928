"""The fault matrix: at which step of the protocol what dies or stops, and what must hold all the same.

A story is one failure and the advice about it. A combination is a story, a step of the protocol, and one fault or two
that strike at the first moment of that step. `play` runs it on a simulated site and returns what was seen;
`problems` says what is wrong with that, the invariants of docs/architecture.md in this order:

1. no job waits on us past its deadline, 2. no failure causes two requeues, 3. no advice is lost or applied to another
attempt, 4. nobody else's drain, hold or job changes, 0. the fault really bit.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import structlog

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin.guard import RESTARTABLE
from slurm_plugin.wire import state as wire_state
from tests.model.simulation import EPOCH, Loop, Process
from tests.model.site import CRON_SECONDS, Decide, Site, Wish
from tests.model.slurm import ModelJob, ModelSlurm

JOB, DELAY = "17", 6
FAILS_AT = 3.0
HORIZON = 75.0
BACK_AFTER = {"advisor": 6.0, "postgres": 6.0, "agent": 4.0, "watchdog": 4.0, "slurmctld": 7.0, "node1": 15.0}
TARGETS = tuple(BACK_AFTER)
KINDS = ("kill -9", "SIGSTOP")
OURS = ("advisor", "postgres", "agent", "watchdog")
LOST_SECONDS = 1.0
DEAD_SECONDS = 25.0
_ENDED = frozenset(wire_state(phase) for phase in RESTARTABLE)
_RUNNING = common_pb2.ATTEMPT_STATE_RUNNING
STEPS = (
    "hook: notify",
    "agent: look",
    "report",
    "report: stored",
    "tick: gather",
    "tick: commit",
    "tick: committed",
    "publish",
    "advice heard",
    "tick file",
    "applying process: start",
    "applying process: look",
    "applying process: requeue",
    "applying process: requeue accepted",
    "applying process: update",
    "applying process: update accepted",
    "acknowledgement",
    "acknowledgement: stored",
    "watchdog: look",
    "watchdog: update",
    "watchdog: update accepted",
    "job starts",
)
_AFTER_THE_FAILURE = frozenset(
    {"agent: look", "report", "report: stored", "tick: gather", "tick file", "watchdog: look"}
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`forever`: nobody starts it again. `loses`: slurmctld dies before it has saved its last second."""

    target: str
    kind: str
    forever: bool = False
    loses: bool = False

    def __str__(self) -> str:
        more = ", for good" if self.forever else ", last second unsaved" if self.loses else ""
        return f"{self.kind} {'slurmd of node1' if self.target == 'node1' else self.target}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """`steps`: those of STEPS that happen in it."""

    name: str
    decide: Decide
    skipped: frozenset[str] = frozenset()
    agents: int = 1
    node_dies: str | None = None  # at the moment of the failure
    drained: tuple[str, ...] = ()  # by an administrator, once our exclusion is set
    dies: str | None = None  # one of our programs, at that moment, for DEAD_SECONDS
    fails: bool = True  # the attempt ends by itself

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(step for step in STEPS if step not in self.skipped)

    @property
    def targets(self) -> tuple[str, ...]:
        """Whom faults may strike: what the story itself kills is none of theirs."""
        return tuple(target for target in TARGETS if target != self.dies)


def _failed(seen: agent_pb2.JobObservation) -> bool:
    return seen.attempt.attempt == 0 and seen.state in _ENDED and seen.in_scope and seen.attempt.job_id == JOB


def _plain(seen: agent_pb2.JobObservation, now: float, generations: int) -> Wish | None:
    return Wish(exclude=("node2",)) if _failed(seen) else None


def _leased(seen: agent_pb2.JobObservation, now: float, generations: int) -> Wish | None:
    """Exclusions may still change for 25 s, so StartTime is leased; after 12 s node4 takes node5's place in them."""
    if not _failed(seen):
        return None
    ended = seen.ended_at.seconds - EPOCH
    if now < ended + 12:
        return Wish(exclude=("node2", "node5"), start_not_before=ended + 25, decision_deadline=ended + 30)
    return Wish(exclude=("node2", "node4"))


def _live(seen: agent_pb2.JobObservation, now: float, generations: int) -> Wish | None:
    """A hang under a node that does not answer: the attempt may be ended."""
    mine = seen.attempt.job_id == JOB and seen.attempt.attempt == 0
    hung = mine and seen.state in {_RUNNING, common_pb2.ATTEMPT_STATE_COMPLETING} and now >= FAILS_AT + 2
    return Wish(exclude=("node2",), may_end_live_attempt=True) if hung or (mine and generations) else None


_NO_RELEASE = frozenset({"watchdog: update", "watchdog: update accepted"})
STORIES = {
    story.name: story
    for story in (
        Story(name="failed", decide=_plain, skipped=_NO_RELEASE),
        Story(name="leased", decide=_leased, skipped=_NO_RELEASE),
        Story(
            name="hung",
            decide=_live,
            fails=False,
            node_dies="node2",
            skipped=_NO_RELEASE | {"hook: notify"},
        ),
        Story(name="cornered", decide=_plain, drained=("node3", "node4", "node5"), dies="agent"),
        Story(name="two agents", decide=_plain, agents=2, skipped=_NO_RELEASE),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    story: str
    step: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.story} | {self.step} | {' + '.join(map(str, self.faults)) or 'nothing'}"


@dataclass(slots=True, kw_only=True)
class Seen:
    """`bit`: by fault, how many calls it kept from happening in time, None when it never struck."""

    combination: Combination
    site: Site
    struck_at: float | None = None
    bit: dict[Fault, int | None] = field(default_factory=dict)
    before: tuple[object, ...] = ()
    after: tuple[object, ...] = ()

    @property
    def job(self) -> ModelJob:
        return self.site.slurm.job(JOB)


def single_faults(story: Story) -> Iterator[Fault]:
    for target in story.targets:
        for kind in KINDS:
            yield Fault(target, kind)
            if target in OURS:
                yield Fault(target, kind, forever=True)
    yield Fault("slurmctld", "kill -9", loses=True)


def singles(story: Story) -> Iterator[Combination]:
    for step in story.steps:
        for fault in single_faults(story):
            yield Combination(story=story.name, step=step, faults=(fault,))


def pairs(story: Story) -> Iterator[Combination]:
    """Two different parts at the same step; both come back."""
    kinds = [Fault(target, kind) for target in story.targets for kind in KINDS]
    for step in story.steps:
        for one, other in itertools.combinations(kinds, 2):
            if one.target != other.target:
                yield Combination(story=story.name, step=step, faults=(one, other))


def a_folder() -> Path:
    """In memory where there is such a place: the tick file is replaced every second."""
    return Path(tempfile.mkdtemp(prefix="fm-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def play(
    combination: Combination, also: Callable[[str], object] = lambda step: None, *, scheduler_first: bool = False
) -> Seen:
    """Run one combination to its end; `also` hears every step."""
    story, folder = STORIES[combination.story], a_folder()
    loop = Loop()
    try:
        with structlog.testing.capture_logs(), redirect_stderr(StringIO()):
            site = Site(loop, folder, a_cluster(), story.decide, agents=story.agents)
            site.scheduler_first = scheduler_first
            seen = Seen(combination=combination, site=site)
            seen.bit = dict.fromkeys(combination.faults)
            loop.run_until_complete(_played(story, seen, also))
        return seen
    finally:
        loop.close()
        shutil.rmtree(folder)


def a_cluster() -> ModelSlurm:
    """Six nodes; jobs and a node of other people beside ours."""
    slurm = ModelSlurm(now=EPOCH, delay=DELAY, nodes={f"node{at}": "idle" for at in range(1, 7)})
    slurm.nodes["node6"] = "drained"
    ours = {"nodes_wanted": 2, "nodes": "node1,node2", "start": int(EPOCH) - 100}
    slurm.add(
        ModelJob(job_id=JOB, state="RUNNING", submit=int(EPOCH) - 200, eligible=int(EPOCH) - 200, **ours)  # type: ignore[arg-type]  # by name
    )
    slurm._processes.add((JOB, 0))
    slurm.add(
        ModelJob(job_id="90", priority=0, reason="JobHeldAdmin", excluded="node1", admin_comment="ask Bob", user="bob")
    )
    ended = {"submit": int(EPOCH) - 200, "end": int(EPOCH) - 10, "start": int(EPOCH) - 100, "nodes": "node3"}
    slurm.add(ModelJob(job_id="91", state="FAILED", comment="", **ended))  # type: ignore[arg-type]
    slurm.add(ModelJob(job_id="92", state="CANCELLED", **ended))  # type: ignore[arg-type]
    slurm.save()
    return slurm


def what_is_others(slurm: ModelSlurm) -> tuple[object, ...]:
    """What is nobody's of ours, as it must stay."""
    jobs = [
        (job.job_id, job.state, job.restarts, job.priority, job.reason, job.excluded, job.admin_comment, job.eligible)
        for key, job in sorted(slurm.jobs.items())
        if key != JOB
    ]
    return (*jobs, slurm.nodes["node6"])


def let_it_fail(site: Site, story: Story) -> None:
    """The failure of the story, at FAILS_AT."""
    if story.fails:
        site.slurm.job(JOB).ends_at = EPOCH + FAILS_AT
        site.slurm.save()
    if story.node_dies is not None:
        site.loop.call_at(FAILS_AT, site.slurm.dark.__setitem__, story.node_dies, EPOCH + FAILS_AT)


async def _played(story: Story, seen: Seen, also: Callable[[str], object]) -> None:
    site, combination = seen.site, seen.combination

    def step_hook(step: str) -> None:
        also(step)
        _at(step, seen)

    site.step_hook = step_hook
    seen.before = what_is_others(site.slurm)
    site.start()
    let_it_fail(site, story)
    if any(fault.target == "watchdog" and fault.forever for fault in combination.faults):
        site.start_cron()
    cornered = False
    while site.loop.time() < HORIZON:
        await asyncio.sleep(0.5)
        if story.drained and not cornered and site.slurm.job(JOB).excluded:
            cornered = True
            for node in story.drained:
                site.slurm.nodes[node] = "drained"
            if story.dies is not None:
                site.lives[story.dies].kill()
                site.loop.call_later(DEAD_SECONDS, site.start_program, story.dies)
        quiet = not combination.faults or (seen.struck_at is not None and site.loop.time() > seen.struck_at + 25)
        restarted = site.slurm.job(JOB).state == "RUNNING" and site.slurm.job(JOB).restarts > 0
        if quiet and restarted and not _waits_for_more(site):
            break
    seen.after = what_is_others(site.slurm)
    await site.end()


def _waits_for_more(site: Site) -> bool:
    return any(not site.database.concluded(items[-1][1].advice_id) for items in site.database.advice.values())


def _at(step: str, seen: Seen) -> None:
    """The faults of the combination strike the first time that its step is reached, from the failure on."""
    wanted, site = seen.combination.step, seen.site
    if step != wanted or seen.struck_at is not None:
        return
    if step in _AFTER_THE_FAILURE and site.loop.time() < FAILS_AT:
        return
    if step == "job starts" and site.slurm.job(JOB).restarts == 0:
        return
    seen.struck_at = site.loop.time()
    for fault in seen.combination.faults:
        _strike(fault, seen)


def _strike(fault: Fault, seen: Seen) -> None:
    site, back = seen.site, BACK_AFTER[fault.target]
    if fault.target == "node1":
        # A slurmd that is stopped and one that is dead look alike from outside: it does not answer.
        site.slurm.dark["node1"] = site.slurm.now
        seen.bit[fault] = 0
        site.loop.call_later(back, site.slurm.node_returns, "node1")
        return
    names = site.agent_names[:1] if fault.target == "agent" else (fault.target,)
    for name in names:
        process = site.lives[name]
        assert process.works, f"{name} was not at work when it was to be struck"
        refused = process.refused
        if fault.kind == "SIGSTOP":
            process.stop()
        elif name == "slurmctld":
            site.slurmctld_dies(losing_seconds=LOST_SECONDS if fault.loses else 0.0)
        else:
            process.kill()
        assert not process.works
        site.loop.call_later(back, _back, fault, process, refused, seen)


def _back(fault: Fault, process: Process, refused: int, seen: Seen) -> None:
    site = seen.site
    assert site.lives[process.name] is process, "nobody else may have started it"
    assert not process.works, f"{process.name} was to be away until now"
    seen.bit[fault] = process.refused - refused
    if fault.forever:
        return
    if fault.kind == "SIGSTOP":
        (site.slurmctld_goes_on if process.name == "slurmctld" else process.go_on)()
    else:
        site.start_program(process.name)


# --- what must hold -------------------------------------------------------------------------------------------------


def problems(seen: Seen) -> list[str]:
    """Everything that is wrong; empty is good."""
    return [*_not_bitten(seen), *_late(seen), *twice(seen.site.slurm), *_lost(seen), *_changed(seen)]


def _not_bitten(seen: Seen) -> Iterable[str]:
    if seen.combination.faults and seen.struck_at is None:
        yield f"the step {seen.combination.step!r} was never reached"
        return
    for fault, refused in seen.bit.items():
        if refused is None:
            yield f"{fault} did not strike"


def _gone(seen: Seen) -> set[str]:
    return {fault.target for fault in seen.combination.faults if fault.forever}


def _late(seen: Seen) -> Iterable[str]:
    """A job that was requeued, by whomever, runs: by the deadline, or as soon as Slurm and its nodes can."""
    job, slurm = seen.job, seen.site.slurm
    if job.state not in {"RUNNING", "FAILED"}:
        yield f"in the end the job is {job.state} ({job.reason}), excluded {job.excluded!r}"
    if job.state == "FAILED" and not _gone(seen) & {"advisor", "postgres", "agent"}:
        yield "the job was never restarted"
    first = next((at for name, restarts, at, _, _ in slurm.starts if name == JOB and restarts == 1), None)
    requeued = next((change.at for change in slurm.changes if change.verb == "requeue"), None)
    if first is not None and requeued is not None:
        away = sum(BACK_AFTER[fault.target] for fault in seen.combination.faults) + 12.0
        away += CRON_SECONDS if "watchdog" in _gone(seen) else 0.0
        lease = 30.0 if seen.combination.story == "leased" else 0.0
        if first > requeued + max(DELAY, lease) + away:
            yield f"it started {first - requeued:.0f} s after its requeue"


def twice(slurm: ModelSlurm) -> Iterable[str]:
    per_attempt: dict[int, list[str]] = {}
    for change in slurm.changes:
        if change.verb == "requeue" and change.job_id == JOB:
            per_attempt.setdefault(change.attempt, []).append(change.by)
    for attempt, senders in per_attempt.items():
        if len(senders) > 1:
            yield f"attempt {attempt} was requeued by {', '.join(senders)}"
        if attempt > 0 and any(sender.startswith("agent") for sender in senders):
            yield f"attempt {attempt}, which had not failed, was requeued by us"
    yield from slurm.wrong


def _lost(seen: Seen) -> Iterable[str]:
    """With everything back, what was decided is in force, or the reason why not is on record."""
    site, story = seen.site, STORIES[seen.combination.story]
    if _gone(seen):
        return
    if not site.database.advice:
        if seen.job.restarts == 0:
            yield "no advice was given"
        return  # Slurm requeued it before anybody could
    newest = [items[-1][1] for items in site.database.advice.values()]
    for advice in newest:
        if not site.database.concluded(advice.advice_id):
            said = site.database.said.get(advice.advice_id, [])
            yield f"what came of {advice.advice_id} is not on record: {said}"
    start = next((entry for entry in site.slurm.starts if entry[0] == JOB and entry[1] >= 1), None)
    if start is None or story.drained:
        return
    excluded = set(start[4].split(",")) - {""}
    wanted = frozenset(site.database.advice[f"{JOB}/0"][-1][0].exclude)
    told = {reason for items in site.database.said.values() for _, reason in items}
    late = {common_pb2.RECONCILIATION_REASON_TOO_LATE, common_pb2.RECONCILIATION_REASON_ATTEMPT_MOVED_ON}
    if excluded - wanted and not told & late:
        yield f"{sorted(excluded - wanted)} are excluded, which nobody wants any more"
    if not wanted <= excluded and not told & late:
        yield f"it started without {sorted(wanted - excluded)} excluded, and nobody said so"


def _changed(seen: Seen) -> Iterable[str]:
    for before, after in zip(seen.before, seen.after, strict=True):
        if before != after:
            yield f"what belongs to others changed: {before} became {after}"
    strange = [change for change in seen.site.slurm.changes if change.job_id != JOB]
    if strange:
        yield f"others' jobs were touched: {strange}"
    for verb in seen.site.slurm.verbs:
        if verb[0] not in {"requeue", "update", "cancel"} or any(item.startswith("NodeName") for item in verb):
            yield f"a verb that nobody asked for: {verb}"
