"""The service reads job output from a log store, end to end: from a line in the store to advice."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from advisor.commands.doctor import look_at_log_stores
from advisor.commands.doctor_checks import Check, State
from advisor.config import Config
from advisor.core.model import NodeFact, Unavailable
from advisor.core.words import NodeState
from advisor.log_stores import open_kernel_store, open_log_store
from advisor.ports import Clock, LogSource, SchedulerJob
from advisor.v1 import audit_pb2, common_pb2, operator_pb2
from tests.contract.stores.fake_loki import FakeLoki
from tests.contract.stores.fake_victorialogs import FakeVictoriaLogs, time_text
from tests.contract.stores.front import Front, says
from tests.integration.service.world import configuration, iteration, now, world_of

pytestmark = pytest.mark.postgres

CRASH = (
    "Traceback (most recent call last):",
    '  File "/home/alice/loop.py", line 77, in run_epoch',
    "    value = table[key]",
    "KeyError: 'tokens'",
)


class Shop:
    """A store of one kind and what a collector does to it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fake: FakeLoki | FakeVictoriaLogs = FakeLoki() if kind == "loki" else FakeVictoriaLogs()
        self.front = Front(self.fake)

    def ship(self, node: str, *texts: str, job: str = "17") -> None:
        ns = int(now().timestamp() * 1e6) * 1000
        if isinstance(self.fake, FakeLoki):
            rows: list[tuple[int, str, dict[str, str]]] = [(ns + at, text, {}) for at, text in enumerate(texts)]
            self.fake.push({"source": "slurm", "job_id": job, "host": node}, rows)
        else:
            lines = [
                {"_time": time_text(ns + at), "_msg": text, "job_id": job, "host": node}
                for at, text in enumerate(texts)
            ]
            self.fake.push(lines, ("job_id", "host"))

    def configuration(self, folder: Path) -> Config:
        selector = "'{source=\"slurm\"}'" if self.kind == "loki" else '"*"'
        text = f'[[logs]]\nkind = "{self.kind}"\nname = "store"\nurl = "{self.front.url}"\nselector = {selector}\n'
        return configuration(folder, text + 'node_label = "host"\nsettle_seconds = 1.0\n')


@asynccontextmanager
async def shop_of(kind: str) -> AsyncIterator[Shop]:
    shop = Shop(kind)
    await shop.front.start()
    try:
        yield shop
    finally:
        await shop.front.stop()


class Nodes:
    """The scheduler as doctor asks it: which nodes there are."""

    name = "slurm"

    async def version(self) -> str | Unavailable:
        return "22.05.8"

    async def job(self, job_id: str) -> SchedulerJob | Unavailable | None:
        return None

    async def nodes(self) -> tuple[NodeFact, ...] | Unavailable:
        return tuple(NodeFact(name=f"node{number}", state=NodeState.UP) for number in (1, 2, 3))

    async def requeue_delay_seconds(self) -> float | Unavailable:
        return 121.0


def _sources(config: Config, clock: Clock) -> Sequence[LogSource]:
    return [open_log_store(config.logs[0], (), clock)]


@pytest.mark.parametrize("kind", ["loki", "victorialogs"])
async def test_a_crash_that_only_the_store_tells(folder: Path, kind: str) -> None:
    """Progress and a traceback come from the store, over a restart of ours; the verdict names cause and evidence and
    counts nothing twice, and a store that fails shows in the next one and in the status.
    """
    async with shop_of(kind) as shop:
        config = shop.configuration(folder)
        async with world_of(folder, config, _sources) as world:
            await world.report(world.job("RUNNING"))
            shop.ship("node1", *(iteration(step).strip() for step in range(1, 20)))
            await world.ticks(5)
            submitted = world.submitted
        async with world_of(folder, config, _sources, submitted) as world:
            shop.ship("node3", *CRASH)
            await world.report(world.job("FAILED"))
            (advice,) = await world.advice_where(lambda found: any(a.evidence for a in found))
            assert advice.category == "application"
            (evidence,) = [item for item in advice.evidence if "KeyError" in item.text]
            assert (evidence.trust, evidence.count) == ("log", 1)
            decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
            assert '"last_step":19' in decision.analysis_json.replace(" ", "")

            shop.front.always = says(503, "too many outstanding requests")
            shop.ship("node1", "lost for now", job="18")
            await world.report(world.job("RUNNING", job="18"))
            await world.ticks(3)
            status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
            (source,) = [item for item in status.sources if item.name == "store"]
            assert "503" in source.detail
            await world.report(world.job("FAILED", job="18"))
            found = await world.advice_where(lambda found: any(a.attempt.job_id == "18" for a in found))
            (other,) = [item for item in found if item.attempt.job_id == "18"]
            assert other.category == "unknown"
            decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=other.advice_id))
            assert "503" in decision.analysis_json
            assert other.action != common_pb2.ACTION_STOP


@pytest.mark.parametrize("kind", ["loki", "victorialogs"])
async def test_doctor_asks_the_store_for_real(folder: Path, kind: str) -> None:
    """Streams, jobs, nodes and the newest line's age; wrong labels, an empty answer and a refusal, with what to do."""
    async with shop_of(kind) as shop:
        config = shop.configuration(folder)

        async def check(**changes: object) -> Check:
            section = config.logs[0].model_copy(update=changes)
            (found,) = await look_at_log_stores(config.model_copy(update={"logs": (section,)}), Nodes())
            return found

        assert (await check()).state is State.WARN  # nothing there: tenant or selector?
        assert "tenant" in (await check()).to_do
        shop.ship("node1", "a")
        shop.ship("node2", "b")
        well = await check()
        assert (well.state, well.to_do) == (State.OK, "")
        assert "2 streams, 1 job, 2 nodes, newest line 0 s old" in well.found
        assert "all of the lines have job_id, all of the lines have host" in well.found
        assert "none of the lines have node" in (await check(node_label="node")).found
        assert "job_label" in (await check(job_label="jobid")).to_do
        assert "node_label" in (await check(node_label="node")).to_do
        shop.front.always = says(401, "no org id")
        refused = await check()
        assert (refused.state, "no org id" in refused.found) == (State.FAIL, True)
        assert "token_file" in refused.to_do


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def _kernel(shop: Shop, node: str, text: str, transport: str = "kernel") -> None:
    """What a collector ships of a node's journal."""
    ns = int(now().timestamp() * 1e6) * 1000
    if isinstance(shop.fake, FakeLoki):
        shop.fake.push({"source": "journal", "host": node}, [(ns, text, {"transport": transport})])
    else:
        row = {"_time": time_text(ns), "_msg": text, "source": "journal", "host": node, "transport": transport}
        shop.fake.push([row], ("source", "host"))


def _with_kernel(shop: Shop, folder: Path) -> Config:
    text = f'''
        [[kernel]]
        kind = "{shop.kind}"
        name = "kernel-store"
        url = "{shop.front.url}"
        selector = '{{source="journal"}}'
        transport = "transport=kernel"
        node_label = "host"
    '''
    return configuration(folder, text)


@pytest.mark.parametrize("kind", ["loki", "victorialogs"])
async def test_a_kernel_line_from_a_store_is_trusted_evidence(folder: Path, kind: str) -> None:
    """An Xid by the kernel's transport names the node as a trusted fact; the same text by syslog on another node does
    nothing. What the store has of no node is told in the verdict.
    """
    async with shop_of(kind) as shop:
        config = _with_kernel(shop, folder)
        async with world_of(folder, config, lambda c, clock: [open_kernel_store(c.kernel[0], clock)]) as world:
            await world.report(world.job("RUNNING"))
            _kernel(shop, "node1", "systemd[1]: started")
            _kernel(shop, "node2", XID, transport="syslog")
            await world.ticks(2)
            _kernel(shop, "node3", XID)
            await world.ticks(2)
            await world.report(world.job("FAILED"))
            (advice,) = await world.advice_where(lambda found: any(a.evidence for a in found))
            (evidence,) = [item for item in advice.evidence if "Xid" in item.text]
            assert (evidence.trust, evidence.count) == ("kernel", 1)
            assert (advice.category, list(advice.exclude_nodes)) == ("gpu_hardware", ["node3"])
            decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
            assert "no kernel line for 7 days" in decision.analysis_json


@pytest.mark.parametrize("kind", ["loki", "victorialogs"])
async def test_doctor_says_whose_kernels_are_heard(folder: Path, kind: str) -> None:
    """Nodes with lines, those of Slurm's without, and a selector that finds nothing."""
    async with shop_of(kind) as shop:
        config = _with_kernel(shop, folder)

        async def check(**changes: object) -> Check:
            section = config.kernel[0].model_copy(update=changes)
            chosen = config.model_copy(update={"logs": (), "kernel": (section,)})
            (found,) = await look_at_log_stores(chosen, Nodes())
            return found

        _kernel(shop, "node1", "text", transport="syslog")
        nothing = await check()
        assert (nothing.state, "no stream was ever seen for this selector" in nothing.found) == (State.WARN, True)
        _kernel(shop, "node1", "link up")
        some = await check()
        assert "kernels of 1 node in 7 days" in some.found
        assert "none of node2 node3" in some.found
        for number in (2, 3):
            _kernel(shop, f"node{number}.cluster", "link up")
        assert (await check()).state is State.OK
        assert "node_label" in (await check(node_label="source")).to_do
        shop.front.always = says(401, "no org id")
        assert (await check()).state is State.FAIL
