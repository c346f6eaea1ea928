"""The shadow report: what we advised against what people did. Pure arithmetic over frozen values.

An attempt counts when there was advice to restart or to stop it before people acted, and when it is sure enough what
they did. Restart agrees with a requeue and with a resubmission; stop agrees with a cancel and with a job left as it
was. Where people kept the work away from nodes and we from others, or from none, the action's agreement does not help.
What an operator said of the verdict wins over everything that is inferred.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from advisor.core.intervals import Estimate, wilson
from advisor.core.people import (
    UNREPORTED,
    Act,
    Advised,
    Did,
    DrainedBy,
    NodeChange,
    Run,
    ShadowRules,
    Watched,
    advice_before,
    drained_by,
    infer,
    stands_since,
)
from advisor.core.words import Action, AttemptState, Category, NodeState


class Outcome(StrEnum):
    """How advice and people compare. The first five are counted, the others told."""

    AGREED = "agreed"
    WE_RESTART = "we_restart"  # we would have restarted, people did not
    THEY_RESTART = "they_restart"  # people restarted, we would have stopped it
    OTHER_NODES = "other_nodes"  # the same action, and none of our nodes are theirs
    CORRECTED = "corrected"  # an operator says that the verdict is wrong
    UNCLEAR = "unclear"  # not sure enough what people did, or why
    WAITING = "waiting"
    NO_ADVICE = "no_advice"  # people were faster, or there was nothing to advise
    NOBODYS = "nobodys"  # the scheduler, the job itself or we acted: nobody to agree with


COUNTED = frozenset({Outcome.AGREED, Outcome.WE_RESTART, Outcome.THEY_RESTART, Outcome.OTHER_NODES, Outcome.CORRECTED})
DISAGREED = COUNTED - {Outcome.AGREED}
_RESTARTED = frozenset({Did.REQUEUED, Did.RESUBMITTED})


class Avoided(StrEnum):
    """Of an agreed restart that was to avoid nodes: which ones people avoided. Others are `Outcome.OTHER_NODES`."""

    SAME = "same"  # at least one of them
    OURS_ALONE = "ours_alone"  # none, as far as is known


class Proof(StrEnum):
    BAD = "bad"
    GOOD = "good"
    OPEN = "open"  # its time is not over, or too little ran on it since


@dataclass(frozen=True, slots=True, kw_only=True)
class Wasted:
    """A later attempt that failed in the way for which we had advised to stop. Hours are None without known GPUs."""

    job_key: str
    number: int
    gpu_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attempt in the report. Hours are None where the job's GPUs are not known."""

    job_id: str
    number: int
    job_key: str
    cluster: str
    user: str
    partition: str
    category: Category
    outcome: Outcome
    why: str
    act: Act
    nodes: Avoided | None = None  # None: there is nothing to compare
    advice: Advised | None = None
    advised_at: datetime | None = None  # since when its action was advised without a break
    autonomous: bool = False  # we acted: the case says whether people let it stand
    delay_seconds: float | None = None  # from our advice until people acted
    gpus: int | None = None
    held: bool = False  # the job held its GPUs all that time
    wasted: tuple["Wasted", ...] = ()  # attempts after our stop that failed the same way


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAftermath:
    """What is known of one node after a decision: its changes, failures of its own hardware, hours of jobs on it."""

    node: str
    changes: tuple[NodeChange, ...] = ()
    failures: tuple[datetime, ...] = ()
    good_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProof:
    node: str
    cluster: str
    category: Category
    decision_id: str
    at: datetime
    proof: Proof
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """One category. `agreement` is of the counted cases; hours are sums over the cases whose GPUs are known."""

    category: Category
    agreement: Estimate
    outcomes: Mapping[Outcome, int]  # the counted ones of what people did, the others of all cases
    agreed_same_nodes: int = 0  # of the agreed ones, where the restart was to avoid nodes
    agreed_ours_alone: int = 0
    stood: int = 0  # of ours, let stand
    undone: int = 0
    gpu_hours_held: float = 0.0
    gpu_hours_waited: float = 0.0
    gpu_hours_wasted: float = 0.0
    without_gpus: int = 0  # cases whose hours are not in the sums
    nodes_bad: int = 0
    nodes_good: int = 0
    nodes_open: int = 0

    def count(self, *outcomes: Outcome) -> int:
        return sum(self.outcomes.get(outcome, 0) for outcome in outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    rows: tuple[CategoryRow, ...]  # those with most counted cases first
    cases: tuple[Case, ...]  # newest first
    nodes: tuple[NodeProof, ...]


def compare(watched: Watched, now: datetime, rules: ShadowRules) -> Case:
    """One attempt's advice against what people did about it."""
    act = infer(watched, now, rules)
    advice = _advice(watched, act)
    outcome, why = _outcome(watched, act, advice, now, rules)
    since = None if advice is None else stands_since(watched.advised, advice)
    seconds = _delay(act, since) if outcome in COUNTED else None
    ours = act.did is Did.ADVISOR
    return Case(
        job_id=watched.run.job_id,
        number=watched.run.number,
        job_key=watched.run.job_key,
        cluster=watched.cluster,
        user=watched.user,
        partition=watched.run.partition,
        category=advice.category if advice is not None else _category(watched),
        outcome=outcome,
        why=why,
        act=act,
        nodes=_avoided(watched, advice, act) if outcome is Outcome.AGREED and act.did in _RESTARTED else None,
        advice=advice,
        advised_at=since,
        autonomous=ours,
        delay_seconds=None if ours else seconds,
        gpus=watched.run.gpus,
        held=since is not None and _held(watched.run, since),
        wasted=_wasted(watched, advice, now),
    )


def _advice(watched: Watched, act: Act) -> Advised | None:
    """What is judged: what an operator corrected, or we carried out, else what stood when people acted."""
    if watched.correction is None and act.did is not Did.ADVISOR:
        return advice_before(watched.advised, act.at)
    standing = [item for item in watched.advised if item.action is not Action.NONE]
    if standing:
        return standing[-1]
    return watched.advised[-1] if watched.correction is not None and watched.advised else None


def _held(run: Run, since: datetime) -> bool:
    """The job held its GPUs since then: it was live, and those who acted ended it. Times are cut to the second."""
    ended_by_people = run.state in {AttemptState.CANCELLED, AttemptState.COMPLETING}
    return ended_by_people or run.ended_at is None or run.ended_at > since


def _category(watched: Watched) -> Category:
    return watched.advised[-1].category if watched.advised else Category.UNKNOWN


def _outcome(
    watched: Watched, act: Act, advice: Advised | None, now: datetime, rules: ShadowRules
) -> tuple[Outcome, str]:
    if watched.correction is not None and advice is not None:
        return _corrected(watched, advice)
    match act.did:
        case Did.ADVISOR if advice is not None:
            return _stood(watched, act, now, rules)
        case Did.ADVISOR:
            return Outcome.NO_ADVICE, "a mark of ours is on it, and no advice of that attempt's"
        case Did.WAITING:
            return Outcome.WAITING, act.why
        case Did.SCHEDULER | Did.JOB | Did.FINISHED | Did.OTHER:
            return Outcome.NOBODYS, act.why
        case Did.UNKNOWN:
            return Outcome.UNCLEAR, act.why
        case Did.REQUEUED | Did.RESUBMITTED | Did.CANCELLED | Did.NOTHING:
            pass
        case _:
            assert_never(act.did)
    if advice is None:
        return Outcome.NO_ADVICE, "there was no advice to restart or stop it when people acted"
    if act.sure < rules.sure_min:
        return Outcome.UNCLEAR, act.why
    restarted = act.did in _RESTARTED
    if advice.action is Action.RESTART:
        if not restarted:
            return Outcome.WE_RESTART, act.why
        return _nodes_compared(watched, advice, act)
    if not restarted:
        return Outcome.AGREED, act.why
    return _restarted_after_stop(watched, act, advice, rules)


def _nodes_compared(watched: Watched, advice: Advised, act: Act) -> tuple[Outcome, str]:
    """People who name no node say nothing about ours, and what we said after their drain may only repeat it."""
    ours, theirs = _unprompted(watched, advice, act)
    if theirs and not _common(advice, act, ours):
        named = ", ".join(sorted(ours if act.drained else advice.nodes)) or "none"
        return Outcome.OTHER_NODES, f"people kept it from {', '.join(sorted(theirs))}, we from {named}"
    return Outcome.AGREED, act.why


def _unprompted(watched: Watched, advice: Advised, act: Act) -> tuple[set[str], set[str]]:
    """Our nodes from before people drained theirs, and people's; a drain that we said nothing before is left out."""
    before = [item for item in watched.advised if act.drained_at is not None and item.at <= act.drained_at]
    unprompted = [item for item in before if item.action is advice.action]
    ours = set(unprompted[-1].nodes) if unprompted else set()
    return ours, {*act.excluded, *(act.drained if unprompted else ())}


def _common(advice: Advised, act: Act, ours: set[str]) -> set[str]:
    return set(act.excluded) & set(advice.nodes) or set(act.drained) & ours


def _avoided(watched: Watched, advice: Advised | None, act: Act) -> Avoided | None:
    if advice is None or advice.action is not Action.RESTART or not advice.nodes:
        return None
    ours, _ = _unprompted(watched, advice, act)
    if _common(advice, act, ours):
        return Avoided.SAME
    return None if act.excluded or act.drained else Avoided.OURS_ALONE


def _restarted_after_stop(watched: Watched, act: Act, advice: Advised, rules: ShadowRules) -> tuple[Outcome, str]:
    """We would have stopped it. A restart that failed the same way shows that stopping was right; one that came too
    late to be a mere retry may run something that was repaired, and shows nothing.
    """
    after = watched.successor if act.did is Did.REQUEUED else _namesake(watched, act.job_id)
    if after is not None and advice.fingerprint and after.fingerprint == advice.fingerprint:
        return Outcome.AGREED, f"restarted ({act.why}), and failed the same way"
    if act.did is Did.REQUEUED and not act.by:
        return Outcome.THEY_RESTART, act.why
    quick = act.at is not None and (act.at - watched.base).total_seconds() <= rules.quick_seconds
    if act.by or (quick and after is not None and after.state is AttemptState.COMPLETED):
        return Outcome.THEY_RESTART, act.why
    return Outcome.UNCLEAR, f"{act.why}: it may have been repaired before"


def _namesake(watched: Watched, job_id: str) -> Run | None:
    return next((item for item in watched.namesakes if item.job_id == job_id), None)


def _corrected(watched: Watched, advice: Advised) -> tuple[Outcome, str]:
    """A correction that says what the advice said is a confirmation."""
    said = watched.correction
    if said is None:
        raise ValueError("nothing was corrected")
    wrong = [
        name
        for name, right, given in (
            ("category", said.category, advice.category),
            ("action", said.action, advice.action),
            ("nodes", None if said.nodes is None else tuple(sorted(said.nodes)), tuple(sorted(advice.blamed))),
        )
        if right is not None and right != given
    ]
    if wrong:
        return Outcome.CORRECTED, f"{said.who} says that {' and '.join(wrong)} should be otherwise: {said.why}"
    return Outcome.AGREED, f"confirmed by {said.who}: {said.why}"


def _stood(watched: Watched, act: Act, now: datetime, rules: ShadowRules) -> tuple[Outcome, str]:
    """Whether people let stand what we did."""
    after, last = watched.successor, act.at or watched.base
    stops = any(item.applied and item.action is Action.STOP for item in watched.advised)
    if stops:
        if after is not None and not after.ours:
            return Outcome.THEY_RESTART, "requeued after our stop"
    elif after is not None and after.state is AttemptState.CANCELLED and not after.stopped:
        ended = after.ended_at or after.submitted_at
        if (ended - after.submitted_at).total_seconds() <= rules.stands_seconds:
            if after.unreported:
                return Outcome.UNCLEAR, f"cancelled soon after our restart: {UNREPORTED}"
            return Outcome.WE_RESTART, "cancelled soon after our restart"
    if (now - last).total_seconds() < rules.stands_seconds:
        return Outcome.WAITING, "it may still be undone"
    return Outcome.AGREED, f"nobody undid it within {rules.stands_seconds / 3600:g} h"


def _delay(act: Act, since: datetime | None) -> float | None:
    if act.at is None or since is None or act.did not in {Did.REQUEUED, Did.RESUBMITTED, Did.CANCELLED}:
        return None
    return max(0.0, (act.at - since).total_seconds())


def _wasted(watched: Watched, advice: Advised | None, now: datetime) -> tuple[Wasted, ...]:
    if advice is None or advice.action is not Action.STOP or not advice.fingerprint:
        return ()
    return tuple(
        Wasted(
            job_key=run.job_key,
            number=run.number,
            gpu_hours=None if run.gpus is None else run.seconds(now) / 3600 * run.gpus,
        )
        for run in watched.followers
        if run.fingerprint == advice.fingerprint
    )


def prove(history: NodeAftermath, at: datetime, now: datetime, rules: ShadowRules) -> tuple[Proof, str]:
    """What the later history of a node says about having excluded it at `at`.

    Bad: within the proof time its own hardware failed again as a trusted source tells, it went down, or somebody but us
    took it out of service. Good: jobs ran on it for long enough without any of that, and the time is over.
    """
    until = at + timedelta(days=rules.proof_days)
    failed = sorted(moment for moment in history.failures if at < moment <= until)
    if failed:
        return Proof.BAD, f"its hardware failed again {_after(failed[0], at)}"
    for change in sorted(history.changes, key=lambda item: item.at):
        if not at < change.at <= until:
            continue
        if change.state is NodeState.DOWN:
            return Proof.BAD, f"it went down {_after(change.at, at)}"
        drained = change.state in {NodeState.DRAINED, NodeState.DRAINING}
        was = change.before in {NodeState.DRAINED, NodeState.DRAINING}
        owner = drained_by(change.reason, rules)
        if drained and not was and owner is not DrainedBy.ADVISOR:
            return Proof.BAD, f"drained by {owner.value} {_after(change.at, at)}"
    if history.good_hours >= rules.good_hours and now >= until:
        return Proof.GOOD, f"jobs ran on it for {history.good_hours:.0f} h without a failure of its own"
    left = f"{history.good_hours:.0f} h of jobs on it so far" if now < until else f"only {history.good_hours:.0f} h"
    return Proof.OPEN, left


def _after(moment: datetime, at: datetime) -> str:
    return f"{(moment - at).total_seconds() / 3600:.1f} h later"


def tally(cases: Sequence[Case], nodes: Sequence[NodeProof]) -> ShadowReport:
    """Cases and proofs summed up per category."""
    categories = sorted({case.category for case in cases} | {item.category for item in nodes})
    rows = [_row(category, cases, nodes) for category in categories]
    rows.sort(key=lambda row: (-row.agreement.count, row.category))
    newest = sorted(cases, key=lambda case: (_moment(case), case.job_key, case.number), reverse=True)
    return ShadowReport(rows=tuple(rows), cases=tuple(newest), nodes=tuple(nodes))


def _moment(case: Case) -> str:
    moment = case.advised_at or case.act.at
    return "" if moment is None else moment.isoformat()


def _row(category: Category, cases: Sequence[Case], nodes: Sequence[NodeProof]) -> CategoryRow:
    own = [case for case in cases if case.category is category]
    theirs = [case for case in own if not case.autonomous]
    counted = [case for case in theirs if case.outcome in COUNTED]
    agreed = [case for case in counted if case.outcome is Outcome.AGREED]
    ours = [case for case in own if case.autonomous]
    proofs = [item.proof for item in nodes if item.category is category]
    late = [case for case in agreed if case.delay_seconds is not None and _restarts(case)]
    # Each stop that people overrode names all failures that followed: an attempt is counted once.
    wasted = {(run.job_key, run.number): run.gpu_hours for case in theirs for run in case.wasted}
    return CategoryRow(
        category=category,
        agreement=wilson(len(agreed), len(counted)),
        outcomes={
            outcome: n
            for outcome in Outcome
            if (n := sum(case.outcome is outcome for case in (theirs if outcome in COUNTED else own)))
        },
        agreed_same_nodes=sum(case.nodes is Avoided.SAME for case in agreed),
        agreed_ours_alone=sum(case.nodes is Avoided.OURS_ALONE for case in agreed),
        stood=sum(case.outcome is Outcome.AGREED for case in ours),
        undone=sum(case.outcome in DISAGREED for case in ours),
        gpu_hours_held=sum(_hours(case) for case in late if case.held),
        gpu_hours_waited=sum(_hours(case) for case in late if not case.held),
        gpu_hours_wasted=sum(hours or 0.0 for hours in wasted.values()),
        without_gpus=sum(case.gpus is None for case in late) + sum(hours is None for hours in wasted.values()),
        nodes_bad=proofs.count(Proof.BAD),
        nodes_good=proofs.count(Proof.GOOD),
        nodes_open=proofs.count(Proof.OPEN),
    )


def _restarts(case: Case) -> bool:
    return case.advice is not None and case.advice.action is Action.RESTART


def _hours(case: Case) -> float:
    return (case.delay_seconds or 0.0) / 3600 * (case.gpus or 0)


def evidence_for_autonomy(cases: Sequence[Case], *, with_stop: bool) -> tuple[int, int]:
    """(agreed, counted) of the cases that speak for or against letting a category act by itself.

    Stops are left out of it unless stopping is to be included.
    """
    relevant = [
        case
        for case in cases
        if case.outcome in COUNTED and (with_stop or case.advice is None or case.advice.action is not Action.STOP)
    ]
    return sum(case.outcome is Outcome.AGREED for case in relevant), len(relevant)
