"""Nodes that do not answer the scheduler: since when, and which of them may be set DOWN to let a job go. Pure, stdlib.

Counted by our own looks: what began before the agent did is not believed to have lasted, and a look that failed begins
the count anew. So an agent that was just started waits once more; it never concludes from what it did not see.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_plugin.records import JobRow, NodeRow
from slurm_plugin.words import Phase, phase_of

HOUR_SECONDS = 3600.0
DOWN_REASON = "advisor: does not respond and held job"
_HOLDING = frozenset({Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING})
_DOWN = frozenset({"down", "fail", "failing", "error", "powered_down", "powering_down"})


@dataclass(slots=True, kw_only=True)
class Silence:
    """Times are monotonic seconds."""

    since: dict[str, float] = field(default_factory=dict)
    downs: deque[float] = field(default_factory=deque)
    _begun: bool = False

    def learn(self, nodes: Iterable[NodeRow], now: float) -> None:
        nodes = tuple(nodes)
        if not self._begun:
            # Set DOWN by an agent before this one, at the latest now: an hour's bound is not begun anew by dying.
            self.went_down(sum(node.state in _DOWN and node.reason.startswith(DOWN_REASON) for node in nodes), now)
            self._begun = True
        self.since = {node.name: self.since.get(node.name, now) for node in nodes if silent(node)}

    def forget(self) -> None:
        """A look failed."""
        self.since.clear()

    def may_go_down(
        self,
        job: JobRow,
        rows: Mapping[str, JobRow],
        *,
        after_seconds: float,
        per_hour: int,
        now: float,
    ) -> tuple[str, ...]:
        """Nodes of the job that were silent for so long, that nobody else's job is on, as far as the hour allows."""
        while self.downs and now - self.downs[0] >= HOUR_SECONDS:
            self.downs.popleft()
        others = taken_by_others(job.job_id, rows.values())
        dead = [
            node
            for node in job.nodes
            if node in self.since and now - self.since[node] >= after_seconds and node not in others
        ]
        return tuple(dead[: max(per_hour - len(self.downs), 0)])

    def went_down(self, count: int, now: float) -> None:
        self.downs.extend([now] * count)


def taken_by_others(job_id: str, rows: Iterable[JobRow]) -> frozenset[str]:
    """Nodes that any other job is on."""
    return frozenset(
        node for row in rows if row.job_id != job_id and phase_of(row.state) in _HOLDING for node in row.nodes
    )


def silent(node: NodeRow) -> bool:
    """It does not answer, the scheduler has not given it up yet, and nobody has written anything about it."""
    return not node.responding and node.state not in _DOWN and not node.reason


def still_silent(wanted: Sequence[str], nodes: Iterable[NodeRow]) -> tuple[str, ...]:
    """Those of `wanted` that a fresh look still shows so."""
    now = {node.name for node in nodes if silent(node)}
    return tuple(name for name in wanted if name in now)
