"""How commands on this host ask Slurm, as configured: its own tools, or pyslurm where a site names a Python for it."""

from pathlib import Path

from advisor.config import SlurmSection
from connectors.scheduler.pyslurm_reader import pyslurm_reader
from connectors.scheduler.slurm_cli import SlurmCli


def open_scheduler(section: SlurmSection, *, conf: Path | None = None, bin_dir: Path | None = None) -> SlurmCli:
    """`conf` and `bin_dir` were given by hand and win."""
    file, tools = str(conf or section.conf or ""), str(bin_dir or section.bin or "")
    seconds = section.timeout_seconds
    if section.pyslurm is not None:
        return pyslurm_reader(str(section.pyslurm), conf=file, bin_dir=tools, timeout_seconds=seconds)
    return SlurmCli(conf=file, bin_dir=tools, timeout_seconds=seconds)
