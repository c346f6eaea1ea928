"""The whole service on its own Postgres, seen through its socket by an agent that is only a script."""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path

import grpc
import pytest
import structlog

from advisor.app import Service, StartError
from advisor.commands.listing import short_ids
from advisor.config import Config
from advisor.core import codec
from advisor.core.model import Unavailable
from advisor.core.words import Trust
from advisor.ports import Clock, LogBatch, LogChunk, LogRequest, LogSource
from advisor.replay import Packed, reproduce
from advisor.service.wire import stamp
from advisor.v1 import agent_pb2, audit_pb2, common_pb2, operator_pb2
from tests.integration.service.world import (
    CLUSTER,
    WAIT_SECONDS,
    XID_79,
    configuration,
    iteration,
    now,
    own_sources,
    world_of,
)

pytestmark = pytest.mark.postgres


def _restart_without_node2(open_advice: Sequence[common_pb2.Advice]) -> bool:
    return any(
        advice.action == common_pb2.ACTION_RESTART and list(advice.exclude_nodes) == ["node2"] for advice in open_advice
    )


async def test_a_job_that_lost_a_gpu_is_advised_to_restart_without_that_node(folder: Path) -> None:
    """From a report and two log files to advice on the stream, an audited decision, history, and an equal replay."""
    async with world_of(folder) as world:
        await world.fail_on_node2()
        advice = next(a for a in await world.advice_where(_restart_without_node2) if a.exclude_nodes)
        assert advice.category == "gpu_hardware"
        assert advice.mode == common_pb2.MODE_MONITOR
        assert advice.attempt.job_id == "17"
        assert advice.attempt.attempt == 0
        assert 240 < advice.time_to_live.seconds <= 300  # as long as Slurm remembers the job
        assert any("Xid" in item.text and item.trust == "kernel" for item in advice.evidence)

        decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
        assert json.loads(decision.analysis_json)["schema"] == "advisor.analysis/1"
        kinds = {item.kind for item in decision.milestones}
        assert {
            common_pb2.MILESTONE_KIND_FAULT_VISIBLE,
            common_pb2.MILESTONE_KIND_DETECTED,
            common_pb2.MILESTONE_KIND_ADVISED,
        } <= kinds
        times = {item.kind: item.at.ToNanoseconds() for item in decision.milestones}
        assert (
            times[common_pb2.MILESTONE_KIND_FAULT_VISIBLE]
            <= times[common_pb2.MILESTONE_KIND_DETECTED]
            <= times[common_pb2.MILESTONE_KIND_ADVISED]
        )

        node = await world.audit.GetNode(audit_pb2.GetNodeRequest(cluster=CLUSTER, name="node2"))
        assert [item.attempt.job_id for item in node.implications] == ["17"]

        inputs = await world.audit.GetDecisionInputs(audit_pb2.GetDecisionInputsRequest(decision_id=advice.advice_id))
        world.log().unlink()
        packed = Packed(inputs=inputs.inputs, rules=inputs.rules, policy=inputs.policy)
        assert codec.encode(reproduce(packed)) == inputs.decision


async def test_a_lost_gpu_needs_no_rank_to_notice(folder: Path) -> None:
    """The kernel tells, the job is running and silent, no collective has timed out: an incident at once, a restart
    without the node as soon as the grace time has passed without a step, and the node's failure in the list of lemons.
    """
    (folder / "policy.toml").write_text("trusted_fatal_grace_seconds = 2\n")
    config = configuration(folder, f'policy_file = "{folder}/policy.toml"')
    async with world_of(folder, config) as world:
        world.log().write_text("".join(map(iteration, range(1, 20))))
        await world.report(world.job("RUNNING"))
        await world.ticks(2)
        assert await world.decisions() == []
        began = now()
        world.kernel("node2", XID_79)
        advice = next(a for a in await world.advice_where(_restart_without_node2) if a.exclude_nodes)
        assert (advice.reason, advice.may_end_live_attempt) == ("trusted_fatal", True)
        assert {item.trust for item in advice.evidence} == {"kernel"}
        decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
        reached = {item.kind: item.at.ToDatetime(UTC) for item in decision.milestones}
        assert (reached[common_pb2.MILESTONE_KIND_DETECTED] - began).total_seconds() < 5.0
        assert (reached[common_pb2.MILESTONE_KIND_ADVISED] - began).total_seconds() > 1.9

        answer = await world.audit.ListLemons(audit_pb2.ListLemonsRequest(failures_min=1))
        assert [(lemon.name, lemon.jobs, lemon.failures[0].rule) for lemon in answer.lemons] == [
            ("node2", 1, "kernel.xid")
        ]
        assert not (await world.audit.ListLemons(audit_pb2.ListLemonsRequest())).lemons
        told = await advisor(folder, "nodes", "lemons", "--failures", "1")
        assert "node2" in told
        assert "kernel.xid" in told
        assert "17#0" in told
        (lemon,) = json.loads(await advisor(folder, "nodes", "lemons", "--failures", "1", "--format", "json"))["lemons"]
        assert (lemon["node"], lemon["failures"][0]["job"], lemon["failures"][0]["trust"]) == ("node2", "17", "kernel")
        assert "no lemons" in await advisor(folder, "nodes", "lemons", "--node", "node1", "--failures", "1")


async def advisor(folder: Path, *arguments: str) -> str:
    """The command line, against the service of this folder."""
    socket = ("--socket", str(folder / "run" / "advisor.sock"))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "advisor", *arguments, *socket, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    return out.decode()


async def test_a_decision_is_found_by_the_beginning_of_its_id(folder: Path) -> None:
    """Enough of it is enough; what none begins with is not found."""
    async with world_of(folder) as world:
        await world.fail_on_node2()
        await world.fail_on_node2("18")
        await world.advice_where(lambda found: len({a.attempt.job_id for a in found}) == 2)
        ids = [decision.advice.advice_id for decision in await world.decisions()]
        short = short_ids(ids)[ids[0]]
        found = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=short))
        assert (found.advice.advice_id, found.in_scope) == (ids[0], True)
        inputs = await world.audit.GetDecisionInputs(audit_pb2.GetDecisionInputsRequest(decision_id=short))
        assert inputs.decision_id == ids[0]
        for text, code in (
            ("", grpc.StatusCode.INVALID_ARGUMENT),
            (ids[0][:8] + "ffffffff-ffff", grpc.StatusCode.NOT_FOUND),
            ("% or 1", grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=text))
            assert caught.value.code() is code


async def test_advice_closes_when_the_agent_verified_it(folder: Path) -> None:
    """A final reconciliation takes the advice off the stream and stays with the decision."""
    async with world_of(folder) as world:
        await world.fail_on_node2()
        advice = next(a for a in await world.advice_where(_restart_without_node2) if a.exclude_nodes)
        for status in (common_pb2.RECONCILIATION_STATUS_APPLIED, common_pb2.RECONCILIATION_STATUS_VERIFIED):
            await world.reconcile(advice, status, excluded_nodes=["node2"])
        await world.advice_where(lambda found: not found)
        decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
        assert decision.status == common_pb2.RECONCILIATION_STATUS_VERIFIED
        assert len(decision.reconciliations) == 2


async def test_a_mode_set_by_an_operator_takes_effect_and_is_audited(folder: Path) -> None:
    """Monitor is the default; a setting for one category turns open advice autonomous under the operator's account."""
    async with world_of(folder) as world:
        await world.fail_on_node2()
        await world.advice_where(_restart_without_node2)
        stored = await world.operator.SetMode(
            operator_pb2.SetModeRequest(
                setting=operator_pb2.ModeSetting(
                    category="gpu_hardware", mode=common_pb2.MODE_AUTONOMOUS, why="agreed", set_by="somebody else"
                )
            )
        )
        assert stored.set_by not in {"", "somebody else"}
        advice = await world.advice_where(lambda found: any(a.mode == common_pb2.MODE_AUTONOMOUS for a in found))
        assert [a.generation for a in advice] == sorted({a.generation for a in advice})
        assert advice[0].generation >= 2


async def test_a_restarted_service_has_exactly_the_same_open_advice(folder: Path) -> None:
    """Stopped and started again, the service publishes the same advice and decides nothing twice."""
    async with world_of(folder) as world:
        await world.fail_on_node2()
        await world.advice_where(_restart_without_node2)
        await world.ticks(20)  # past the settle time
        before = await world.advice_where(_restart_without_node2)
        decided = {decision.advice.advice_id for decision in await world.decisions()}
        submitted = world.submitted
    async with world_of(folder, submitted=submitted) as world:
        await world.ticks(5)
        await world.report(world.job("FAILED"))
        await world.ticks(5)
        after = await world.advice_where(_restart_without_node2)
        assert [a.advice_id for a in after] == [a.advice_id for a in before]
        assert after[0].incarnation == before[0].incarnation
        assert {decision.advice.advice_id for decision in await world.decisions()} == decided


async def test_a_healthy_and_a_completed_job_get_no_advice(folder: Path) -> None:
    """Progress gives no decision; completion is recorded once, as nothing to do."""
    async with world_of(folder) as world:
        world.log().write_text(iteration(1))
        await world.report(world.job("RUNNING"))
        await world.ticks(5)
        assert await world.decisions() == []
        await world.report(world.job("COMPLETED"))
        await world.ticks(8)
        found = await world.decisions()
        assert [(d.advice.action, d.advice.reason) for d in found] == [(common_pb2.ACTION_NONE, "completed")]


async def test_the_next_attempts_lines_never_count_for_the_last_one(folder: Path) -> None:
    """Attempt 1 truncates the log of attempt 0: evidence of 0 stays, 1 starts clean, and neither sees the other's."""
    async with world_of(folder) as world:
        await world.fail_on_node2()
        advice = next(a for a in await world.advice_where(_restart_without_node2) if a.exclude_nodes)
        await world.ticks(10)  # the log's grace time is over: it was read to its end
        world.log().write_text("successfully loaded checkpoint from /ckpt at iteration 12\n" + iteration(15))
        await world.report(world.job("RUNNING", attempt=1))
        await world.ticks(3)
        with world.log().open("a") as file:
            file.write("RuntimeError: CUDA error: an illegal memory access was encountered\n")
            file.write(iteration(16))
            file.write(iteration(25))
        await world.ticks(5)
        first, second = [
            await world.audit.GetAttempt(audit_pb2.GetAttemptRequest(cluster=CLUSTER, job_id="17", attempt=number))
            for number in (0, 1)
        ]
        assert (first.first_step, first.last_step) == (1, 19)
        assert (second.resumed_step, second.first_step, second.last_step) == (12, 15, 25)
        decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
        assert not any("illegal memory" in item.text for item in decision.advice.evidence)
        reached = {item.kind: item.detail for item in decision.milestones}
        assert common_pb2.MILESTONE_KIND_FIRST_PROGRESS in reached
        assert reached[common_pb2.MILESTONE_KIND_CAUGHT_UP] == "steps lost: 7"


async def test_a_missing_log_is_told_and_never_means_healthy(folder: Path) -> None:
    """The log cannot be read: the failure is still decided, and the decision says which source was absent."""
    async with world_of(folder) as world:
        await world.report(world.job("RUNNING"))
        await world.ticks(2)
        await world.report(world.job("FAILED"))
        advice = (await world.advice_where(bool))[0]
        decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=advice.advice_id))
        assert "missing" in json.dumps(json.loads(decision.analysis_json)["attribution"]["sources"])


class PoisonedSource:
    """Serves job 13 what breaks its tick; for the others it has nothing, or fails as a whole."""

    name = "poison"
    trust = Trust.LOG

    def __init__(self, how: str) -> None:
        self._how = how

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        if self._how == "raises":
            raise KeyError("a defect")
        return {request.key: self._batch(request) for request in requests}

    def _batch(self, request: LogRequest) -> LogBatch:
        if request.job_id != "13":
            return LogBatch(chunks=(), cursor="1")
        if self._how == "cannot be stored":
            return LogBatch(chunks=(), cursor="\ud83d\ude00")
        broken: bytes = None  # type: ignore[assignment]  # what no connector may give
        return LogBatch(chunks=(LogChunk(file="/x", offset=0, data=broken),), cursor="1")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(("how", "failed_jobs"), [("cannot be scanned", 1), ("cannot be stored", 1), ("raises", 0)])
async def test_one_jobs_broken_tick_stops_no_other(folder: Path, how: str, failed_jobs: int) -> None:
    """What breaks while looking at one job is counted, and the job beside it still gets its advice."""

    def sources(config: Config, clock: Clock) -> Sequence[LogSource]:
        return (*own_sources(config, clock), PoisonedSource(how))

    async with world_of(folder, make_sources=sources) as world:
        await world.report(world.job("RUNNING", job="13"))
        await world.fail_on_node2()
        advice = await world.advice_where(_restart_without_node2)
        assert "17" in {a.attempt.job_id for a in advice}
        assert world.running.board.pulse.failed_jobs == failed_jobs


async def test_bad_observations_are_refused_by_place_and_the_good_ones_count(folder: Path) -> None:
    """One line per refused observation; the rest of the report is recorded."""
    async with world_of(folder) as world:
        bad = world.job("RUNNING", job="18")
        bad.nodes.append("../etc")
        answer = await world.report(world.job("RUNNING"), bad)
        assert answer.accepted == 1
        assert answer.refused[0].startswith("jobs[1].nodes[4]")


async def test_a_report_that_is_refused_is_forgotten_at_once(folder: Path) -> None:
    """Garbage is looked for seldom, and a hundred reports of megabytes are refused meanwhile: nothing holds them."""
    async with world_of(folder) as world:
        await world.report(world.job("RUNNING"))
        jobs = [world.job("RUNNING", job=f"{1000 + at}", name="x" * 400) for at in range(2_000)]
        bad = agent_pb2.ReportObservationsRequest(cluster=CLUSTER, session=world.session, jobs=jobs, listed=["17"])
        gc.collect()
        gc.disable()
        try:
            before = _memory_mb()
            for _ in range(100):
                with pytest.raises(grpc.aio.AioRpcError, match="listed"):
                    await world.agent.ReportObservations(bad)
            assert _memory_mb() - before < 80
        finally:
            gc.enable()


def _memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def test_a_job_is_not_started_beside_one_that_waited_for_its_end(folder: Path) -> None:
    """The dependent job works on what the failed one left: nothing is advised, also not when it is done."""
    async with world_of(folder) as world:
        await world.report(world.job("PENDING", job="18", waits_for=["17"]))
        await world.report(world.job("RUNNING"))
        await world.report(world.job("FAILED"), world.job("RUNNING", job="18", started=now()))
        newest: list[str] = []
        async with asyncio.timeout(20):
            while newest[:1] != ["successor_running"]:
                newest = [item.advice.reason for item in await world.decisions(job_id="17")]
        await world.report(world.job("COMPLETED", job="18"))
        await world.ticks(3)
        assert {item.advice.action for item in await world.decisions(job_id="17")} == {common_pb2.ACTION_NONE}


async def test_a_job_that_no_part_of_a_long_listing_holds_is_forgotten(folder: Path) -> None:
    """It ran when it was last seen, and nobody will ever see how it ended: it is no longer watched."""
    async with world_of(folder) as world:
        await world.report(world.job("RUNNING"), world.job("RUNNING", job="18"))
        await world.ticks(2)
        assert world.running.board.pulse.watched == 2
        await world.report(world.job("RUNNING", job="18"))
        await world.report(world.job("RUNNING", job="19"), complete=True, listed=["18", "19"])
        await world.ticks(2)
        assert world.running.board.pulse.watched == 2
        await world.report(world.job("RUNNING", job="19"), complete=True)
        await world.ticks(2)
        assert world.running.board.pulse.watched == 1


@pytest.mark.parametrize(
    ("method", "request_message", "place"),
    [
        ("Register", agent_pb2.RegisterRequest(cluster="a b", mode=agent_pb2.AGENT_MODE_ACT), "cluster"),
        ("Register", agent_pb2.RegisterRequest(cluster="c"), "mode"),
        ("ReportReconciliation", agent_pb2.ReportReconciliationRequest(cluster="c"), "attempt.job_id"),
        (
            "ReportObservations",
            agent_pb2.ReportObservationsRequest(cluster="c", complete=True, listed=["1", "../1"]),
            r"listed\[1\]",
        ),
        ("ReportObservations", agent_pb2.ReportObservationsRequest(cluster="c", listed=["1"]), "listed: only"),
        (
            "ReportMilestones",
            agent_pb2.ReportMilestonesRequest(
                cluster="c", milestones=[agent_pb2.Milestone(attempt=common_pb2.AttemptRef(job_id="1"))]
            ),
            r"milestones\[0\].kind",
        ),
    ],
)
async def test_bad_messages_are_located(folder: Path, method: str, request_message: object, place: str) -> None:
    """INVALID_ARGUMENT, beginning with the field that is wrong."""
    async with world_of(folder) as world:
        with pytest.raises(grpc.aio.AioRpcError, match=place) as caught:
            await getattr(world.agent, method)(request_message)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_lists_refuse_what_they_cannot_answer(folder: Path) -> None:
    """A foreign cursor and an oversized page are bad input; an unknown id is not found."""
    async with world_of(folder) as world:
        for request in (
            audit_pb2.ListDecisionsRequest(page=audit_pb2.Page(cursor="not ours")),
            audit_pb2.ListDecisionsRequest(page=audit_pb2.Page(page_size=251)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await world.audit.ListDecisions(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id="0" * 32))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_status_tells_ticks_sources_and_the_agent(folder: Path) -> None:
    """What doctor shows: ticks go on, sources answer, the agent was seen."""
    async with world_of(folder) as world:
        world.log().write_text("hello\n")
        await world.report(world.job("RUNNING"))
        await world.ticks(3)
        status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
        assert status.ticks >= 3
        assert status.watched_jobs == 1
        assert {source.name for source in status.sources} == {"job-output", "kernel"}
        assert [(agent.cluster, agent.mode) for agent in status.agents] == [(CLUSTER, "act")]


async def test_a_second_service_on_the_same_socket_is_refused(folder: Path) -> None:
    """It ends with one sentence and disturbs neither the first service nor its database."""
    async with world_of(folder) as world:
        with pytest.raises(StartError, match="served already"):
            await Service(configuration(folder), make_sources=own_sources).__aenter__()
        await world.ticks(2)


async def test_keepalives_carry_the_tick_age(folder: Path) -> None:
    """With nothing changing, messages still come at least every second and say how old the last tick is."""
    async with world_of(folder) as world:
        await world.ticks(1)
        stream = world.agent.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=CLUSTER, session=world.session))
        messages = [await stream.read() for _ in range(4)]
        async with asyncio.timeout(WAIT_SECONDS):
            while messages[-1].ticks == messages[0].ticks:
                messages.append(await stream.read())
        stream.cancel()
        assert all(message.tick_age.ToTimedelta().total_seconds() < 2 for message in messages)


async def test_a_flood_of_small_jobs_never_hides_a_training_job(folder: Path) -> None:
    """Where more attempts run than one tick looks at, jobs in scope come first, and each user's largest; how many are
    left out is said once in the log, and by whoever is asked."""
    config = configuration(folder)
    config = config.model_copy(update={"tick": config.tick.model_copy(update={"attempts_max": 4})})
    async with world_of(folder, config) as world:
        world.log().write_text(iteration(1))
        await world.report(world.job("RUNNING"))  # the oldest of all
        flood = []
        for number, (user, in_scope) in enumerate((("carol", False), ("dave", True)) * 6):
            ref = common_pb2.AttemptRef(
                cluster=CLUSTER, job_id=str(100 + number), submitted_at=stamp(world.submitted), user=user
            )
            small = world.job("RUNNING", job=str(100 + number), nodes=["node4"], nodes_requested=1, in_scope=in_scope)
            small.attempt.CopyFrom(ref)
            flood.append(small)
        with structlog.testing.capture_logs() as logs:
            await world.report(*flood)
            await world.ticks(4)
        assert world.running.board.pulse.watched == 4
        said = [
            (line["watched"], line["unwatched"], line["most"]) for line in logs if line["event"] == "attempts_capped"
        ]
        assert said == [(4, 9, 4)]
        status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
        assert (status.watched_jobs, status.unwatched_jobs) == (4, 9)
        await world.fail_on_node2()
        await world.advice_where(_restart_without_node2)
