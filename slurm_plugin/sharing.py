"""Exclusions for jobs beside the one advised on: components of its heterogeneous job, and jobs that waited for its end.

A component runs in the same allocation group as the one that failed; whoever waited for its end takes over its place.
Both would meet the same bad node. Pure, standard library only. What must hold:

* Only jobs that wait, of the same user, in scope themselves: what one user's log says reaches no other user's job.
* Nothing but exclusions and our mark is touched: no requeue, no StartTime, no hold.
* Added only, within the same cap and the same capacity check; the user's own list and what we excluded before stay.
* What the watchdog gave back is not taken again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_plugin import mark as marks
from slurm_plugin import scope
from slurm_plugin.dependencies import still_waits
from slurm_plugin.mark import Mark
from slurm_plugin.records import JobRow
from slurm_plugin.terms import Advice, Limits, Update
from slurm_plugin.words import ENDED, Action, Phase, Reason, Status, phase_of

COMPANIONS_MAX = 32  # in one go; the rest at the next pass
# Advice that nothing is done about although the nodes it names are known to be bad.
_NODES_ARE_BAD = frozenset({"not_restartable", "successor_running", "already_requeued"})
_JOB_STAYS_DOWN = frozenset(
    {Reason.DEPENDENT_RELEASED, Reason.NOT_REQUEUEABLE, Reason.NOT_BATCH, Reason.TOO_LATE, Reason.HELD}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """`waited`: it waited for the end of the job advised on, and must not run beside it. Else: a component of it.

    `in_scope`, `account` and `fitting` as in `Limits`, of this job.
    """

    job_id: str
    shown_id: str
    user: str
    waited: bool
    in_scope: bool = False
    account: str = ""
    fitting: tuple[str, ...] | None = None

    def is_row(self, row: JobRow) -> bool:
        return row.job_id == self.job_id and row.user == self.user


def wanted(advice: Advice, status: Status, reason: Reason) -> bool:
    """Whether what came of the advice itself leaves its exclusions right for others."""
    if not advice.exclude or not advice.autonomous or advice.paused:
        return False
    if advice.action is Action.NONE:
        return advice.cause in _NODES_ARE_BAD
    if status in {Status.APPLIED, Status.VERIFIED, Status.ALREADY_SATISFIED}:
        return True
    return status is Status.WITHHELD and reason in _JOB_STAYS_DOWN


def released(job: JobRow, dependents: Sequence[JobRow]) -> tuple[str, ...]:
    """Of those that waited for the end of `job`: who no longer waits and is not over. It would run beside it."""
    return tuple(
        row.shown_id
        for row in dependents
        if phase_of(row.state) not in ENDED and (phase_of(row.state) is not Phase.PENDING or not still_waits(row, job))
    )


def lacks(row: JobRow, nodes: Sequence[str]) -> bool:
    """Whether there is anything to share with it, as far as its own record tells."""
    if not _changeable(row) or row.excluded is None or set(nodes) <= set(row.excluded):
        return False
    mark = marks.find(row.admin_comment)
    return mark is None or (not mark.returned and not set(nodes) <= {*row.excluded, *mark.spared})


def share(
    row: JobRow, companion: Companion, advice: Advice, limits: Limits, config: scope.ScopeConfig, comment: str
) -> Update | str:
    """The update for one companion, or why there is none. `comment`: as it is at this moment."""
    judged = scope.judge(config, comment=comment, partition=row.partition, user=row.user, account=companion.account)
    if not companion.in_scope or (companion.waited and not judged.inside):
        return f"out of scope: {judged.reason}"
    if row.user != advice.user:
        return "another user's"
    if not lacks(row, advice.exclude) or row.excluded is None:
        return "nothing to add"
    old = marks.find(row.admin_comment)
    before = tuple(node for node in old.nodes if node in row.excluded) if old is not None else ()
    users = tuple(node for node in row.excluded if node not in before)
    left = {*row.excluded, *(old.spared if old is not None else ())}
    added = [node for node in advice.exclude if node not in left and (limits.known is None or node in limits.known)]
    added = added[: max(limits.exclusions_per_job - len(before), 0)]
    if companion.fitting is not None:
        room = set(companion.fitting) - set(row.excluded)
        needed = max(row.nodes_wanted, 0 if companion.waited else limits.nodes_together, 1)
        while added and len(room - set(added)) < needed:
            added.pop()
    if not added:
        return "no room for more exclusions"
    base = old if old is not None else Mark(job="", attempt=0, generation=0)
    inherited = tuple(dict.fromkeys((*(node for node in base.inherited if node in before), *added)))
    comment_after = marks.merge(row.admin_comment, replace(base, nodes=(*before, *added), inherited=inherited))
    excluded = (*users, *before, *added)
    if comment_after is None or not marks.fits_argument(",".join(excluded)):
        return "its AdminComment or ExcNodeList is too long to be written again"
    return Update(excluded=excluded, admin_comment=comment_after)


def _changeable(row: JobRow) -> bool:
    """Slurm accepts the update: it waits, or is on its way back into the queue."""
    phase = phase_of(row.state)
    if phase is Phase.COMPLETING:
        return row.end is None and row.restarts > 0
    return phase in {Phase.PENDING, Phase.REQUEUE_HELD}
