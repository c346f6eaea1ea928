"""More restarts than the cap lets through before Slurm forgets the jobs."""

import structlog

from slurm_plugin.backlog import Backlog, lost, restartable, urgency
from slurm_plugin.squeue import JobRow


def _ended(job_id: str, *, nodes: int = 1, end: int = 1000) -> JobRow:
    return JobRow(
        job_id=job_id,
        shown_id=job_id,
        state="FAILED",
        restarts=0,
        submit=900,
        end=end,
        user="alice",
        user_id=1,
        nodes_wanted=nodes,
    )


def test_what_the_cap_and_the_memory_leave() -> None:
    """Thirty a minute within five minutes are 150 of a thousand."""
    assert restartable(per_minute=30, memory_seconds=300) == 150
    assert lost([300.0] * 1000, per_minute=30) == 850
    assert lost([300.0] * 150, per_minute=30) == 0


def test_what_is_lost_already_takes_no_turn() -> None:
    """A job whose time is over before its turn leaves it to the next."""
    assert lost([100.0, 1.0, 3.0], per_minute=30) == 1


def test_the_largest_goes_first() -> None:
    """Of equals the one that ended first."""
    jobs = [_ended("1"), _ended("2", nodes=8), _ended("3", end=990)]
    assert [job.job_id for job in sorted(jobs, key=urgency)] == ["2", "3", "1"]


def test_losses_are_told_once_and_again_when_they_grow() -> None:
    """Not at each look; after nobody waits any more a new event is news."""
    backlog = Backlog(per_minute=30)
    many = [_ended(str(number)) for number in range(1000)]
    with structlog.testing.capture_logs() as logged:
        for waiting in (many[:100], many[:300], many[:300], many, [], many[:300]):
            backlog.look(waiting, memory_seconds=300, now=1000.0)
        backlog.look(many, memory_seconds=0, now=1000.0)
    assert [(entry["waiting"], entry["lost"]) for entry in logged] == [(300, 150), (1000, 850), (300, 150)]
