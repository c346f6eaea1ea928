"""Slurm through pyslurm, for sites that have the one that matches their Slurm: an optional way of reading jobs.

What `squeue --json` would say comes from `pyslurm_jobs.py`, run by the Python that has pyslurm; everything else,
settings and nodes among it, from Slurm's tools as always. So it keeps the same promises (one contract suite), ends with
a time-out like any tool, and cannot take us along when it crashes. It is not a way for the agent: pyslurm gives a
dependency's text only in pieces, and nothing of a field that holds a byte which is no UTF-8.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from connectors.scheduler.slurm_cli import SlurmCli
from slurm_plugin.records import RECORD, UNIT, exit_status
from slurm_plugin.squeue import Output, Run, SlurmError, run_process

PROGRAM = Path(__file__).with_name("pyslurm_jobs.py")
_EXITS = f"JobID:{UNIT},exit_code:{RECORD}"
_ABSENT = b"No module named 'pyslurm'"
_MISMATCH = (b"ImportError", b"undefined symbol", b"incompatible")


def pyslurm_run(python: str, *, run: Run = run_process) -> Run:
    """Slurm's tools, but for listings of jobs. Raises SlurmError("missing") where `python` has no pyslurm."""

    def asked(argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        if "--json" not in argv:
            return run(argv, environment, timeout_seconds)
        said = run((python, "-I", str(PROGRAM)), environment, timeout_seconds)
        if _ABSENT in said.stderr:
            raise SlurmError("missing", f"{python} has no pyslurm: see docs/slurm.md")
        if any(word in said.stderr for word in _MISMATCH):
            raise SlurmError("missing", f"{python}: its pyslurm is not for this Slurm")
        if said.returncode or said.stderr.strip():
            return said
        # pyslurm takes 128 off exit codes above 127, so that 134 cannot be told from 6: Slurm's own tool is asked.
        exits = run((argv[0], "-h", "-a", "-r", "-t", "all", "-O", _EXITS), environment, timeout_seconds)
        if exits.returncode or exits.stderr.strip():
            return exits
        return replace(said, stdout=_with_exits(said.stdout, exits.stdout))

    return asked


def _with_exits(document: bytes, exits: bytes) -> bytes:
    """The document with a wait status for each job that `exits` names. Both columns are Slurm's own."""
    try:
        tree = json.loads(document)
        fields = dict(line.split(UNIT, 1) for line in exits.decode("ascii").replace(RECORD, "").splitlines())
        for job in tree["jobs"]:
            job["exit_code"] = exit_status(fields.get(str(job["job_id"]), "0:0"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SlurmError("garbled", "pyslurm: not a listing with exits") from None
    return json.dumps(tree).encode()


def pyslurm_reader(
    python: str, *, conf: str = "", bin_dir: str = "", timeout_seconds: float = 10.0, run: Run = run_process
) -> SlurmCli:
    """Implements `SchedulerReader`."""
    return SlurmCli(
        conf=conf, bin_dir=bin_dir, timeout_seconds=timeout_seconds, run=pyslurm_run(python, run=run), listing="json"
    )
