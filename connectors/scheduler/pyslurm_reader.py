"""Slurm through pyslurm, for sites that have the one that matches their Slurm: an optional way of reading jobs.

What `squeue --json` would say comes from `pyslurm_jobs.py`, run by the Python that has pyslurm; everything else,
settings and nodes among it, from Slurm's tools as always. So it keeps the same promises (one contract suite), ends with
a time-out like any tool, and cannot take us along when it crashes. It is not a way for the agent: pyslurm gives a
dependency's text only in pieces, and nothing of a field that holds a byte which is no UTF-8.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from connectors.scheduler.slurm_cli import SlurmCli
from slurm_plugin.squeue import Output, Run, SlurmError, run_process

PROGRAM = Path(__file__).with_name("pyslurm_jobs.py")
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
        return said

    return asked


def pyslurm_reader(
    python: str, *, conf: str = "", bin_dir: str = "", timeout_seconds: float = 10.0, run: Run = run_process
) -> SlurmCli:
    """Implements `SchedulerReader`."""
    return SlurmCli(
        conf=conf, bin_dir=bin_dir, timeout_seconds=timeout_seconds, run=pyslurm_run(python, run=run), listing="json"
    )
