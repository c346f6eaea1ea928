"""pyslurm on the real thing, where there is one that matches: `PYSLURM_PYTHON` names a Python that has it.

No distribution's Slurm matches what PyPI has (25.11): docs/slurm.md, "Which way of reading".
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import require
from advisor.demo.waiting import wait_for
from advisor.demo.world import running_cluster
from advisor.ports import SchedulerJob
from connectors.scheduler.pyslurm_reader import pyslurm_reader, pyslurm_run
from slurm_plugin.records import JobRow
from slurm_plugin.squeue import Slurm
from tests.slurm.capture import make_zoo

PYTHON = os.environ.get("PYSLURM_PYTHON", "")
pytestmark = [pytest.mark.long, pytest.mark.skipif(not PYTHON, reason="PYSLURM_PYTHON names no Python with pyslurm")]


@pytest.fixture(scope="module")
def zoo() -> Iterator[tuple[Cluster, dict[str, int]]]:
    shape = Shape(nodes=6, extra=("RequeueExitHold=112",))
    with running_cluster(shape, runtime=require().apart("pyslurm")) as (cluster, _):
        made = make_zoo(cluster)
        yield cluster, made
        for job in made.values():
            cluster.command("scancel", str(job))


def test_pyslurm_and_columns_say_the_same(zoo: tuple[Cluster, dict[str, int]]) -> None:
    """Every job of the zoo; but dependencies, which it does not give as text, and text that it cannot decode."""
    conf = str(zoo[0].conf)
    columns = Slurm(conf=conf)
    other = Slurm(conf=conf, run=pyslurm_run(PYTHON), listing="json", timeout_seconds=20)

    def plain(slurm: Slurm) -> dict[str, JobRow]:
        return {row.job_id: replace(row, end=None, reason="", dependency="") for row in slurm.jobs()}

    def both() -> bool:
        return plain(columns) == plain(other)

    wait_for("both to agree", both, seconds=20, every_seconds=0.5)


async def test_the_reader_keeps_the_port(zoo: tuple[Cluster, dict[str, int]]) -> None:
    """A failed job of a forged name, with its exit; a job that is none; nodes and version."""
    reader = pyslurm_reader(PYTHON, conf=str(zoo[0].conf), timeout_seconds=20)
    found = await reader.job(str(zoo[1]["forged"]))
    assert isinstance(found, SchedulerJob)
    assert (found.attempt.exit, found.job.user) != (None, "")
    assert found.attempt.exit is not None
    assert (found.attempt.exit.code, found.attempt.number) == (3, 0)
    assert await reader.job("4000000") is None
    assert isinstance(await reader.version(), str)
