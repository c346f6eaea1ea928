"""A whole site on simulated time: a model of Slurm and of the advisor, and the real agent and watchdog between them.

The agent is `slurm_plugin.agent.Agent` with its looks, its reconciler, its guard and its applying process
(`apply.carry_out`), the watchdog is `watchdog.monitor.Watchdog`; only Slurm, the wire and the clocks are passed in.
The advisor is a model of its protocol: observations and decisions are durable in its database, a tick gathers, commits
and publishes, advice is open until it is concluded. `Site.step` is called at each step of the protocol; a fault strikes
there (`tests/model/matrix.py`).
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.store.records import Reconciliation, ReconciliationReason, ReconciliationStatus
from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import apply, guard
from slurm_plugin.agent import Agent
from slurm_plugin.config import AgentConfig, CapsSection
from slurm_plugin.link import Pulse
from slurm_plugin.squeue import Output, Slurm, SlurmError
from tests.model.simulation import EPOCH, Clock, KilledError, Loop, Process, block_on, sleep_blocking
from tests.model.slurm import ModelJob, ModelSlurm
from tests.unit.slurm_plugin.fake_slurm import said
from watchdog import slurm as watchdog_slurm
from watchdog.monitor import Config, Watchdog

RPC_SECONDS = 5.0
SILENCE_SECONDS = 6.0  # of the stream, before the link connects anew
TICK_SECONDS = 1.0
CRON_SECONDS = 30.0
VERB_SECONDS = 0.02
REFUSED_SECONDS = 0.5
_FINAL = frozenset(
    {
        common_pb2.RECONCILIATION_STATUS_VERIFIED,
        common_pb2.RECONCILIATION_STATUS_ALREADY_SATISFIED,
        common_pb2.RECONCILIATION_STATUS_SUPERSEDED,
        common_pb2.RECONCILIATION_STATUS_ABANDONED,
        common_pb2.RECONCILIATION_STATUS_EXPIRED,
        common_pb2.RECONCILIATION_STATUS_WITHHELD,
    }
)
_ACCEPTED = {common_pb2.RECONCILIATION_STATUS_APPLIED, common_pb2.RECONCILIATION_STATUS_VERIFIED}
_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
# Withheld for now: the advisor keeps it open, as its store says.
_NOT_FINAL = frozenset(
    common_pb2.ReconciliationReason.Value(f"RECONCILIATION_REASON_{reason.name}")
    for reason in ReconciliationReason
    if not Reconciliation(status=ReconciliationStatus.WITHHELD, reason=reason, at=_ANY_TIME).final
)

Decide = Callable[[agent_pb2.JobObservation, float, int], "Wish | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a decision wants; the rest of an advice is identity. Times are seconds of the simulation."""

    exclude: tuple[str, ...]
    may_end_live_attempt: bool = False
    start_not_before: float | None = None
    decision_deadline: float | None = None
    action: guard.Action = guard.Action.RESTART


VETOED = Wish(exclude=(), action=guard.Action.NONE)


@dataclass(slots=True)
class Database:
    """What survives everything but its own loss."""

    process: Process
    seen: dict[str, agent_pb2.JobObservation] = field(default_factory=dict)  # "job/attempt" → the latest
    advice: dict[str, list[tuple[Wish, guard.Advice]]] = field(default_factory=dict)  # "job/attempt" → generations
    said: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # advice → (status, reason), in order
    vetoed: set[str] = field(default_factory=set)  # "job/attempt", by an operator

    async def used(self) -> None:
        """One statement: refused while the database is down, late while it is stopped."""
        if not self.process.alive:
            self.process.refused += 1
            raise ConnectionError("the database is away")
        await self.process.passed()

    def accepted(self, key: str) -> bool:
        """Whether an agent has told that the scheduler accepted something about the attempt."""
        return any(
            status in _ACCEPTED
            for advice_id, said in self.said.items()
            if advice_id.startswith(f"{key}.")
            for status, _ in said
        )

    def concluded(self, advice_id: str) -> bool:
        last = self.said.get(advice_id, [(0, 0)])[-1]
        return last[0] in _FINAL and last[1] not in _NOT_FINAL


@dataclass(slots=True)
class Advisor:
    """One life of the advisor's process."""

    site: "Site"
    process: Process
    decide: Decide
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: "list[ModelLink]" = field(default_factory=list)
    ticks: int = 0
    completed: float | None = None

    async def run(self) -> None:
        while True:
            self.wake.clear()
            try:
                await self.tick()
            except ConnectionError:
                await asyncio.sleep(0.5)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self.wake.wait()

    async def tick(self) -> None:
        database, process = self.site.database, self.process
        self.site.step("tick: gather", process)
        await process.passed()
        await database.used()
        for key, seen in list(database.seen.items()):
            before = database.advice.get(key, [])
            vetoed = key in database.vetoed
            wish = VETOED if vetoed else self.decide(seen, self.site.loop.time(), len(before))
            if wish is None or (before and before[-1][0] == wish):
                continue
            self.site.step("tick: commit", process)
            await process.passed()
            await database.used()
            if vetoed != (key in database.vetoed):
                self.wake.set()  # an operator spoke since: decided again, not committed
                continue
            database.advice.setdefault(key, []).append((wish, self._advice(seen, wish, len(before) + 1)))
            self.site.step("tick: committed", process)
            await process.passed()
        self.ticks, self.completed = self.ticks + 1, self.site.loop.time()
        await self.publish()

    def _advice(self, seen: agent_pb2.JobObservation, wish: Wish, generation: int) -> guard.Advice:
        def epoch(at: float | None) -> int | None:
            return None if at is None else int(EPOCH + at)

        return guard.Advice(
            advice_id=f"{seen.attempt.job_id}/{seen.attempt.attempt}.{generation}",
            incarnation="i",
            job_key=f"key of {seen.attempt.job_id}",
            job_id=seen.attempt.job_id,
            attempt=seen.attempt.attempt,
            submitted_at=seen.attempt.submitted_at.seconds,
            user=seen.attempt.user,
            generation=generation,
            action=wish.action,
            exclude=wish.exclude,
            autonomous=True,
            may_end_live_attempt=wish.may_end_live_attempt,
            start_not_before=epoch(wish.start_not_before),
            decision_deadline=epoch(wish.decision_deadline),
            expires_monotonic=self.site.clock.monotonic() + 600.0,
        )

    def open(self) -> list[guard.Advice]:
        database = self.site.database
        newest = {key: generations[-1][1] for key, generations in database.advice.items()}
        return [
            advice
            for key, advice in newest.items()
            if not database.concluded(advice.advice_id)
            # What an operator speaks against is closed in the moment that he does.
            and not (key in database.vetoed and advice.action is not guard.Action.NONE)
        ]

    async def veto(self, key: str) -> bool:
        """An operator's call. False: it came too late, the scheduler had accepted something, and that is answered."""
        await self.process.passed()
        await self.site.database.used()
        if self.site.database.accepted(key):
            return False
        self.site.database.vetoed.add(key)
        self.wake.set()
        await self.publish()
        return True

    async def publish(self) -> None:
        message = self.open()
        if message:
            self.site.step("publish", self.process)
            await self.process.passed()
        age = self.site.loop.time() - (self.completed or 0.0)
        for listener in self.listeners:
            listener.hears(message, Pulse(tick_age=age, ticks=self.ticks, incarnation="i"))

    async def report(self, jobs: Sequence[agent_pb2.JobObservation]) -> None:
        await self.process.passed()
        await self.site.database.used()
        for job in jobs:
            self.site.database.seen[f"{job.attempt.job_id}/{job.attempt.attempt}"] = job
        self.site.step("report: stored", self.process)
        await self.process.passed()
        if jobs:
            self.wake.set()

    async def reconciled(self, message: agent_pb2.ReportReconciliationRequest) -> None:
        await self.process.passed()
        await self.site.database.used()
        self.site.database.said.setdefault(message.advice_id, []).append((message.status, message.reason))
        self.site.step("acknowledgement: stored", self.process)
        await self.process.passed()


@dataclass(slots=True)
class ModelLink:
    """The agent's end of the wire. A stopped agent hears late, a silent advisor is connected to anew."""

    site: "Site"
    process: Process
    heard: Any
    last_heard: float = 0.0
    connected_to: Advisor | None = None
    outbox: list[agent_pb2.ReportReconciliationRequest] = field(default_factory=list)
    queued: asyncio.Event = field(default_factory=asyncio.Event)
    scheduler_rpcs: Callable[[], int] = lambda: 0  # what the heartbeat tells; there is none here
    stop_file: Callable[[], object] = lambda: None  # likewise

    async def run(self) -> None:
        sending = asyncio.create_task(self._send())
        try:
            while True:
                now = self.site.loop.time()
                advisor = self.connected_to
                gone = advisor is None or not advisor.process.alive or now - self.last_heard > SILENCE_SECONDS
                if gone:
                    self._leave()
                    self._connect()
                await asyncio.sleep(0.5)
                await self.process.passed()
        finally:
            sending.cancel()

    def _leave(self) -> None:
        if self.connected_to is not None and self in self.connected_to.listeners:
            self.connected_to.listeners.remove(self)
        self.connected_to = None

    def _connect(self) -> None:
        advisor = self.site.advisor
        if not advisor.process.works:
            advisor.process.refused += 1
            return
        self.connected_to, self.last_heard = advisor, self.site.loop.time()
        advisor.listeners.append(self)
        self.heard.connected()

    def hears(self, message: list[guard.Advice], pulse: Pulse) -> None:
        self.site.spawn(self._hears(message, pulse), self.process)

    async def _hears(self, message: list[guard.Advice], pulse: Pulse) -> None:
        await self.process.passed()
        self.last_heard = self.site.loop.time()
        if message:
            self.site.step("advice heard", self.process)
            await self.process.passed()
        self.heard.advice_heard(message)
        self.site.step("tick file", self.process)
        await self.process.passed()
        self.heard.pulse_heard(pulse)

    async def report(self, jobs: Any, nodes: Any, *, complete: bool, unavailable: Any) -> bool:
        if jobs:
            self.site.step("report", self.process)
        await self.process.passed()
        return await self._call(lambda advisor: advisor.report(jobs))

    def put(self, message: Any) -> None:
        if isinstance(message, agent_pb2.ReportReconciliationRequest):
            self.outbox.append(message)
            self.queued.set()

    def check_registration(self) -> None:
        """The mode of this site's agent does not change."""

    async def _send(self) -> None:
        while True:
            while self.outbox:
                message = self.outbox[0]
                self.site.step("acknowledgement", self.process)
                await self.process.passed()
                if not await self._call(lambda advisor, message=message: advisor.reconciled(message)):
                    await asyncio.sleep(0.5)
                    continue
                self.outbox.pop(0)
            self.queued.clear()
            await self.queued.wait()

    async def _call(self, what: Callable[[Advisor], Any]) -> bool:
        """One RPC: False when it was not answered in time, whatever became of it."""
        advisor = self.connected_to
        if advisor is None or not advisor.process.alive:
            return False
        handled = self.site.spawn(what(advisor), advisor.process)
        done, _ = await asyncio.wait({handled}, timeout=RPC_SECONDS)
        await self.process.passed()
        return bool(done) and not handled.cancelled() and handled.exception() is None


@dataclass(slots=True)
class Site:
    """`step_hook` is told each step of the protocol.

    `scheduler_first`: a slurmctld that goes on starts jobs before it serves what was sent to it meanwhile. Real ones
    serve first: their RPC threads wake at once, the scheduler with its next pass.
    """

    loop: Loop
    folder: Path
    slurm: ModelSlurm
    decide: Decide
    agents: int = 1
    scheduler_first: bool = False
    look_seconds: float = 0.0  # that a look takes, for what is to happen meanwhile
    step_hook: Callable[[str], None] = lambda step: None
    slurmctld: Process = field(init=False)
    database: Database = field(init=False)
    advisor: Advisor = field(init=False)
    lives: dict[str, Process] = field(default_factory=dict)  # name → the present process
    clock: Clock = field(init=False)
    _queue: list[tuple[Callable[[], Output], asyncio.Future[Output]]] = field(default_factory=list)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.clock = Clock(loop=self.loop)
        self.slurmctld = self.lives["slurmctld"] = Process("slurmctld", self.loop)
        self.database = Database(self._new("postgres"))

    def step(self, name: str, process: Process) -> None:
        if process.works:
            self.step_hook(name)

    def _new(self, name: str) -> Process:
        process = self.lives[name] = Process(name, self.loop)
        return process

    def spawn(self, work: Any, process: Process) -> asyncio.Task[Any]:
        """A task of `process`, gone with it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_noticed)
        process.on_kill.append(task.cancel)
        return task

    # --- programs ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.spawn(self._pass_time(), Process("time", self.loop))
        for name in ("advisor", *self.agent_names, "watchdog"):
            self.start_program(name)

    @property
    def agent_names(self) -> tuple[str, ...]:
        return ("agent",) if self.agents == 1 else tuple(f"agent{at}" for at in range(1, self.agents + 1))

    def start_program(self, name: str) -> None:
        if name == "advisor":
            self.advisor = Advisor(self, self._new(name), self.decide)
            self.spawn(self.advisor.run(), self.advisor.process)
        elif name == "watchdog":
            process = self._new(name)
            self.spawn(self._watch(process), process)
        elif name == "postgres":
            self.database.process = self._new(name)
        elif name == "slurmctld":
            self.slurmctld = self._new(name)
            self.loop.call_later(2.0, self.slurm.registered)
        else:
            process = self._new(name)
            self.spawn(self._agent(process).run(asyncio.Event()), process)

    def _agent(self, process: Process) -> Agent:
        config = AgentConfig(
            cluster="c",
            socket="/nowhere",
            tick_file=str(self.folder / "tick.json"),
            hook_socket=str(self.folder / f"{process.name}.sock"),
            mode="act",
            poll_seconds=1.0,
            caps=CapsSection(requeues_per_minute=30),
        )
        return Agent(
            config,
            Slurm(run=lambda argv, env, seconds: self.tool(process, argv, env, seconds), wall=self.clock.wall),
            apply=lambda request, withdrawn: self._apply(process, request, withdrawn),
            clock=self.clock,
            connect=lambda target, cluster, registration, heard, clock: ModelLink(self, process, heard),  # type: ignore[arg-type,return-value]  # as much of a link as the agent uses
        )

    async def _apply(self, agent: Process, request: apply.Request, withdrawn: asyncio.Event) -> apply.Result:
        """The short-lived process: it outlives its agent, but not its own alarm."""
        self.step("applying process: start", agent)
        await agent.passed()
        process = Process(f"{agent.name}.apply", self.loop)
        alarm = self.loop.call_later(request.limit_seconds, process.kill)
        clocks = apply.Clocks(wall=self.clock.wall, monotonic=self.clock.monotonic)
        working = self.loop.run_in_executor(
            None,
            lambda: apply.carry_out(
                request,
                lambda *call: self.tool(process, *call),
                clocks,
                lambda: withdrawn.is_set() or not agent.alive,
            ),
        )
        working.add_done_callback(_noticed)
        done, _ = await asyncio.wait({working}, timeout=request.limit_seconds)
        if done:
            alarm.cancel()
        await agent.passed()
        if not done or working.exception() is not None:
            return apply.Result(
                status=guard.Status.PENDING, reason=guard.Reason.SCHEDULER_UNAVAILABLE, detail="ended by its alarm"
            )
        return working.result()  # type: ignore[no-any-return]

    def start_cron(self) -> None:
        """The last floor: one look every half minute, by a process of its own."""

        async def every_half_minute() -> None:
            while True:
                await asyncio.sleep(CRON_SECONDS)
                dog = self._watchdog(Process("watchdog.cron", self.loop), once=True)
                await asyncio.to_thread(dog.look)

        self.spawn(every_half_minute(), self._new("cron"))

    async def _watch(self, process: Process) -> None:
        dog = self._watchdog(process)
        while True:
            await asyncio.to_thread(dog.look)
            await asyncio.sleep(1.0)

    def _watchdog(self, process: Process, *, once: bool = False) -> Watchdog:
        def run(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
            try:
                answer = self.tool(process, argv, env, seconds)
            except SlurmError as error:
                raise watchdog_slurm.SlurmError(str(error)) from None
            return answer.returncode, answer.stdout, answer.stderr

        return Watchdog(
            Config(tick_file=str(self.folder / "tick.json"), mode="act", dead_after_seconds=10.0, pending_minutes=1.0),
            watchdog_slurm.Slurm(conf="", bin_dir="", timeout_seconds=RPC_SECONDS, run=run),
            once=once,
            wall=self.clock.wall,
            boot=self.clock.boot,
        )

    async def end(self) -> None:
        """Kill everything, so that nothing of this site goes on."""
        for process in list(self.lives.values()):
            process.kill()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0.01)

    # --- Slurm -----------------------------------------------------------------------------------------------------

    def tool(self, process: Process, argv: Sequence[str], env: Mapping[str, str], seconds: float) -> Output:
        """One of Slurm's tools, run by `process`; its RPC reaches slurmctld even if its sender then dies."""
        process.gate()
        before, after = _steps(process.name, argv)
        self.step(before, process)
        process.gate()
        changing = argv[0] == "scancel" or (argv[0] == "scontrol" and "show" not in argv)
        slow = VERB_SECONDS if changing else self.look_seconds
        if slow:
            sleep_blocking(self.loop, slow)
            process.gate()
        answer = self._rpc(lambda: self._answer(process, argv, env, seconds), argv[0], seconds)
        if after:
            self.step(after, process)
        process.gate()
        return answer

    def _answer(self, process: Process, argv: Sequence[str], env: Mapping[str, str], seconds: float) -> Output:
        self.slurm.by, self.slurm.now = process.name, EPOCH + self.loop.time()
        return self.slurm(argv, env, seconds)

    def _rpc(self, handle: Callable[[], Output], tool: str, seconds: float) -> Output:
        if not self.slurmctld.alive:
            self.slurmctld.refused += 1
            sleep_blocking(self.loop, REFUSED_SECONDS)
            return said(1, f"{tool}: error: Unable to contact slurm controller (connect failure)")
        if not self.slurmctld.stopped:
            return handle()
        self.slurmctld.refused += 1
        future: asyncio.Future[Output] = self.loop.create_future()
        self._queue.append((handle, future))
        timer = self.loop.call_later(seconds, lambda: future.done() or future.cancel())
        try:
            return block_on(future)
        except asyncio.CancelledError:
            raise SlurmError("timeout", f"{tool} gave no answer in {seconds:g} s") from None
        finally:
            timer.cancel()

    def slurmctld_goes_on(self) -> None:
        """Everything that was sent meanwhile is done now, whether anybody still waits for it or not."""
        self.slurmctld.go_on()
        queue, self._queue = self._queue, []
        if self.scheduler_first:
            self.slurm.advance(EPOCH + self.loop.time())
        for handle, future in queue:
            answer = handle()
            if not future.done():
                future.set_result(answer)

    def slurmctld_dies(self, *, losing_seconds: float = 0.0) -> None:
        self.slurmctld.kill()
        for _, future in self._queue:
            if not future.done():
                future.set_result(said(1, "Unexpected message received: zero bytes were transmitted"))
        self._queue = []
        if losing_seconds:
            self.slurm.lose(losing_seconds)

    async def _pass_time(self) -> None:
        while True:
            if self.slurmctld.works:
                started = len(self.slurm.starts)
                self.slurm.advance(EPOCH + self.loop.time())
                while self.slurm.ended:
                    self._announce(self.slurm.ended.pop(0))
                if len(self.slurm.starts) > started:
                    self.step("job starts", self.slurmctld)
            await asyncio.sleep(0.1)

    def _announce(self, job: ModelJob) -> None:
        """EpilogSlurmctld: one datagram to every agent of this host."""
        self.step("hook: notify", self.slurmctld)
        notice = {"event": "epilog", "SLURM_JOB_ID": job.job_id, "SLURM_RESTART_COUNT": str(job.restarts)}
        for name in self.agent_names:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(json.dumps(notice).encode(), str(self.folder / f"{name}.sock"))


def _steps(name: str, argv: Sequence[str]) -> tuple[str, str]:
    """(before, after) of one tool's call, as the protocol names them."""
    who = name if name.startswith("watchdog") else "applying process" if name.endswith(".apply") else "agent"
    if argv[0] in {"squeue", "sinfo"}:
        return f"{who}: look", ""
    if tuple(argv[:2]) == ("scontrol", "requeue"):
        return f"{who}: requeue", f"{who}: requeue accepted"
    if tuple(argv[:2]) == ("scontrol", "update"):
        return f"{who}: update", f"{who}: update accepted"
    return f"{who}: settings", ""


def _noticed(task: asyncio.Future[Any]) -> None:
    """A killed process's tasks end with KilledError; anything else is an error of the programs under test."""
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        if not isinstance(error, KilledError | ConnectionError):
            raise error  # type: ignore[misc]  # it is not None
