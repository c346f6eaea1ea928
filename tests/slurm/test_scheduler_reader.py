"""The scheduler reader of `bundle`, `analyze --job` and `doctor` on a real Slurm."""

from advisor.core.model import ExitStatus, Unavailable
from advisor.core.words import AttemptState, NodeState
from advisor.demo.cluster import Cluster
from advisor.ports import SchedulerJob
from connectors.scheduler.slurm_cli import SlurmCli


async def test_a_job_that_wants_to_look_like_another(cluster: Cluster) -> None:
    """A forged name, a broken comment and a real failure: what is read is what Slurm itself knows."""
    name = "x JobState=RUNNING Restarts=7\nJobId=1 JobState=RUNNING"
    script = "#!/bin/sh\necho output\nexit 3\n"
    job = cluster.submit("alice", script, "-N2", "-J", name, "--comment=\udcff", "-oout-%j-%x.log")
    cluster.wait_state(job, "FAILED", seconds=20)
    found = await SlurmCli(conf=str(cluster.conf)).job(str(job))
    assert isinstance(found, SchedulerJob)
    assert found.job.job_id == str(job)
    assert found.job.user == "alice"
    assert found.attempt.number == 0
    assert found.attempt.state is AttemptState.FAILED
    assert found.attempt.exit == ExitStatus(code=3)
    assert found.attempt.nodes is not None
    assert len(found.attempt.nodes) == 2
    assert found.name == name
    assert found.attempt.started_at is not None
    assert found.attempt.ended_at is not None


async def test_output_path_is_where_slurm_wrote(cluster: Cluster) -> None:
    """The path made from the job's pattern is the one that Slurm opened."""
    job = cluster.submit("bob", "#!/bin/sh\necho here\nexit 1\n", "-N1", "-o%u-%5j.log")
    cluster.wait_state(job, "FAILED", seconds=20)
    found = await SlurmCli(conf=str(cluster.conf)).job(str(job))
    assert isinstance(found, SchedulerJob)
    with open(found.stdout_path, encoding="utf-8") as out:  # noqa: ASYNC230, PTH123 - a test, and a path as text
        assert out.read() == "here\n"


async def test_absence_in_its_kinds(cluster: Cluster) -> None:
    """No such job, and no such Slurm, are two different answers."""
    assert await SlurmCli(conf=str(cluster.conf)).job("4000000") is None
    answer = await SlurmCli(conf="/nonexistent/slurm.conf", timeout_seconds=2.0).job("1")
    assert isinstance(answer, Unavailable)


async def test_cluster_facts(cluster: Cluster) -> None:
    """Version, requeue delay and nodes of a healthy cluster."""
    reader = SlurmCli(conf=str(cluster.conf))
    version = await reader.version()
    assert isinstance(version, str)
    assert version.startswith("slurm ")
    delay = await reader.requeue_delay_seconds()
    assert isinstance(delay, float)
    assert delay >= 2
    nodes = await reader.nodes()
    assert not isinstance(nodes, Unavailable)
    assert {node.name for node in nodes} == set(cluster.nodes)
    assert {node.state for node in nodes} == {NodeState.UP}
