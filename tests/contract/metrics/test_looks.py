"""What a look at a metrics source tells, and what doctor makes of it."""

from datetime import timedelta

from advisor.commands.doctor_metrics import look_at_metrics
from advisor.core.policy import Policy
from advisor.core.words import Category
from advisor.ports import MetricsSeen
from tests.contract.metrics.exporter import DEFAULTS
from tests.contract.metrics.world import MetricsWorld
from tests.contract.stores.front import says

PATIENT = Policy(settle_seconds=dict.fromkeys(Category, 60.0))


async def test_a_look_tells_what_there_is(measured: MetricsWorld) -> None:
    """Nodes, GPUs, fields, and how old the newest sample is."""
    seen = await measured.make().look(measured.nodes)
    assert isinstance(seen, MetricsSeen), seen
    assert (set(seen.nodes), seen.gpus) == (set(measured.nodes), 8)
    assert set(DEFAULTS) <= seen.fields
    assert seen.newest_at is not None
    assert measured.clock.now() - seen.newest_at < timedelta(seconds=2)


async def test_doctor_names_what_is_not_exported_and_what_is_lost_by_it(measured: MetricsWorld) -> None:
    """dcgm-exporter leaves out double-bit errors and pending remaps by default: said, with the fields to add."""
    findings = await look_at_metrics([measured.make()], measured.nodes, PATIENT, measured.clock.now())
    assert "8 GPUs of 4 nodes" in findings[0].found
    (missing,) = [found for found in findings if "not exported" in found.found]
    assert "uncorrectable memory errors" in missing.found
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in missing.to_do
    assert "DCGM_FI_DEV_XID_ERRORS" not in missing.to_do
    assert not any(found.broken for found in findings)


async def test_doctor_fails_a_source_that_does_not_answer(measured: MetricsWorld) -> None:
    """With the reason, the server's words, and what to look at."""
    assert measured.front is not None
    measured.front.always = says(401, "Unauthorized")
    (found,) = await look_at_metrics([measured.make()], measured.nodes, PATIENT, measured.clock.now())
    assert (found.broken, "permission" in found.found, "token_file" in found.to_do) == (True, True, True)


async def test_doctor_says_when_evidence_settles_before_a_scrape_can_show_it(measured: MetricsWorld) -> None:
    """A scrape and what the exporter holds back take longer than the policy waits."""
    hasty = Policy(settle_seconds=dict.fromkeys(Category, 1.5))
    findings = await look_at_metrics([measured.make()], measured.nodes, hasty, measured.clock.now())
    hint = [found for found in findings if "settles in" in found.found]
    assert (len(hint), bool(hint and hint[0].to_do)) == ((1, True) if measured.kind == "prometheus" else (0, False))


async def test_doctor_sees_names_that_slurm_does_not_know(queried: MetricsWorld) -> None:
    """Exporters that call nodes otherwise are of no use to any attempt."""
    findings = await look_at_metrics([queried.make()], ["gpu-a-01"], PATIENT, queried.clock.now())
    assert any(found.broken and "gpu-a-01 in Slurm" in found.found for found in findings)


async def test_an_empty_server_is_not_a_healthy_one(queried: MetricsWorld) -> None:
    """It answers, and nothing of it is a GPU's."""
    findings = await look_at_metrics([queried.make(selector='job="x"')], [], PATIENT, queried.clock.now())
    assert [(found.broken, "has no GPU" in found.found) for found in findings] == [(True, True)]


async def test_nodes_without_gpus_are_named(measured: MetricsWorld) -> None:
    """Which of the nodes that Slurm knows are measured, and which are not; a node without GPUs is no fault."""
    nodes = (*measured.nodes, "login1")
    findings = await look_at_metrics([measured.make()], nodes, PATIENT, measured.clock.now())
    (told,) = [item for item in findings if "login1" in item.found]
    assert (f"GPUs of {len(measured.nodes)} of the {len(nodes)} nodes" in told.found, told.to_do) == (True, "")
