"""What doctor says of the kernel logs of nodes on which no job runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.commands.doctor_kernel import Finding, look_at_kernel_files
from connectors.kernel.files import KernelFileLogs
from tests.contract.world import StandingClock, private_folder

NODES = ("node1", "node2", "node3")


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as made:
        for node in NODES:
            (made / f"{node}.log").write_text("kernel: quiet\n")
            (made / f"{node}.log").chmod(0o640)
        yield made


async def _look(folder: Path, pattern: str = "%n.log", nodes: tuple[str, ...] = NODES) -> list[Finding]:
    clock = StandingClock()
    source = KernelFileLogs(clock=clock, path=f"{folder}/{pattern}", owners=(os.getuid(),))
    found = await look_at_kernel_files([source], nodes, None, clock.now())
    await source.close()
    return found


async def test_files_that_can_be_read_are_well(folder: Path) -> None:
    """One line for all of them, with an example of where they are."""
    (seen,) = await _look(folder)
    assert (seen.found, seen.to_do, seen.broken) == (
        f"kernel: the files of 3 nodes can be read, such as {folder}/node1.log",
        "",
        False,
    )


async def test_a_file_that_others_may_write_fails_before_any_job_meets_it(folder: Path) -> None:
    """With the command that makes it right, and no word of giving anybody more rights."""
    (folder / "node2.log").chmod(0o666)
    (seen,) = await _look(folder)
    assert seen.broken
    assert seen.found.startswith(f"kernel: 1 of 3 nodes: refused: {folder}/node2.log is not trusted")
    assert f"chmod go-w {folder}/node2.log" in seen.found
    assert "nobody but root may write" in seen.to_do
    assert "setfacl" not in seen.to_do


async def test_a_path_that_leads_nowhere_fails_and_one_file_that_is_not_there_warns(folder: Path) -> None:
    """A node that never was up has written nothing."""
    (seen,) = await _look(folder, "%n.journal")
    assert (seen.broken, "3 of 3 nodes: missing" in seen.found, bool(seen.to_do)) == (True, True, True)
    (folder / "node3.log").unlink()
    (seen,) = await _look(folder)
    assert (seen.broken, "1 of 3 nodes: missing" in seen.found, bool(seen.to_do)) == (False, True, True)


async def test_where_nodes_are_not_known_the_files_that_are_there_are_looked_at(folder: Path) -> None:
    """The service's host may have no Slurm tools. Where there is no file, or no folder, nothing is called well."""
    (folder / "README").write_text("not a node's\n")
    (seen,) = await _look(folder, nodes=())
    assert "the files of 3 nodes can be read" in seen.found
    (folder / "node3.log").chmod(0o666)
    (seen,) = await _look(folder, nodes=())
    assert (seen.broken, "1 of 3 nodes: refused" in seen.found) == (True, True)
    for pattern in ("%n.journal", "away/%n.log"):
        (seen,) = await _look(folder, pattern, nodes=())
        assert (seen.broken, seen.found) == (False, f"kernel: no node's file is seen at {folder}/{pattern}")
        assert seen.to_do
