"""Which way commands ask Slurm: as configured, with what was given by hand first."""

from pathlib import Path

from advisor.config import SlurmSection, load
from advisor.schedulers import open_scheduler
from connectors.scheduler.pyslurm_reader import PROGRAM


def test_a_site_names_its_tools_and_its_pyslurm(tmp_path: Path) -> None:
    """A program in `bin` is run, and for listings the Python that has pyslurm."""
    file = tmp_path / "advisor.toml"
    file.write_text('[slurm]\npyslurm = "/opt/p/bin/python"\nbin = "/opt/slurm/bin"\ntimeout_seconds = 3\n')
    section = load(file, {}).config.slurm
    assert (str(section.bin), section.timeout_seconds) == ("/opt/slurm/bin", 3)
    assert PROGRAM.is_file()


async def test_tools_that_are_not_there_are_missing_by_either_way(tmp_path: Path) -> None:
    """And the folder that was given by hand wins over the one of the file."""
    for section in (SlurmSection(), SlurmSection(pyslurm=Path("/nowhere/python"), bin=Path("/usr/bin"))):
        answer = await open_scheduler(section, bin_dir=tmp_path).version()
        assert "missing" in str(answer)
        assert str(tmp_path) in str(answer)
