"""What the agent currently sees of Slurm, refreshed by looking; rebuilt from nothing after a restart."""

import asyncio
from dataclasses import dataclass, field

import structlog

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import observe, wire
from slurm_plugin.clock import Clock
from slurm_plugin.config import AgentConfig
from slurm_plugin.dependencies import Chains
from slurm_plugin.maintenance import NONE as NO_MAINTENANCE
from slurm_plugin.maintenance import Maintenance
from slurm_plugin.observe import Memory
from slurm_plugin.silence import Silence
from slurm_plugin.squeue import JobDetails, JobRow, NodeRow, Slurm, SlurmConfig, SlurmError
from slurm_plugin.words import Phase, phase_of

log = structlog.get_logger(__name__)

NODES_SECONDS = 2.0
DETAILS_SECONDS = 60.0  # users may change a comment at any time
DETAILS_PAUSE_FACTOR = 5  # reading details costs slurmctld half a second per thousand jobs
CONFIG_SECONDS = 60.0
MAINTENANCE_SECONDS = 5.0
MAINTENANCE_FRESH_SECONDS = 1.0  # before something is done


@dataclass(slots=True)
class Looks:
    """Rows, details, nodes and settings, each with its own pace. `unavailable` by source: absence is a value."""

    slurm: Slurm
    config: AgentConfig
    clock: Clock
    rows: dict[str, JobRow] = field(default_factory=dict)
    nodes: tuple[NodeRow, ...] = ()
    details: dict[str, JobDetails] = field(default_factory=dict)
    settings: SlurmConfig | None = None
    unavailable: dict[str, common_pb2.Unavailable] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    chains: Chains = field(default_factory=Chains)
    silence: Silence = field(default_factory=Silence)
    maintenance: Maintenance = NO_MAINTENANCE
    _warned: set[str] = field(default_factory=set)  # jobs that could not be restarted, told once
    looked: bool = False
    at: float = 0.0  # wall time of the last full look's beginning
    _begun: dict[str, tuple[float, float]] = field(default_factory=dict)  # job → (monotonic, wall) of its last look
    _nodes_due: float = 0.0
    _maintenance_at: float | None = None
    _details_due: float = 0.0
    _details_earliest: float = 0.0
    _settings_due: float = 0.0
    _details_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _maintenance_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def all(self) -> bool:
        """Look at everything that is due. False when the job listing was not available."""
        await self.read_settings()
        begun = self.clock.monotonic(), self.clock.wall()
        try:
            rows = await asyncio.to_thread(self.slurm.jobs)
        except SlurmError as error:
            self._failed("squeue", error)
            self.silence.forget()  # nodes are not looked at either
            return False
        self._succeeded("squeue")
        # A look at one job that began later knows better than this listing.
        before, self._begun = self._begun, {row.job_id: begun for row in rows}
        later = {key: value for key, value in before.items() if value > begun and key in self.rows}
        self.rows = {row.job_id: row for row in rows} | {key: self.rows[key] for key in later}
        self._begun |= later
        self.memory.forget(list(self.rows.values()))
        self.looked, self.at = True, begun[1]
        await self._read_details(tuple(self.rows.values()))
        self.chains.learn(self.rows, {key: item.name for key, item in self.details.items()})
        self._warn()
        await self._read_nodes()
        await self.read_maintenance(MAINTENANCE_SECONDS)
        return True

    async def one(self, job_id: str) -> JobRow | None:
        """A fresh look at one job; None when Slurm knows no such job. Raises SlurmError."""
        known, begun = self.rows.get(job_id), (self.clock.monotonic(), self.clock.wall())
        found = await asyncio.to_thread(self.slurm.jobs, known.shown_id if known is not None else job_id)
        row = next((row for row in found if row.job_id == job_id), None)
        if row is not None:
            if begun < self._begun.get(job_id, begun):
                return self.rows.get(job_id, row)
            for other in found:  # all components of a heterogeneous job answer to the name of one
                self.rows[other.job_id], self._begun[other.job_id] = other, begun
            if observe.details_for(self.details, row) is None:
                # Somebody waits for this one: no pause, but those who wait together ask once.
                self._details_earliest = 0.0
                await self._read_details((row,))
        return row

    def observation(self, row: JobRow) -> agent_pb2.JobObservation:
        return observe.observation(
            self.config.cluster,
            row,
            memory=self.memory,
            details=observe.details_for(self.details, row),
            nodes=self.nodes,
            scope_config=self.config.scope,
            at=self._begun[row.job_id][1] if row.job_id in self._begun else self.clock.wall(),
            leader=self.leader(row),
        )

    def components(self, row: JobRow) -> tuple[JobRow, ...]:
        """All of the heterogeneous job that it is of, itself too; nothing for any other job."""
        if not row.het_job_id:
            return ()
        return tuple(other for other in self.rows.values() if other.het_job_id == row.het_job_id)

    def leader(self, row: JobRow) -> tuple[JobRow, JobDetails | None]:
        """Whose comment speaks for it: the leader of its heterogeneous job, or itself."""
        found = self.rows.get(row.het_job_id, row) if row.het_offset else row
        return found, observe.details_for(self.details, found)

    def _warn(self) -> None:
        """Say it while it can be changed: a job that is to be watched over, and could not be restarted."""
        self._warned &= self.rows.keys()
        for row in self.rows.values():
            if (row.requeueable and row.batch) or row.job_id in self._warned:
                continue
            problem, (leader, details) = observe.restart_impossible(row), self.leader(row)
            live = phase_of(row.state) in {Phase.PENDING, Phase.RUNNING, Phase.SUSPENDED}
            if live and details is not None:
                self._warned.add(row.job_id)
                if observe.judge_scope(self.config.scope, leader, details).inside:
                    log.warning("job_not_restartable", job=row.job_id, user=row.user, problem=problem)

    async def read_settings(self) -> None:
        """Ask for Slurm's settings when they are unknown or have become old."""
        now = self.clock.monotonic()
        if self.settings is not None and now < self._settings_due:
            return
        try:
            self.settings = await asyncio.to_thread(self.slurm.config)
        except SlurmError as error:
            self._failed("scontrol", error)
            return
        self._succeeded("scontrol")
        self.memory.requeue_exit_hold = self.settings.requeue_exit_hold
        self._settings_due = now + CONFIG_SECONDS

    async def _read_details(self, rows: tuple[JobRow, ...]) -> None:
        """Ask for user-written fields only when an unseen (job, submit time) appears, or they have become old."""
        async with self._details_lock:
            await self._read_details_alone(rows)

    async def _read_details_alone(self, rows: tuple[JobRow, ...]) -> None:
        now = self.clock.monotonic()

        def unseen(row: JobRow) -> bool:
            known = self.details.get(row.job_id)
            return known is None or known.submit != row.submit

        due = now >= self._details_due or any(unseen(row) for row in rows)
        if not due or now < self._details_earliest:
            return
        try:
            found = await asyncio.to_thread(self.slurm.details)
        except SlurmError as error:
            self._failed("squeue --json", error)
            self._details_earliest = now + 1.0
            return
        self._succeeded("squeue --json")
        self.details = {details.job_id: details for details in found.values()}
        took = self.clock.monotonic() - now
        self._details_due = now + took + DETAILS_SECONDS
        # A job that squeue's listing shows and its JSON does not yet must not make us ask without a pause.
        self._details_earliest = now + took * DETAILS_PAUSE_FACTOR

    async def _read_nodes(self) -> None:
        now = self.clock.monotonic()
        if now < self._nodes_due:
            return
        try:
            self.nodes = await asyncio.to_thread(self.slurm.nodes)
        except SlurmError as error:
            self._failed("sinfo", error)
            self.nodes = ()
            self.silence.forget()
            return
        self._succeeded("sinfo")
        self.silence.learn(self.nodes, now)
        self._nodes_due = now + NODES_SECONDS

    async def read_maintenance(self, age_seconds_max: float) -> None:
        """What was read last holds until it can be read again: maintenance does not end because Slurm is silent.

        Whoever is about to act asks for what is hardly old; those who ask together look once.
        """
        async with self._maintenance_lock:
            now = self.clock.monotonic()
            if self._maintenance_at is not None and now - self._maintenance_at < age_seconds_max:
                return
            self._maintenance_at = now
            try:
                self.maintenance = await asyncio.to_thread(self.slurm.maintenance)
            except SlurmError as error:
                self._failed("maintenance", error)
                return
            self._succeeded("maintenance")

    def _failed(self, source: str, error: SlurmError) -> None:
        if source not in self.unavailable:
            log.warning("slurm_unavailable", source=source, problem=error.problem, detail=error.detail)
        self.unavailable[source] = wire.unavailable(source, error)

    def _succeeded(self, source: str) -> None:
        if self.unavailable.pop(source, None) is not None:
            log.info("slurm_available", source=source)
