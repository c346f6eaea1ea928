"""The real agent on a real Slurm, with an advisor of whom the test says every word.

What is shown with it is what the agent does whatever it is told: late, stale or mistaken advice included.
"""

import shutil
import tempfile
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from advisor.demo.cluster import CLUSTER_NAME, SLURM_USER, Cluster, Shape
from advisor.demo.namespace import Runtime
from advisor.demo.squeue import JobRow
from advisor.demo.stack import Program
from advisor.demo.waiting import wait_for
from advisor.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from slurm_plugin import wire


@dataclass
class ScriptedAdvisor(agent_pb2_grpc.AgentServiceServicer):
    """Keeps what it hears; `open` is sent four times a second."""

    open: list[common_pb2.Advice] = field(default_factory=list)
    reports: list[agent_pb2.ReportObservationsRequest] = field(default_factory=list)
    said: list[agent_pb2.ReportReconciliationRequest] = field(default_factory=list)
    closed: bool = False

    def Register(self, request: agent_pb2.RegisterRequest, context: Any) -> agent_pb2.RegisterResponse:  # noqa: N802
        return agent_pb2.RegisterResponse(session="s", incarnation="i", keepalive=wire.duration(0.5))

    def Heartbeat(self, request: agent_pb2.HeartbeatRequest, context: Any) -> agent_pb2.HeartbeatResponse:  # noqa: N802
        return agent_pb2.HeartbeatResponse(incarnation="i", tick_age=wire.duration(0.1), ticks=1)

    def ReportObservations(  # noqa: N802
        self, request: agent_pb2.ReportObservationsRequest, context: Any
    ) -> agent_pb2.ReportObservationsResponse:
        self.reports.append(request)
        return agent_pb2.ReportObservationsResponse(accepted=len(request.jobs))

    def WatchAdvice(  # noqa: N802
        self, request: agent_pb2.WatchAdviceRequest, context: Any
    ) -> Iterator[agent_pb2.WatchAdviceResponse]:
        waiting = futures.Future[None]()
        while not self.closed and context.is_active():
            yield agent_pb2.WatchAdviceResponse(incarnation="i", open=self.open, tick_age=wire.duration(0.1), ticks=1)
            try:
                waiting.result(timeout=0.25)
            except TimeoutError:
                continue

    def ReportReconciliation(  # noqa: N802
        self, request: agent_pb2.ReportReconciliationRequest, context: Any
    ) -> agent_pb2.ReportReconciliationResponse:
        self.said.append(request)
        return agent_pb2.ReportReconciliationResponse()

    def ReportMilestones(  # noqa: N802
        self, request: agent_pb2.ReportMilestonesRequest, context: Any
    ) -> agent_pb2.ReportMilestonesResponse:
        return agent_pb2.ReportMilestonesResponse()

    # --- what tests say and ask --------------------------------------------------------------------------------

    def restart(
        self, row: JobRow, *nodes: str, attempt: int = 0, generation: int = 1, incarnation: str = "i", **times: int
    ) -> str:
        """Opens RESTART for the attempt that `row` shows, and returns its id. `times`: epoch seconds by field."""
        made = common_pb2.Advice(
            advice_id=f"{row.job_id}.{row.submitted}.{generation}",
            incarnation=incarnation,
            attempt=common_pb2.AttemptRef(
                job_key=f"key-{row.job_id}",
                cluster=CLUSTER_NAME,
                job_id=str(row.job_id),
                attempt=attempt,
                submitted_at=wire.stamp(row.submitted),
                user=row.user,
            ),
            generation=generation,
            action=common_pb2.ACTION_RESTART,
            exclude_nodes=sorted(nodes),
            exclude_order=nodes,
            mode=common_pb2.MODE_AUTONOMOUS,
            time_to_live=wire.duration(600),
        )
        for name, at in times.items():
            getattr(made, name).FromSeconds(at)
        self.open = [item for item in self.open if item.attempt.job_id != str(row.job_id)] + [made]
        return made.advice_id

    def reasons(self, advice_id: str) -> list[tuple[str, str]]:
        """(status, reason) of all that was said about it."""
        statuses, reasons = common_pb2.ReconciliationStatus, common_pb2.ReconciliationReason
        return [
            (
                statuses.Name(item.status).removeprefix("RECONCILIATION_STATUS_"),
                reasons.Name(item.reason).removeprefix("RECONCILIATION_REASON_"),
            )
            for item in self.said
            if item.advice_id == advice_id
        ]

    def wait_said(self, advice_id: str, status: str, reason: str, seconds: float = 20.0) -> None:
        wait_for(
            f"{status} {reason}, heard {self.reasons(advice_id)}",
            lambda: (status, reason) in self.reasons(advice_id),
            seconds=seconds,
        )

    def seen(self, job_id: int) -> list[agent_pb2.JobObservation]:
        return [job for report in self.reports for job in report.jobs if job.attempt.job_id == str(job_id)]


@dataclass(frozen=True)
class Bench:
    cluster: Cluster
    advisor: ScriptedAdvisor
    agents: tuple[Program, ...]


@contextmanager
def cluster_beside(runtime: Runtime, name: str, shape: Shape) -> Iterator[Cluster]:
    """Another cluster than the session's, for what that one's configuration does not show."""
    root = runtime.root / name
    root.mkdir(mode=0o755)
    for shared in ("code", "home"):
        (root / shared).symlink_to(runtime.root / shared)
    cluster = Cluster(runtime=Runtime(root=root), shape=shape)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def scripted_agents(cluster: Cluster, *, agents: int = 1, bin_dir: str = "", more: str = "") -> Iterator[Bench]:
    """`agents` of them, each as if it were on a host of its own, and one advisor for all."""
    folder = Path(tempfile.mkdtemp(dir=cluster.runtime.root, prefix="b-"))  # short: a socket's path is
    folder.chmod(0o755)
    shutil.chown(folder, SLURM_USER, SLURM_USER)
    advisor = ScriptedAdvisor()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    agent_pb2_grpc.add_AgentServiceServicer_to_server(advisor, server)
    socket = folder / "advisor.sock"
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    socket.chmod(0o777)
    programs = tuple(_agent(cluster, folder, socket, number, bin_dir, more) for number in range(agents))
    try:
        for program in programs:
            program.start()
        wait_for("the agents' first report", lambda: advisor.reports, seconds=20)
        yield Bench(cluster, advisor, programs)
    finally:
        advisor.closed = True
        for program in programs:
            program.stop()
        server.stop(0).wait()


def _agent(cluster: Cluster, folder: Path, socket: Path, number: int, bin_dir: str, more: str) -> Program:
    config = folder / f"agent{number}.toml"
    config.write_text(
        f'cluster = "{CLUSTER_NAME}"\nsocket = "{socket}"\nmode = "act"\npoll_seconds = 0.5\n'
        f'tick_file = "{folder}/tick{number}.json"\nhook_socket = "{folder}/hook{number}.sock"\n{more}'
        f'[slurm]\nconf = "{cluster.conf}"\nbin = "{bin_dir}"\ntimeout_seconds = 2.0\n'
    )
    environment = {**cluster.runtime.environment, "HOME": str(folder), "USER": SLURM_USER}
    argv = [str(cluster.runtime.python), "-m", "slurm_plugin", "run", "--config", str(config)]
    return Program(
        name=f"agent{number}", argv=argv, user=SLURM_USER, environment=environment, log=folder / f"agent{number}.log"
    )
