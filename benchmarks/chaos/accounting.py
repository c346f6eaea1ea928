"""Was every failure answered for, and did every invariant of the design hold? Pure: from what was seen to verdicts.

A failed attempt that nobody restarted is *explained* only by what was injected: the advice's own reason must name
something that happened, or the chain from log to slurmctld must have been broken for nearly all of the time in which
anybody could have acted. Anything else is a breach.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor.demo.squeue import JobRow
from benchmarks.chaos.injections import Done
from benchmarks.chaos.jobs import Act, Launched, planned_failure
from benchmarks.chaos.schedule import HOPELESS, RECOVERABLE, Kind, Story
from benchmarks.chaos.witness import Controller, NodeSeen, Sighting, Start
from slurm_plugin.hostlist import expand

CHAIN = frozenset({"advisor", "agent", "postgres", "slurmctld", "database", "controller"})
NODE_TIMEOUT_SECONDS = 60.0  # until Slurm ends an attempt for a node that it does not hear, here
SAVED_SECONDS = 12.0  # what slurmctld did so shortly before a kill -9 may be forgotten
BEFORE_SECONDS = 10.0
ACTING_SECONDS = 240.0  # advice lives so long, within MinJobAge
BROKEN_SHARE = 0.9
CEILING = 20
SLURMS_HOLD = "launch failed requeued held"  # where slurmd refused a job, for a duplicate id say
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that a run left behind."""

    launched: Sequence[Launched]
    acts: Sequence[Act]
    injected: Sequence[Done]
    hostile: Mapping[int, str]
    jobs: Mapping[int, Sequence[Sighting]]
    nodes: Mapping[str, Sequence[NodeSeen]]
    ran: Mapping[int, Sequence[Start]]  # as the jobs themselves wrote
    controller: Mapping[int, Controller]
    decisions: Sequence[Mapping[str, Any]]  # newest first, as the API tells them
    ended: float  # when injecting was over
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    job_id: int
    story: str
    outcome: str
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Account:
    verdicts: list[Verdict] = field(default_factory=list)
    breaches: list[tuple[str, str]] = field(default_factory=list)  # (invariant, what was seen)
    notes: list[str] = field(default_factory=list)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    def breach(self, invariant: str, what: str) -> None:
        self.breaches.append((invariant, what))


def judge(seen: Seen) -> Account:
    account = Account()
    for item in seen.launched:
        account.verdicts.append(_verdict(seen, item, account))
        if not _given_again(seen, item):
            _check_job(seen, item, account)
    for job_id in (*(item.job_id for item in seen.launched), *seen.hostile):
        _check_any(seen, job_id, account)
    _check_nodes(seen, account)
    _check_decisions(seen, account)
    return account


# ---- what became of a job -----------------------------------------------------------------------------------------


def _verdict(seen: Seen, item: Launched, account: Account) -> Verdict:
    outcome, why = _outcome(seen, item)
    if outcome == "unaccounted":
        account.breach("every failure is accounted for", f"job {item.job_id} ({item.plan.story}): {why}")
    return Verdict(job_id=item.job_id, story=item.plan.story, outcome=outcome, why=why)


def _outcome(seen: Seen, item: Launched) -> tuple[str, str]:
    story, history = item.plan.story, seen.jobs.get(item.job_id, ())
    if _given_again(seen, item):
        return _lost(seen, item, "Slurm gave its id to another job")
    cancelled = [act for act in seen.acts if act.job_id == item.job_id and act.what == "cancel" and act.accepted]
    if not history:
        return _lost(seen, item, "was never seen in Slurm")
    row = history[-1].row
    if story is Story.HELD:
        return ("held by its user, left alone", "") if row.priority == 0 else ("unaccounted", "its hold is gone")
    if row.state not in ENDED:
        blind = _blinded(seen, item)
        if story is Story.HANG and row.state == "RUNNING" and blind:
            return "explained", f"hangs, and nobody can see it: its log is gone ({blind})"
        if row.reason == SLURMS_HOLD:
            return "explained", "Slurm itself holds it: its launch had failed"
        if row.state == "PENDING" and _unopenable(seen, item) and _reason(seen, item) == "storage_delay":
            return "explained", f"waits for the storage of its output, which was taken away; {_said(seen, item)}"
        return ("unaccounted", f"still {row.state} ({row.reason}) at the end")
    if row.state == "COMPLETED":
        if story in HOPELESS:
            return "unaccounted", "completed, which it cannot"
        return ("recovered", f"{row.restarts} restarts") if row.restarts else ("ran through", "")
    if row.state == "CANCELLED":
        if cancelled:
            return "cancelled by its user", ""
        if story in HOPELESS:
            return "stopped rightly", _said(seen, item)
        return "unaccounted", f"cancelled by nobody whom we know; {_said(seen, item)}"
    if story is Story.NOT_OURS:
        return "not opted in, left alone", row.state
    if story in HOPELESS and _actions(seen, item):
        return "stopped rightly", _said(seen, item)
    return _explained(seen, item, history[-1])


def _given_again(seen: Seen, item: Launched) -> bool:
    """A killed slurmctld had forgotten it, and gave its id to another job: what is seen is the other's."""
    return any(other.job_id == item.job_id and other.at > item.at for other in seen.launched)


def _blinded(seen: Seen, item: Launched) -> str:
    """How the log of the attempt that runs now was taken away: what it prints goes where nobody reads."""
    book = seen.controller.get(item.job_id, Controller())
    begun = book.starts[-1].at if book.starts else 0.0
    for done in _of(seen, {Kind.LOG}, {"rotated", "folder", "fifo"}):
        if f"job {item.job_id} " in done.note and done.began > begun:
            return done.what.target
    return ""


def _lost(seen: Seen, item: Launched, what: str) -> tuple[str, str]:
    for done in _of(seen, {Kind.KILL}, {"slurmctld"}):
        if done.began - SAVED_SECONDS <= item.at <= done.began + 1:
            return "explained", f"{what}: slurmctld was killed {done.began - item.at:.0f} s after its submission"
    return "unaccounted", what


def _unopenable(seen: Seen, item: Launched) -> bool:
    """Something was put where its log was, so that slurmd could not open it."""
    return any(f"job {item.job_id} " in done.note for done in _of(seen, {Kind.LOG}, {"folder", "fifo", "binary"}))


def _not_opened(seen: Seen, item: Launched) -> bool:
    """slurmd said so of one of its attempts."""
    history = seen.jobs.get(item.job_id, ())
    return _unopenable(seen, item) and any("53" in one.row.exit_code.split(":") for one in history)


def _reason(seen: Seen, item: Launched) -> str:
    """Of the newest advice."""
    mine = _mine(seen, item)
    return str(mine[0]["advice"].get("reason", "")) if mine else ""


def _explained(seen: Seen, item: Launched, last: Sighting) -> tuple[str, str]:
    """Of an attempt that failed and was left so."""
    share = broken_share(seen, last.at, last.at + ACTING_SECONDS)
    words = f"{last.row.state}, left so; the chain was broken for {share:.0%} of the time to act; {_said(seen, item)}"
    if share >= BROKEN_SHARE:
        return "explained", words
    if _not_opened(seen, item):
        return "explained", f"slurmd could not open its output any more, which was taken away; {_said(seen, item)}"
    if item.plan.story is Story.CANCELLED_AFTER and any(act.job_id == item.job_id for act in seen.acts):
        return "cancelled by its user", words
    return "unaccounted", words


def broken_share(seen: Seen, begin: float, end: float) -> float:
    """Which part of the time something that recovery needs was dead, stopped, cut off or full."""
    if end <= begin:
        return 0.0
    spans = sorted(
        (max(done.began, begin), min(done.ended or seen.ended, end))
        for done in seen.injected
        if done.done and _breaks_the_chain(done, seen.replicas)
    )
    covered, until = 0.0, begin
    for low, high in spans:
        if high > until:
            covered += high - max(low, until)
            until = max(until, high)
    return covered / (end - begin)


def _breaks_the_chain(done: Done, replicas: int) -> bool:
    what = done.what
    if replicas > 1 and (what.target == "advisor" or (what.target == "agent" and what.kind in (Kind.HOLD, Kind.DELAY))):
        return what.kind is Kind.DISK  # the others are there
    return what.target in CHAIN or what.kind in (Kind.DISK, Kind.FLOOD, Kind.TRICK)


def _mine(seen: Seen, item: Launched) -> list[Mapping[str, Any]]:
    return [one for one in seen.decisions if one["advice"]["attempt"].get("job_id") == str(item.job_id)]


def _actions(seen: Seen, item: Launched) -> set[str]:
    return {one["advice"].get("action", "") for one in _mine(seen, item)}


def _said(seen: Seen, item: Launched) -> str:
    """The newest advice in a few words."""
    mine = _mine(seen, item)
    if not mine:
        return "no advice"
    advice = mine[0]["advice"]
    told = [f"{one['status']} {one.get('reason', '')}".strip() for one in mine[0].get("reconciliations", [])]
    short = "; ".join(word.replace("RECONCILIATION_STATUS_", "").replace("RECONCILIATION_REASON_", "") for word in told)
    action = advice.get("action", "").replace("ACTION_", "")
    return f"advice for attempt {advice['attempt'].get('attempt', 0)}: {action} ({advice.get('reason', '')}) {short}"


# ---- invariants ---------------------------------------------------------------------------------------------------


def _check_job(seen: Seen, item: Launched, account: Account) -> None:
    history, book = seen.jobs.get(item.job_id, ()), seen.controller.get(item.job_id, Controller())
    starts = book.starts
    _check_cancel(seen, item, [*starts, *seen.ran.get(item.job_id, ())], account)
    for one in history:
        if not item.excluded <= one.row.excluded:
            account.breach("the user's own exclusions are kept", f"job {item.job_id}: {sorted(one.row.excluded)}")
            break
    if item.plan.story in (Story.NOT_OURS, Story.HELD):
        touched = [one for one in history if one.row.admin_comment or one.row.excluded]
        if touched or book.requeues:
            account.breach("what is not ours is not touched", f"job {item.job_id} ({item.plan.story})")
    own = {node for start in starts for node in expand(start.nodes)}
    foreign = {node for one in history for node in one.row.excluded} - own - item.excluded
    if foreign and starts:
        account.breach("exclusions name nodes of its own attempts", f"job {item.job_id}: {sorted(foreign)}")
    for at, start in enumerate(starts[:-1]):
        cause = _cause(seen, item, start, starts[at + 1].at)
        if cause is None:
            what = (
                f"job {item.job_id} ({item.plan.story}): attempt {start.attempt} ended and nothing had happened to it"
            )
            account.breach("no healthy attempt is ended", what)


def _check_cancel(seen: Seen, item: Launched, starts: Sequence[Start], account: Account) -> None:
    for act in seen.acts:
        if act.job_id != item.job_id or act.what != "cancel" or not act.accepted:
            continue
        later = [start for start in starts if start.at > act.at + 3.0]
        if not later:
            continue
        if any(act.at - 1 <= done.began <= act.at + SAVED_SECONDS for done in _of(seen, {Kind.KILL}, {"slurmctld"})):
            account.notes.append(f"job {item.job_id} ran after its cancel, which a killed slurmctld had not saved")
        else:
            account.breach(
                "a cancelled job does not run again", f"job {item.job_id} started {later[0].at - act.at:.0f} s later"
            )


def _cause(seen: Seen, item: Launched, start: Start, until: float) -> str | None:
    """Why an attempt that began at `start` may have ended before `until`."""
    if planned_failure(item.plan, start.attempt):
        return item.plan.story
    nodes = set(expand(start.nodes))
    for done in seen.injected:
        ended = done.ended or seen.ended
        if not done.done or done.began > until or ended < start.at - NODE_TIMEOUT_SECONDS:
            continue
        on_nodes = done.what.target in ("slurmd", "node", "nodes") and any(node in done.note for node in nodes)
        if on_nodes or done.what.target in ("slurmctld", "controller"):
            return f"{done.what.kind} {done.note}"
        if done.what.kind is Kind.LOG and f"job {item.job_id} " in done.note and ended >= start.at - 1:
            return f"its log: {done.what.target}"
    if any(act.job_id == item.job_id for act in seen.acts):
        return "its user"
    if start.attempt and _not_opened(seen, item):
        return "its output, which slurmd could not open"
    return None


def _check_any(seen: Seen, job_id: int, account: Account) -> None:
    """What holds for every job, a hostile tenant's too."""
    history, book = seen.jobs.get(job_id, ()), seen.controller.get(job_id, Controller())
    times = sorted([(at, "requeue") for at in book.requeues] + [(one.at, "start") for one in book.starts])
    for (before, first), (at, second) in itertools.pairwise(times):
        forgot = any(before - 1 <= one.began <= at + 1 for one in _of(seen, {Kind.KILL}, {"slurmctld"}))
        if first == second == "requeue" and not forgot:  # a slurmctld that was killed had not saved the first
            account.breach("at most one requeue per attempt", f"job {job_id}: the second at {at:.0f}")
    if any(one.row.restarts > CEILING for one in history):
        account.breach("restarts are bounded", f"job {job_id}")
    for one in history:
        mark = read_mark(one.row)
        lease = mark.get("start")
        if mark and one.row.state == "PENDING" and isinstance(lease, int) and lease > float(mark["deadline"]) + 2:
            account.breach("no start is put off past the deadline", f"job {job_id}: {lease} > {mark['deadline']}")
    if book.requeues:
        restarts = [
            one
            for one in seen.decisions
            if one["advice"]["attempt"].get("job_id") == str(job_id) and one["advice"].get("action") == "ACTION_RESTART"
        ]
        if not restarts:
            account.breach("no act without committed advice", f"job {job_id} was requeued")
    last = history[-1].row if history else None
    story = {item.job_id: item.plan.story for item in seen.launched}.get(job_id)
    ours = last is not None and last.state not in ENDED and last.priority == 0 and last.reason != SLURMS_HOLD
    if last is not None and ours and story is not Story.HELD:
        account.breach("nothing is left held", f"job {job_id}: {last.reason}")


def restart_delays(seen: Seen) -> tuple[list[float], list[float]]:
    """Seconds from the end of an attempt to its requeue, by slurmctld's own log: of all jobs, and of those for which
    nothing that recovery needs was broken meanwhile or shortly before.
    """
    everywhere, whole = [], []
    for item in seen.launched:
        book = seen.controller.get(item.job_id, Controller())
        for requeue in book.requeues:
            end = max((at for at in book.ends if at <= requeue), default=None)
            begun = max((one.at for one in book.starts if one.at <= requeue), default=0.0)
            if end is None or end < begun:
                continue  # a live attempt was ended
            everywhere.append(requeue - end)
            if broken_share(seen, end - BEFORE_SECONDS, requeue) == 0.0:
                whole.append(requeue - end)
    return sorted(everywhere), sorted(whole)


_MARK = re.compile(r'\{"advisor":')


def read_mark(row: JobRow) -> Mapping[str, Any]:
    for match in _MARK.finditer(row.admin_comment):
        try:
            value = json.JSONDecoder().raw_decode(row.admin_comment, match.start())[0]["advisor"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(value, dict) and isinstance(value.get("deadline"), int):
            return value
    return {}


def _check_nodes(seen: Seen, account: Account) -> None:
    for done in _of(seen, {Kind.DRAIN}, {"node"}):
        node, _, reason = done.note.partition(": ")
        reason = reason.partition("; undoing")[0]
        held, released = done.held or done.began, done.released or done.ended or seen.ended
        for one in seen.nodes.get(node, ()):
            if held < one.asked and one.at < released and one.reason != reason:
                account.breach("an administrator's drain is kept", f"{node}: {one.reason!r} instead of {reason!r}")
    for node, states in seen.nodes.items():
        if not states or "drain" not in states[-1].state:
            continue
        if not states[-1].reason or states[-1].reason.startswith("advisor"):
            account.breach("no node is left drained by us", f"{node}: {states[-1].state} {states[-1].reason!r}")
        else:
            account.notes.append(f"{node} was left {states[-1].state} by Slurm itself: {states[-1].reason!r}")


def _check_decisions(seen: Seen, account: Account) -> None:
    """Generations of an attempt are counted without a gap, and none stands twice; their times may lie: clocks did."""
    found: dict[tuple[str, int], list[int]] = {}
    for one in reversed(seen.decisions):
        attempt = one["advice"]["attempt"]
        key = str(attempt.get("job_key", "")), int(attempt.get("attempt", 0))
        found.setdefault(key, []).append(int(one["advice"].get("generation", 0)))
    for key, generations in found.items():
        if sorted(generations) != list(range(1, len(generations) + 1)):
            account.breach("generations are counted without a gap", f"{key[0]} attempt {key[1]}: {generations}")


def _of(seen: Seen, kinds: Iterable[Kind], targets: Iterable[str]) -> list[Done]:
    kinds, targets = set(kinds), set(targets)
    return [done for done in seen.injected if done.done and done.what.kind in kinds and done.what.target in targets]


__all__ = ["RECOVERABLE", "Account", "Seen", "Verdict", "judge"]
