"""The connection to the advisor: registers, keeps the advice stream open, and never gives up.

Level-triggered both ways: each message of the stream holds all open advice; observations are repeated in full after
a reconnect. Reconciliation and milestones wait in a bounded outbox until the advisor has taken them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import structlog

from advisor.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from slurm_plugin import guard, wire
from slurm_plugin.clock import Clock
from slurm_plugin.reach import Reach, ReachError

log = structlog.get_logger(__name__)

RPC_SECONDS = 5.0
# With other replicas to go to: a connected one that is silent for so long is frozen, or as good as.
SILENT_SECONDS = 3.0
BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
OUTBOX_MAX = 10_000
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
JOBS_PER_REPORT = 2_000
NODES_PER_REPORT = 10_000  # half of what an advisor takes at once
TRIES_MAX = 3  # of a report that the advisor itself fails on
_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,  # an older advisor
    }
)
_FAILED = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED})

Outgoing = (
    agent_pb2.ReportReconciliationRequest
    | agent_pb2.ReportMilestonesRequest
    | agent_pb2.ReportNodeReconciliationRequest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The advisor's own words about its last completed tick."""

    tick_age: float
    ticks: int
    incarnation: str


class Heard(Protocol):
    """Whom the link tells. Called in the event loop; must not block."""

    def advice_heard(self, open_advice: Sequence[guard.Advice]) -> None: ...

    def nodes_heard(self, nodes: Sequence[agent_pb2.NodeAdvice]) -> None: ...

    def pulse_heard(self, pulse: Pulse) -> None: ...

    def connected(self) -> None: ...


@dataclass(slots=True)
class Link:
    """One advisor, at the first of its replicas that answers; at the next one when that is lost or falls silent."""

    targets: Sequence[Reach]
    cluster: str
    registration: Callable[[], agent_pb2.RegisterRequest]
    heard: Heard
    clock: Clock
    session: str = ""
    keepalive_seconds: float = 5.0
    jobs_per_report: int = JOBS_PER_REPORT
    nodes_per_report: int = NODES_PER_REPORT
    scheduler_rpcs: Callable[[], int] = lambda: 0  # sent since the start
    stop_file: Callable[[], common_pb2.StopFile | None] = lambda: None  # while it is there
    _stub: "agent_pb2_grpc.AgentServiceAsyncStub | None" = None  # the class exists in the stubs only
    _outbox: deque[Outgoing] = field(default_factory=lambda: deque(maxlen=OUTBOX_MAX))
    _queued: asyncio.Event = field(default_factory=asyncio.Event)
    _tries: int = 0  # of the first report in the outbox
    _expiry: dict[str, float] = field(default_factory=dict)
    _registered: agent_pb2.RegisterRequest | None = None
    _anew: asyncio.Event = field(default_factory=asyncio.Event)
    _at: int = 0  # which of `targets`

    @property
    def _patience(self) -> float:
        return SILENT_SECONDS if len(self.targets) > 1 else RPC_SECONDS

    async def run(self) -> None:
        """Connect, serve, reconnect with backoff, until cancelled. Every replica is tried before there is a pause."""
        failures = 0
        while True:
            try:
                await self._serve_once()
            except (grpc.aio.AioRpcError, grpc.RpcError, ReachError, TimeoutError) as error:
                was_up, self._stub = self._stub is not None, None
                failures = 0 if was_up else failures + 1
                lost, renewing = self.targets[self._at].target, isinstance(error, _RenewingError)
                if not renewing:
                    self._at = (self._at + 1) % len(self.targets)
                rounds = failures // len(self.targets)
                others = len(self.targets) > 1 and not renewing and failures % len(self.targets)
                pause = 0.0 if others else BACKOFF_SECONDS[min(rounds, len(BACKOFF_SECONDS) - 1)]
                if was_up or failures == 1:
                    log.warning(
                        "advisor_lost", cluster=self.cluster, advisor=lost, error=_why(error), retry_seconds=pause
                    )
                await asyncio.sleep(pause)

    async def _serve_once(self) -> None:
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.enable_retries", 0),
        ]
        target = self.targets[self._at]
        async with target.channel(options) as channel:
            stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
            self._registered = self.registration()
            answer = await stub.Register(self._registered, timeout=self._patience)
            self.session = answer.session
            self.keepalive_seconds = max(wire.seconds(answer.keepalive), 0.5)
            self._stub = stub
            log.info("advisor_connected", cluster=self.cluster, advisor=target.target, incarnation=answer.incarnation)
            self.heard.connected()
            tasks = [asyncio.create_task(part(stub)) for part in (self._watch, self._beat, self._send, self._renew)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for outcome in ended:
                if isinstance(outcome, Exception):
                    raise outcome

    async def _watch(self, stub: "agent_pb2_grpc.AgentServiceAsyncStub") -> None:
        stream = stub.WatchAdvice(agent_pb2.WatchAdviceRequest(cluster=self.cluster, session=self.session))
        while True:
            async with asyncio.timeout(max(3 * self.keepalive_seconds, self._patience)):
                message = await stream.read()
            if not isinstance(message, agent_pb2.WatchAdviceResponse):
                raise TimeoutError("the advisor ended the advice stream")
            self.heard.advice_heard(self._open(message))
            self.heard.nodes_heard(message.nodes)
            self.heard.pulse_heard(
                Pulse(tick_age=wire.seconds(message.tick_age), ticks=message.ticks, incarnation=message.incarnation)
            )

    def _open(self, message: agent_pb2.WatchAdviceResponse) -> list[guard.Advice]:
        """The advice of one message. Time to live never grows by being repeated."""
        now, found = self.clock.monotonic(), []
        for item in message.open:
            try:
                advice = wire.advice(item, received_monotonic=now)
            except wire.BadAdviceError as error:
                log.warning("advice_unusable", advice=item.advice_id, problem=str(error))
                continue
            until = min(advice.expires_monotonic, self._expiry.get(advice.advice_id, advice.expires_monotonic))
            self._expiry[advice.advice_id] = until
            found.append(wire.expiring(advice, until))
        kept = {advice.advice_id for advice in found}
        self._expiry = {key: until for key, until in self._expiry.items() if key in kept}
        return found

    async def _beat(self, stub: "agent_pb2_grpc.AgentServiceAsyncStub") -> None:
        pause = min(self.keepalive_seconds / 2, 2.0)
        while True:
            mode = self.registration().mode
            request = agent_pb2.HeartbeatRequest(
                cluster=self.cluster,
                session=self.session,
                mode=mode,
                scheduler_rpcs=self.scheduler_rpcs(),
                stop_file=self.stop_file(),
            )
            answer = await stub.Heartbeat(request, timeout=self._patience)
            self.heard.pulse_heard(
                Pulse(tick_age=wire.seconds(answer.tick_age), ticks=answer.ticks, incarnation=answer.incarnation)
            )
            await asyncio.sleep(pause)

    async def _send(self, stub: "agent_pb2_grpc.AgentServiceAsyncStub") -> None:
        """Empty the outbox in order; what the advisor refuses is dropped and said."""
        while True:
            while self._outbox:
                message = self._outbox[0]
                message.session = self.session
                try:
                    if isinstance(message, agent_pb2.ReportReconciliationRequest):
                        await stub.ReportReconciliation(message, timeout=RPC_SECONDS)
                    elif isinstance(message, agent_pb2.ReportNodeReconciliationRequest):
                        await stub.ReportNodeReconciliation(message, timeout=RPC_SECONDS)
                    else:
                        await stub.ReportMilestones(message, timeout=RPC_SECONDS)
                except grpc.aio.AioRpcError as error:
                    self._tries += error.code() in _FAILED
                    if error.code() not in _REFUSED and self._tries < TRIES_MAX:
                        raise
                    log.warning("report_refused", kind=type(message).__name__, error=_why(error))
                self._tries = 0
                if self._outbox and self._outbox[0] is message:
                    self._outbox.popleft()
            self._queued.clear()
            await self._queued.wait()

    async def _renew(self, stub: "agent_pb2_grpc.AgentServiceAsyncStub") -> None:
        self._anew.clear()
        await self._anew.wait()
        raise _RenewingError("registering again: what the agent says of itself has changed")

    def check_registration(self) -> None:
        """Connect again if what the registration said is no longer so."""
        if self._stub is not None and self._registered != self.registration():
            self._anew.set()

    def put(self, message: Outgoing) -> None:
        """Queue for sending, now or after a reconnect. The oldest is dropped when the bound bites."""
        if len(self._outbox) == OUTBOX_MAX:
            log.error("outbox_full", dropped=type(self._outbox[0]).__name__, most=OUTBOX_MAX)
        self._outbox.append(message)
        self._queued.set()

    async def report(
        self,
        jobs: Sequence[agent_pb2.JobObservation],
        nodes: Sequence[agent_pb2.NodeObservation],
        *,
        complete: bool,
        unavailable: Sequence[common_pb2.Unavailable],
    ) -> bool:
        """False when the advisor has not taken it: say it again, in full, after the reconnect.

        A long listing goes in parts. The last one, sent only after the advisor took all others, makes it complete by
        naming every job of it.
        """
        stub = self._stub
        if stub is None:
            return False
        most = self.jobs_per_report
        parts = [jobs[at : at + most] for at in range(0, len(jobs), most)] or [jobs]
        shares = [nodes[at : at + self.nodes_per_report] for at in range(0, len(nodes), self.nodes_per_report)]
        parts = [*[()] * (len(shares) - len(parts)), *parts]  # jobs come last, for the last part may end the listing
        for at, part in enumerate(parts):
            ends = complete and at == len(parts) - 1
            request = agent_pb2.ReportObservationsRequest(
                cluster=self.cluster,
                session=self.session,
                jobs=part,
                nodes=shares[at] if at < len(shares) else (),
                complete=ends,
                unavailable=unavailable,
                listed=[_listed(job) for job in jobs] if ends and len(parts) > 1 else (),
            )
            try:
                answer = await stub.ReportObservations(request, timeout=RPC_SECONDS)
            except grpc.aio.AioRpcError as error:
                log.warning("report_failed", cluster=self.cluster, error=_why(error))
                return False
            except grpc.aio.UsageError:
                return False  # the channel has just been closed; the link has said why
            except asyncio.CancelledError:
                if _is_ending():
                    raise
                return False  # likewise: gRPC cancels the calls of a channel that is closed
            if answer.refused:
                log.warning("observations_refused", count=len(answer.refused), first=answer.refused[0][:300])
        return True


class _RenewingError(TimeoutError):
    """The connection is well, and begun anew at the same replica."""


def _is_ending() -> bool:
    """Whether it is this task that was cancelled, and not only the call it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _listed(job: agent_pb2.JobObservation) -> str:
    return f"{job.array_job_id}_{job.array_task}" if job.array_job_id else job.attempt.job_id


def _why(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {(error.details() or '')[:200]}"
    return str(error) or type(error).__name__
