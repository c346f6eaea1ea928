"""Brings nodes to what the advisor wants of them, one at a time, and says what came of it.

Level-triggered, like jobs: each pass plans again from what Slurm shows, and whatever is done or concluded is judged on
a look that began after. What is kept is only what was said, and which drains were seen, so that a node that somebody
put back is not drained again before the advisor has heard of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from advisor.v1 import agent_pb2
from slurm_plugin import draining, stop_file, wire
from slurm_plugin.clock import Clock
from slurm_plugin.config import AgentConfig
from slurm_plugin.draining import Drain, NodeLimits, Told, Undrain, Wish
from slurm_plugin.records import NodeRow
from slurm_plugin.squeue import Slurm, SlurmError, first_line
from slurm_plugin.words import Reason, Status

log = structlog.get_logger(__name__)

WISHES_MAX = 1000
TIME_TO_LIVE_SECONDS_MAX = 60.0
RETRY_SECONDS = 5.0  # after Slurm refused
STEPS_MAX = 4  # in one pass, for which looks at jobs wait
LOOK_SECONDS_MAX = 5.0  # nothing is done on one that began longer ago: the agent may have been frozen since


@dataclass(slots=True, kw_only=True)
class Drainer:
    """`put` queues a report."""

    config: AgentConfig
    slurm: Slurm
    clock: Clock
    put: Callable[[agent_pb2.ReportNodeReconciliationRequest], None]
    _wishes: dict[str, Wish] = field(default_factory=dict)
    _said: dict[str, tuple[int, Told]] = field(default_factory=dict)
    _drained: set[str] = field(default_factory=set)
    _retry_at: dict[str, float] = field(default_factory=dict)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    def heard(self, nodes: Sequence[agent_pb2.NodeAdvice]) -> bool:
        """All that is wanted of nodes, as of now. True when something new is."""
        now, wishes = self.clock.monotonic(), dict[str, Wish]()
        if len(nodes) > WISHES_MAX:
            log.error("node_advice_too_much", count=len(nodes), most=WISHES_MAX)
        for item in nodes[:WISHES_MAX]:
            if item.desired not in {agent_pb2.NODE_DESIRE_DRAINED, agent_pb2.NODE_DESIRE_NOT_DRAINED}:
                log.warning("node_advice_unusable", node=item.node, desired=item.desired)
                continue
            wishes[item.isolation_id] = Wish(
                isolation_id=item.isolation_id,
                node=item.node,
                generation=item.generation,
                drained=item.desired == agent_pb2.NODE_DESIRE_DRAINED,
                dry_run=item.dry_run,
                category=item.category,
                expires_monotonic=now + min(wire.seconds(item.time_to_live), TIME_TO_LIVE_SECONDS_MAX),
                seen_drained=item.seen_drained,
            )
        before, self._wishes = self._wishes, wishes
        self._said = {key: value for key, value in self._said.items() if key in wishes}
        self._retry_at = {key: value for key, value in self._retry_at.items() if key in wishes}
        self._drained &= wishes.keys()
        return any(
            key not in before or (before[key].generation, before[key].dry_run) != (wish.generation, wish.dry_run)
            for key, wish in wishes.items()
        )

    def told_nothing(self) -> None:
        """Another store listens, or one that was restored: what it does not know is said again."""
        self._said.clear()

    def isolated(self, nodes: int) -> tuple[str, ...]:
        """Nodes that the advisor holds isolated at this moment, of `nodes` in all, for new jobs to avoid.

        None while somebody has pulled the stop, while this agent only observes or rehearses, and never more than it may
        drain at once.
        """
        limits = self._limits()
        if limits.stopped or self.config.mode != "act" or limits.mode == "dry_run":
            return ()
        now = self.clock.monotonic()
        held = [wish for wish in self._wishes.values() if wish.drained and not wish.dry_run]
        current = [wish.node for wish in held if now < wish.expires_monotonic]
        return tuple(current[: draining.cap(nodes, limits)])

    async def reconcile(self, nodes: Sequence[NodeRow]) -> None:
        """One pass with the nodes of a recent look; a fresh one, and a step, only where that differs from what we said.

        Whatever is done or concluded rests on the fresh one.
        """
        if self._busy.locked() or not nodes:
            return
        async with self._busy:
            limits, now = self._limits(), self.clock.monotonic()
            due = [
                wish
                for key, wish in self._wishes.items()
                if now >= self._retry_at.get(key, 0.0)
                and self._said.get(key)
                != (wish.generation, draining.plan(self._seen(wish), nodes, limits, monotonic=now))
            ]
            if not due:
                return
            try:
                await self._attend(due)
            except SlurmError as error:
                problem = Told(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=str(error))
                for wish in due:
                    self._retry_at[wish.isolation_id] = self.clock.monotonic() + RETRY_SECONDS
                    self._say(wish, problem)

    def _seen(self, wish: Wish) -> Wish:
        return replace(wish, seen_drained=wish.seen_drained or wish.isolation_id in self._drained)

    def _limits(self) -> NodeLimits:
        wanted = self.config.isolation
        acts = self.config.mode == "act" or wanted.mode == "dry_run"
        return NodeLimits(
            mode=wanted.mode if acts else "off",
            nodes_max=wanted.nodes_max,
            percent_max=wanted.percent_max,
            stopped=stop_file.engaged(self.config.stop_file),
            off_by=f"[isolation] mode is {wanted.mode} in agent.toml" if acts else "mode is observe in agent.toml",
        )

    async def _attend(self, due: Sequence[Wish]) -> None:
        """Look, plan, act, look again. At most STEPS_MAX steps: the rest is for the next pass."""
        begun, nodes = await self._look()
        steps = 0
        for heard in due:
            wish = self._wishes.get(heard.isolation_id)
            if wish is None:
                continue  # taken back meanwhile
            outcome = draining.plan(self._seen(wish), nodes, self._limits(), monotonic=self.clock.monotonic())
            if isinstance(outcome, Drain | Undrain):
                if steps >= STEPS_MAX or self.clock.monotonic() - begun > LOOK_SECONDS_MAX:
                    return
                steps += 1
                refused = await self._act(wish, outcome)
                if refused is not None:
                    self._retry_at[wish.isolation_id] = self.clock.monotonic() + RETRY_SECONDS
                    self._say(wish, refused)
                    continue
                if isinstance(outcome, Undrain):
                    self._drained.discard(wish.isolation_id)
                begun, nodes = await self._look()
                outcome = draining.plan(wish, nodes, self._limits(), monotonic=self.clock.monotonic())
            if isinstance(outcome, Told):
                if wish.drained and outcome.status is Status.VERIFIED:
                    self._drained.add(wish.isolation_id)
                self._say(wish, outcome)

    async def _look(self) -> tuple[float, Sequence[NodeRow]]:
        """(when it began, the nodes)."""
        begun = self.clock.monotonic()
        return begun, await asyncio.to_thread(self.slurm.nodes)

    async def _act(self, wish: Wish, step: Drain | Undrain) -> Told | None:
        out = await asyncio.to_thread(self.slurm.tool, "scontrol", *draining.command(step))
        if out.returncode == 0 and not out.stderr.strip():
            log.warning(
                "node_drained" if isinstance(step, Drain) else "node_put_back",
                node=wish.node,
                isolation=wish.isolation_id,
                category=wish.category,
            )
            return None
        complaint = first_line(out.stderr)
        lowered = complaint.lower()
        denied = "permission denied" in lowered or "invalid user id" in lowered
        reason = Reason.PERMISSION if denied else Reason.SCHEDULER_REFUSED
        return Told(status=Status.WITHHELD, reason=reason, detail=complaint)

    def _say(self, wish: Wish, told: Told) -> None:
        if self._said.get(wish.isolation_id) == (wish.generation, told):
            return
        self._said[wish.isolation_id] = (wish.generation, told)
        tell = log.error if told.reason is Reason.CAP_NODES else log.info
        tell(
            "node_reconciled",
            node=wish.node,
            isolation=wish.isolation_id,
            generation=wish.generation,
            wants="drained" if wish.drained else "not drained",
            status=told.status,
            reason=told.reason,
            detail=told.detail,
        )
        self.put(
            agent_pb2.ReportNodeReconciliationRequest(
                cluster=self.config.cluster,
                isolation_id=wish.isolation_id,
                generation=wish.generation,
                node=wish.node,
                status=wire.status(told.status),
                reason=wire.reason(told.reason),
                detail=wire.clean(told.detail, 1000),
                at=wire.stamp(self.clock.wall()),
            )
        )
