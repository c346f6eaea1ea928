"""Which jobs a waiting job waits for because it must not run beside them, and which waited for a job. Stdlib only.

The text is Slurm's own rendering of a parsed `--dependency`; what does not look like that is left out. Once a
dependency is met Slurm drops it from the text, so this must be read while the job waits; see docs/slurm.md.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_plugin.records import JobRow

WAITS_MAX = 1000

# `afterok` and `aftercorr` never start after a failure, and `after` runs beside by intent.
_KINDS = frozenset({"afterany", "afternotok"})
_JOB = re.compile(r"(\d{1,10}(?:_(?:\d{1,10}|\*))?)(?:\+\d{1,4})?(?:\([a-z]{1,20}\))?", re.ASCII)
_SINGLETON = re.compile(r"singleton(?:\([a-z]{1,20}\))?", re.ASCII)


def waits_for(text: str) -> tuple[str, ...]:
    """Jobs after whose end it starts, as Slurm names them: "17", "19_2", or "19_*" for a whole array."""
    found: dict[str, None] = {}
    for part in re.split("[,?]", text):
        kind, _, jobs = part.partition(":")
        if kind in _KINDS:
            matches = (_JOB.fullmatch(job) for job in jobs.split(":"))
            found |= {match.group(1): None for match in matches if match}
    return tuple(found)[:WAITS_MAX]


def is_singleton(text: str) -> bool:
    """Whether it waits until no other job of its user and name runs."""
    return any(_SINGLETON.fullmatch(part) for part in re.split("[,?]", text))


def names_of(job: JobRow) -> frozenset[str]:
    """How the text of a job that waits names this one: by its id, or as a task or a part of its array."""
    if job.array_job_id and job.array_task is not None:
        return frozenset({f"{job.array_job_id}_{job.array_task}", f"{job.array_job_id}_*"})
    return frozenset({job.het_job_id or job.job_id})


def still_waits(dependent: JobRow, job: JobRow) -> bool:
    """Whether Slurm would not start `dependent` yet although `job` does not run: what is met is gone from its text."""
    return not names_of(job).isdisjoint(waits_for(dependent.dependency)) or is_singleton(dependent.dependency)


@dataclass(slots=True)
class Chains:
    """Who waited for whose end. Slurm shows it only while it waits, so it is remembered as long as Slurm has both, and
    no longer: then the number may be another job's.

    Rebuilt by looking: what was released before the first look is not known.
    """

    _waited: dict[str, dict[str, int]] = field(default_factory=dict)  # dependent → {job it waited for: its attempt}

    def learn(self, rows: Mapping[str, JobRow], names: Mapping[str, str]) -> None:
        """`names`: what users call their jobs, by id; a singleton waits for all of its user and name."""
        self._waited = {
            key: {job: attempt for job, attempt in of.items() if job in rows}
            for key, of in self._waited.items()
            if key in rows
        }
        waiting = [row for row in rows.values() if row.state == "PENDING" and row.dependency]
        if not waiting:
            return
        named: dict[str, list[JobRow]] = defaultdict(list)
        called: dict[tuple[str, str], list[JobRow]] = defaultdict(list)
        for row in rows.values():
            for name in names_of(row):
                named[name].append(row)
            if row.job_id in names:
                called[row.user, names[row.job_id]].append(row)
        for row in waiting:
            found = [job for name in waits_for(row.dependency) for job in named.get(name, ())]
            if is_singleton(row.dependency) and row.job_id in names:
                found += called[row.user, names[row.job_id]]
            for job in found:
                if job.job_id != row.job_id and not _both_wait(row, job) and not _together(row, job):
                    self._waited.setdefault(row.job_id, {})[job.job_id] = job.restarts

    def dependents(self, job: JobRow, attempt: int, rows: Mapping[str, JobRow]) -> tuple[JobRow, ...]:
        """Jobs that waited for the end of this attempt, whether they still do or not, while Slurm has them."""
        waited = (rows.get(key) for key, of in self._waited.items() if of.get(job.job_id, -1) in {attempt, attempt + 1})
        return tuple(row for row in waited if row is not None)


def _together(one: JobRow, other: JobRow) -> bool:
    """Components of one heterogeneous job run beside each other."""
    return bool(one.het_job_id) and one.het_job_id == other.het_job_id


def _both_wait(one: JobRow, other: JobRow) -> bool:
    """Of two singletons that wait, neither has waited for an attempt of the other."""
    return is_singleton(other.dependency) and is_singleton(one.dependency)
