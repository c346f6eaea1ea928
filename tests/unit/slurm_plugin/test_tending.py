"""Exclusions of ours that keep a waiting job from starting: as few as will do go, the least certain first."""

from dataclasses import replace

import pytest

from slurm_plugin import mark
from slurm_plugin.mark import Mark
from slurm_plugin.records import JobRow
from slurm_plugin.tending import relief

NODES = tuple(f"node{number}" for number in range(1, 7))


def waiting(*ours: str, users: tuple[str, ...] = (), **changes: object) -> JobRow:
    marked = Mark(job="k", attempt=0, generation=1, nodes=ours, inherited=ours[-1:])
    row = JobRow(
        job_id="17",
        shown_id="17",
        state="PENDING",
        restarts=1,
        submit=1000,
        priority=10,
        reason="Resources",
        user="alice",
        user_id=1,
        nodes_wanted=3,
        excluded=(*users, *ours),
        admin_comment=f"note {mark.render(marked)}",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def test_as_few_as_will_do_the_least_certain_first() -> None:
    """Five fit, three are wanted, three are ours: the last one goes, the user's and other text stay."""
    found = relief(waiting("node1", "node2", "node3"), NODES[:5])
    assert found is not None
    assert (found.dropped, found.update.excluded, found.sure) == (("node3",), ("node1", "node2"), False)
    left = mark.find(found.update.admin_comment)
    assert left is not None
    assert (left.nodes, left.inherited, left.returned) == (("node1", "node2"), (), False)
    assert found.update.admin_comment.startswith("note ")
    again = waiting("node1", "node2", admin_comment=found.update.admin_comment)
    assert relief(again, NODES[:5]) is None


def test_a_node_that_is_down_frees_nothing() -> None:
    """node3 does not fit at the moment: dropping it buys nothing, so it stays excluded and the next one goes."""
    found = relief(waiting("node1", "node3"), ("node1", "node2", "node4"))
    assert found is not None
    assert (found.dropped, found.update.excluded) == (("node1",), ("node3",))


@pytest.mark.parametrize(
    ("row", "fitting"),
    [
        (waiting("node1"), NODES),
        (waiting("node1", users=("node2", "node3", "node4")), NODES[:5]),
        (waiting("node1"), NODES[:2]),
        (waiting("node1"), None),
        (waiting("node1", state="RUNNING"), NODES[:3]),
        (waiting("node1", priority=0, reason="JobHeldUser"), NODES[:3]),
        (waiting("node1", excluded=None), NODES[:3]),
        (waiting("node1", excluded=("node2",)), NODES[:3]),
        (waiting("node1", admin_comment=""), NODES[:3]),
    ],
)
def test_what_is_not_our_doing_is_left(row: JobRow, fitting: tuple[str, ...] | None) -> None:
    """Enough fit; too few even without ours; not known; it runs; it is held; nothing of ours is on it."""
    assert relief(row, fitting) is None


def test_slurms_own_word_is_enough() -> None:
    """BadConstraints: one at a time where it is not known how many fit."""
    bad = waiting("node1", "node2", priority=0, reason="BadConstraints")
    for fitting in (None, NODES):
        found = relief(bad, fitting)
        assert found is not None
        assert (found.dropped, found.sure) == (("node2",), True)
    assert relief(waiting("node1", users=NODES[1:], priority=0, reason="BadConstraints"), NODES) is None
