"""Which jobs a waiting job waits for because it must not run beside them. Pure, stdlib only.

The text is Slurm's own rendering of a parsed `--dependency`; what does not look like that is left out. Once a
dependency is met Slurm drops it from the text, so this must be read while the job waits; see docs/slurm.md.
"""

import re

WAITS_MAX = 1000

# `afterok` and `aftercorr` never start after a failure, and `after` runs beside by intent.
_KINDS = frozenset({"afterany", "afternotok"})
_JOB = re.compile(r"(\d{1,10}(?:_(?:\d{1,10}|\*))?)(?:\([a-z]{1,20}\))?", re.ASCII)
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
