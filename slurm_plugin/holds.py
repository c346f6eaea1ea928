"""Whose hold is it? Pure, standard library only. Measured on 22.05.8:

| who held it | State | Reason |
|---|---|---|
| Slurm, by the site's RequeueExitHold | SPECIAL_EXIT | JobHeldUser, exit status kept |
| `requeuehold State=SpecialExit`, user or administrator | SPECIAL_EXIT | job requeued in held state |
| `requeuehold` | PENDING | job requeued in held state |
| an administrator's `hold` on top of any of them | unchanged | JobHeldAdmin |
| `hold` by its user, `uhold`, on top of Slurm's | unchanged | JobHeldUser: leaves no trace |

So Slurm's own hold is told by its reason and an exit code of the site's list. The last row cannot be told: a user who
holds a job that Slurm already holds changes nothing, and says nothing to anybody.
"""

from collections.abc import Sequence

from slurm_plugin.records import JobRow


def by_requeue_exit(job: JobRow, codes: Sequence[int]) -> bool:
    """Slurm requeued and held the job by itself after one of `codes`. Such a hold is released by advice only."""
    return (
        job.state == "SPECIAL_EXIT"
        and job.priority == 0
        and job.reason == "JobHeldUser"
        and job.restarts > 0
        and job.exit_status & 0x7F == 0
        and job.exit_status >> 8 in codes
    )
