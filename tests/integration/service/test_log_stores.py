"""The service reads job output from a log store, end to end: from a line in the store to advice."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from advisor.commands.doctor import Check, State, look_at_log_stores
from advisor.config import Config
from advisor.log_stores import open_log_store
from advisor.ports import Clock, LogSource
from advisor.v1 import audit_pb2, common_pb2, operator_pb2
from tests.contract.stores.fake_loki import FakeLoki
from tests.contract.stores.fake_victorialogs import FakeVictoriaLogs, time_text
from tests.contract.stores.front import Front, says
from tests.integration.service.world import configuration, iteration, now, short_folder, world_of

pytestmark = pytest.mark.postgres

CRASH = (
    "Traceback (most recent call last):",
    '  File "/home/alice/loop.py", line 77, in run_epoch',
    "    value = table[key]",
    "KeyError: 'tokens'",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


class Shop:
    """A store of one kind and what a collector does to it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fake: FakeLoki | FakeVictoriaLogs = FakeLoki() if kind == "loki" else FakeVictoriaLogs()
        self.front = Front(self.fake)

    def ship(self, node: str, *texts: str, job: str = "17") -> None:
        ns = int(now().timestamp() * 1e6) * 1000
        if isinstance(self.fake, FakeLoki):
            rows = [(ns + at, text, {}) for at, text in enumerate(texts)]
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
            (found,) = await look_at_log_stores(config.model_copy(update={"logs": (section,)}))
            return found

        assert (await check()).state is State.WARN  # nothing there: tenant or selector?
        assert "tenant" in (await check()).to_do
        shop.ship("node1", "a")
        shop.ship("node2", "b")
        well = await check()
        assert (well.state, well.to_do) == (State.OK, "")
        assert "2 streams, 1 jobs, 2 nodes, newest line 0 s old" in well.found
        assert "job_label" in (await check(job_label="jobid")).to_do
        assert "node_label" in (await check(node_label="node")).to_do
        shop.front.always = says(401, "no org id")
        refused = await check()
        assert (refused.state, "no org id" in refused.found) == (State.FAIL, True)
        assert "token_file" in refused.to_do
