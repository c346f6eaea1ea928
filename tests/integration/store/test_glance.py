"""What the dashboard's first page and its map of nodes ask: open incidents, and every node at once."""

from dataclasses import replace

import pytest

from advisor.core.words import NodeState
from advisor.store.records import AuditFilter, ObservedNode, Page
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, decision, healthy, implication, record, running

pytestmark = pytest.mark.postgres


async def test_only_open_incidents_are_listed_when_asked_for(store: Store) -> None:
    """Of three incidents one has ended: the open ones come without it, page by page, with a cursor of their own."""
    keys = [await running(store, job_id=str(number)) for number in range(3)]
    for number, key in enumerate(keys):
        noticed = replace(decision().incident, detected_at=at(20 + number))
        await store.commit_decision(record(key, decision=decision(incident=noticed), created_at=at(21 + number)))
    await store.commit_decision(record(keys[1], 1, decision=healthy(), created_at=at(60)))
    first = await store.audit.incidents(AuditFilter(), Page(size=1), only_open=True)
    second = await store.audit.incidents(AuditFilter(), Page(size=1, cursor=first.next_cursor), only_open=True)
    assert [row.attempt.job_id for row in (*first.rows, *second.rows)] == ["2", "0"]
    assert second.next_cursor == ""
    assert len((await store.audit.incidents(AuditFilter(), Page())).rows) == 3


async def test_the_map_holds_every_node_with_its_score(store: Store) -> None:
    """A node that the scheduler shows, one that is blamed and one that is both are all there, of one cluster or all."""
    shown = [ObservedNode(name=name, state=NodeState.UP, observed_at=at(0)) for name in ("node1", "node2")]
    await store.record_observations(CLUSTER, (), shown, complete=False, now=at(0))
    blamed = replace(decision().attribution, implications=(implication("node2"), implication("gone9")))
    await store.commit_decision(record(await running(store), decision=decision(attribution=blamed)))
    found = await store.audit.node_map(cluster=CLUSTER, now=at(30))
    assert [(item.name, item.state, item.score > 0.5, item.isolated) for item in found.nodes] == [
        ("gone9", NodeState.OTHER, True, False),
        ("node1", NodeState.UP, False, False),
        ("node2", NodeState.UP, True, False),
    ]
    assert found == await store.audit.node_map(now=at(30))
    assert (await store.audit.node_map(cluster="other", now=at(30))).nodes == ()
