"""The whole agent between a scripted Slurm and a fake advisor: level-triggered on both sides."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from advisor.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from slurm_plugin import apply, mark, tick_file, wire
from slurm_plugin.agent import ALL_NODES_SECONDS, COMPLETE_REPORT_SECONDS, Agent
from slurm_plugin.applier import Apply
from slurm_plugin.config import AgentConfig, SlurmSection
from slurm_plugin.hook_socket import HookSocket, HookSocketError
from slurm_plugin.hook_watch import SILENT_ENDS
from slurm_plugin.looks import NODES_SECONDS
from slurm_plugin.reconciler import ATTENDED_MAX
from slurm_plugin.squeue import Output, Slurm, SlurmError
from slurm_plugin.tender import CONFIRM_SECONDS
from slurm_plugin.unreported import ASKED_SECONDS
from slurm_plugin.words import Reason, Status
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm
from tests.unit.slurm_plugin.test_backfill import Sacct

APPLIED = common_pb2.RECONCILIATION_STATUS_APPLIED
VERIFIED = common_pb2.RECONCILIATION_STATUS_VERIFIED
WITHHELD = common_pb2.RECONCILIATION_STATUS_WITHHELD
SLURM = 64030  # SlurmUser, as whom the agent runs


@dataclass
class FakeAdvisor(agent_pb2_grpc.AgentServiceServicer):
    """Keeps everything it hears; sends all open advice on every change."""

    registered: list[agent_pb2.RegisterRequest] = field(default_factory=list)
    reports: list[agent_pb2.ReportObservationsRequest] = field(default_factory=list)
    reconciled: list[agent_pb2.ReportReconciliationRequest] = field(default_factory=list)
    milestones: list[agent_pb2.Milestone] = field(default_factory=list)
    advice: list[common_pb2.Advice] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    incarnation: str = "i"
    scheduler_rpcs: int = 0
    working_in: Callable[[], None] = lambda: None  # called while it takes a report
    beats: list[agent_pb2.HeartbeatRequest] = field(default_factory=list)
    server: Any = None

    async def start(self, path: Path) -> None:
        self.server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{path}")
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop(0)

    def advise(self, *advice: common_pb2.Advice) -> None:
        self.advice = list(advice)
        self.changed.set()

    async def Register(self, request: agent_pb2.RegisterRequest, context: Any) -> agent_pb2.RegisterResponse:  # noqa: N802
        self.registered.append(request)
        return agent_pb2.RegisterResponse(session="s", incarnation="i", keepalive=wire.duration(0.5))

    async def Heartbeat(self, request: agent_pb2.HeartbeatRequest, context: Any) -> agent_pb2.HeartbeatResponse:  # noqa: N802
        self.scheduler_rpcs = request.scheduler_rpcs
        self.beats.append(request)
        return agent_pb2.HeartbeatResponse(incarnation=self.incarnation, tick_age=wire.duration(0.25), ticks=7)

    async def ReportObservations(  # noqa: N802
        self, request: agent_pb2.ReportObservationsRequest, context: Any
    ) -> agent_pb2.ReportObservationsResponse:
        self.reports.append(request)
        self.working_in()
        return agent_pb2.ReportObservationsResponse(accepted=len(request.jobs))

    async def WatchAdvice(  # noqa: N802
        self, request: agent_pb2.WatchAdviceRequest, context: Any
    ) -> AsyncIterator[agent_pb2.WatchAdviceResponse]:
        while True:
            self.changed.clear()
            yield agent_pb2.WatchAdviceResponse(
                incarnation=self.incarnation, open=self.advice, tick_age=wire.duration(0.25), ticks=7
            )
            try:
                async with asyncio.timeout(0.2):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def ReportReconciliation(  # noqa: N802
        self, request: agent_pb2.ReportReconciliationRequest, context: Any
    ) -> agent_pb2.ReportReconciliationResponse:
        self.reconciled.append(request)
        return agent_pb2.ReportReconciliationResponse()

    async def ReportMilestones(  # noqa: N802
        self, request: agent_pb2.ReportMilestonesRequest, context: Any
    ) -> agent_pb2.ReportMilestonesResponse:
        self.milestones.extend(request.milestones)
        return agent_pb2.ReportMilestonesResponse()

    def jobs(self) -> list[agent_pb2.JobObservation]:
        return [job for report in self.reports for job in report.jobs]

    def statuses(self) -> list[int]:
        return [item.status for item in self.reconciled]


def advice(**changes: Any) -> common_pb2.Advice:
    made = common_pb2.Advice(
        advice_id="a1",
        incarnation="i",
        attempt=common_pb2.AttemptRef(
            job_key="k", cluster="c", job_id="17", attempt=0, submitted_at=wire.stamp(1000), user="alice"
        ),
        generation=1,
        action=common_pb2.ACTION_RESTART,
        exclude_nodes=["node2"],
        mode=common_pb2.MODE_AUTONOMOUS,
        time_to_live=wire.duration(60),
    )
    for key, value in changes.items():
        setattr(made, key, value)
    return made


@dataclass
class Bench:
    """One agent, restartable, with its world."""

    folder: Path
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    advisor: FakeAdvisor = field(default_factory=FakeAdvisor)
    mode: str = "act"
    accounting: Sacct | None = None
    carry_out: Apply | None = None
    user_id: int = SLURM
    _running: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def config(self) -> AgentConfig:
        return AgentConfig(
            cluster="c",
            socket=str(self.folder / "a.sock"),
            tick_file=str(self.folder / "tick.json"),
            hook_socket=str(self.folder / "hook.sock"),
            mode=self.mode,
            stop_file=str(self.folder / "stop"),
            poll_seconds=0.05,
            slurm=SlurmSection(),
        )

    async def _apply(self, request: apply.Request, withdrawn: asyncio.Event) -> apply.Result:
        clocks = apply.Clocks(wall=lambda: self.slurm.now)
        return await asyncio.to_thread(apply.carry_out, request, self.slurm, clocks, withdrawn.is_set)

    def start(self, clock: "WorldClock | None" = None) -> Agent:
        self._stop = asyncio.Event()
        clock = clock or WorldClock(self.slurm)
        agent = Agent(
            self.config,
            Slurm(run=self.slurm),
            accounting=Slurm(run=self.accounting) if self.accounting is not None else None,
            apply=self.carry_out or self._apply,
            clock=clock,
            scheduler_rpcs=lambda: 41,
            user_id=self.user_id,
        )
        self._running = asyncio.create_task(agent.run(self._stop))
        return agent

    async def stop(self) -> None:
        self._stop.set()
        if self._running is not None:
            await self._running
        self._running = None


@dataclass
class WorldClock:
    """Wall time of the scripted Slurm, everything else real; `later` for what was slept through."""

    slurm: FakeSlurm
    later: float = 0.0

    def wall(self) -> float:
        return self.slurm.now

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.later

    def boot(self) -> float:
        return 77.0


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="agent-"))  # short: a socket's path has at most 107 bytes
    made = Bench(folder)
    await made.advisor.start(folder / "a.sock")
    yield made
    if made._running is not None:
        await made.stop()
    await made.advisor.stop()
    shutil.rmtree(folder)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.01)


async def test_a_failed_job_is_reported_restarted_and_verified(bench: Bench) -> None:
    """Observation, advice, two verbs, APPLIED, VERIFIED, and milestones up to running."""
    job = bench.slurm.add(FakeJob(comment='{"advisor": {"rules": "/home/alice/rules.json"}}'))
    bench.start()
    await until(bench.advisor.jobs)
    seen = bench.advisor.jobs()[0]
    assert seen.job_rules == "/home/alice/rules.json"
    assert seen.state == common_pb2.ATTEMPT_STATE_FAILED
    assert (seen.exit.code, list(seen.nodes), seen.in_scope) == (5, ["node1", "node2"], True)
    assert (seen.stdout_path, seen.nodes_fitting) == ("/home/alice/out-17.log", 4)
    bench.advisor.advise(advice())
    await until(lambda: VERIFIED in bench.advisor.statuses())
    assert bench.advisor.statuses() == [APPLIED, VERIFIED]
    assert (job.state, job.restarts, job.excluded, bench.slurm.requeues) == ("PENDING", 1, "node2", 1)
    bench.slurm.now = 1210.0
    bench.slurm.started(job)
    await until(lambda: len(bench.advisor.milestones) == 5)
    names = [common_pb2.MilestoneKind.Name(item.kind)[15:] for item in bench.advisor.milestones]
    assert names == ["REQUEUE_ACCEPTED", "UPDATE_ACCEPTED", "NODES_RELEASED", "ELIGIBLE", "RUNNING"]
    assert {item.attempt.attempt for item in bench.advisor.milestones} == {0}


async def test_exclusions_given_back_after_a_restart_are_told_of_the_advice_that_set_them(bench: Bench) -> None:
    """The advice is closed and another agent set them: a node goes, so does the least certain, and it is said."""
    ours = mark.Mark(job="k", attempt=0, generation=2, nodes=("node2", "node3"), advice="a7", incarnation="i")
    job = FakeJob(state="PENDING", restarts=1, submit=1195, eligible=1201, end=None, nodes="", excluded="node2,node3")
    job.admin_comment = mark.render(ours)
    bench.slurm.add(job)
    clock = WorldClock(bench.slurm)
    bench.start(clock)
    await until(bench.advisor.jobs)
    assert bench.slurm.verbs == []
    bench.slurm.nodes["node4"] = "drained"
    clock.later = NODES_SECONDS
    drained = agent_pb2.NODE_STATE_DRAINED
    await until(lambda: any(node.state == drained for report in bench.advisor.reports for node in report.nodes))
    clock.later += CONFIRM_SECONDS
    await until(bench.advisor.reconciled.__len__)
    said = bench.advisor.reconciled[0]
    assert (said.advice_id, said.attempt.job_key, said.attempt.attempt, said.generation) == ("a7", "k", 0, 2)
    assert (said.status, said.reason) == (VERIFIED, common_pb2.RECONCILIATION_REASON_CAPACITY)
    assert (job.excluded, list(said.dropped_nodes), list(said.excluded_nodes)) == ("node2", ["node3"], ["node2"])


async def test_nothing_is_done_twice_after_a_restart(bench: Bench) -> None:
    """All that the agent knows it sees again, our mark included."""
    job = bench.slurm.add(FakeJob())
    bench.advisor.advise(advice())
    bench.start()
    await until(lambda: VERIFIED in bench.advisor.statuses())
    await bench.stop()
    verbs = list(bench.slurm.verbs)
    bench.advisor.reconciled.clear()
    bench.start()
    await until(lambda: VERIFIED in bench.advisor.statuses())
    assert (bench.slurm.verbs, job.restarts) == (verbs, 1)


async def test_death_between_requeue_and_update(bench: Bench) -> None:
    """The restarted agent sees the successor without our mark and only updates."""
    job = bench.slurm.add(FakeJob(state="PENDING", restarts=1, submit=1195, eligible=1201, end=None, nodes=""))
    bench.advisor.advise(advice())
    bench.start()
    await until(lambda: VERIFIED in bench.advisor.statuses())
    assert (bench.slurm.requeues, job.excluded) == (0, "node2")


async def test_observe_mode_touches_nothing(bench: Bench) -> None:
    """The agent's own mode wins over autonomous advice."""
    bench.mode = "observe"
    bench.slurm.add(FakeJob())
    bench.advisor.advise(advice())
    bench.start()
    await until(bench.advisor.reconciled.__len__)
    assert bench.advisor.reconciled[0].reason == common_pb2.RECONCILIATION_REASON_AGENT_OBSERVES
    assert bench.slurm.verbs == []
    assert bench.advisor.registered[0].mode == agent_pb2.AGENT_MODE_OBSERVE


async def test_reconnects_and_says_everything_again(bench: Bench) -> None:
    """The advisor goes and comes back: a complete report, and advice that waited is applied."""
    job = bench.slurm.add(FakeJob())
    bench.start()
    await until(bench.advisor.jobs)
    await bench.advisor.stop()
    second = FakeAdvisor()
    second.advise(advice())
    job.reason = "changed meanwhile"
    await second.start(bench.folder / "a.sock")
    bench.advisor = second
    await until(lambda: VERIFIED in second.statuses())
    assert second.reports[0].complete
    assert [seen.attempt.job_id for seen in second.reports[0].jobs] == ["17"]


async def test_a_requeue_in_progress_is_the_ending_of_the_old_attempt(bench: Bench) -> None:
    """Slurm counts up at once and rewrites the submit time late; an attempt must not exist twice."""
    job = bench.slurm.add(FakeJob(state="RUNNING", end=None))
    bench.advisor.advise(advice(may_end_live_attempt=True))
    bench.start()
    await until(lambda: APPLIED in bench.advisor.statuses())
    await until(lambda: bench.advisor.jobs()[-1].state == common_pb2.ATTEMPT_STATE_COMPLETING)
    last = bench.advisor.jobs()[-1]
    assert (last.attempt.attempt, last.attempt.submitted_at.seconds) == (0, 1000)
    assert list(last.nodes) == ["node1", "node2"]
    bench.slurm.released(job)
    await until(lambda: VERIFIED in bench.advisor.statuses())
    assert bench.advisor.jobs()[-1].attempt.attempt == 1
    assert bench.advisor.statuses() == [APPLIED, VERIFIED]


async def test_a_hook_is_told_at_once_and_followed_until_the_outcome_shows(bench: Bench) -> None:
    """First "it has ended", then how."""
    job = bench.slurm.add(FakeJob(state="RUNNING", end=None))
    agent = bench.start()
    await until(lambda: agent._sent)  # the advisor has taken it, and the agent knows that
    job.state, job.end = "COMPLETING", 1200
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hook:
        notice = {"SLURM_JOB_ID": "17", "SLURM_JOB_RESTART_COUNT": "0"}
        hook.sendto(json.dumps(notice).encode(), str(bench.folder / "hook.sock"))
    await until(lambda: any(seen.notice == agent_pb2.NOTICE_HOOK for seen in bench.advisor.jobs()))
    job.state = "FAILED"
    await until(lambda: bench.advisor.jobs()[-1].state == common_pb2.ATTEMPT_STATE_FAILED)
    told = next(seen for seen in bench.advisor.jobs() if seen.notice == agent_pb2.NOTICE_HOOK)
    assert told.state == common_pb2.ATTEMPT_STATE_COMPLETING
    assert told.HasField("ended_at")


async def test_slurm_that_does_not_answer_is_unavailable_never_no_jobs(bench: Bench) -> None:
    """Nothing is reported as gone, and nothing is done."""
    bench.slurm.add(FakeJob())
    bench.start()
    await until(bench.advisor.jobs)

    def silent(argv: Sequence[str]) -> None:
        raise SlurmError("timeout", "no answer in 5 s")

    bench.slurm.before = silent
    bench.advisor.reports.clear()
    bench.advisor.advise(advice())
    await until(lambda: bench.advisor.reports and bench.advisor.reports[-1].unavailable)
    last = bench.advisor.reports[-1]
    assert (last.unavailable[0].reason, last.complete, len(last.jobs)) == ("timeout", False, 0)
    assert bench.slurm.verbs == []


async def test_an_empty_listing_is_not_believed_at_once(bench: Bench) -> None:
    """A controller that lost its jobs for a moment, or hides them, must not make the advisor forget them."""
    bench.slurm.add(FakeJob(state="RUNNING", end=None))
    agent = bench.start()
    await until(lambda: any(report.complete for report in bench.advisor.reports))
    hidden = bench.slurm.jobs.pop("17")
    await until(lambda: agent.looks.looked and not agent.looks.rows)
    agent._complete_due = 0.0
    before = len(bench.advisor.reports)
    await asyncio.sleep(0.5)
    assert not any(report.complete for report in bench.advisor.reports[before:])
    bench.slurm.add(hidden)
    await until(lambda: any(report.complete and report.jobs for report in bench.advisor.reports[before:]))
    assert not any(report.complete and not report.jobs for report in bench.advisor.reports)


async def test_all_nodes_are_told_once_a_minute_and_meanwhile_those_that_change(bench: Bench) -> None:
    """There are ten times as many as jobs, and nearly none changes. Who begins to listen anew hears of all."""
    clock = WorldClock(bench.slurm)
    agent = bench.start(clock)

    async def told_after(seconds: float) -> list[str]:
        """Nodes of two complete reports after so long: the first may have been on its way."""
        before = len(bench.advisor.reports)
        for later in (seconds, COMPLETE_REPORT_SECONDS):
            clock.later += later
            known = len(bench.advisor.reports)
            await until(lambda known=known: any(report.complete for report in bench.advisor.reports[known:]))
        return sorted({node.name for report in bench.advisor.reports[before:] for node in report.nodes})

    everyone = sorted(bench.slurm.nodes)
    bench.slurm.add(FakeJob(state="RUNNING", end=None))
    await until(lambda: any(report.complete and report.nodes for report in bench.advisor.reports))
    assert await told_after(COMPLETE_REPORT_SECONDS) == []
    one = everyone[0]
    bench.slurm.nodes[one] = "DRAIN"
    assert await told_after(COMPLETE_REPORT_SECONDS) == [one]
    assert await told_after(ALL_NODES_SECONDS) == everyone
    assert await told_after(COMPLETE_REPORT_SECONDS) == []
    agent.connected()
    assert await told_after(COMPLETE_REPORT_SECONDS) == everyone


async def test_who_begins_to_listen_anew_while_a_report_is_under_way_hears_of_all_nodes(bench: Bench) -> None:
    """What was told to whoever listened before says nothing of what the other one knows."""
    agent = bench.start(WorldClock(bench.slurm))
    bench.slurm.add(FakeJob(state="RUNNING", end=None))

    def whole() -> int:
        return sum(report.complete and len(report.nodes) == len(bench.slurm.nodes) for report in bench.advisor.reports)

    def meanwhile() -> None:
        if whole() == 1:
            bench.advisor.working_in = lambda: None
            agent.connected()

    bench.advisor.working_in = meanwhile
    await until(lambda: whole() == 2)


async def test_a_listing_too_long_for_one_report_is_complete_in_its_last_part(bench: Bench) -> None:
    """Only the last part says so, and names every job of the listing, an array's task by its task."""
    for number in ("17", "18", "19"):
        bench.slurm.add(FakeJob(job_id=number))
    bench.slurm.add(FakeJob(job_id="22", array=("20", "2")))
    agent = bench.start()
    agent.link.jobs_per_report = 3
    await until(lambda: any(report.complete for report in bench.advisor.reports))
    first, last = bench.advisor.reports[:2]
    assert ([job.attempt.job_id for job in first.jobs], first.complete, list(first.listed)) == (
        ["17", "18", "19"], False, [],
    )  # fmt: skip
    assert ([job.attempt.job_id for job in last.jobs], last.complete) == (["22"], True)
    assert list(last.listed) == ["17", "18", "19", "20_2"]


async def test_more_nodes_than_one_report_holds_are_told_in_several(bench: Bench) -> None:
    """A cluster of tens of thousands of nodes: each is told once, and the listing of jobs ends with the last part."""
    bench.slurm.add(FakeJob(job_id="17"))
    agent = bench.start()
    agent.link.nodes_per_report = 1
    await until(lambda: any(report.complete for report in bench.advisor.reports))
    end = next(at for at, report in enumerate(bench.advisor.reports) if report.complete)
    reports = bench.advisor.reports[: end + 1]
    names = [node.name for report in reports for node in report.nodes]
    assert all(len(report.nodes) <= 1 for report in reports)
    assert len(names) == len(set(names)) == len(agent.looks.nodes) > 1
    assert [job.attempt.job_id for report in reports for job in report.jobs] == ["17"]
    assert list(reports[-1].listed) == ["17"]


async def test_what_a_waiting_job_waits_for_is_told(bench: Bench) -> None:
    """By kind: jobs whose end it waits for, and whether it waits for all of its name."""
    waiting = {"state": "PENDING", "end": None, "start": None, "nodes": ""}
    bench.slurm.add(FakeJob(job_id="18", dependency="afterany:17(unfulfilled),singleton(unfulfilled)", **waiting))
    bench.start()
    await until(bench.advisor.jobs)
    seen = bench.advisor.jobs()[0]
    assert (list(seen.waits_for), seen.singleton) == (["17"], True)


async def test_missing_rights_end_acting(bench: Bench) -> None:
    """After "permission denied" the agent observes, and says why."""
    bench.slurm.add(FakeJob())
    bench.slurm.refuse["update"] = "Access/permission denied for job 17"
    bench.advisor.advise(advice())
    bench.start()
    denied = common_pb2.RECONCILIATION_REASON_PERMISSION
    await until(lambda: any(item.reason == denied for item in bench.advisor.reconciled))
    bench.slurm.add(FakeJob(job_id="18"))
    other = advice(advice_id="a2")
    other.attempt.job_id = "18"
    bench.advisor.advise(other)
    await until(lambda: bench.advisor.reconciled[-1].advice_id == "a2")
    assert bench.advisor.reconciled[-1].reason == common_pb2.RECONCILIATION_REASON_AGENT_OBSERVES
    assert bench.slurm.requeues == 1
    await until(lambda: bench.advisor.registered[-1].missing_rights)
    assert bench.advisor.registered[-1].mode == agent_pb2.AGENT_MODE_OBSERVE


async def test_settings_that_come_late_are_registered(bench: Bench) -> None:
    """The advisor reckons with the requeue delay; slurmctld was away when the agent started."""

    def silent(argv: Sequence[str]) -> None:
        raise SlurmError("timeout", "no answer in 5 s")

    bench.slurm.before = silent
    bench.start()
    await until(lambda: bench.advisor.registered)
    assert not bench.advisor.registered[0].HasField("requeue_delay")
    bench.slurm.before = lambda argv: None
    await until(lambda: bench.advisor.registered[-1].HasField("requeue_delay"))
    assert bench.advisor.registered[-1].requeue_delay.seconds == 6


async def test_a_refused_update_is_repeated_without_a_second_requeue(bench: Bench) -> None:
    """The controller was away for a moment."""
    job = bench.slurm.add(FakeJob())
    bench.slurm.refuse["update"] = "Unable to contact slurm controller"
    bench.advisor.advise(advice())
    bench.start()
    await until(lambda: bench.slurm.requeues == 1)
    bench.slurm.refuse.clear()
    await until(lambda: VERIFIED in bench.advisor.statuses())
    assert (bench.slurm.requeues, job.excluded) == (1, "node2")


async def test_cap_on_requeues_counts_those_before_a_restart(bench: Bench) -> None:
    """What carries our mark and was requeued within the minute was requeued by us."""
    for number in range(100, 130):
        fragment = mark.render(mark.Mark(job="k", attempt=0, generation=1))
        bench.slurm.add(
            FakeJob(
                job_id=str(number), state="PENDING", restarts=1, submit=1190, eligible=1300, end=None, nodes="",
                admin_comment=fragment,
            )
        )  # fmt: skip
    bench.slurm.add(FakeJob())
    bench.advisor.advise(advice())
    bench.start()
    await until(bench.advisor.reconciled.__len__)
    assert bench.advisor.reconciled[0].reason == common_pb2.RECONCILIATION_REASON_CAP_REQUEUES
    assert bench.slurm.requeues == 0


async def test_one_requeue_counts_once_however_often_it_is_seen(bench: Bench) -> None:
    """A cluster with a single job: looking at it many times does not use up the cap for its next failure."""
    job = bench.slurm.add(FakeJob())
    looks = 0

    def count(argv: Sequence[str]) -> None:
        nonlocal looks
        looks += "-O" in argv

    bench.slurm.before = count
    bench.advisor.advise(advice())
    bench.start()
    await until(lambda: VERIFIED in bench.advisor.statuses())
    seen = looks
    await until(lambda: looks >= seen + 40)
    job.state, job.eligible, job.start, job.end = "FAILED", 1210, 1210, 1220
    bench.slurm.now = 1225.0
    again = advice(advice_id="a2")
    again.attempt.attempt = 1
    again.attempt.submitted_at.FromSeconds(job.submit)
    bench.advisor.advise(again)
    await until(lambda: bench.slurm.requeues == 2)


async def test_jobs_that_are_ended_count_like_requeues(bench: Bench) -> None:
    """An advisor gone wrong that wants every job stopped gets no further than the agent's own cap within a minute."""
    many, most = [], bench.config.caps.requeues_per_minute
    for number in range(most + 3):
        bench.slurm.add(FakeJob(job_id=str(100 + number), state="RUNNING", end=None))
        one = advice(advice_id=f"a{number}", action=common_pb2.ACTION_STOP, may_end_live_attempt=True)
        del one.exclude_nodes[:]
        one.attempt.job_id = str(100 + number)
        many.append(one)
    bench.advisor.advise(*many)
    bench.start()
    capped = common_pb2.RECONCILIATION_REASON_CAP_REQUEUES
    await until(lambda: sum(item.reason == capped for item in bench.advisor.reconciled) >= 3)
    assert sum(verb[0] == "cancel" for verb in bench.slurm.verbs) == most


def stop(**changes: Any) -> common_pb2.Advice:
    made = advice(action=common_pb2.ACTION_STOP, may_end_live_attempt=True, **changes)
    del made.exclude_nodes[:]
    return made


def cancelled_by(uid: int | None) -> Sacct:
    """What accounting says of job 17; None: that it runs."""
    state, end = ("RUNNING", "Unknown") if uid is None else (f"CANCELLED by {uid}", "1200")
    return Sacct({"JobIDRaw": "17", "JobID": "17", "State": state, "Submit": "1000", "End": end})


@pytest.mark.parametrize(
    ("uid", "said"),
    [
        (SLURM, ("VERIFIED", "OBSERVED")),
        (1000, ("ALREADY_SATISFIED", "ALREADY_STOPPED")),
        (0, ("ALREADY_SATISFIED", "ALREADY_STOPPED")),
        (None, ("ALREADY_SATISFIED", "STOP_UNREPORTED")),
    ],
)
async def test_a_stop_that_an_agent_died_over_is_told_as_far_as_it_is_known(
    bench: Bench, uid: int | None, said: tuple[str, str]
) -> None:
    """The job is cancelled, and our stop was out before this agent came: by whom, only accounting may say."""
    bench.slurm.add(FakeJob(state="CANCELLED"))
    bench.accounting = cancelled_by(uid)
    bench.advisor.advise(stop())
    clock = WorldClock(bench.slurm)
    bench.start(clock)
    await until(lambda: bench.accounting is not None and bench.accounting.asked)
    clock.later = ASKED_SECONDS
    await until(bench.advisor.reconciled.__len__)
    assert [words(item) for item in bench.advisor.reconciled] == [said]
    asked = bench.accounting.asked
    await asyncio.sleep(0.2)
    assert bench.accounting.asked == asked
    assert bench.slurm.verbs == []


@pytest.mark.parametrize(
    ("agent", "accounting"),
    [(0, cancelled_by(0)), (SLURM, Sacct(error="Slurm accounting storage is disabled"))],
    ids=["by root, as which the agent runs", "no accounting is kept"],
)
async def test_what_accounting_cannot_tell_apart_stays_unknown(bench: Bench, agent: int, accounting: Sacct) -> None:
    """Told as such, at once: operators are root too, so that it was root says nothing."""
    bench.user_id = agent
    bench.slurm.add(FakeJob(state="CANCELLED"))
    bench.accounting = accounting
    bench.advisor.advise(stop())
    bench.start()
    await until(bench.advisor.reconciled.__len__)
    assert words(bench.advisor.reconciled[0]) == ("ALREADY_SATISFIED", "STOP_UNREPORTED")


async def test_a_cancel_before_a_stop_that_this_agent_heard_of_first_is_not_ours(bench: Bench) -> None:
    """Nobody can have acted on it before: somebody else cancelled the job, and accounting is not asked."""
    bench.slurm.add(FakeJob(state="CANCELLED"))
    bench.accounting = cancelled_by(SLURM)
    bench.start()
    await until(bench.advisor.jobs)
    bench.advisor.advise(stop())
    await until(bench.advisor.reconciled.__len__)
    assert words(bench.advisor.reconciled[0]) == ("ALREADY_SATISFIED", "ALREADY_STOPPED")
    assert bench.accounting.asked == 0


async def test_a_cancel_whose_answer_was_lost_may_be_ours(bench: Bench) -> None:
    """Slurm did it and its word did not arrive: the next look shows a cancelled job, and not that it was others."""
    job = bench.slurm.add(FakeJob(state="RUNNING", end=None))
    carried_out = bench._apply

    async def lost(request: apply.Request, withdrawn: asyncio.Event) -> apply.Result:
        await carried_out(request, withdrawn)
        return apply.Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail="timed out")

    bench.carry_out = lost
    bench.accounting = Sacct(error="Slurm accounting storage is disabled")
    bench.start()
    await until(bench.advisor.jobs)
    bench.advisor.advise(stop())
    await until(bench.advisor.reconciled.__len__)
    assert words(bench.advisor.reconciled[-1]) == ("ALREADY_SATISFIED", "STOP_UNREPORTED")
    assert job.state == "CANCELLED"


def words(said: agent_pb2.ReportReconciliationRequest) -> tuple[str, str]:
    status = common_pb2.ReconciliationStatus.Name(said.status).removeprefix("RECONCILIATION_STATUS_")
    return status, common_pb2.ReconciliationReason.Name(said.reason).removeprefix("RECONCILIATION_REASON_")


async def test_of_more_failures_than_the_cap_the_largest_are_restarted(bench: Bench) -> None:
    """A fabric event: those of many nodes have their turn first; the others wait, unasked about one by one."""
    most = bench.config.caps.requeues_per_minute
    many, looks = [], []
    for number in range(most + 20):
        bench.slurm.add(FakeJob(job_id=str(100 + number), nodes="node1", nodes_wanted=1 if number < 20 else 2))
        one = advice(advice_id=f"a{number}")
        one.attempt.job_id = str(100 + number)
        many.append(one)
    bench.slurm.before = lambda argv: looks.append(argv[argv.index("-j") + 1]) if "-j" in argv else None
    bench.advisor.advise(*many)
    bench.start()
    capped = common_pb2.RECONCILIATION_REASON_CAP_REQUEUES
    await until(lambda: len({item.advice_id for item in bench.advisor.reconciled if item.reason == capped}) == 20)
    requeued = {verb[-1] for verb in bench.slurm.verbs if verb[0] == "requeue"}
    # Those whose turn it is look at the same time, before anything is set aside for them: so many may overtake.
    small = {str(100 + number) for number in range(20)}
    assert len(requeued) == most
    assert len(requeued & small) < ATTENDED_MAX
    assert len(small.intersection(looks)) < ATTENDED_MAX


async def test_what_takes_longer_than_the_caps_minute_is_told_all_the_same(bench: Bench) -> None:
    """The agent was frozen while it acted: what it had set aside for the cap has run out meanwhile."""
    bench.slurm.add(FakeJob())
    clock = WorldClock(bench.slurm)
    refused = apply.Result(status=Status.WITHHELD, reason=Reason.SCHEDULER_REFUSED, detail="no")

    async def late(request: apply.Request, withdrawn: asyncio.Event) -> apply.Result:
        clock.later += 61.0
        looked = len(bench.advisor.reports)
        bench.slurm.add(FakeJob(job_id=str(100 + looked)))
        await until(lambda: len(bench.advisor.reports) > looked)
        clock.later += COMPLETE_REPORT_SECONDS
        await until(lambda: len(bench.advisor.reports) > looked + 1)
        return refused

    bench._apply = late  # type: ignore[method-assign]  # the bench is the fake
    lasting = advice()
    lasting.time_to_live.CopyFrom(wire.duration(3000))
    bench.advisor.advise(lasting)
    bench.start(clock)
    await until(lambda: WITHHELD in bench.advisor.statuses())


async def test_a_pause_that_comes_while_it_looks_is_heeded(bench: Bench) -> None:
    """Planned is with what was heard last, not with what was heard when the look began."""
    bench.slurm.add(FakeJob())
    bench.advisor.advise(advice())
    paused = replace(wire.advice(advice(), received_monotonic=1e9), paused=True)
    agents: list[Agent] = []

    def pause(argv: Sequence[str]) -> None:
        if "-j" in argv and agents:
            bench.advisor.advise(message)
            agents[0].reconciler.heard([paused])

    message = advice()
    message.paused_until.FromSeconds(9000)
    bench.slurm.before = pause
    agents.append(bench.start())
    reason = common_pb2.RECONCILIATION_REASON_PAUSED
    await until(lambda: reason in {item.reason for item in bench.advisor.reconciled})
    assert bench.slurm.verbs == []


async def test_a_store_that_was_restored_is_told_again_what_it_no_longer_knows(bench: Bench) -> None:
    """A backup from before our report: nothing is done twice, but what came of the advice, and all jobs, are told."""
    bench.slurm.add(FakeJob())
    bench.advisor.advise(advice())
    agent = bench.start()
    await until(lambda: VERIFIED in bench.advisor.statuses())
    bench.advisor.reconciled.clear()
    bench.advisor.reports.clear()
    bench.advisor.incarnation = "restored"
    await until(lambda: VERIFIED in bench.advisor.statuses())
    await until(lambda: any(report.complete for report in bench.advisor.reports))
    assert bench.slurm.requeues == 1
    assert agent.incarnation == "restored"


async def test_time_to_live_does_not_grow_by_repetition(bench: Bench) -> None:
    """The stream repeats open advice for ever; its time was counted from the first time it was heard."""
    bench.mode = "act"
    job = bench.slurm.add(FakeJob(state="RUNNING", end=None))
    short = advice()
    short.time_to_live.CopyFrom(wire.duration(0.3))
    bench.advisor.advise(short)
    bench.start()
    expired = common_pb2.RECONCILIATION_STATUS_EXPIRED
    await until(lambda: expired in bench.advisor.statuses())
    job.state, job.end = "FAILED", 1200
    before = len(bench.advisor.reports)
    await until(lambda: len(bench.advisor.reports) > before)
    assert bench.slurm.verbs == []


async def test_advice_withdrawn_before_its_turn_is_not_acted_on(bench: Bench) -> None:
    """Many jobs fail at once and an operator says stop: who waits for a turn, or has not acted in it, leaves them."""
    begun: list[str] = []
    go_on = asyncio.Event()
    carry_out = bench._apply

    async def slow(request: apply.Request, withdrawn: asyncio.Event) -> apply.Result:
        begun.append(request.advice.job_id)
        await go_on.wait()
        return await carry_out(request, withdrawn)

    many = []
    for number in range(ATTENDED_MAX + 3):
        bench.slurm.add(FakeJob(job_id=str(20 + number)))
        one = advice(advice_id=f"a{number}")
        one.attempt.job_id = str(20 + number)
        many.append(one)
    bench._apply = slow  # type: ignore[method-assign]  # the bench is the fake
    bench.advisor.advise(*many)
    agent = bench.start()
    await until(lambda: len(begun) == ATTENDED_MAX)
    bench.advisor.advise()
    await until(lambda: not agent.reconciler._open)
    go_on.set()
    await until(lambda: not agent.reconciler.busy)
    assert (bench.slurm.requeues, len(begun)) == (0, ATTENDED_MAX)


async def test_the_tick_file_is_written_from_the_advisors_words_only(bench: Bench) -> None:
    """When the advisor is gone, the file is left to become old."""
    agent = bench.start()
    path = bench.folder / "tick.json"
    await until(path.exists)
    value = json.loads(path.read_bytes())
    assert value["v"] == 1
    assert (value["tick_age"], value["ticks"], value["boot_monotonic"]) == (0.25, 7, 77.0)
    await bench.advisor.stop()
    await until(lambda: agent.link._stub is None)
    stamp = path.stat().st_mtime_ns
    looks = agent.looks.clock.monotonic() + 0.3
    await until(lambda: agent.looks.clock.monotonic() > looks)
    assert path.stat().st_mtime_ns == stamp
    await bench.advisor.start(bench.folder / "a.sock")


async def test_a_second_agent_on_the_same_hook_socket_is_refused(bench: Bench) -> None:
    """Two agents would both act."""
    bench.start()
    await until((bench.folder / "hook.sock").exists)
    second = Agent(replace(bench.config), Slurm(run=bench.slurm), apply=bench._apply)
    with pytest.raises(HookSocketError, match="another agent"):
        await second.run(asyncio.Event())


def test_a_lock_that_a_command_of_the_former_agent_still_holds_is_waited_for() -> None:
    """A moment only: between fork and exec it has all that the agent had open."""
    folder = Path(tempfile.mkdtemp(prefix="hook-"))
    try:
        former = HookSocket(folder / "h.sock", trusted_users=frozenset())
        with subprocess.Popen(["/bin/sleep", "0.3"], pass_fds=[former._lock]):
            former.close()
            HookSocket(folder / "h.sock", trusted_users=frozenset()).close()
    finally:
        shutil.rmtree(folder)


def test_hook_notices_of_strangers_and_noise_are_not_believed(tmp_path: Path) -> None:
    """The kernel says who sent it; what is no notice is dropped."""
    folder = Path(tempfile.mkdtemp(prefix="hook-"))
    path = folder / "h.sock"
    heard: list[object] = []
    listener = HookSocket(path, trusted_users=frozenset({os.geteuid()}))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for data in (b"", b"\xff", b"[]", b'{"SLURM_JOB_ID": "1; rm"}', b'{"SLURM_JOB_ID": 5}', b"[" * 9000):
                sender.sendto(data, str(path))
            sender.sendto(b'{"SLURM_JOB_ID": "5"}', str(path))
        assert (listener.drain(heard.append), len(heard)) == (6, 1)
        listener._trusted = frozenset({os.geteuid() + 1})
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b'{"SLURM_JOB_ID": "5"}', str(path))
        assert (listener.drain(heard.append), len(heard)) == (1, 1)
    finally:
        listener.close()
        shutil.rmtree(folder)


async def test_systemd_hears_after_each_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready with the first one: an agent that hangs is started again. No job depends on it, but time does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(str(bench.folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(bench.folder / "notify"))
        bench.start()
        loop = asyncio.get_running_loop()
        for _ in range(3):
            async with asyncio.timeout(10):
                assert await loop.sock_recv(systemd, 100) == b"READY=1\nWATCHDOG=1"


class HookedSlurm(FakeSlurm):
    """Its slurm.conf names a hook, and nothing ever comes from it."""

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        out = super().__call__(argv, environment, timeout_seconds)
        asked = tuple(argv[1:]) == ("show", "config")
        return replace(out, stdout=out.stdout + b"EpilogSlurmctld = /hook\n") if asked else out


async def test_a_hook_that_is_configured_and_silent_is_told(bench: Bench) -> None:
    """slurmctld says it in one line of its own log at most; here it is said where somebody looks."""
    bench.slurm = HookedSlurm()
    with structlog.testing.capture_logs() as logs:
        agent = bench.start()
        for number in range(100, 100 + SILENT_ENDS):
            job = bench.slurm.add(FakeJob(job_id=str(number), state="RUNNING", end=None))
            await until(lambda: agent.looks.rows.get(job.job_id) is not None)  # noqa: B023 - awaited at once
            await until(lambda: agent.looks.rows[job.job_id].state == "RUNNING")  # noqa: B023
            assert not [line for line in logs if line["event"] == "hook_silent"]
            job.state, job.end = "FAILED", int(bench.slurm.now)
            await until(lambda: agent.looks.rows[job.job_id].state == "FAILED")  # noqa: B023
        await until(lambda: [line for line in logs if line["event"] == "hook_silent"])


async def test_what_ended_while_the_agent_was_down_is_told_before_what_slurm_has_forgotten(bench: Bench) -> None:
    """From accounting, since the time in its tick file; once, and with it how much it has asked of Slurm."""
    now = int(bench.slurm.now) + 100_000
    bench.slurm.now = now
    bench.slurm.add(FakeJob(job_id="18", state="RUNNING", end=None))
    tick_file.write(
        Path(bench.config.tick_file), written=now - 5000.0, boot_monotonic=1.0, tick_age=0.1, ticks=1, incarnation="i"
    )
    past = {"Submit": str(now - 4900), "Start": str(now - 4800), "End": str(now - 4000)}
    bench.accounting = Sacct(past)
    bench.start()
    await until(lambda: any(report.complete for report in bench.advisor.reports))
    first, told = bench.advisor.reports[0], [job for report in bench.advisor.reports for job in report.jobs]
    assert [(job.attempt.job_id, job.exit.code) for job in first.jobs] == [("7", 5)]
    assert not first.complete
    assert [job.attempt.job_id for job in told].count("7") == 1
    await until(lambda: bench.advisor.scheduler_rpcs == 41)


async def test_the_heartbeat_tells_of_the_stop_file_while_it_is_there(bench: Bench) -> None:
    """With what is written into it and since when; whoever touches it may give it any time, which is then not told."""
    stop = bench.folder / "stop"
    await asyncio.to_thread(stop.write_text, "fabric work\n")
    os.utime(stop, (1_700_000_000, 1_700_000_000))
    bench.start()
    await until(lambda: bench.advisor.beats)
    told = bench.advisor.beats[-1].stop_file
    assert (told.why, told.since.seconds) == (f"{stop}: fabric work", 1_700_000_000)
    os.utime(stop, (2**33, 2**33))
    await until(lambda: not bench.advisor.beats[-1].stop_file.HasField("since"))
    assert bench.advisor.beats[-1].HasField("stop_file")
    await asyncio.to_thread(stop.unlink)
    await until(lambda: not bench.advisor.beats[-1].HasField("stop_file"))
