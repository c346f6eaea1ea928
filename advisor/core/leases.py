"""The arithmetic of sharing jobs among replicas: who takes, who gives up, and how long anything may last.

Every replica reckons by itself from the same counts, and no two need agree: what one takes the other cannot take too
(the database sees to that), so a count that is a moment old costs a moment of unevenness and nothing else.

While the live ones look, no job stays free: shares add up to at least all jobs, so whoever is short of his takes it.
Nothing flaps: nobody takes beyond his share (but for a job that was left alone for a whole lease, see `store.leases`),
and nobody gives up unless he is over his by more than the slack, and then down to it.

Each can tick only so many. Who can tick fewer than an equal part leaves the rest to the others; where nobody has room
for what is left, each has the most important ones that he can, and what remains is held by nobody and said to be so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SLACK_JOBS = 1  # over one's share, and not worth a move
SLACK_SHARE = 0.1
RENEWALS_PER_LEASE = 3  # two may be late or lost
RENEW_SECONDS_MAX = 1.0  # others learn from it how old our tick is
STUCK_LEASES = 6  # a tick that has not got on for so many leases is not going to: others may have its jobs
LEASE_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one replica sees: jobs that any replica holds, free ones, those it holds itself, and replicas that tick.

    `most`, `others_most`: how many jobs this one and the others can tick; None, and who is not told of, any number.
    """

    held: int
    free: int
    mine: int
    live: int
    most: int | None = None
    others_most: tuple[int | None, ...] = ()

    @property
    def share(self) -> int:
        """How many jobs are one replica's part, rounded up: equal ones, of what those leave who have less room."""
        left, parts = self.held + self.free, max(self.live, 1)
        for most in sorted(most for most in (self.most, *self.others_most) if most is not None):
            if most * parts >= left:
                break
            left, parts = left - most, parts - 1
        if not parts:
            return self.most or left
        part = -(-left // parts)
        return part if self.most is None else min(part, self.most)

    @property
    def short(self) -> bool:
        """There are more than all of them together can tick."""
        known = [most for most in (self.most, *self.others_most) if most is not None]
        return len(known) >= max(self.live, 1) and self.held + self.free > sum(known)


def to_take(standing: Standing) -> int:
    """How many of the free ones: up to one's share, and all of them when nobody else is there."""
    if standing.live <= 1:
        return standing.free
    return min(standing.free, max(standing.share - standing.mine, 0))


def to_give(standing: Standing) -> int:
    """How many of one's own, so that others can have them."""
    over = standing.mine - standing.share
    if standing.live <= 1 or over <= max(SLACK_JOBS, int(standing.share * SLACK_SHARE)):
        return 0
    return over


def fitting(jobs: Iterable[str], attempts: Mapping[str, int], most: int | None) -> list[str]:
    """Of jobs, the most important first, those that can be ticked: whole ones, with no more attempts together than
    `most`; the first one always.
    """
    found: list[str] = []
    used = 0
    for job in jobs:
        if most is None or not found or used + attempts[job] <= most:
            found.append(job)
            used += attempts[job]
    return found


def renew_seconds(lease_seconds: float) -> float:
    return min(lease_seconds / RENEWALS_PER_LEASE, RENEW_SECONDS_MAX)


def idle_seconds(lease_seconds: float) -> float:
    """How long a transaction of ours may stand still before the database ends it: a process that is stopped within
    one keeps others from its jobs for so long, which must be over when its lease is.
    """
    return lease_seconds / 2


def stuck_seconds(lease_seconds: float) -> float:
    return STUCK_LEASES * lease_seconds
