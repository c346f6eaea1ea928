"""What Slurm's tools print, as values: rows, details, nodes, settings, and the parsers for each. Pure, stdlib only.

A listing is believed as a whole or not at all: anything that cannot be what was asked for is `SlurmError("garbled")`.
How the text is asked for, and why it cannot be forged, is told in `squeue.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_plugin.hostlist import HostlistError, expand

UNIT = "\x1f"
RECORD = "\x1e"
# No time from there on is one (the year 6325): any user may ask for a begin that no calendar holds.
TIME_END = 2**37

# Columns that no user can write, AdminComment (which only administrators can) last.
COLUMNS = (
    "JobID",
    "JobArrayID",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "State",
    "RestartCnt",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "exit_code",
    "PriorityLong",
    "Reason",
    "UserName",
    "UserID",
    "Partition",
    "NumNodes",
    "NumTasks",
    "BatchFlag",
    "Requeue",
    "Dependency",
    "NodeList",
    "admin_comment",
)


class SlurmError(Exception):
    """One of Slurm's tools did not give a usable answer. `problem` is one of PROBLEMS, `detail` one line."""

    def __init__(self, problem: str, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job as the cheap listing shows it. Times are epoch seconds, None where Slurm prints none.

    `restarts` counts already from the moment a requeue is accepted, while `submit` changes only when the job has left
    COMPLETING. `end` is None while Slurm does not hold the job for finished: a COMPLETING job without an end is being
    requeued. `nodes` of a COMPLETING job are only those not yet returned. `excluded` is None when not asked or unknown.
    """

    job_id: str
    shown_id: str  # "17", "19_2" or "27+1": names exactly this job where the bare id may name a whole array
    array_job_id: str = ""
    array_task: int | None = None
    het_job_id: str = ""
    het_offset: int | None = None
    state: str
    restarts: int
    submit: int | None
    eligible: int | None = None
    start: int | None = None
    end: int | None = None
    exit_status: int = 0  # a wait status: code << 8 | signal, whichever way Slurm printed it
    priority: int = 0
    reason: str = ""
    user: str
    user_id: int
    partition: str = ""
    nodes_wanted: int = 0
    tasks: int = 0
    batch: bool = False
    requeueable: bool = False
    dependency: str = ""  # Slurm's own rendering of what it still waits for; empty once that is met
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] | None = None
    admin_comment: str = ""

    @property
    def held(self) -> bool:
        """True for a hold of anybody's. Slurm reserves priority 0 for holds, and uses it for BadConstraints besides.

        The reason does not tell: right after a `requeuehold` it still is that of the attempt's end.
        """
        if self.state in {"SPECIAL_EXIT", "REQUEUE_HOLD"}:
            return True
        return self.state == "PENDING" and self.priority == 0 and self.reason != "BadConstraints"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """What users write about their job, and what they ask for. Every text here is hostile input."""

    job_id: str
    submit: int
    name: str
    comment: str
    account: str
    work_dir: str
    stdout: str  # as given, with `%` patterns; "" when not given
    stderr: str
    expanded: bool = False  # Slurm's JSON of 23.02 to 24.11 has the patterns expanded already
    features: str
    cpus_per_node: int
    memory_mb_per_node: int
    gres_per_node: str
    nodes_required: str
    reservation: str = ""
    gres_per_job: str = ""
    gres_per_task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node. `state` is Slurm's long form without its suffix signs, `responding` False for `*`."""

    name: str
    state: str
    responding: bool
    partitions: tuple[str, ...]
    cpus: int
    memory_mb: int
    gres: str
    features: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """The few settings that our arithmetic needs. `requeue_delay_seconds`: from a requeue to the earliest start."""

    version: str
    cluster: str
    requeue_delay_seconds: int
    min_job_age_seconds: int
    kill_wait_seconds: int
    slurm_user: str
    slurm_user_id: int | None
    epilog_slurmctld: str
    requeue_exit_hold: tuple[int, ...] = ()  # exit codes after which Slurm requeues and holds by itself
    # Which setting the requeue delay comes from: "requeue_delay", "cred_expire", or "" for Slurm's own default.
    delay_setting: str = ""
    slurmd_timeout_seconds: int = 300
    job_requeue: bool = True
    job_submit_plugins: str = ""
    private_data: str = ""
    plugin_dir: str = ""
    conf_file: str = ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def parse_excluded(raw: bytes, *, end: str = RECORD) -> dict[str, tuple[str, ...]]:
    """ExcNodeList by bare job id, from `-o '%A<unit>%x<end>'`."""
    found: dict[str, tuple[str, ...]] = {}
    for record in _records(raw, end):
        job_id, separator, nodes = record.partition(UNIT)
        if not separator or not job_id.isdigit():
            raise SlurmError("garbled", f"squeue: not an exclusion record: {record[:80]!r}")
        found[job_id] = _nodes(nodes)
    return found


def parse_comments(raw: bytes, *, end: str) -> dict[str, str]:
    """Comments by bare job id, from `-o '%A<unit>%k<end>'`."""
    found: dict[str, str] = {}
    for record in _records(raw, end):
        job_id, separator, text = record.partition(UNIT)
        if not separator or not job_id.isdigit():
            raise SlurmError("garbled", f"squeue: not a comment record: {record[:80]!r}")
        found[job_id] = "" if text == "(null)" else text
    return found


def parse_jobs(raw: bytes, excluded: Mapping[str, tuple[str, ...]], *, end: str = RECORD) -> tuple[JobRow, ...]:
    """Rows of the cheap listing. A record that does not have exactly our columns makes the whole listing garbled."""
    rows: dict[str, JobRow] = {}
    repeated: set[str] = set()
    for record in _records(raw, end):
        fields = record.split(UNIT, len(COLUMNS) - 1)
        if len(fields) != len(COLUMNS):
            raise SlurmError("garbled", f"squeue: {len(fields)} fields instead of {len(COLUMNS)}: {record[:80]!r}")
        row = _row(dict(zip(COLUMNS, fields, strict=True)), excluded)
        if row.job_id in rows:
            repeated.add(row.job_id)
        rows[row.job_id] = row
    return tuple(row for job_id, row in rows.items() if job_id not in repeated)


def _records(raw: bytes, end: str) -> list[str]:
    records = _text(raw).split(end + "\n")
    if records.pop():
        raise SlurmError("garbled", "the last record is cut")
    return records


_WHOLE = ("JobID", "UserID", "RestartCnt", "PriorityLong")  # what a job is, which attempt, and whether it is held
_WHOLE_NUMBER = re.compile(r"\d{1,18}\Z", re.ASCII)
_STATE = re.compile(r"[A-Z_]+\Z", re.ASCII)
_NO_TIME = frozenset({"", "0", "N/A", "NONE", "Unknown", "(null)"})


def _row(value: Mapping[str, str], excluded: Mapping[str, tuple[str, ...]]) -> JobRow:
    if not all(_WHOLE_NUMBER.match(value[name]) for name in _WHOLE) or not _STATE.match(value["State"]):
        raise SlurmError("garbled", f"squeue: not a job record: {value['JobID'][:40]!r}")
    task = value["ArrayTaskID"]
    offset = value["HetJobOffset"]
    comment = value["admin_comment"]
    return JobRow(
        job_id=value["JobID"],
        shown_id=value["JobArrayID"],
        array_job_id=value["ArrayJobID"] if task.isdigit() else "",
        array_task=int(task) if task.isdigit() else None,
        het_job_id=value["HetJobID"] if offset.isdigit() else "",
        het_offset=int(offset) if offset.isdigit() else None,
        state=value["State"],
        restarts=_number(value["RestartCnt"]),
        submit=_time(value["SubmitTime"]),
        eligible=_time(value["EligibleTime"]),
        start=_time(value["StartTime"]),
        end=_time(value["EndTime"]),
        exit_status=exit_status(value["exit_code"]),
        priority=_number(value["PriorityLong"]),
        reason="" if value["Reason"] in {"None", "(null)"} else value["Reason"],
        user=value["UserName"],
        user_id=int(value["UserID"]),
        partition=value["Partition"],
        nodes_wanted=_number(value["NumNodes"]),
        tasks=_number(value["NumTasks"]),
        batch=value["BatchFlag"] == "1",
        requeueable=value["Requeue"] == "1",
        dependency="" if value["Dependency"] == "(null)" else value["Dependency"],
        nodes=_nodes(value["NodeList"]),
        excluded=excluded.get(value["JobID"]),
        admin_comment="" if comment == "(null)" else comment,
    )


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistError as error:
        raise SlurmError("garbled", f"squeue: {error}") from None


def _number(text: str) -> int:
    """Slurm prints counts like `2`, and `1-2` or `2K` in some versions: the first number counts."""
    found = re.match(r"(\d{1,18})(K?)", text.strip(), re.ASCII)
    if not found:
        return 0
    return int(found.group(1)) * (1024 if found.group(2) else 1)


def exit_status(text: str) -> int:
    """A wait status from what squeue prints: until 22.05 the status itself, since 23.02 `code:signal`."""
    code, colon, signal = text.partition(":")
    return (_number(code) & 0xFF) << 8 | _number(signal) & 0x7F if colon else _number(text)


def _time(text: str) -> int | None:
    """Epoch seconds; None for Slurm's ways to say none. A date means that our SLURM_TIME_FORMAT did not reach the tool:
    it is in nobody knows whose zone, and would be read as "none".
    """
    if text in _NO_TIME:
        return None
    if not _WHOLE_NUMBER.match(text):
        raise SlurmError("garbled", f"squeue: not an epoch: {text[:40]!r}")
    return int(text) if int(text) < TIME_END else None


# The reason is an administrator's free text and comes last.
NODE_FORMAT = UNIT.join(("%N", "%T", "%R", "%c", "%m", "%G", "%f", "%E"))


def parse_nodes(raw: bytes, *, end: str = RECORD) -> tuple[NodeRow, ...]:
    """`sinfo -N` prints a node once per partition; the partitions are folded."""
    nodes: dict[str, NodeRow] = {}
    for record in _records(raw, end):
        fields = record.split(UNIT, 7)
        if len(fields) != 8:
            raise SlurmError("garbled", f"sinfo: {len(fields)} fields instead of 8: {record[:80]!r}")
        name, state, partition, cpus, memory, gres, features, reason = fields
        before = nodes.get(name)
        nodes[name] = NodeRow(
            name=name,
            state=state.rstrip("*~#!%$@^-+").lower(),
            responding="*" not in state,
            partitions=(*(before.partitions if before else ()), partition),
            cpus=_number(cpus),
            memory_mb=_number(memory),
            gres="" if gres == "(null)" else gres,
            features=() if features == "(null)" else tuple(features.split(",")),
            reason="" if reason.lower() == "none" else reason,
        )
    return tuple(nodes.values())


_CREDENTIAL_SECONDS = 120  # Slurm's default of cred_expire


def parse_config(raw: bytes) -> SlurmConfig:
    """`scontrol show config`. Only administrators write it."""
    values: dict[str, str] = {}
    for line in _text(raw).splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values.setdefault(key.strip(), value.strip())
    if "SLURM_VERSION" not in values:
        raise SlurmError("garbled", "scontrol show config: no SLURM_VERSION")
    user = re.match(r"([^()]+)\((\d+)\)", values.get("SlurmUser", ""))
    delay, delay_setting = _requeue_delay(values)
    return SlurmConfig(
        version=values["SLURM_VERSION"],
        cluster=values.get("ClusterName", ""),
        requeue_delay_seconds=delay,
        min_job_age_seconds=_seconds(values.get("MinJobAge", ""), default=300),
        kill_wait_seconds=_seconds(values.get("KillWait", ""), default=30),
        slurm_user=user.group(1) if user else "",
        slurm_user_id=int(user.group(2)) if user else None,
        epilog_slurmctld=_setting(values, "EpilogSlurmctld"),
        delay_setting=delay_setting,
        slurmd_timeout_seconds=_seconds(values.get("SlurmdTimeout", ""), default=300),
        job_requeue=values.get("JobRequeue", "1") != "0",
        job_submit_plugins=_setting(values, "JobSubmitPlugins"),
        private_data=_setting(values, "PrivateData"),
        plugin_dir=_setting(values, "PluginDir"),
        conf_file=_setting(values, "SLURM_CONF"),
        requeue_exit_hold=_codes(_setting(values, "RequeueExitHold")),
    )


def _requeue_delay(values: Mapping[str, str]) -> tuple[int, str]:
    """(SubmitTime after a requeue plus this is the earliest legal start, the setting that says so): one second more."""
    for key, option in (("SchedulerParameters", "requeue_delay"), ("AuthInfo", "cred_expire")):
        found = re.search(rf"(?:^|,){option}=(\d{{1,7}})(?:,|$)", values.get(key, ""), re.ASCII)
        if found:
            return int(found.group(1)) + 1, option
    return _CREDENTIAL_SECONDS + 1, ""


def _setting(values: Mapping[str, str], key: str) -> str:
    """A setting, "" when unset. Later versions print several scripts as `EpilogSlurmctld[0] = …`."""
    value = values.get(key) or values.get(f"{key}[0]") or ""
    return "" if value == "(null)" else value


def _codes(text: str) -> tuple[int, ...]:
    """`112,120-122` as numbers. Slurm allows the word SPECIAL_EXIT beside them, which is no exit code."""
    found: list[int] = []
    for low, high in re.findall(r"(?<![\w-])(\d{1,3})(?:-(\d{1,3}))?(?![\w-])", text, re.ASCII):
        found.extend(range(int(low), min(int(high or low), 255) + 1))
    return tuple(sorted(set(found)))


def _seconds(text: str, *, default: int) -> int:
    found = re.match(r"(\d{1,9})", text, re.ASCII)
    return int(found.group(1)) if found else default
