"""Which marked job gets what back. Pure.

Only what the mark says is ours is touched, and only while it still is: StartTime when it equals the one we set, and
never to before the one we found or the earliest that Slurm allows; from ExcNodeList, as it is now, our nodes only.
"""

from dataclasses import dataclass

from watchdog.liveness import Liveness
from watchdog.marks import Mark, find, given_back


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pending job as Slurm shows it. Times are epoch seconds."""

    job_id: str
    shown_id: str
    state: str
    restarts: int
    submit: int | None
    eligible: int | None
    priority: int
    reason: str
    nodes_wanted: int
    partition: str
    excluded: tuple[str, ...] | None
    admin_comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`fitting`: up nodes that fit the job, busy ones counted, exclusions not subtracted; None when not known."""

    advisor: Liveness
    now: float
    requeue_delay_seconds: int
    pending_seconds: float
    fitting: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One update. `start_time` and `excluded` are None when left alone. `why`: one line for the journal.

    `confirm`: it rests on which nodes are up at this moment, so it must be seen twice before it is believed.
    """

    start_time: int | None
    excluded: tuple[str, ...] | None
    returned: tuple[str, ...]
    admin_comment: str
    why: str
    confirm: bool = False


def marked(job: Job) -> Mark | None:
    """The mark of a job that waits with something of ours on it."""
    if job.state != "PENDING" or not job.admin_comment:
        return None
    mark = find(job.admin_comment)
    if mark is None or (mark.attempt >= job.restarts and not mark.shared):
        return None
    return mark if _ours(job, mark) or _leased(job, mark) else None


def plan(job: Job, facts: Facts) -> Release | None:
    """What to give back to this job now; None for nothing."""
    mark = marked(job)
    if mark is None:
        return None
    start, start_why = _start(job, mark, facts)
    nodes_why, confirm = _why_nodes(job, mark, facts)
    if start is None and not nodes_why:
        return None
    ours = _ours(job, mark) if nodes_why else ()
    excluded = tuple(node for node in job.excluded or () if node not in ours) if nodes_why else None
    comment = given_back(job.admin_comment, mark, nodes=bool(nodes_why), start=start is not None)
    why = "; ".join(text for text in (start_why, nodes_why) if text)
    return Release(start_time=start, excluded=excluded, returned=ours, admin_comment=comment, why=why, confirm=confirm)


def _ours(job: Job, mark: Mark) -> tuple[str, ...]:
    return tuple(node for node in job.excluded or () if node in mark.nodes)


def _leased(job: Job, mark: Mark) -> bool:
    return mark.start is not None and job.eligible == mark.start


def _start(job: Job, mark: Mark, facts: Facts) -> tuple[int | None, str]:
    """(the StartTime to set, why). Late means: the time by which the job may start whatever anybody thinks."""
    if not _leased(job, mark) or mark.start is None or job.submit is None:
        return None, ""
    if not facts.advisor.alive:
        why = f"the advisor is taken for dead ({facts.advisor.reason})"
    elif mark.deadline is not None and mark.start > mark.deadline:
        why = "our StartTime lies after the decision's deadline"
    elif mark.deadline is not None and facts.now > mark.deadline:
        why = "the decision's deadline has passed"
    else:
        return None, ""
    earliest = max(job.submit + facts.requeue_delay_seconds, mark.found or 0, int(facts.now) + 1)
    if earliest >= mark.start:
        return None, ""
    return earliest, f"StartTime {mark.start} brought forward to {earliest}: {why}"


def _why_nodes(job: Job, mark: Mark, facts: Facts) -> tuple[str, bool]:
    """(why our exclusions are given back, or "", whether it must be seen twice)."""
    ours = _ours(job, mark)
    if not ours:
        return "", False
    given = f"exclusion of {','.join(ours)} given back"
    if job.reason == "BadConstraints":
        # A living agent gives back as little as will do, most doubtful first: it is let go ahead by one look.
        return f"{given}: Slurm says BadConstraints", facts.advisor.alive
    waiting = facts.now - max(job.eligible or 0, job.submit or 0)
    if job.priority == 0 or job.eligible is None or waiting < 0:
        return "", False  # a hold, a dependency or its begin time keeps it, not our exclusions
    if facts.fitting is not None:
        excluded, wanted = set(job.excluded or ()), max(job.nodes_wanted, 1)
        with_ours = len(set(facts.fitting) - excluded)
        without = len(set(facts.fitting) - (excluded - set(ours)))
        if with_ours < wanted <= without:
            return f"{given}: only {with_ours} of {wanted} nodes fit with it, {without} without", True
    if waiting > facts.pending_seconds:
        return f"{given}: pending for {waiting / 60:.0f} minutes", False
    unavailable = job.reason.startswith("ReqNodeNotAvail") or facts.fitting is None
    if not facts.advisor.alive and unavailable:
        return f"{given}: it does not start, and the advisor is taken for dead ({facts.advisor.reason})", True
    return "", False
