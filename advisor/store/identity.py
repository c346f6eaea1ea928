"""Which job and attempt a report is about. Pure: known jobs in, one match out.

The scheduler rewrites the submit time at every requeue and reuses job ids after they wrap around, so an id names
nobody by itself:

* the same id, submit time, restart count and user: the same attempt.
* an unknown submit time with a *higher* restart count and the same user: the next attempt of the job that has the id.
  The count lives in the scheduler's record of that one job, so this holds also when its clock was set back.
* without a higher count, or by another user: another job. The same user can get the same id with count 0 twice.
* a job that the scheduler has forgotten cannot be restarted by it: whatever has its id now is another job.

Slurm (seen on 22.05.8) raises the count of a running job when it is requeued, and rewrites the submit time only when
the old allocation is gone. In between it shows attempt N+1, COMPLETING, with N's submit time and nodes; the hook that
runs at N's end then names N+1 too. So an attempt that so far was only COMPLETING gets a new submit time without
another count, and a hook's notice of an attempt that has not run is about the one before.

A slurmctld that is killed forgets its last seconds, and a requeue with them: it shows attempt N again after N+1, which
waited and has never run. That one is withdrawn, and N+1 is the next attempt once more when the job is requeued again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from advisor.core.words import AttemptState
from advisor.store.records import AttemptKey, Notice, ObservedJob

_WAITING = frozenset({AttemptState.PENDING, AttemptState.REQUEUE_HELD, AttemptState.OTHER})


class Match(StrEnum):
    SAME = "same"
    REWRITTEN = "rewritten"  # the same attempt, whose submit time is now its own
    NEXT = "next"
    EARLIER = "earlier"  # of a known job: a late report that fills a gap
    NEW = "new"
    NEW_OLD = "new_old"  # of an earlier job that had the id: recorded, but it is not the one that has it now
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """`withdrawn`: the scheduler has forgotten it before it ran, so that its number may come again."""

    submitted_at: datetime
    state: AttemptState
    withdrawn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A job that had the slot (see `slot_of`) and its attempts by number; there is at least one."""

    key: str
    user: str
    last_seen_at: datetime
    forgotten: bool
    attempts: Mapping[int, KnownAttempt]

    @property
    def last_number(self) -> int:
        return max(number for number, attempt in self.attempts.items() if not attempt.withdrawn)

    @property
    def last(self) -> KnownAttempt:
        return self.attempts[self.last_number]

    def has_run(self, number: int) -> bool:
        """False for an attempt that waits for the allocation of the one before to go away."""
        attempt = self.attempts.get(number)
        if attempt is None or attempt.withdrawn or attempt.state in _WAITING:
            return False
        before = self.attempts.get(number - 1)
        return not (
            attempt.state is AttemptState.COMPLETING
            and before is not None
            and before.submitted_at == attempt.submitted_at
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    match: Match
    key: AttemptKey | None = None
    refusal: str = ""


def slot_of(job: ObservedJob) -> str:
    """What all attempts of one job share. An array's task gets an id of its own only when it is split off."""
    if job.array_job_id and job.array_task is not None:
        return f"{job.array_job_id}_{job.array_task}"
    return job.job_id


def resolve(
    job: ObservedJob,
    exact: Mapping[tuple[datetime, int, str], AttemptKey],
    known: Sequence[KnownJob],
    *,
    complete: bool,
) -> Resolution:
    """The attempt that `job` is about.

    `exact`: known tuples (submit time, restarts, user) of its slot. `known`: jobs that had the slot. `complete`: the
    report is all that the scheduler holds, so what it names is current.
    """
    current = _current(job.user, known)
    if job.notice is Notice.HOOK:
        return _hook(job, exact, known, current)
    if job.submitted_at is None:
        return _refused(job, "without a submit time it names nobody")
    same = exact.get((job.submitted_at, job.attempt, job.user))
    if same is not None:
        return Resolution(match=Match.SAME, key=same)
    if current is not None:
        key = AttemptKey(job_key=current.key, number=job.attempt)
        if job.attempt > current.last_number:
            return Resolution(match=Match.NEXT, key=key)
        if job.attempt == current.last_number > 0 and current.last.state is AttemptState.COMPLETING:
            return Resolution(match=Match.REWRITTEN, key=key)
        if _fills_gap(job.attempt, job.submitted_at, current):
            return Resolution(match=Match.EARLIER, key=key)
    newest = max((other.last.submitted_at for other in known if not other.forgotten), default=None)
    if not complete and newest is not None and job.submitted_at < newest:
        return Resolution(match=Match.NEW_OLD)
    return Resolution(match=Match.NEW)


def _current(user: str, known: Sequence[KnownJob]) -> KnownJob | None:
    mine = [job for job in known if job.user == user and not job.forgotten]
    return max(mine, key=lambda job: (job.last_seen_at, job.last.submitted_at), default=None)


def _hook(
    job: ObservedJob,
    exact: Mapping[tuple[datetime, int, str], AttemptKey],
    known: Sequence[KnownJob],
    current: KnownJob | None,
) -> Resolution:
    # A hook is told the id, user and restart count, at best with the submit time that its sender remembers. That is
    # enough for the newest attempts of the one job that has the id now, and for nothing else.
    owner, number = current, job.attempt
    if job.submitted_at is not None:
        named = exact.get((job.submitted_at, job.attempt, job.user)) or exact.get(
            (job.submitted_at, job.attempt - 1, job.user)
        )
        if named is None:
            return _refused(job, "no listing has shown this attempt yet")
        owner = next(other for other in known if other.key == named.job_key)
    if owner is None:
        return _refused(job, "no job is known to have this id now")
    for candidate in (number, number - 1):
        if owner.has_run(candidate):
            return Resolution(match=Match.SAME, key=AttemptKey(job_key=owner.key, number=candidate))
    return _refused(job, f"attempt {number} has not been seen running")


def _refused(job: ObservedJob, why: str) -> Resolution:
    return Resolution(match=Match.REFUSED, refusal=f"job {job.job_id} of {job.user}, attempt {job.attempt}: {why}")


def _fills_gap(number: int, submitted_at: datetime, job: KnownJob) -> bool:
    if number in job.attempts or number > job.last_number:
        return False
    before = max((known for known in job.attempts if known < number), default=None)
    after = min(known for known in job.attempts if known > number)
    follows = before is None or job.attempts[before].submitted_at <= submitted_at
    return follows and submitted_at <= job.attempts[after].submitted_at
