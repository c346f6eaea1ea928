"""The watchdog's own reader and its one verb. Standard library only, shares nothing with the agent.

Slurm's text output is hostile: read are only columns that no user can write, with separators that nobody else can
print, AdminComment (administrators') last; what a job asks for comes from JSON. Anything on stderr is a failure.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from watchdog.release import Job, Release

UNIT, RECORD = "\x1f", "\x1e"
_COLUMNS = (
    "JobID",
    "JobArrayID",
    "State",
    "RestartCnt",
    "SubmitTime",
    "EligibleTime",
    "PriorityLong",
    "NumNodes",
    "Partition",
    "Reason",
    "admin_comment",
)
_UP = frozenset({"idle", "allocated", "mixed", "completing", "planned", "reserved", "maint", "blocked"})


class SlurmError(Exception):
    """One of Slurm's tools gave no usable answer. Never means "no jobs"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An up and responding node of one partition."""

    name: str
    partition: str
    cpus: int
    memory_mb: int
    gres: str
    features: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a job asks of each node; `simple` False when this version cannot judge it."""

    cpus: int
    memory_mb: int
    gres: str
    features: frozenset[str]
    simple: bool


# argv, environment additions, seconds → (status, stdout, stderr). Raises SlurmError.
Run = Callable[[Sequence[str], Mapping[str, str], float], tuple[int, bytes, bytes]]


def run_process(
    argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float
) -> tuple[int, bytes, bytes]:
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env=_environment() | dict(environment),
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} gave no answer in {timeout_seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise SlurmError(f"{argv[0]}: {error}") from None
    return done.returncode, done.stdout, done.stderr


def _environment() -> dict[str, str]:
    """Ours without what changes a tool's answer, SQUEUE_USERS for one."""
    changing = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_")
    return {key: value for key, value in os.environ.items() if key == "SLURM_CONF" or not key.startswith(changing)}


class Slurm:
    """Reading side of one cluster, and the one verb."""

    def __init__(self, *, conf: str, bin_dir: str, timeout_seconds: float, run: Run = run_process) -> None:
        self._environment = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"} | ({"SLURM_CONF": conf} if conf else {})
        self._bin_dir, self._timeout_seconds, self._run = bin_dir, timeout_seconds, run

    def _answer(self, name: str, *arguments: str) -> str:
        path = f"{self._bin_dir.rstrip('/')}/{name}" if self._bin_dir else name
        status, out, err = self._run((path, *arguments), self._environment, self._timeout_seconds)
        if status != 0 or err.strip():
            said = err.decode("utf-8", "replace").strip().splitlines()
            raise SlurmError(f"{name}: status {status}: {said[0][:300] if said else 'no message'}")
        return out.decode("utf-8", "surrogateescape")

    def pending(self, shown_id: str | None = None) -> list[Job]:
        """Pending jobs, or the one named. Array tasks not yet split off share an id and carry no mark: left out."""
        which = ("-j", shown_id) if shown_id else ()
        ask = ("-h", "-a", "-r", "-t", "PENDING", *which)
        end = _record_end()
        columns = ",".join(f"{name}:{end if name == _COLUMNS[-1] else UNIT}" for name in _COLUMNS)
        try:
            listing = _records(self._answer("squeue", *ask, "-O", columns), end)
        except SlurmError as error:
            if shown_id and "Invalid job id specified" in str(error):
                return []
            raise
        excluded: dict[str, tuple[str, ...]] = {}
        for record in _records(self._answer("squeue", *ask, "-o", f"%A{UNIT}%x{end}"), end):
            job_id, _, nodes = record.partition(UNIT)
            excluded[job_id] = expand(nodes)
        found: dict[str, Job] = {}
        twice: set[str] = set()
        for record in listing:
            fields = record.split(UNIT, len(_COLUMNS) - 1)
            if len(fields) != len(_COLUMNS) or not fields[0].isdigit():
                raise SlurmError(f"squeue: not a job record: {record[:80]!r}")
            job = _job(fields, excluded)
            if job.job_id in found:
                twice.add(job.job_id)
            found[job.job_id] = job
        return [job for key, job in found.items() if key not in twice and shown_id in (None, job.shown_id)]

    def wishes(self) -> dict[str, Wish]:
        try:
            document = json.loads(self._answer("squeue", "-a", "-t", "PENDING", "--json"))
            return {str(_number(job, "job_id")): _wish(job) for job in document["jobs"]}
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            raise SlurmError("squeue --json: not the JSON of a job listing") from None

    def up_nodes(self) -> list[Node]:
        end = _record_end()
        form = UNIT.join(("%N", "%T", "%R", "%c", "%m", "%G", "%f")) + end
        found = []
        for record in _records(self._answer("sinfo", "-h", "-a", "-N", "-o", form), end):
            fields = record.split(UNIT)
            if len(fields) != 7:
                raise SlurmError(f"sinfo: not a node record: {record[:80]!r}")
            name, state, partition, cpus, memory, gres, features = fields
            if "*" in state or state.rstrip("~#!%$@^-+").lower() not in _UP:
                continue
            found.append(
                Node(
                    name=name,
                    partition=partition,
                    cpus=_leading(cpus),
                    memory_mb=_leading(memory),
                    gres=gres,
                    features=frozenset(features.split(",")),
                )
            )
        return found

    def settings(self) -> tuple[int, int]:
        """(seconds from a requeue to the earliest legal start, KillWait)."""
        text = self._answer("scontrol", "show", "config")
        values: dict[str, str] = {}
        for line in text.splitlines():
            key, _, value = line.partition("=")
            values.setdefault(key.strip(), value.strip())
        delay = 121
        for key, option in (("SchedulerParameters", "requeue_delay"), ("AuthInfo", "cred_expire")):
            hit = re.search(rf"(?:^|,){option}=(\d{{1,7}})(?:,|$)", values.get(key, ""), re.ASCII)
            if hit:
                delay = int(hit.group(1)) + 1
                break
        return delay, _leading(values.get("KillWait", "30"))

    def update(self, shown_id: str, release: Release) -> None:
        """One update: StartTime, ExcNodeList, and the mark that says so."""
        parts = [f"JobId={shown_id}"]
        if release.start_time is not None:
            parts.append(f"StartTime=uts{release.start_time}")
        if release.excluded is not None:
            parts.append(f"ExcNodeList={','.join(release.excluded)}")
        self._answer("scontrol", "update", *parts, f"AdminComment={release.admin_comment}")


def fitting(job: Job, wish: Wish | None, nodes: Iterable[Node]) -> tuple[str, ...] | None:
    """Names of the up nodes that fit; None when that cannot be told."""
    if wish is None or not wish.simple:
        return None
    wanted = _gres(wish.gres)
    if wanted is None:
        return None
    partitions = set(job.partition.split(","))
    found = set()
    for node in nodes:
        has = _gres(node.gres) or {}
        enough = all(_sum(has, name, model) >= count for (name, model), count in wanted.items())
        fits = node.cpus >= wish.cpus and node.memory_mb >= wish.memory_mb and wish.features <= node.features
        if node.partition in partitions and enough and fits:
            found.add(node.name)
    return tuple(sorted(found))


def _record_end() -> str:
    """What ends a record: made for one call, so that no AdminComment can hold it."""
    return RECORD + os.urandom(8).hex()


def _records(text: str, end: str) -> list[str]:
    records = text.split(end + "\n")
    if records.pop():
        raise SlurmError("the last record of a listing is cut")
    return records


def _job(fields: Sequence[str], excluded: Mapping[str, tuple[str, ...]]) -> Job:
    value = dict(zip(_COLUMNS, fields, strict=True))
    comment = value["admin_comment"]
    return Job(
        job_id=value["JobID"],
        shown_id=value["JobArrayID"],
        state=value["State"],
        restarts=_leading(value["RestartCnt"]),
        submit=_time(value["SubmitTime"]),
        eligible=_time(value["EligibleTime"]),
        priority=_leading(value["PriorityLong"]),
        reason=value["Reason"],
        nodes_wanted=_leading(value["NumNodes"]),
        partition=value["Partition"],
        excluded=excluded.get(value["JobID"]),
        admin_comment="" if comment == "(null)" else comment,
    )


def _wish(job: Mapping[str, object]) -> Wish:
    features, gres = job.get("features") or "", job.get("tres_per_node") or ""
    if not isinstance(features, str) or not isinstance(gres, str):
        raise TypeError
    cpus = max(_number(job, "minimum_cpus_per_node"), _number(job, "cpus_per_task"), 1)
    return Wish(
        cpus=cpus,
        memory_mb=max(_number(job, "memory_per_node"), _number(job, "memory_per_cpu") * cpus),
        gres=gres,
        features=frozenset(re.split(r"[&,]", features)) if features else frozenset(),
        simple=re.fullmatch(r"[A-Za-z0-9_.:=&,-]*", features, re.ASCII) is not None,
    )


def _number(job: Mapping[str, object], key: str) -> int:
    value = job.get(key)
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _leading(text: str) -> int:
    found = re.match(r"(\d{1,18})(K?)", text.strip(), re.ASCII)
    return int(found.group(1)) * (1024 if found.group(2) else 1) if found else 0


def _time(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 2**40 else None


def _sum(has: Mapping[tuple[str, str], int], name: str, model: str) -> int:
    return sum(count for (other, its), count in has.items() if other == name and model in ("", its))


def _gres(text: str) -> dict[tuple[str, str], int] | None:
    found: dict[tuple[str, str], int] = {}
    if text in {"(null)", "N/A"}:
        return found
    for item in re.sub(r"\([^()]*\)", "", text).split(","):
        if not item:
            continue
        hit = re.fullmatch(r"(?:gres[:/])?([a-z_]+)(?:[:/]([A-Za-z0-9_.-]*[A-Za-z_][\w.-]*))?(?:[:=](\d{1,9}))?", item)
        if not hit:
            return None
        kind = (hit.group(1), hit.group(2) or "")
        found[kind] = found.get(kind, 0) + int(hit.group(3) or 1)
    return found


def expand(text: str, *, nodes_max: int = 65536) -> tuple[str, ...]:
    """A hostlist as names. Raises SlurmError for what is none."""
    if text.strip() in {"", "(null)"}:
        return ()
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text.strip()):
        grown = [""]
        for literal, inner in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", item):
            parts = [literal] if literal else _range(inner, nodes_max)
            if len(grown) * len(parts) > nodes_max:
                raise SlurmError("a node list names too many nodes")
            grown = [before + part for before in grown for part in parts]
        names.extend(grown)
        if len(names) > nodes_max:
            raise SlurmError("a node list names too many nodes")
    return tuple(dict.fromkeys(names))


def _range(text: str, nodes_max: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        hit = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if not hit:
            raise SlurmError(f"not a range of nodes: {part[:40]!r}")
        low, high = int(hit.group(1)), int(hit.group(2) or hit.group(1))
        if high < low or high - low > nodes_max:
            raise SlurmError(f"not a range of nodes: {part[:40]!r}")
        width = len(hit.group(1)) if hit.group(1).startswith("0") else 0
        found.extend(str(number).zfill(width) for number in range(low, high + 1))
    return found
