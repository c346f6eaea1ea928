"""The tick's part about nodes: what settled decisions want of them, and isolations whose time is over."""

from collections.abc import Iterable
from datetime import datetime

import structlog

from advisor.core.node_isolation import Want, wants_of
from advisor.core.policy import Policy
from advisor.instruments import Instruments
from advisor.store.leases import Fence
from advisor.store.store import Store
from advisor.verdicts import Verdict

log = structlog.get_logger(__name__)

KNOWN_MAX = 100_000


class Isolating:
    """Takes wants to the store, which judges them on what is held at that moment; remembers what was judged."""

    def __init__(self, store: Store, policy: Policy, instruments: Instruments) -> None:
        self._store = store
        self._instruments = instruments
        self._policy = policy
        self._judged: set[tuple[str, Want]] = set()
        self._refused: dict[str, str] = {}  # cluster → why, as told last
        self._young: dict[str, tuple[Want, ...]] = {}  # cluster → what is to settle, also when its attempt is done with

    async def expire(self, now: datetime, fence: Fence | None = None) -> bool:
        """True when an isolation has ended."""
        ended = await self._store.expire_isolations(now, fence=fence)
        for item in ended:
            log.info("isolation_ended", node=item.node, cluster=item.cluster, isolation=item.isolation_id, by="ttl")
        return bool(ended)

    def forget(self, jobs: Iterable[str]) -> None:
        """Another replica has these jobs, or had them: what they want now, their next decisions say."""
        gone = frozenset(jobs)
        self._young = {
            cluster: tuple(want for want in young if want.job_key not in gone) for cluster, young in self._young.items()
        }

    def begin_anew(self) -> None:
        """What was judged may be forgotten: the store is another one."""
        self._judged.clear()

    async def isolate(self, verdicts: Iterable[Verdict], now: datetime, fence: Fence | None = None) -> bool:
        """True when what is wanted of any node has changed. What was refused is tried again in the next tick."""
        verdicts = list(verdicts)
        # What an attempt's newest decision says is all that it wants: later evidence may speak for a node.
        told = {(verdict.sighting.item.job.key, verdict.sighting.key.number) for verdict in verdicts}
        wants = {
            cluster: [want for want in young if (want.job_key, want.number) not in told]
            for cluster, young in self._young.items()
        }
        for verdict in verdicts:
            if not verdict.decision.isolation.isolate_for_cluster:
                continue
            job = verdict.sighting.item.job
            number = verdict.sighting.key.number
            for want in wants_of(verdict.decision, job.key, number, job.job_id, self._policy):
                asked = wants.setdefault(job.cluster, [])
                if (job.cluster, want) not in self._judged and want not in asked:
                    asked.append(want)
        changed = False
        for cluster, wanted in wants.items():
            if not wanted:
                self._young.pop(cluster, None)
                continue
            plan = await self._store.isolate(cluster, wanted, now=now, fence=fence)
            for want in (*plan.opens, *plan.acts_now):
                changed = True
                log.warning(
                    "isolation_opened",
                    cluster=cluster,
                    node=want.node,
                    job=want.job_id,
                    category=want.category,
                    dry_run=not want.acts,
                    why=want.why,
                )
            self._instruments.isolations_judged(
                cluster,
                opened=sum(want.acts for want in (*plan.opens, *plan.acts_now)),
                on_paper=sum(not want.acts for want in plan.opens),
                refused=len(plan.refused),
            )
            self._young[cluster] = plan.young[:KNOWN_MAX]
            self._tell(cluster, plan.refused_why, plan.trips)
            if len(self._judged) > KNOWN_MAX:
                self._judged.clear()
            self._judged.update((cluster, want) for want in wanted if want not in (*plan.refused, *plan.young))
        return changed

    def _tell(self, cluster: str, refused: str, trips: str) -> None:
        if trips:
            log.error("isolation_breaker_tripped", cluster=cluster, why=trips, reset="advisor nodes reset-breaker")
        elif refused and self._refused.get(cluster) != refused:
            log.warning("isolation_refused", cluster=cluster, why=refused)
        self._refused[cluster] = refused
