"""What may be done about a node: only our own drain is ever undone, and nobody's reason is overwritten."""

from dataclasses import replace

import pytest

from slurm_plugin.draining import Drain, NodeLimits, Told, Undrain, Wish, command, ours, plan, reason_for
from slurm_plugin.records import NodeRow
from slurm_plugin.words import Reason, Status

ID = "01a2285d-d9dd-7aca-b195-2f157edd838d"
OTHER = ID.replace("01a2", "01a3")
WISH = Wish(
    isolation_id=ID,
    node="n1",
    generation=1,
    drained=True,
    dry_run=False,
    category="gpu_hardware",
    expires_monotonic=100.0,
)
RELEASE = replace(WISH, drained=False, generation=2)
LIMITS = NodeLimits(mode="act", nodes_max=2, percent_max=50.0)


def node(name: str = "n1", state: str = "idle", reason: str = "") -> NodeRow:
    return NodeRow(
        name=name,
        state=state,
        responding=True,
        partitions=("main",),
        cpus=1,
        memory_mb=1,
        gres="",
        features=(),
        reason=reason,
    )


def outcome(wish: Wish, *nodes: NodeRow, limits: NodeLimits = LIMITS, now: float = 0.0) -> object:
    others = [node(f"n{i}") for i in range(2, 9)]
    return plan(wish, [*nodes, *others], limits, monotonic=now)


def told(wish: Wish, *nodes: NodeRow, limits: NodeLimits = LIMITS, now: float = 0.0) -> tuple[Status, Reason]:
    found = outcome(wish, *nodes, limits=limits, now=now)
    assert isinstance(found, Told)
    return found.status, found.reason


def test_a_node_in_service_is_drained_with_a_reason_that_names_us() -> None:
    """The reason holds the isolation, and is recognised again by exactly that."""
    step = outcome(WISH, node())
    assert step == Drain(node="n1", reason=f"advisor: {ID} gpu_hardware")
    assert command(Drain(node="n1", reason="advisor: x"))[1:] == ("NodeName=n1", "State=DRAIN", "Reason=advisor: x")
    assert ours(node(reason=reason_for(WISH))) == ID
    assert told(WISH, node(state="draining", reason=reason_for(WISH))) == (Status.VERIFIED, Reason.OBSERVED)


@pytest.mark.parametrize("reason", ["RMA 7", f"advisor: {OTHER} gpu_hardware", f"advisor: {ID} gpu_hardware again", ""])
def test_a_drain_of_others_is_left_with_its_reason(reason: str) -> None:
    """Neither drained again nor undone, whoever they are; a reason that only looks like ours is theirs."""
    theirs = node(state="drained", reason=reason)
    assert told(WISH, theirs) == (Status.ALREADY_SATISFIED, Reason.DRAINED_BY_OTHERS)
    assert told(RELEASE, theirs) == (Status.ALREADY_SATISFIED, Reason.DRAINED_BY_OTHERS)


def test_a_reason_on_a_node_that_is_down_is_not_replaced() -> None:
    """It is out of service already: looked at again when it is back."""
    assert told(WISH, node(state="down", reason="Not responding"))[0] is Status.WITHHELD


def test_a_node_that_somebody_put_back_stays_in_service() -> None:
    """It was seen drained by us and is not any more: that is the repair."""
    assert told(replace(WISH, seen_drained=True), node()) == (Status.ALREADY_SATISFIED, Reason.REPAIR_SEEN)


@pytest.mark.parametrize(
    ("state", "more"),
    [("reboot", ""), ("reboot", " : reboot issued"), ("drained", " : reboot issued"), ("inval", ""), ("down", "")],
)
def test_a_reboot_is_no_repair_and_the_drain_stays_ours(state: str, more: str) -> None:
    """Measured on 22.05.8: while it reboots the node does not show its drain, and Slurm writes behind our reason. It
    comes back drained, with that: were it taken for put back, or for somebody else's, nobody would ever undo it.
    """
    row = node(state=state, reason=reason_for(WISH) + more)
    assert ours(row) == ID
    assert told(replace(WISH, seen_drained=True), row) == (Status.VERIFIED, Reason.OBSERVED)
    if state == "drained":
        assert outcome(RELEASE, row) == Undrain(node="n1")
    elif state == "down":
        assert told(RELEASE, row) == (Status.VERIFIED, Reason.OBSERVED)
    else:
        assert told(RELEASE, row) == (Status.PENDING, Reason.STILL_COMPLETING)


def test_a_reboot_with_a_reason_of_its_own_is_somebody_elses() -> None:
    """`scontrol reboot reason=` replaces ours; what becomes of the node is theirs to say."""
    row = node(state="reboot", reason="fw upgrade")
    for wish in (replace(WISH, seen_drained=True), WISH):
        assert told(wish, row) == (Status.ALREADY_SATISFIED, Reason.DRAINED_BY_OTHERS)


def test_our_own_drain_is_undone_by_undrain() -> None:
    """Which leaves a node that is down as it is; done when it is no longer drained."""
    assert outcome(RELEASE, node(state="drained", reason=reason_for(WISH))) == Undrain(node="n1")
    assert command(Undrain(node="n1")) == ("update", "NodeName=n1", "State=UNDRAIN")
    assert told(RELEASE, node()) == (Status.VERIFIED, Reason.OBSERVED)


def test_the_smaller_of_the_agents_caps_holds() -> None:
    """Nodes that carry our reason count, read from Slurm itself; half of eight is four, two are allowed."""
    held = [replace(node(f"h{i}", "drained"), reason=f"advisor: {OTHER} gpu_hardware") for i in range(2)]
    assert told(WISH, node(), *held) == (Status.WITHHELD, Reason.CAP_NODES)
    assert isinstance(outcome(WISH, node(), held[0]), Drain)
    assert told(WISH, node(), held[0], replace(held[1], state="reboot")) == (Status.WITHHELD, Reason.CAP_NODES)
    theirs = [node(f"t{i}", "drained", "RMA") for i in range(5)]
    assert isinstance(outcome(WISH, node(), *theirs), Drain)  # what others drained is not ours to count
    share = replace(LIMITS, nodes_max=100, percent_max=10.0)
    assert told(WISH, node(), limits=share) == (Status.WITHHELD, Reason.CAP_NODES)


@pytest.mark.parametrize(
    ("limits", "wish", "now", "reason"),
    [
        (replace(LIMITS, mode="off"), WISH, 0.0, Reason.AGENT_OBSERVES),
        (replace(LIMITS, mode="dry_run"), WISH, 0.0, Reason.DRY_RUN),
        (LIMITS, replace(WISH, dry_run=True), 0.0, Reason.DRY_RUN),
        (replace(LIMITS, stopped="/etc/stop"), WISH, 0.0, Reason.STOP_FILE),
        (LIMITS, WISH, 100.0, Reason.TIME_TO_LIVE),
        (LIMITS, replace(WISH, isolation_id="x; reboot"), 0.0, Reason.SCHEDULER_REFUSED),
        (LIMITS, replace(WISH, category="a b"), 0.0, Reason.SCHEDULER_REFUSED),
    ],
)
def test_what_keeps_us_from_it(limits: NodeLimits, wish: Wish, now: float, reason: Reason) -> None:
    """The agent's mode, a dry run, the stop file, words that have become old, and words that cannot be written."""
    assert told(wish, node(), limits=limits, now=now)[1] is reason


def test_nothing_is_concluded_about_a_node_that_is_not_shown() -> None:
    """An empty listing says nothing; one without the node says that it is gone."""
    assert plan(WISH, (), LIMITS, monotonic=0.0) == Told(
        status=Status.WITHHELD, reason=Reason.SCHEDULER_UNAVAILABLE, detail="the scheduler shows no such node"
    )
    assert told(replace(WISH, node="n99"), node())[1] is Reason.GONE
