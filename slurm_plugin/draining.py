"""What may be done about one node: pure, stdlib only. Ours is a drain whose reason is exactly the one we write, or that
with what Slurm itself writes behind it at a reboot. RESUME takes the reason away, so while it is there nobody put the
node back, whatever its state shows: a reboot or an invalid registration hides the drain.

Nobody else's drain is undone and nobody else's reason is overwritten. The agent's own caps hold whatever the advisor
wants: how many nodes carry our reason is read from Slurm, so that no state of ours is needed to count them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_plugin.capacity import UP_STATES
from slurm_plugin.records import NodeRow
from slurm_plugin.words import Reason, Status

_REASON = re.compile(r"advisor: ([0-9a-f-]{36}) [a-z_]{1,40}(?: : reboot [a-z ]{1,20}){0,8}", re.ASCII)
_HIDING = frozenset({"reboot", "inval"})  # whether the node is drained does not show
_DRAINED = frozenset({"draining", "drained"})
_ID = re.compile(r"[0-9a-f-]{36}", re.ASCII)
_CATEGORY = re.compile(r"[a-z_]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the advisor wants of one node, for as long as `expires_monotonic` (CLOCK_MONOTONIC)."""

    isolation_id: str
    node: str
    generation: int
    drained: bool
    dry_run: bool
    category: str
    expires_monotonic: float
    seen_drained: bool = False

    @property
    def usable(self) -> bool:
        """The reason that we would write is one that we recognise."""
        return bool(_ID.fullmatch(self.isolation_id) and _CATEGORY.fullmatch(self.category))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The agent's own configuration. `mode`: "off", "dry_run" or "act". `off_by`: which key says that it is off."""

    mode: str
    nodes_max: int
    percent_max: float
    stopped: str = ""
    off_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undrain:
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Nothing is to be done; this is what there is to say."""

    status: Status
    reason: Reason
    detail: str = ""


NodeOutcome = Drain | Undrain | Told


def reason_for(wish: Wish) -> str:
    return f"advisor: {wish.isolation_id} {wish.category}"


def ours(row: NodeRow) -> str:
    """The isolation whose reason is on the node, "" for a reason of others or none."""
    found = _REASON.fullmatch(row.reason)
    return found.group(1) if found else ""


def cap(nodes: int, limits: NodeLimits) -> int:
    """How many nodes may carry our drain at once: the smaller of the two bounds."""
    return min(limits.nodes_max, int(nodes * limits.percent_max / 100))


def plan(wish: Wish, nodes: Sequence[NodeRow], limits: NodeLimits, *, monotonic: float) -> NodeOutcome:
    """What to do about `wish` with all nodes as Slurm shows them now."""
    row = next((node for node in nodes if node.name == wish.node), None)
    if row is None:
        problem = Reason.GONE if nodes else Reason.SCHEDULER_UNAVAILABLE
        return Told(status=Status.WITHHELD, reason=problem, detail="the scheduler shows no such node")
    drained, mine = row.state in _DRAINED, ours(row) == wish.isolation_id
    if not wish.drained:
        return _put_back(wish, row, limits, drained=drained, mine=mine, monotonic=monotonic)
    if mine and row.state not in UP_STATES:
        return Told(status=Status.VERIFIED, reason=Reason.OBSERVED)
    if drained or (row.state in _HIDING and row.reason):
        return Told(status=Status.ALREADY_SATISFIED, reason=Reason.DRAINED_BY_OTHERS, detail=row.reason[:200])
    if wish.seen_drained:
        return Told(status=Status.ALREADY_SATISFIED, reason=Reason.REPAIR_SEEN, detail="somebody put it back")
    if wish.dry_run or limits.mode == "dry_run":
        return Told(status=Status.WITHHELD, reason=Reason.DRY_RUN, detail="only on paper")
    if row.reason:
        # Down, say, with a reason of others: it is out of service, and the reason is not ours to replace.
        return Told(status=Status.WITHHELD, reason=Reason.DRAINED_BY_OTHERS, detail=f"{row.state}: {row.reason[:200]}")
    waits = _not_now(wish, limits, monotonic=monotonic)
    if waits is not None:
        return waits
    held = sum(1 for node in nodes if ours(node) and node.state not in UP_STATES)
    most = cap(len(nodes), limits)
    if held >= most:
        detail = f"{held} of {len(nodes)} nodes are drained by us, at most {most} by the agent's own configuration"
        return Told(status=Status.WITHHELD, reason=Reason.CAP_NODES, detail=detail)
    return Drain(node=row.name, reason=reason_for(wish))


def _put_back(
    wish: Wish, row: NodeRow, limits: NodeLimits, *, drained: bool, mine: bool, monotonic: float
) -> NodeOutcome:
    if mine and row.state in _HIDING:
        return Told(status=Status.PENDING, reason=Reason.STILL_COMPLETING, detail=f"{row.state}: drained or not")
    if not drained:
        return Told(status=Status.VERIFIED, reason=Reason.OBSERVED)
    if not mine:
        return Told(status=Status.ALREADY_SATISFIED, reason=Reason.DRAINED_BY_OTHERS, detail=row.reason[:200])
    return _not_now(wish, limits, monotonic=monotonic) or Undrain(node=row.name)


def _not_now(wish: Wish, limits: NodeLimits, *, monotonic: float) -> Told | None:
    if limits.mode != "act":
        return Told(status=Status.WITHHELD, reason=Reason.AGENT_OBSERVES, detail=limits.off_by)
    if limits.stopped:
        return Told(status=Status.PENDING, reason=Reason.STOP_FILE, detail=limits.stopped)
    if monotonic >= wish.expires_monotonic:
        return Told(status=Status.PENDING, reason=Reason.TIME_TO_LIVE, detail="the advisor has not said it for a while")
    if not wish.usable:
        return Told(status=Status.WITHHELD, reason=Reason.SCHEDULER_REFUSED, detail="no reason could be written for it")
    return None


def command(step: Drain | Undrain) -> tuple[str, ...]:
    """One step as arguments of scontrol. UNDRAIN takes back a drain and nothing else: a node that is down stays so."""
    if isinstance(step, Drain):
        return ("update", f"NodeName={step.node}", "State=DRAIN", f"Reason={step.reason}")
    return ("update", f"NodeName={step.node}", "State=UNDRAIN")
