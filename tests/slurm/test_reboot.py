"""A node that we drained is rebooted: Slurm hides the drain meanwhile and writes behind our reason."""

import asyncio

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import require
from advisor.demo.waiting import wait_for
from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import wire
from slurm_plugin.clock import SystemClock
from slurm_plugin.config import decode
from slurm_plugin.drainer import Drainer
from slurm_plugin.squeue import Slurm
from tests.slurm.scripted import cluster_beside

ID = "01a2285d-d9dd-7aca-b195-2f157edd838d"
Said = list[agent_pb2.ReportNodeReconciliationRequest]


@pytest.mark.long
def test_a_reboot_ends_no_isolation() -> None:
    """Neither a repair nor somebody else's drain: ours all the while, and not undone blindly either."""
    shape = Shape(nodes=2, extra=("RebootProgram=/bin/true", "ResumeTimeout=60"))
    with cluster_beside(require(), "reboot", shape) as cluster:
        asyncio.run(rebooted(cluster))


async def rebooted(cluster: Cluster) -> None:
    said: Said = []
    config = decode({"cluster": "demo", "mode": "act", "isolation": {"mode": "act", "percent_max": 50.0}}, {})
    slurm = Slurm(conf=str(cluster.conf))
    drainer = Drainer(config=config, slurm=slurm, clock=SystemClock(), put=said.append)

    async def wants(desired: agent_pb2.NodeDesire.ValueType, generation: int) -> tuple[int, int]:
        advice = agent_pb2.NodeAdvice(
            isolation_id=ID,
            node="node1",
            generation=generation,
            desired=desired,
            category="gpu_hardware",
            time_to_live=wire.duration(30),
            seen_drained=bool(said),
        )
        drainer.heard([advice])
        await drainer.reconcile(slurm.nodes())
        return said[-1].status, said[-1].generation

    drained = (common_pb2.RECONCILIATION_STATUS_VERIFIED, 1)
    assert await wants(agent_pb2.NODE_DESIRE_DRAINED, 1) == drained
    cluster.must("scontrol", "reboot", "node1")
    for reason in (f"advisor: {ID} gpu_hardware", f"advisor: {ID} gpu_hardware : reboot issued"):
        found = wait_for(
            reason,
            lambda reason=reason: next(  # type: ignore[misc]  # bound now, not when it is called
                (row for row in slurm.nodes() if (row.reason, row.state) == (reason, "reboot")), None
            ),
            seconds=20,
        )
        print(f"{found.state}: {found.reason}")
        drainer.told_nothing()
        assert await wants(agent_pb2.NODE_DESIRE_DRAINED, 1) == drained
    assert await wants(agent_pb2.NODE_DESIRE_NOT_DRAINED, 2) == (common_pb2.RECONCILIATION_STATUS_PENDING, 2)
