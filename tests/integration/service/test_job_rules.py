"""Log rules that jobs and the site bring, in the whole service: what they say becomes advice, what is wrong is told."""

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from advisor.core import codec
from advisor.replay import Packed, reproduce
from advisor.v1 import audit_pb2, common_pb2, operator_pb2
from tests.integration.service.world import World, configuration, now, world_of

pytestmark = pytest.mark.postgres

STEP = {"name": "steps", "logPattern": r".*iteration +\d+/", "expectedRecurringFrequencyInSeconds": 3}
FAULT = {"name": "burst", "logPattern": ".*flux capacitor burst", "faultOnMatch": True}
SLOW = {"name": "speed", "logPattern": r".*iteration \(ms\): (\S+)", "metricThreshold": 500, "operator": "gt"}


@asynccontextmanager
async def world_with(folder: Path, site: Sequence[Any] | None = None) -> AsyncIterator[World]:
    """A service with a policy that does not wait for slower facts."""
    policy = folder / "policy.toml"
    policy.write_text("[settle_seconds]\nunknown = 0.2\n")
    text = f'policy_file = "{policy}"'
    if site is not None:
        (folder / "site.json").write_text(json.dumps(site))
        text += f'\njob_rules_file = "{folder}/site.json"'
    async with world_of(folder, configuration(folder, text)) as world:
        yield world


def rules_file(folder: Path, rules: Any) -> str:
    path = folder / "rules.json"
    path.write_text(json.dumps(rules))
    return str(path)


def steps(first: int, last: int, milliseconds: int = 100) -> str:
    return "".join(
        f"iteration {step:>8}/ 1000 | elapsed time per iteration (ms): {milliseconds} | loss: 1.0\n"
        for step in range(first, last)
    )


def _restart(open_advice: Sequence[common_pb2.Advice]) -> bool:
    return any(advice.action == common_pb2.ACTION_RESTART for advice in open_advice)


async def newest(world: World) -> dict[str, Any]:
    """The newest decision's document, after it was reproduced byte for byte from its stored inputs."""
    listed = (await world.decisions())[0]
    inputs = await world.audit.GetDecisionInputs(
        audit_pb2.GetDecisionInputsRequest(decision_id=listed.advice.advice_id)
    )
    packed = Packed(inputs=inputs.inputs, rules=inputs.rules, policy=inputs.policy)
    assert codec.encode(reproduce(packed)) == inputs.decision
    decision = await world.audit.GetDecision(audit_pb2.GetDecisionRequest(decision_id=listed.advice.advice_id))
    document: dict[str, Any] = json.loads(decision.analysis_json)
    return document


async def decided(world: World, incident: str) -> dict[str, Any]:
    """The newest decision's document, once it is about such an incident."""
    for _ in range(60):
        if await world.decisions():
            document = await newest(world)
            if document["incident"]["kind"] == incident:
                return document
        await world.ticks(1)
    raise AssertionError(f"no decision about a {incident}")


async def test_a_job_that_breaks_its_own_rule_by_silence_is_restarted(folder: Path) -> None:
    """Its line does not come again in the time that it set: a hang at once, ended long before any general limit."""
    async with world_with(folder) as world:
        world.log().write_text(steps(1, 20))
        await world.report(world.job("RUNNING", job_rules=rules_file(folder, [STEP])))
        advice = next(a for a in await world.advice_where(_restart) if a.action == common_pb2.ACTION_RESTART)
        assert advice.may_end_live_attempt
        assert list(advice.exclude_nodes) == []
        document = await newest(world)
        assert document["incident"]["kind"] == "hang"
        assert "rule 1 (steps): its line has not come again in 3 s" in document["attribution"]["root_cause"]
        evidence = document["attribution"]["evidence"][0]
        assert (evidence["rule"], evidence["file"], evidence["line"]) == ("job.hang", str(world.log()), 19)


async def test_a_hang_is_over_when_the_line_comes_again(folder: Path) -> None:
    """The restart is taken back: what a rule says is found anew at every tick."""
    async with world_with(folder) as world:
        world.log().write_text(steps(1, 20))
        await world.report(world.job("RUNNING", job_rules=json.dumps([STEP])))
        await world.advice_where(_restart)
        with world.log().open("a") as file:
            file.write(steps(20, 21))
        await world.advice_where(lambda advice: not _restart(advice))


async def test_a_suspended_job_keeps_its_rules_waiting(folder: Path) -> None:
    """While the attempt is suspended nobody waits for its lines."""
    async with world_with(folder) as world:
        world.log().write_text(steps(1, 20))
        rules = rules_file(folder, [STEP])
        await world.report(world.job("RUNNING", job_rules=rules))
        await world.ticks(3)
        await world.report(world.job("SUSPENDED", job_rules=rules))
        for _ in range(25):
            await world.ticks(1)
        await world.report(world.job("RUNNING", job_rules=rules))
        await world.ticks(3)
        assert all(item.advice.action != common_pb2.ACTION_RESTART for item in await world.decisions())


async def test_a_fault_line_of_a_live_job_waits_for_its_exit(folder: Path) -> None:
    """It is shown at once as the job's own words; the exit decides, and then the job is restarted."""
    async with world_with(folder) as world:
        world.log().write_text(steps(1, 20) + "rank 3: flux capacitor burst\n")
        rules = rules_file(folder, {"logMonitoringConfiguration": [FAULT]})
        await world.report(world.job("RUNNING", job_rules=rules))
        document = await decided(world, "crash")
        assert document["advice"]["reason"] == "awaiting_exit"
        assert document["attribution"]["evidence"][0]["text"].endswith("came: rank 3: flux capacitor burst")
        await world.report(world.job("FAILED", job_rules=rules))
        await world.advice_where(_restart)
        assert (await newest(world))["attribution"]["evidence"][0]["rule"] == "job.fault"


@pytest.mark.parametrize("of_site", [False, True])
async def test_a_slow_job_opens_an_incident_by_its_own_rule_only(folder: Path, of_site: bool) -> None:
    """Slow by its own words: advice for the next checkpoint. What is too slow for a job, no rule of the site says."""
    async with world_with(folder, site=[SLOW, FAULT] if of_site else None) as world:
        lines = steps(1, 20, 100) + steps(20, 25, 900)
        world.log().write_text(lines + ("flux capacitor burst\n" if of_site else ""))
        await world.report(world.job("RUNNING", job_rules="" if of_site else json.dumps([SLOW])))
        if of_site:  # the site's rules are at work, and only the fault is told
            document = await decided(world, "crash")
            assert [item["rule"] for item in document["attribution"]["evidence"]] == ["job.fault"]
            return
        document = await decided(world, "straggler")
        assert document["advice"]["reason"] == "next_checkpoint"
        assert "value 900 is gt 500" in document["attribution"]["root_cause"]


async def test_a_sites_rule_shows_a_hang_but_ends_nothing(folder: Path) -> None:
    """What is silence for all jobs alike is not for one rule to say: the general limit still decides."""
    async with world_with(folder, site=[STEP]) as world:
        world.log().write_text(steps(1, 20))
        await world.report(world.job("RUNNING"))
        document = await decided(world, "hang")
        assert document["advice"]["reason"] == "awaiting_exit"
        await world.ticks(5)
        assert all(item.advice.action != common_pb2.ACTION_RESTART for item in await world.decisions())


async def test_a_bad_rule_is_told_and_the_others_work(folder: Path) -> None:
    """With its place and key, in the status and in the decision's sources."""
    async with world_with(folder) as world:
        world.log().write_text(steps(1, 20) + "flux capacitor burst\n")
        path = rules_file(folder, [{"name": "broken", "logPattern": r"(a)\1"}, FAULT])
        await world.report(world.job("RUNNING", job_rules=path))
        document = await decided(world, "crash")
        told = document["attribution"]["sources"]["job-rules"]
        assert len(told["problems"]) == 1
        assert told["problems"][0].startswith(f"{path}: rule 1 (broken): logPattern: ")
        status = await world.operator.GetStatus(operator_pb2.GetStatusRequest())
        source = next(item for item in status.sources if item.name == "job-rules")
        assert (source.available, source.reason) == (True, "garbled")
        assert source.detail.startswith(f"1 of 1 attempts: {path}: rule 1 (broken): logPattern: ")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("fifo", "not_regular: "),
        ("foreign", "permission: "),
        ("huge", "limit: "),
        ("missing", "missing: "),
        ("relative", "the job's comment: must be a list of rules, found 'rules.json'"),
        ("backtracking", ""),
    ],
)
async def test_hostile_rules_cost_nothing(folder: Path, how: str, told: str) -> None:
    """Whatever the path leads to, ticks go on, the job is watched as any other, and its owner is told."""
    path = folder / "rules.json"
    if how == "fifo":
        os.mkfifo(path)
    elif how == "foreign":
        path = Path("/etc/hostname") if os.geteuid() else path
        if not os.geteuid():
            path.write_text("[]")
            os.chown(path, 12345, 12345)
    elif how == "huge":
        path.write_bytes(b" " * (300 << 10))
    elif how == "backtracking":
        path.write_text(json.dumps([{"name": "slow", "logPattern": "(a+)+$", "faultOnMatch": True}]))
    async with world_with(folder) as world:
        world.log().write_text(steps(1, 20) + ("a" * 50_000 + "!\n") * 20)
        rules = '"rules.json"' if how == "relative" else str(path)
        await world.report(world.job("RUNNING", job_rules=rules))
        await world.ticks(3)
        assert world.running.board.pulse.failed_jobs == 0
        assert world.running.board.pulse.took_seconds < 1.0
        ended = now()
        await world.report(world.job("FAILED", job_rules=rules, ended_at=None))
        assert now() - ended < timedelta(seconds=5)
        await world.advice_where(_restart)
        problems = (await newest(world))["attribution"]["sources"]["job-rules"]["problems"]
        assert [problem.startswith(told) for problem in problems] == ([True] if told else [])


async def test_what_rules_have_seen_outlives_the_service(folder: Path) -> None:
    """A service that takes over goes on counting from the last line, and needs no new one to find the hang."""
    rules = rules_file(folder, [{**STEP, "expectedRecurringFrequencyInSeconds": 6}])
    async with world_with(folder) as world:
        submitted = world.submitted
        world.log().write_text(steps(1, 20))
        await world.report(world.job("RUNNING", job_rules=rules))
        await world.ticks(5)
        assert not await world.decisions()
    policy = f'policy_file = "{folder}/policy.toml"'
    async with world_of(folder, configuration(folder, policy), submitted=submitted) as world:
        await world.report(world.job("RUNNING", job_rules=rules))
        await world.advice_where(_restart)
        assert (await newest(world))["attribution"]["evidence"][0]["line"] == 19
