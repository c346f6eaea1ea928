"""Slurm's own tools, run by argument vector and read so that no user's text can forge a record. Stdlib only.

Two kinds of columns exist. Those that no user can write come from the cheap listing (`Slurm.jobs`): fields end with
the unit separator, records with a separator made for the one call. Job name, comment, account, paths and constraints
are written by users; they come only from `--json` (`Slurm.details`), where they are quoted, or one field of one job
at a time (`Slurm.comment`). `scontrol show job` is never parsed. Measured on 22.05.8; see docs/slurm.md.

Errors: everything that a source can do wrong (no answer in time, a status other than 0, *any* text on stderr, output
that cannot be what was asked for) is a `SlurmError` with one of `PROBLEMS` as its problem. It never means "no jobs".
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_plugin.job_json import parse_details as parse_details
from slurm_plugin.job_json import parse_rows as parse_rows
from slurm_plugin.maintenance import PARTITION_FORMAT, Maintenance, parse_partitions, parse_reservations
from slurm_plugin.records import COLUMNS, NODE_FORMAT, RECORD, UNIT
from slurm_plugin.records import JobDetails as JobDetails
from slurm_plugin.records import JobRow as JobRow
from slurm_plugin.records import NodeRow as NodeRow
from slurm_plugin.records import SlurmConfig as SlurmConfig
from slurm_plugin.records import SlurmError as SlurmError
from slurm_plugin.records import parse_comments as parse_comments
from slurm_plugin.records import parse_config as parse_config
from slurm_plugin.records import parse_excluded as parse_excluded
from slurm_plugin.records import parse_jobs as parse_jobs
from slurm_plugin.records import parse_nodes as parse_nodes

OUTPUT_BYTES_MAX = 512 * 1024 * 1024
PROBLEMS = ("timeout", "refused", "garbled", "missing", "permission", "not_configured")
FUTURE_SECONDS = 5.0  # an end that lies further ahead has not come
_UNKNOWN_JOB = "Invalid job id specified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    returncode: int
    stdout: bytes
    stderr: bytes


# argv, environment additions, seconds → output. Raises SlurmError("timeout" | "missing" | "permission").
Run = Callable[[Sequence[str], Mapping[str, str], float], Output]


def run_process(argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
    """Run one tool without a shell, in this process's group, killed after `timeout_seconds`."""
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
        raise SlurmError("timeout", f"{argv[0]} gave no answer in {timeout_seconds:g} s") from None
    except FileNotFoundError:
        raise SlurmError("missing", f"{argv[0]} is not installed or not on PATH") from None
    except PermissionError:
        raise SlurmError("permission", f"{argv[0]} cannot be run") from None
    except ValueError:
        raise SlurmError("refused", f"{argv[0]}: an argument holds a null byte") from None
    except OSError as error:
        raise SlurmError("refused", f"{argv[0]}: {error.strerror}") from None
    return Output(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def rpcs_of(argv: Sequence[str]) -> int:
    """How many RPCs slurmctld serves for one call of a tool: counted with sdiag on 22.05.8 (docs/slurm.md)."""
    name, arguments = argv[0].rpartition("/")[2], argv[1:]
    if name == "squeue":
        return 1 if "--json" in arguments else 3 if "-j" in arguments else 2  # partitions, jobs, federation
    if name == "scontrol":
        return 2 if tuple(arguments) == ("show", "config") else 1
    return {"sinfo": 2, "scancel": 3}.get(name, 1)


def _environment() -> dict[str, str]:
    """Ours without what changes a tool's answer: SQUEUE_USERS, say, would hide jobs, and hidden is not gone."""
    changing = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_")
    return {key: value for key, value in os.environ.items() if key == "SLURM_CONF" or not key.startswith(changing)}


class Slurm:
    """Reading side of one cluster. `run` is passed in so that tests script it; all methods block."""

    def __init__(
        self,
        *,
        conf: str = "",
        bin_dir: str = "",
        timeout_seconds: float = 5.0,
        run: Run = run_process,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stdlib only: no Clock port here
        listing: str = "columns",
    ) -> None:
        """`listing`: "columns" or "json", where rows come from. They are the same; docs/slurm.md tells their cost."""
        self._wall, self._listing = wall, listing
        self._environment = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"} | ({"SLURM_CONF": conf} if conf else {})
        self._bin_dir = bin_dir
        self._timeout_seconds = timeout_seconds
        self._run = run

    def tool(self, name: str, *arguments: str) -> Output:
        """Run one of Slurm's tools; judging the output is the caller's."""
        path = f"{self._bin_dir.rstrip('/')}/{name}" if self._bin_dir else name
        return self._run((path, *arguments), self._environment, self._timeout_seconds)

    def _answer(self, name: str, *arguments: str) -> bytes:
        out = self.tool(name, *arguments)
        if out.returncode != 0 or out.stderr.strip():
            raise SlurmError("refused", f"{name}: status {out.returncode}: {first_line(out.stderr)}")
        if len(out.stdout) > OUTPUT_BYTES_MAX:
            raise SlurmError("garbled", f"{name}: {len(out.stdout)} bytes are more than any listing")
        return out.stdout

    def jobs(self, *ids: str) -> tuple[JobRow, ...]:
        """All jobs of all partitions, array tasks one by one; or only those that `ids` name: a job's own id, as it is
        shown, or a heterogeneous job's for all its components.

        Tasks of an array that Slurm has not yet split off share one id and are left out: they never ran. With `ids`
        the answer is empty when Slurm knows no such job.
        """
        try:
            found = self._rows_by_json(ids) if self._listing == "json" else self._rows_by_columns(ids)
        except SlurmError as error:
            if ids and _UNKNOWN_JOB in error.detail:
                return ()
            raise
        if ids and found is None:
            # Slurm says of a job that it does not know that it does not know it; of several it says nothing.
            if len(ids) > 1:
                return self.jobs(ids[0])
            raise SlurmError("garbled", f"squeue: nothing about job {ids[0]}, which it did not call unknown")
        # Of a job that a node's failure requeues Slurm shows the end that was expected: with no time limit, in a year.
        horizon = self._wall() + FUTURE_SECONDS
        rows = [replace(row, end=None) if row.end is not None and row.end > horizon else row for row in found or ()]
        named = set(ids)
        return tuple(
            row for row in rows if not named or not named.isdisjoint({row.shown_id, row.job_id, row.het_job_id})
        )

    def _rows_by_columns(self, ids: Sequence[str]) -> Sequence[JobRow] | None:
        """None: nothing at all was printed about the jobs asked for."""
        end = _record_end()
        ask = ("-h", "-a", "-r", "-t", "all", *_which(ids))
        listing = self._answer("squeue", *ask, "-O", _format(end))
        excluded = parse_excluded(self._answer("squeue", *ask, "-o", f"%A{UNIT}%x{end}"), end=end)
        return None if ids and not listing and "_" not in ids[0] else parse_jobs(listing, excluded, end=end)

    def _rows_by_json(self, ids: Sequence[str]) -> Sequence[JobRow] | None:
        """22.05 lists everything, whatever is asked for: what is not in a listing is not known to Slurm."""
        return parse_rows(self._answer("squeue", "-a", "-t", "all", *_which(ids), "--json")) or None

    def comment(self, job_id: str) -> str:
        """The comment of exactly one job, by its own id. The separators are drawn for this call: no comment holds them.

        An array's or a heterogeneous job's id names several jobs; all but the one are left out.
        """
        end = _record_end()
        form = f"%A{UNIT}%k{end}"
        raw = self._answer("squeue", "-h", "-a", "-r", "-t", "all", "-j", job_id, "-o", form)
        return parse_comments(raw, end=end).get(job_id, "")

    def details(self, shown_id: str | None = None) -> dict[tuple[str, int], JobDetails]:
        """User-written fields by (job id, submit time). 22.05 ignores all filters and lists everything; later versions
        leave ended jobs out unless they are asked for.
        """
        which = ("-j", shown_id) if shown_id else ()
        return parse_details(self._answer("squeue", "-a", "-t", "all", *which, "--json"))

    def nodes(self) -> tuple[NodeRow, ...]:
        end = _record_end()
        return parse_nodes(self._answer("sinfo", "-h", "-a", "-N", "-o", NODE_FORMAT + end), end=end)

    def maintenance(self) -> Maintenance:
        end = _record_end()
        closed = parse_partitions(self._answer("sinfo", "-h", "-a", "-o", PARTITION_FORMAT + end), end=end)
        reserved = parse_reservations(self._answer("scontrol", "-o", "show", "reservation"))
        return Maintenance(partitions=closed, reservations=reserved)

    def config(self) -> SlurmConfig:
        return parse_config(self._answer("scontrol", "show", "config"))


def first_line(raw: bytes) -> str:
    """The first non-empty line of a tool's complaint, for people."""
    for line in raw.decode("utf-8", "replace").splitlines():
        if line.strip():
            return line.strip()[:300]
    return "no message"


def _which(ids: Sequence[str]) -> tuple[str, ...]:
    return ("-j", ",".join(ids)) if ids else ()


def _record_end() -> str:
    """What ends a record: nobody can have put it into an AdminComment or a node's reason beforehand."""
    return RECORD + os.urandom(8).hex()


def _format(end: str) -> str:
    return ",".join(f"{name}:{end if name == COLUMNS[-1] else UNIT}" for name in COLUMNS)
