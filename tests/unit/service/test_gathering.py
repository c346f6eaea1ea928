"""What a tick remembers of the nodes that an attempt lost."""

from datetime import UTC, datetime, timedelta

from advisor.core.model import Attempt, Job, NodeFact
from advisor.core.words import AttemptState, NodeState
from advisor.sighting import Away, nodes_away
from advisor.store.records import AttemptKey, StoredAttempt

T = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def _item(state: AttemptState, node2: NodeState, since: datetime = T) -> StoredAttempt:
    return StoredAttempt(
        key=AttemptKey(job_key="k", number=0),
        job=Job(key="k", cluster="c", job_id="1", user="u"),
        attempt=Attempt(
            number=0,
            state=state,
            nodes=("node1", "node2"),
            started_at=T - timedelta(hours=1),
            ended_at=T if state.ended else None,
        ),
        nodes=(
            NodeFact(name="node1", state=NodeState.UP),
            NodeFact(name="node2", state=node2, since=since),
        ),
    )


def test_a_node_that_is_back_while_the_attempt_lives_was_never_lost() -> None:
    """A blink of the network leaves nothing behind."""
    away = nodes_away({}, _item(AttemptState.RUNNING, NodeState.NOT_RESPONDING))
    assert set(away) == {"node2"}
    assert nodes_away(away, _item(AttemptState.RUNNING, NodeState.UP)) == {}


def test_a_node_that_is_repaired_after_the_end_stays_lost() -> None:
    """Once the attempt has ended, a node that answers again does not change why it ended."""
    away = nodes_away({}, _item(AttemptState.RUNNING, NodeState.DOWN))
    for state in (AttemptState.COMPLETING, AttemptState.NODE_FAILURE):
        away = nodes_away(away, _item(state, NodeState.UP))
    assert away == {"node2": Away(state=NodeState.DOWN, since=T)}


def test_a_node_is_away_since_it_stopped_answering() -> None:
    """The scheduler calls a silent node down much later; it went away when it fell silent."""
    away = nodes_away({}, _item(AttemptState.RUNNING, NodeState.NOT_RESPONDING))
    later = _item(AttemptState.COMPLETING, NodeState.DOWN, since=T + timedelta(seconds=300))
    assert nodes_away(away, later) == {"node2": Away(state=NodeState.DOWN, since=T)}
