"""Reports and earned autonomy as a running service serves them."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from advisor.config import ConfigError
from advisor.core.autonomy import Earned
from advisor.core.words import Category
from advisor.v1 import common_pb2, operator_pb2, report_pb2, report_pb2_grpc
from tests.integration.service.world import CLUSTER, World, configuration, now, world_of

pytestmark = pytest.mark.postgres

EARNING = '[autonomy]\nenabled = true\ncategories = ["gpu_hardware"]\n'
LINKED = (
    '[[notify]]\nkind = "webhook"\nname = "nobody"\nactions = ["none"]\nurl_file = "{url}"\n'
    'link = "https://advisor.example.com/decisions/{{decision}}"\n'
)

REFUSED = (
    ("RecordShadow", report_pb2.RecordShadowRequest(job_id="17", did="exploded", why="x"), "did:"),
    ("RecordShadow", report_pb2.RecordShadowRequest(did="nothing", why="x"), "give job_key, or job_id"),
    ("RecordShadow", report_pb2.RecordShadowRequest(job_id="99", did="nothing", why="x"), "nothing is known of job 99"),
    ("GetShadowReport", report_pb2.GetShadowReportRequest(category="bad luck"), "category:"),
    ("GetShadowReport", report_pb2.GetShadowReportRequest(cases_max=5000), "cases_max: 5000, at most 1000"),
    ("GetReliability", report_pb2.GetReliabilityRequest(by="moon"), "by:"),
    ("GetReliability", report_pb2.GetReliabilityRequest(groups_max=1000), "groups_max: 1000"),
)


def stub(world: World) -> "report_pb2_grpc.ReportServiceAsyncStub":
    return report_pb2_grpc.ReportServiceStub(world.channel)


def acting(open_advice: object) -> bool:
    return any(item.mode == common_pb2.MODE_AUTONOMOUS for item in open_advice)  # type: ignore[attr-defined]  # messages


def watching(open_advice: object) -> bool:
    return bool(open_advice) and not acting(open_advice)


async def earns(world: World, earned: Earned) -> None:
    """It acts by what it earned. The service's own first look, which finds no evidence for it, is over by then."""
    await world.advice_where(watching)
    await world.running.store.set_earned([earned])
    await world.running.board.refresh((CLUSTER,))
    await world.advice_where(acting)


async def test_an_earned_category_acts_until_a_person_says_monitor(folder: Path) -> None:
    """Nobody has set a mode: the category acts by what it earned; the widest monitor of a person takes it back."""
    async with world_of(folder, configuration(folder, EARNING)) as world:
        earned = Earned(
            cluster=CLUSTER,
            category=Category.GPU_HARDWARE,
            held=True,
            agreed=30,
            counted=30,
            lower=0.886,
            since=now(),
            why="30 of 30",
        )
        await world.fail_on_node2()
        await earns(world, earned)
        modes = await world.operator.ListModes(operator_pb2.ListModesRequest())
        assert [(item.category, item.set_by) for item in modes.earned] == [("gpu_hardware", "earned")]
        assert not modes.settings
        wide = operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, cluster=CLUSTER, why="stop")
        await world.operator.SetMode(operator_pb2.SetModeRequest(setting=wide))
        await world.advice_where(watching)


async def test_what_is_lost_and_what_is_switched_off_does_not_act(folder: Path) -> None:
    """Lost: open advice is taken back. Not enabled: what lies in the table is forgotten, and holds for nothing."""
    earned = Earned(
        cluster=CLUSTER, category=Category.GPU_HARDWARE, held=True, agreed=30, counted=30, lower=0.9, since=now()
    )
    async with world_of(folder, configuration(folder, EARNING)) as world:
        await world.fail_on_node2()
        await earns(world, earned)
        await world.running.store.set_earned([replace(earned, held=False)])
        await world.running.board.refresh((CLUSTER,))
        await world.advice_where(watching)
        await world.running.store.set_earned([earned])
    async with world_of(folder) as world:
        assert await world.running.store.earned() == ()


async def test_the_report_names_the_decision_and_takes_a_record(folder: Path) -> None:
    """With who said it and the decision's address; what cannot be answered is refused with the field's name."""
    (folder / "url").write_text("https://example.com/hook")
    async with world_of(folder, configuration(folder, LINKED.format(url=folder / "url"))) as world:
        await world.fail_on_node2()
        await world.advice_where(
            lambda advice: any(
                item.action == common_pb2.ACTION_RESTART and "node2" in item.exclude_nodes for item in advice
            )
        )
        request = report_pb2.RecordShadowRequest(
            job_id="17", did="requeued", nodes=["node3"], why="the other one", attempt=0
        )
        made = await stub(world).RecordShadow(request)
        report = await stub(world).GetShadowReport(report_pb2.GetShadowReportRequest(cluster=CLUSTER))
        (case,) = report.cases
        assert (case.outcome, case.did, case.recorded_by) == ("other_nodes", "requeued", made.who)
        assert (list(case.their_nodes), list(case.our_nodes)) == (["node3"], ["node2"])
        assert case.url == f"https://advisor.example.com/decisions/{case.decision_id}"
        assert report.categories[0].agreement.count == 1
        assert report.assumptions
        figures = await stub(world).GetReliability(report_pb2.GetReliabilityRequest(by="user"))
        assert (figures.all.attempts, figures.all.failures, len(figures.groups)) == (1, 1, 1)
        for method, refusable, told in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await getattr(stub(world), method)(refusable)
            assert refused.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
            assert told in (refused.value.details() or "")
        # Its next attempt ends well: what people say of the job is about the one that failed.
        await world.report(world.job("COMPLETED", attempt=1))
        again = await stub(world).RecordShadow(report_pb2.RecordShadowRequest(job_id="17", did="requeued", why="x"))
        assert again.attempt.attempt == 0
        with pytest.raises(grpc.aio.AioRpcError, match="attempt 1 of job 17 completed"):
            await stub(world).RecordShadow(
                report_pb2.RecordShadowRequest(job_id="17", attempt=1, did="requeued", why="x")
            )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[autonomy]\nenabled = true\n", "autonomy.categories"),
        ('[autonomy]\ncategories = ["none"]\n', "autonomy.categories"),
        ("[autonomy]\nfall_below = 0.9\n", "autonomy.fall_below"),
        ('default_mode = "autonomous"\n' + EARNING, "autonomy.enabled"),
        ("[autonomy]\ncount_min = 2\n", "autonomy.count_min"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(folder: Path, text: str, key: str) -> None:
    """With the key that is wrong."""
    with pytest.raises(ConfigError) as refused:
        configuration(folder, text)
    assert key in {problem.key.split("[")[0] for problem in refused.value.problems}
