"""Which up nodes fit what a job asks for. Pure, standard library only.

Busy nodes count, down and drained ones do not, and exclusions are not subtracted. What this cannot judge for certain
(a constraint with alternatives or counts, a licence, a reservation) makes the answer None: not known, never "none".
"""

import re
from collections.abc import Sequence

from slurm_plugin.squeue import JobDetails, JobRow, NodeRow

UP_STATES = frozenset({"idle", "allocated", "mixed", "completing", "planned", "blocked"})  # reserved: for others
_SIMPLE_FEATURES = re.compile(r"[A-Za-z0-9_.:=-]+([&,][A-Za-z0-9_.:=-]+)*\Z", re.ASCII)
_GRES = re.compile(r"(?:gres[:/])?([a-z_]+)(?:[:/]([A-Za-z0-9_.-]*[A-Za-z_][A-Za-z0-9_.-]*))?(?:[:=](\d+))?", re.ASCII)


def fitting(job: JobRow, details: JobDetails | None, nodes: Sequence[NodeRow]) -> tuple[str, ...] | None:
    """Names of the up nodes that fit, of the partition that has most of them; None when that cannot be told.

    A job that names several partitions runs in one of them.
    """
    if details is None or not nodes or details.reservation:
        return None
    if details.features and not _SIMPLE_FEATURES.match(details.features):
        return None
    features = set(re.split(r"[&,]", details.features)) if details.features else set()
    wanted = _gres(details.gres_per_node)
    if wanted is None:
        return None
    found: dict[str, list[str]] = {partition: [] for partition in job.partition.split(",")}
    for node in nodes:
        if node.state not in UP_STATES or not node.responding or found.keys().isdisjoint(node.partitions):
            continue
        has = _gres(node.gres) or {}
        if (
            node.cpus >= details.cpus_per_node
            and node.memory_mb >= details.memory_mb_per_node
            and features <= set(node.features)
            and all(_has(has, kind, count) for kind, count in wanted.items())
        ):
            for partition in found.keys() & set(node.partitions):
                found[partition].append(node.name)
    most = max(found.values(), key=len)
    return tuple(most)


def gpus(details: JobDetails | None, *, nodes: int, tasks: int) -> int | None:
    """How many GPUs the job holds, or would, on so many nodes; 0 when it asks for none, None when nobody can tell."""
    if details is None:
        return None
    for asked, times in ((details.gres_per_job, 1), (details.gres_per_node, nodes), (details.gres_per_task, tasks)):
        found = _gres(asked)
        if found is None or (asked and times == 0):
            return None
        count = sum(n for (name, _), n in found.items() if name == "gpu")
        if count:
            return count * times
    return 0


def alike(node: NodeRow, nodes: Sequence[NodeRow]) -> dict[str, int]:
    """How many nodes of each of its partitions have at least what it has, itself counted, up or not."""
    wanted, found = _gres(node.gres), dict.fromkeys(node.partitions, 0)
    for other in nodes:
        enough = other.cpus >= node.cpus and other.memory_mb >= node.memory_mb
        has = _gres(other.gres)
        same = other.gres == node.gres or (
            wanted is not None and has is not None and all(_has(has, kind, count) for kind, count in wanted.items())
        )
        if enough and same:
            for partition in found.keys() & set(other.partitions):
                found[partition] += 1
    return found


def _has(has: dict[tuple[str, str], int], kind: tuple[str, str], count: int) -> bool:
    name, model = kind
    return sum(n for (other, its), n in has.items() if other == name and model in ("", its)) >= count


def _gres(text: str) -> dict[tuple[str, str], int] | None:
    """`gres:gpu:h200:8` or `gpu:h200:8(S:0-1),…` as {(name, model): count}; None for what is not understood."""
    found: dict[tuple[str, str], int] = {}
    for item in re.sub(r"\([^()]*\)", "", text).split(","):
        if not item:
            continue
        match = _GRES.fullmatch(item)
        if not match:
            return None
        kind = (match.group(1), match.group(2) or "")
        found[kind] = found.get(kind, 0) + int(match.group(3) or 1)
    return found
