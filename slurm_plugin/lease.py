"""Lease arithmetic: until when a requeued job's StartTime may be moved, and how it is brought forward again. Pure."""

from dataclasses import dataclass

from slurm_plugin.mark import Mark
from slurm_plugin.terms import Advice, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTime:
    """`set_to`: what the update sets, None to leave it. The rest is for the mark."""

    set_to: int | None
    ours: int | None
    found: int | None
    deadline: int | None


def start_time(
    advice: Advice, current: Mark | None, limits: Limits, *, now: float, earliest: int, begin: int | None
) -> StartTime:
    """Lease arithmetic. `begin` is the eligible time Slurm shows, `current` our mark on this very successor.

    A lease is at most `lease_seconds_max` from now, or from the earliest legal start where that has passed, so that no
    number of generations prolongs it further; and it is never later than the deadline. Where an earlier generation of
    ours set a StartTime that is still in force and the new one wants less, it is brought forward again, but never to
    before what was found then, the earliest legal start, or now.
    """
    latest = int(min(now, earliest) + limits.lease_seconds_max)
    deadline = latest if advice.decision_deadline is None else min(advice.decision_deadline, latest)
    wanted = 0
    if advice.start_not_before is not None:
        wanted = min(advice.start_not_before, deadline)
    if advice.delay_until is not None:
        # A wait for shared storage is itself the decision: it may pass the deadline for making one.
        deadline = max(deadline, min(advice.delay_until, latest))
        wanted = max(wanted, min(advice.delay_until, latest))
    leased = current is not None and current.start is not None and current.start == begin
    found = current.found if leased and current is not None else begin
    floor = max(earliest, found or 0)
    if wanted > max(floor, now):
        return StartTime(
            set_to=None if leased and wanted == begin else wanted, ours=wanted, found=found, deadline=deadline
        )
    if leased:
        back = max(floor, int(now) + 1)
        unchanged = begin is not None and back >= begin
        return StartTime(set_to=None if unchanged else back, ours=None, found=None, deadline=deadline)
    return StartTime(set_to=None, ours=None, found=None, deadline=deadline)
