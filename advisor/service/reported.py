"""Reading agents' reports: a message that says what one said before is not read anew.

Every five seconds an agent tells of all jobs that its scheduler holds, every minute of all nodes, and nearly nothing
of it has changed. A message is known by its bytes without the time of the look, so that what is given for it is what
reading it would give; nothing of this says what is stored. Between some of them the tick may go on: it waits for no
report.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar

from advisor.service import wire
from advisor.service.errors import BadRequestError
from advisor.store.records import ObservedJob, ObservedNode
from advisor.v1 import agent_pb2

KEPT_BYTES_MAX = 64 * 1024 * 1024  # of messages; of what was told before as much again
NODES_BYTES_MAX = 8 * 1024 * 1024  # likewise: a hundred thousand nodes
_CLUSTERS_MAX = 100
_JOBS_TOGETHER, _NODES_TOGETHER = 50, 500  # a millisecond or two

Message = TypeVar("Message", agent_pb2.JobObservation, agent_pb2.NodeObservation)
Read = TypeVar("Read")


@dataclass(slots=True, kw_only=True)
class Report:
    """What could be read, and why what could not."""

    jobs: list[ObservedJob] = field(default_factory=list)
    nodes: list[ObservedNode] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Told(Generic[Read]):
    """By bytes, since it was last turned over, and between that and the time before."""

    bytes_max: int = KEPT_BYTES_MAX
    size: int = 0
    since: dict[bytes, Read] = field(default_factory=dict)
    before: dict[bytes, Read] = field(default_factory=dict)

    def find(self, message: Message, seen_at: datetime, read: Callable[[], Read]) -> Read:
        """`read`: the message, which is whole then."""
        message.ClearField("observed_at")
        said = message.SerializeToString()
        found = self.since.get(said)
        if found is None:
            found = self.before.get(said)
            if found is None:
                message.observed_at.FromDatetime(seen_at)
                found = read()
            if self.size > self.bytes_max:
                self.turn_over()
            self.since[said] = found
            self.size += len(said)
        return found

    def held(self) -> int:
        return len(self.since) + len(self.before)

    def turn_over(self) -> None:
        self.size, self.since, self.before = 0, {}, self.since


@dataclass(slots=True)
class _Cluster:
    jobs: Told[ObservedJob] = field(default_factory=Told)
    nodes: Told[ObservedNode] = field(default_factory=lambda: Told(bytes_max=NODES_BYTES_MAX))


class Reported:
    """Of each cluster what was told. Reports of one cluster are to be read one after the other."""

    def __init__(self) -> None:
        self._clusters: dict[str, _Cluster] = {}

    async def read(self, request: agent_pb2.ReportObservationsRequest, cluster: str, now: datetime) -> Report:
        """The request's jobs and nodes are not whole afterwards. `now`: nothing was seen later."""
        if len(self._clusters) >= _CLUSTERS_MAX and cluster not in self._clusters:
            self._clusters.clear()
        told = self._clusters.setdefault(cluster, _Cluster())
        report = Report()
        for at, job in enumerate(request.jobs):
            try:
                report.jobs.append(_job(told.jobs, job, cluster, f"jobs[{at}]"))
            except BadRequestError as error:
                report.refused.append(str(error))
            if at % _JOBS_TOGETHER == 0:
                await asyncio.sleep(0)
        for at, node in enumerate(request.nodes):
            try:
                report.nodes.append(_node(told.nodes, node, f"nodes[{at}]", now))
            except BadRequestError as error:
                report.refused.append(str(error))
            if at % _NODES_TOGETHER == 0:
                await asyncio.sleep(0)
        if request.complete:
            told.jobs.turn_over()  # what is not listed any more is not told again
        return report


def _job(told: Told[ObservedJob], message: agent_pb2.JobObservation, cluster: str, place: str) -> ObservedJob:
    seen_at = wire.needed_moment(message, "observed_at", place)
    known = told.find(message, seen_at, lambda: wire.observed_job(message, cluster, place))
    return known if known.observed_at == seen_at else replace(known, observed_at=seen_at)


def _node(told: Told[ObservedNode], message: agent_pb2.NodeObservation, place: str, now: datetime) -> ObservedNode:
    seen_at = wire.needed_moment(message, "observed_at", place)
    known = told.find(message, seen_at, lambda: wire.observed_node(message, place, now))
    seen_at = min(seen_at, now)
    if known.observed_at == seen_at:
        return known
    # Tens of thousands: `replace` takes twice as long.
    return ObservedNode(
        name=known.name, state=known.state, observed_at=seen_at, reason=known.reason, partitions=known.partitions
    )
