"""The agent's loop: look at everything, tell the advisor, reconcile open advice, look again.

Level-triggered: hooks and the advice stream only wake it up. What it remembers (rows, allocations, what was already
told) makes it faster or quieter; after a kill -9 all of it is rebuilt by looking, and nothing is done twice because
the guard reads what Slurm shows, our mark included.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import structlog

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import guard, notice, observe, stop_file, tick_file, wire
from slurm_plugin.applier import Apply, apply_in_process
from slurm_plugin.backfill import Backfill, last_told
from slurm_plugin.clock import Clock, SystemClock
from slurm_plugin.config import AgentConfig
from slurm_plugin.drainer import Drainer
from slurm_plugin.guard import Phase, phase_of
from slurm_plugin.hook_socket import HookNotice, HookSocket
from slurm_plugin.hook_watch import SILENT_ENDS, HookWatch
from slurm_plugin.isolated_file import IsolatedFile
from slurm_plugin.link import Link, Pulse
from slurm_plugin.looks import Looks
from slurm_plugin.reconciler import Reconciler
from slurm_plugin.squeue import JobRow, Slurm, SlurmError
from slurm_plugin.tender import Tender
from slurm_plugin.unreported import Unreported

log = structlog.get_logger(__name__)

COMPLETE_REPORT_SECONDS = 5.0
ALL_NODES_SECONDS = 60.0  # between are told those that changed: nobody takes one that is not told for gone
EMPTY_SECONDS = 30.0  # an empty listing is believed only after having been one for so long
FOLLOW_SECONDS = 15.0  # how long a job whose end was announced is looked at closely
FOLLOW_PAUSE_SECONDS = 0.06  # the first one; an end takes some 45 ms to become visible, or as long as a node is silent
FOLLOW_PAUSE_FACTOR = 1.4
FOLLOWED_MAX = 32
STOP_WHY_MAX = 1_000  # characters


@dataclass(slots=True)
class Agent:
    """One cluster's agent. `slurm`, `apply`, `clock` and `connect` are passed in; tests script them.

    `accounting` asks slurmdbd, whose silence says nothing about slurmctld; by default the same tools.
    """

    config: AgentConfig
    slurm: Slurm
    accounting: Slurm | None = None
    apply: Apply = apply_in_process
    clock: Clock = field(default_factory=SystemClock)
    connect: Callable[..., Link] = Link
    alive: Callable[[], None] = notice.alive
    scheduler_rpcs: Callable[[], int] = lambda: 0  # sent since the start, by whoever counts them
    user_id: int = field(default_factory=os.geteuid)
    looks: Looks = field(init=False)
    link: Link = field(init=False)
    reconciler: Reconciler = field(init=False)
    tender: Tender = field(init=False)
    drainer: Drainer = field(init=False)
    isolated_file: IsolatedFile = field(init=False)
    backfill: Backfill = field(init=False)
    incarnation: str = ""  # of the store that listens
    _hook_watch: HookWatch = field(default_factory=HookWatch)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sent: dict[str, agent_pb2.JobObservation] = field(default_factory=dict)
    _sent_nodes: dict[str, agent_pb2.NodeObservation] = field(default_factory=dict)
    _complete_due: float = 0.0
    _nodes_due: float = 0.0
    _empty_since: float | None = None
    _following: set[str] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _tick_problem: str = ""
    _stopped: str = ""

    def __post_init__(self) -> None:
        self.looks = Looks(self.slurm, self.config, self.clock)
        self.link = self.connect(self.config.reaches, self.config.cluster, self._registration, self, self.clock)
        self.link.scheduler_rpcs = self.scheduler_rpcs
        self.link.stop_file = self._stop_file
        self.reconciler = Reconciler(
            config=self.config,
            looks=self.looks,
            apply=self.apply,
            clock=self.clock,
            put=self.link.put,
            told=self._tell_one,
            unreported=Unreported(
                accounting=(self.accounting or self.slurm) if self.config.slurm.history_hours else None,
                clock=self.clock,
                user_id=self.user_id,
            ),
        )
        self.tender = Tender(
            briefing=self.reconciler.briefing,
            apply=self.apply,
            clock=self.clock,
            busy=self.reconciler.busy,
            told=self.reconciler.dropped,
        )
        self.drainer = Drainer(config=self.config, slurm=self.slurm, clock=self.clock, put=self.link.put)
        self.isolated_file = IsolatedFile(path=self.config.isolated_path, clock=self.clock)
        told_at = last_told(Path(self.config.tick_file))
        self.backfill = Backfill(self.accounting or self.slurm, self.config, told_at=told_at)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises HookSocketError when another agent holds the hook socket."""
        hooks = HookSocket(Path(self.config.hook_socket), trusted_users=frozenset({0, os.geteuid()}))
        loop = asyncio.get_running_loop()
        loop.add_reader(hooks.fileno(), lambda: self._hooks_ready(hooks))
        await self.looks.read_settings()  # the registration says them
        link = asyncio.create_task(self.link.run())
        looking = asyncio.create_task(self._loop(hooks))
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({link, looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
        finally:
            loop.remove_reader(hooks.fileno())
            for task in (link, looking, stopping, *self._tasks):
                task.cancel()
            await asyncio.gather(link, looking, stopping, *self._tasks, return_exceptions=True)
            await self.reconciler.close()
            hooks.close()
            log.info("agent_stopped", cluster=self.config.cluster)

    async def _loop(self, hooks: HookSocket) -> None:
        while True:
            self._wake.clear()
            await self.look_and_tell()
            settings = self.looks.settings
            if settings is not None and settings.slurm_user_id is not None:
                hooks.trust(settings.slurm_user_id)
            self.link.check_registration()
            self._tell_stop()
            self.reconciler.reconcile(self.looks.rows)
            await self.tender.look(self.looks.rows)
            await self.drainer.reconcile(self.looks.nodes)
            self.isolated_file.tell(self.drainer.isolated(len(self.looks.nodes)), self.looks.nodes)
            self.alive()
            try:
                async with asyncio.timeout(self.config.poll_seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _stop_file(self) -> common_pb2.StopFile | None:
        """For people far from this host, who see no file here."""
        why = stop_file.engaged(self.config.stop_file)
        if not why:
            return None
        return common_pb2.StopFile(
            why=wire.clean(why, STOP_WHY_MAX), since=wire.stamp(stop_file.written_at(self.config.stop_file))
        )

    def _tell_stop(self) -> None:
        stopped = stop_file.engaged(self.config.stop_file)
        if stopped != self._stopped:
            log.warning("agent_stopped_by_file" if stopped else "agent_no_longer_stopped", why=stopped or self._stopped)
        self._stopped = stopped

    async def look_and_tell(self) -> bool:
        """One full look, and a report of what changed; everything when the last complete one is old or was lost."""
        if not await self.looks.all():
            await self.link.report((), (), complete=False, unavailable=list(self.looks.unavailable.values()))
            return False
        rows = list(self.looks.rows.values())
        self.reconciler.seen(rows)
        epilog = self.looks.settings.epilog_slurmctld if self.looks.settings is not None else ""
        if self._hook_watch.looked(rows) and epilog:
            log.warning("hook_silent", epilog=epilog, ends=SILENT_ENDS)
        await self._tell_history()
        seen = {row.job_id: self.looks.observation(row) for row in rows}
        at = self.looks.at
        nodes = {node.name: observe.node_observation(node, at=at) for node in self.looks.nodes}
        now = self.clock.monotonic()
        # "squeue printed nothing" is not "no jobs": told so, the advisor would take what is shown next for other jobs.
        self._empty_since = None if seen else (now if self._empty_since is None else self._empty_since)
        believed = self._empty_since is None or now - self._empty_since >= EMPTY_SECONDS
        complete = believed and (now >= self._complete_due or bool(self._sent.keys() - seen.keys()))
        jobs = [job for key, job in seen.items() if complete or not observe.same(self._sent.get(key), job)]
        every_node = complete and now >= self._nodes_due
        changed_nodes = [
            node for key, node in nodes.items() if every_node or _node_changed(self._sent_nodes.get(key), node)
        ]
        if not (complete or jobs or changed_nodes or self.looks.unavailable):
            return True
        missing = list(self.looks.unavailable.values())
        # Before it is told: who begins to listen anew meanwhile is due at once.
        if complete:
            self._complete_due = now + COMPLETE_REPORT_SECONDS
        if every_node:
            self._nodes_due = now + ALL_NODES_SECONDS
        if await self.link.report(jobs, changed_nodes, complete=complete, unavailable=missing):
            self._sent, self._sent_nodes = seen, nodes
            self.backfill.told(self.clock.wall())
        else:
            self._complete_due = self._nodes_due = 0.0
        return True

    async def _tell_history(self) -> None:
        """After a silence, before anything is said to be forgotten: what ended in it."""
        settings = self.looks.settings
        if settings is None:
            return
        missed = await self.backfill.missed(
            {row.job_id: row.restarts for row in self.looks.rows.values()},
            memory_seconds=settings.min_job_age_seconds,
            now=self.clock.wall(),
            monotonic=self.clock.monotonic(),
        )
        if missed and await self.link.report(missed, (), complete=False, unavailable=()):
            self.backfill.filled()

    async def _tell_one(self, row: JobRow) -> None:
        """Report one job at once if it changed."""
        seen = self.looks.observation(row)
        if observe.same(self._sent.get(row.job_id), seen):
            return
        missing = list(self.looks.unavailable.values())
        if await self.link.report((seen,), (), complete=False, unavailable=missing):
            self._sent[row.job_id] = seen
        else:
            self._complete_due = 0.0

    # --- hooks -------------------------------------------------------------------------------------------------

    def _hooks_ready(self, hooks: HookSocket) -> None:
        refused = hooks.drain(self._hook_heard)
        if refused:
            log.warning("hook_notice_refused", count=refused)

    def _hook_heard(self, notice: HookNotice) -> None:
        log.debug("hook_heard", job=notice.job_id, restarts=notice.restarts)
        self._hook_watch.heard(notice.job_id)
        if notice.job_id in self._following:
            return
        if len(self._following) >= FOLLOWED_MAX or notice.job_id not in self.looks.rows:
            self._wake.set()
        if len(self._following) < FOLLOWED_MAX:
            self._following.add(notice.job_id)
            self._start(self._follow(notice))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, notice: HookNotice) -> None:
        """Say that the attempt has ended, then look until its outcome is visible."""
        try:
            await self._announce(notice)
            until, pause = self.clock.monotonic() + FOLLOW_SECONDS, FOLLOW_PAUSE_SECONDS
            while self.clock.monotonic() < until:
                try:
                    row = await self.looks.one(notice.job_id)
                except SlurmError:
                    break  # the polling floor reports what is unavailable
                if row is None:
                    break
                await self._tell_one(row)
                self.reconciler.seen((row,))
                if phase_of(row.state) is not Phase.COMPLETING:
                    break
                await asyncio.sleep(pause)
                pause = min(pause * FOLLOW_PAUSE_FACTOR, self.config.poll_seconds)
        finally:
            self._following.discard(notice.job_id)
            self._wake.set()

    async def _announce(self, notice: HookNotice) -> None:
        known = self._sent.get(notice.job_id)
        # Announced is the end of the attempt that ran; a later one that already waits is not meant.
        if known is None or (notice.restarts is not None and known.attempt.attempt != notice.restarts):
            return
        ended = observe.hook_observation(known, at=self.clock.wall())
        if await self.link.report((ended,), (), complete=False, unavailable=list(self.looks.unavailable.values())):
            self._sent[notice.job_id] = ended

    # --- what the link hears -----------------------------------------------------------------------------------

    def _registration(self) -> agent_pb2.RegisterRequest:
        settings = self.looks.settings
        acts = self.config.mode == "act" and not self.reconciler.missing_right
        return agent_pb2.RegisterRequest(
            cluster=self.config.cluster,
            host=socket.gethostname()[:200],
            version=_version(),
            mode=agent_pb2.AGENT_MODE_ACT if acts else agent_pb2.AGENT_MODE_OBSERVE,
            scheduler=f"slurm {settings.version}" if settings is not None else "slurm",
            requeue_delay=wire.duration(settings.requeue_delay_seconds) if settings is not None else None,
            job_memory=wire.duration(settings.min_job_age_seconds) if settings is not None else None,
            missing_rights=[self.reconciler.missing_right] if self.reconciler.missing_right else (),
        )

    def connected(self) -> None:
        self.backfill.silence_over()
        self._complete_due = self._nodes_due = 0.0
        self._wake.set()

    def advice_heard(self, open_advice: Sequence[guard.Advice]) -> None:
        self.reconciler.heard(open_advice)

    def nodes_heard(self, nodes: Sequence[agent_pb2.NodeAdvice]) -> None:
        if self.drainer.heard(nodes):
            self._wake.set()

    def pulse_heard(self, pulse: Pulse) -> None:
        """The tick file says what the advisor said; without a fresh word it is left to become old."""
        if self.incarnation not in {"", pulse.incarnation}:
            log.warning("store_changed", incarnation=pulse.incarnation, before=self.incarnation)
            self.reconciler.told_nothing()
            self.drainer.told_nothing()
            self._complete_due = self._nodes_due = 0.0  # it may never have heard of what was told long ago
            self._wake.set()
        self.incarnation = pulse.incarnation
        try:
            tick_file.write(
                Path(self.config.tick_file),
                written=self.clock.wall(),
                boot_monotonic=self.clock.boot(),
                tick_age=pulse.tick_age,
                ticks=pulse.ticks,
                incarnation=pulse.incarnation,
            )
            self._tick_problem = ""
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._tick_problem:
                log.error("tick_file_unwritable", path=self.config.tick_file, error=problem)  # noqa: TRY400
            self._tick_problem = problem


def _node_changed(before: agent_pb2.NodeObservation | None, now: agent_pb2.NodeObservation) -> bool:
    if before is None:
        return True
    return (before.state, before.reason, list(before.partitions)) != (now.state, now.reason, list(now.partitions))


def _version() -> str:
    try:
        return metadata.version("recovery-advisor")
    except metadata.PackageNotFoundError:
        return "unpackaged"
