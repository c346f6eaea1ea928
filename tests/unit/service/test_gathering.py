"""What a tick remembers of an attempt: the nodes that it lost, and how far it was read."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from advisor.clock import SystemClock
from advisor.core import codec
from advisor.core.model import Attempt, Job, NodeFact
from advisor.core.rules import RuleSet
from advisor.core.scan import Scanner
from advisor.core.words import AttemptState, NodeState
from advisor.gathering import Gatherer
from advisor.sighting import Away, SourceState, TickState, nodes_away
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


def test_the_next_attempt_begins_where_reading_ended_though_that_waits_to_be_saved() -> None:
    """What it was before is stored, and the lines since then are of the one before in a file that both write into."""
    gatherer = Gatherer(
        sources=(), scanner=Scanner(RuleSet(rules=())), clock=SystemClock(), read_bytes_max=1, signals_max=1
    )
    stored = codec.encode(TickState(sources={"log": SourceState(cursor="stored")}))
    first = replace(_item(AttemptState.RUNNING, NodeState.UP), detector_state=stored)
    (sighting,) = gatherer.sight([first])
    sighting.state = replace(sighting.state, sources={"log": SourceState(cursor="read on")})
    gatherer.put_off([sighting])
    second = replace(
        _item(AttemptState.RUNNING, NodeState.UP),
        key=AttemptKey(job_key="k", number=1),
        predecessor_state=stored,
    )
    before, after = gatherer.sight([first, second])
    assert before.state.sources["log"].cursor == "read on"
    assert after.state.sources["log"].predecessor == "read on"
