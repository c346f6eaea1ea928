"""What people did about a failed attempt, inferred from what the scheduler showed afterwards. Pure.

The scheduler does not say who did a thing. What tells is order: a job that was seen FAILED is never requeued by Slurm
itself, a job that was not may have been; a new job of the same user and name may take its place, or be one of many.
So every answer carries how sure it is, and why. What somebody said explicitly wins over all of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from advisor.core.words import Action, AttemptState, Category, NodeState, Reason


class Did(StrEnum):
    """What was done about an attempt. The upper four are people's; the lower ones nobody's whom we could agree with."""

    REQUEUED = "requeued"
    RESUBMITTED = "resubmitted"  # as a new job of the same name and user
    CANCELLED = "cancelled"
    NOTHING = "nothing"  # within the time that they had for it
    OTHER = "other"  # something for a reason of its own, as somebody said
    SCHEDULER = "scheduler"  # Slurm requeued it by itself
    JOB = "job"  # its own script did
    ADVISOR = "advisor"  # we did
    FINISHED = "finished"  # it completed after all
    UNKNOWN = "unknown"  # the scheduler forgot it before its end was seen
    WAITING = "waiting"  # nothing yet, and there is time left


PEOPLES = frozenset({Did.REQUEUED, Did.RESUBMITTED, Did.CANCELLED, Did.NOTHING})


class DrainedBy(StrEnum):
    ADVISOR = "advisor"
    SLURM = "slurm"
    TOOL = "tool"
    PEOPLE = "people"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRules:
    """The numbers of the inference. The report prints them."""

    window_seconds: float = 86_400.0  # how long people have before doing nothing counts as their answer
    sure_min: float = 0.6  # below, a resubmission counts for nothing
    at_once_seconds: float = 10.0  # a live job requeued so soon after its fault was not requeued by a person
    node_down_seconds: float = 900.0  # a node that went down so shortly before the end explains a requeue
    quick_seconds: float = 600.0  # resubmitted so soon, nothing was repaired
    stands_seconds: float = 3_600.0  # what we did ourselves stands when nobody undid it for so long
    proof_days: float = 7.0  # how long a node's later history is looked at
    good_hours: float = 24.0  # of jobs on it without a failure of its own
    tool_reasons: tuple[str, ...] = ("NHC", "nhc:", "healthcheck", "health_check", "HC:", "gcm", "nvsentinel", "DCGM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """One decision about the attempt. `nodes`: that the next attempt was to avoid; `blamed`: for this failure."""

    decision_id: str
    at: datetime
    action: Action
    category: Category
    reason: Reason
    nodes: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    fingerprint: str = ""
    autonomous: bool = False
    applied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt of the job itself, or of another of the same user and name. `excluded` are without ours."""

    job_key: str
    number: int
    job_id: str
    state: AttemptState
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    excluded: tuple[str, ...] = ()
    ours: bool = False  # our mark was on it when it was seen to wait
    stopped: bool = False  # by us
    unreported: bool = False  # cancelled while our stop was out, and whether by that nobody knows
    fingerprint: str = ""  # of its own failure, "" for none known
    partition: str = ""
    nodes_requested: int | None = None
    stdout: str = ""
    array_job_id: str = ""
    het_job_id: str = ""
    gpus: int | None = None

    def seconds(self, now: datetime) -> float:
        """For how long it ran, so far."""
        if self.started_at is None:
            return 0.0
        return max(0.0, ((self.ended_at or now) - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    node: str
    at: datetime
    before: NodeState | None
    state: NodeState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What somebody recorded about what was done."""

    did: Did
    did_at: datetime
    who: str
    why: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What an operator says is the right verdict. None: nothing is said about that part. `nodes`: those at fault."""

    who: str
    at: datetime
    why: str = ""
    category: Category | None = None
    action: Action | None = None
    nodes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One attempt that something was decided about, and all that bears on what became of it."""

    run: Run
    cluster: str
    user: str
    name: str
    advised: tuple[Advised, ...]  # oldest first
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    exit_signal: int | None = None
    fault_at: datetime | None = None  # when the fault could be seen first
    forgotten: bool = False
    followers: tuple[Run, ...] = ()  # later attempts of the same job, in order
    namesakes: tuple[Run, ...] = ()  # first attempts of other jobs of this user and name, around that time
    changes: tuple[NodeChange, ...] = ()
    said: Said | None = None  # the newest record
    correction: Correction | None = None  # the newest one

    @property
    def base(self) -> datetime:
        """From when on somebody could do something: the end, or the fault of an attempt that is live."""
        known = (self.run.ended_at, self.fault_at, self.run.started_at)
        return next((moment for moment in known if moment is not None), self.run.submitted_at)

    @property
    def successor(self) -> Run | None:
        return self.followers[0] if self.followers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What was done, when, how sure that is (0..1), and what tells so. `by` is set where somebody said it."""

    did: Did
    at: datetime | None = None
    sure: float = 1.0
    why: str = ""
    excluded: tuple[str, ...] = ()  # nodes that people keep the work away from since
    drained: tuple[str, ...] = ()
    drained_at: datetime | None = None  # the first of these: what is decided since may rest on it
    by: str = ""
    job_id: str = ""  # of the resubmission

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({*self.excluded, *self.drained}))


_ENDED_BY_SLURM = frozenset({AttemptState.NODE_FAILURE, AttemptState.PREEMPTED})
_FAILED = frozenset(
    {AttemptState.FAILED, AttemptState.TIME_LIMIT, AttemptState.OUT_OF_MEMORY, AttemptState.LAUNCH_FAILURE}
)
_DRAINED = frozenset({NodeState.DRAINED, NodeState.DRAINING})
_OUT = frozenset({NodeState.DOWN, NodeState.NOT_RESPONDING})
_SLURM_REASONS = (
    *("Not responding", "Kill task failed", "Prolog error", "Epilog error", "batch job complete failure"),
    *("Low RealMemory", "Low socket", "Low CPUs", "Low TmpDisk", "gres/", "Duplicate jobid", "Node unexpectedly"),
    *("Not registered", "slurmd", "Invalid node", "Reboot ASAP", "reboot complete"),
)
# Names that many jobs have: they say nothing about which of them takes another one's place.
_ANYBODYS = frozenset(
    {"", "bash", "sh", "wrap", "sbatch", "interactive", "python", "python3", "job", "test", "run", "train", "jupyter"}
)
# How somebody would record what we did.
_LIKE_OURS = {Action.RESTART: Did.REQUEUED, Action.STOP: Did.CANCELLED}
_NUMBERS = re.compile(r"\d+")
UNREPORTED = "our stop was out, and not reported back: ended by it, or by somebody else"


def infer(watched: Watched, now: datetime, rules: ShadowRules) -> Act:
    """What was done about the attempt. Total: every attempt gets an answer, at the least `WAITING` or `UNKNOWN`."""
    drained = drained_by_people(watched, rules)
    act = (
        _said(watched)
        or _by_us(watched)
        or _unreported(watched)
        or _of_successor(watched, rules)
        or _without_successor(watched, now, rules)
    )
    return Act(
        did=act.did,
        at=act.at,
        sure=round(act.sure, 2),
        why=act.why,
        excluded=act.excluded,
        drained=() if act.by else tuple(sorted({change.node for change in drained})),
        drained_at=None if act.by else min((change.at for change in drained), default=None),
        by=act.by,
        job_id=act.job_id,
    )


def drained_by(reason: str, rules: ShadowRules) -> DrainedBy:
    """Whose a drain is, by its reason: the scheduler keeps nothing else of it that tells."""
    text = reason.strip()
    if text.startswith("advisor:"):
        return DrainedBy.ADVISOR
    if text.lower().startswith(tuple(item.lower() for item in _SLURM_REASONS)):
        return DrainedBy.SLURM
    if text.lower().startswith(tuple(item.lower() for item in rules.tool_reasons)):
        return DrainedBy.TOOL
    return DrainedBy.PEOPLE


def drained_by_people(watched: Watched, rules: ShadowRules) -> tuple[NodeChange, ...]:
    """When people drained nodes of the attempt from its fault on. One drained long before has other reasons."""
    until = watched.base + timedelta(seconds=rules.window_seconds)
    since = min(watched.fault_at or watched.base, watched.base) - timedelta(seconds=60)
    return tuple(
        change
        for change in watched.changes
        if change.node in watched.nodes
        and change.state in _DRAINED
        and change.before not in _DRAINED
        and since <= change.at <= until
        and drained_by(change.reason, rules) is DrainedBy.PEOPLE
    )


def _said(watched: Watched) -> Act | None:
    """A record of what we did ourselves is nobody's act to agree with; of anything else it wins."""
    said, ours = watched.said, _by_us(watched)
    if said is None or (ours is not None and said.did is _LIKE_OURS.get(_ours(watched))):
        return None
    return Act(did=said.did, at=said.did_at, why=said.why or "recorded", excluded=said.nodes, by=said.who)


def _by_us(watched: Watched) -> Act | None:
    """An action of ours was accepted: what followed is not what people would have done."""
    ours = _applied(watched)
    if ours:
        return Act(did=Did.ADVISOR, at=ours[-1].at, why="the scheduler accepted our advice")
    if watched.successor is not None and watched.successor.ours:
        return Act(did=Did.ADVISOR, at=watched.successor.submitted_at, why="our mark is on the next attempt")
    return None


def _applied(watched: Watched) -> list[Advised]:
    return [item for item in watched.advised if item.autonomous and item.applied]


def _ours(watched: Watched) -> Action:
    """What we did; where only our mark tells that we did something, it is on an attempt that follows."""
    ours = _applied(watched)
    return ours[-1].action if ours else Action.RESTART


def _unreported(watched: Watched) -> Act | None:
    """What was cancelled while our stop was out says nothing of people, unless they ran it again since."""
    after = watched.successor
    called_off = after is not None and after.state is AttemptState.CANCELLED and after.started_at is None
    if not watched.run.unreported or not (after is None or called_off):
        return None
    return Act(did=Did.UNKNOWN, at=watched.run.ended_at, why=UNREPORTED)


def _of_successor(watched: Watched, rules: ShadowRules) -> Act | None:
    """Who put the job back into the queue, as far as the order of events tells."""
    after = watched.successor
    if after is None:
        return None
    if after.state is AttemptState.CANCELLED and after.started_at is None:
        why = "the next attempt was cancelled while it waited"
        return Act(did=Did.CANCELLED, at=after.ended_at or after.submitted_at, sure=0.9, why=why)
    nobody = _nobodys(watched, after, rules)
    if nobody is not None:
        return nobody
    excluded = tuple(sorted(set(after.excluded) - set(watched.run.excluded)))
    if watched.run.state in _FAILED:
        sure, why = 0.95, "seen to have failed, then requeued: Slurm does not do that by itself"
    elif watched.run.state in {AttemptState.COMPLETED, AttemptState.CANCELLED}:
        sure, why = 0.95, "requeued after its end was seen"
    else:
        sure, why = 0.7, "requeued while it ran, and nothing tells that Slurm or the job itself did so"
    return Act(did=Did.REQUEUED, at=after.submitted_at, sure=sure, why=why, excluded=excluded)


def _nobodys(watched: Watched, after: Run, rules: ShadowRules) -> Act | None:
    """The requeue was Slurm's or the job's own."""
    at, run = after.submitted_at, watched.run
    if run.state in _ENDED_BY_SLURM:
        return Act(did=Did.SCHEDULER, at=at, why=f"Slurm requeues by itself after {run.state.value}")
    if run.state in _FAILED or run.state in {AttemptState.COMPLETED, AttemptState.CANCELLED}:
        return None  # its end was seen: an automatic requeue never shows it
    ended = run.ended_at or at
    since = ended - timedelta(seconds=rules.node_down_seconds)
    down = sorted(
        change.node
        for change in watched.changes
        if change.node in watched.nodes and change.state in _OUT and since <= change.at <= ended + timedelta(seconds=60)
    )
    if down:
        return Act(did=Did.SCHEDULER, at=at, sure=0.9, why=f"{down[0]} went down: Slurm requeues its jobs by itself")
    if any(item.category is Category.SCHEDULER_EVENT for item in watched.advised):
        return Act(did=Did.SCHEDULER, at=at, sure=0.8, why="ended by the scheduler, which requeues by itself")
    if watched.exit_code and not watched.exit_signal:
        why = f"ended with exit code {watched.exit_code} and was requeued without being seen to fail: RequeueExit"
        return Act(did=Did.SCHEDULER, at=at, sure=0.8, why=why)
    fault_at = watched.fault_at
    if fault_at is not None and (at - fault_at).total_seconds() < rules.at_once_seconds:
        return Act(did=Did.JOB, at=at, sure=0.7, why="requeued sooner after its fault than a person could")
    return None


def _without_successor(watched: Watched, now: datetime, rules: ShadowRules) -> Act:
    """Nobody requeued it: was it submitted again, cancelled, left?"""
    state, base = watched.run.state, watched.base
    if state is AttemptState.COMPLETED:
        return Act(did=Did.FINISHED, at=watched.run.ended_at, why="it completed")
    if not state.ended:
        if watched.forgotten:
            return Act(did=Did.UNKNOWN, why="the scheduler forgot it before its end was seen")
        return Act(did=Did.WAITING, why="it is not over")
    again = resubmission(watched, rules)
    if again is not None and again.sure >= rules.sure_min:
        return again
    if state is AttemptState.CANCELLED:
        return Act(did=Did.CANCELLED, at=watched.run.ended_at, sure=0.95, why="cancelled, and not submitted again")
    if (now - base).total_seconds() < rules.window_seconds:
        return again or Act(did=Did.WAITING, why="nobody has done anything so far")
    if again is not None:
        return again  # too unsure to count, and it keeps "nothing" from being sure
    return Act(did=Did.NOTHING, sure=0.9, why=f"left as it was for {rules.window_seconds / 3600:g} h")


def resubmission(watched: Watched, rules: ShadowRules) -> Act | None:
    """The likeliest new job that takes the attempt's place, or None. The earliest of equally likely ones."""
    until = watched.base + timedelta(seconds=rules.window_seconds)
    began = min(watched.fault_at or watched.base, watched.base)
    places = [
        other
        for other in watched.namesakes
        if other.number == 0 and other.job_key != watched.run.job_key and began < other.submitted_at <= until
        # Tasks of its own array and components of its own job were there all along.
        if not (other.array_job_id and other.array_job_id == watched.run.array_job_id)
        if not (other.het_job_id and other.het_job_id == watched.run.het_job_id)
    ]
    beside = [other for other in watched.namesakes if _beside(other, watched)]
    best: Act | None = None
    for other in sorted(places, key=lambda item: (item.submitted_at, item.job_key)):
        sure, why = _sureness(watched, other, len(places), len(beside))
        if best is None or sure > best.sure:
            excluded = tuple(sorted(set(other.excluded) - set(watched.run.excluded)))
            best = Act(
                did=Did.RESUBMITTED,
                at=other.submitted_at,
                sure=sure,
                why=why,
                excluded=excluded,
                job_id=other.job_id,
            )
    return best


def _beside(other: Run, watched: Watched) -> bool:
    """Another job of that name lived beside the attempt: its user runs several, and a new one may be one more."""
    own_array = other.array_job_id and other.array_job_id == watched.run.array_job_id
    own_het = other.het_job_id and other.het_job_id == watched.run.het_job_id
    if other.job_key == watched.run.job_key or own_array or own_het:
        return False
    return other.submitted_at <= watched.base and (other.ended_at is None or other.ended_at > watched.base)


def _sureness(watched: Watched, other: Run, candidates: int, beside: int) -> tuple[float, str]:
    """How sure it is that `other` takes the attempt's place, and from what. Summed in hundredths, 5 to 95."""
    run, points = watched.run, 50
    told = ["same user and name"]
    if watched.name.strip().lower() in _ANYBODYS:
        points -= 30
        told.append("a name that many jobs have")
    if run.nodes_requested is not None and other.nodes_requested is not None:
        same = run.nodes_requested == other.nodes_requested
        points += 20 if same else -20
        told.append("as many nodes" if same else "another number of nodes")
    if run.partition and run.partition == other.partition:
        points += 10
    if run.stdout and _NUMBERS.sub("#", run.stdout) == _NUMBERS.sub("#", other.stdout):
        points += 10
        told.append("the same output file")
    later = (other.submitted_at - watched.base).total_seconds()
    points += 10 if later <= 3_600 else -10 if later > 43_200 else 0
    if beside:
        points -= 45
        told.append(f"{beside} of that name ran beside it")
    if candidates > 1:
        points -= 10
        told.append(f"one of {candidates} submitted since")
    return min(95, max(5, points)) / 100, ", ".join(told)


def advice_before(advised: Sequence[Advised], at: datetime | None) -> Advised | None:
    """What stood when people acted: the newest restart or stop from before. None when they were faster.

    The scheduler's times are cut to the second, so that a decision may seem to come up to a second later.
    """
    latest = None if at is None else at + timedelta(seconds=1)
    standing = [
        item
        for item in advised
        if item.action is not Action.NONE and item.reason not in _AFTERWARDS and (latest is None or item.at <= latest)
    ]
    return standing[-1] if standing else None


def stands_since(advised: Sequence[Advised], advice: Advised) -> datetime:
    """Since when that action was advised without a break: later decisions only refined it."""
    since = advice.at
    for item in reversed(advised[: advised.index(advice) + 1]):
        if item.action is not advice.action:
            break
        since = item.at
    return since


# Decided because people, or the scheduler, had acted already, or on an operator's word: no opinion of ours.
_AFTERWARDS = frozenset(
    {Reason.ALREADY_REQUEUED, Reason.USER_CANCELLED, Reason.STOPPED, Reason.STOP_UNREPORTED}
    | {Reason.HELD_BY_OTHERS, Reason.OPERATOR}
)
