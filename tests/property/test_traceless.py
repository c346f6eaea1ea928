"""Rows of failures that leave nothing but an exit code: a broken node is got rid of, a broken program is given up."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from advisor.core.isolation import isolate
from advisor.core.model import Attempt, Attribution, Decision, Incident, Job, PastAttempt, Snapshot
from advisor.core.policy import Policy
from advisor.core.remediation import conclude
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Reason
from tests.property.strategies import NOON

POLICY = Policy()
SILENT = Attribution(category=Category.UNKNOWN, root_cause="an exit code", confidence=0.3)
CRASH = Incident(kind=IncidentKind.CRASH, visible_at=NOON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A job on so many of the cluster's nodes; the scheduler gives it the first that it may have."""

    needs: int
    cluster: int

    def given_without(self, excluded: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for index in range(self.cluster) if (name := f"n{index:03}") not in excluded)[: self.needs]


places = st.builds(
    lambda needs, spare: Place(needs=needs, cluster=needs + spare), st.integers(1, 12), st.integers(4, 40)
)


def _live(place: Place, runs: list[float], fails: Callable[[tuple[str, ...]], bool]) -> list[Decision]:
    """Attempts of so many seconds each, while they fail; until the job is given up."""
    past: tuple[PastAttempt, ...] = ()
    decisions: list[Decision] = []
    nodes = place.given_without(())
    for number, seconds in enumerate(runs):
        if not fails(nodes):
            break
        began = NOON - timedelta(seconds=seconds)
        snapshot = Snapshot(
            job=Job(
                key="k", cluster="c", job_id="7", user="u", batch=True, requeueable=True, nodes_requested=place.needs
            ),
            attempt=Attempt(number=number, state=AttemptState.FAILED, nodes=nodes, started_at=began, ended_at=NOON),
            past=past,
            nodes_fitting=place.cluster,
        )
        now = NOON + timedelta(seconds=60)
        isolation = isolate(snapshot, CRASH, SILENT, POLICY, now)
        decision = conclude(snapshot, CRASH, SILENT, isolation, POLICY, now)
        decisions.append(decision)
        if decision.action is not Action.RESTART:
            break
        past += (
            PastAttempt(
                number=number,
                category=Category.UNKNOWN,
                fingerprint="",
                reason=decision.reason,
                action=decision.action,
                excluded_nodes=isolation.exclude_for_job,
                nodes=nodes,
                started_at=began,
                ended_at=NOON,
            ),
        )
        nodes = place.given_without(isolation.exclude_for_job)
    return decisions


@given(places, st.lists(st.floats(5.0, 300.0), min_size=20, max_size=20), st.data())
def test_a_broken_node_that_nothing_names_is_got_rid_of(place: Place, runs: list[float], data: st.DataObject) -> None:
    """Whenever it strikes, and at the same point each time: the job runs without it before it would be given up."""
    bad = f"n{data.draw(st.integers(0, place.needs - 1)):03}"
    decisions = _live(place, runs, lambda nodes: bad in nodes)
    assert all(decision.action is Action.RESTART for decision in decisions)
    assert bad in decisions[-1].isolation.exclude_for_job
    assert len(decisions) <= 6


@given(places, st.floats(5.0, 50_000.0), st.lists(st.floats(0.0, 10.0), min_size=20, max_size=20))
def test_a_program_that_fails_at_one_point_is_given_up(place: Place, point: float, jitter: list[float]) -> None:
    """Soon, wherever it runs, and it keeps no more nodes from itself meanwhile than one incident may exclude."""
    decisions = _live(place, [point + more for more in jitter], lambda nodes: True)
    assert decisions[-1].reason is Reason.BUDGET_EXHAUSTED
    assert len(decisions) <= POLICY.restarts_unexplained + 1
    assert all(len(item.isolation.exclude_for_job) <= POLICY.exclusions_per_incident_max for item in decisions)


@given(places, st.lists(st.floats(5.0, 100_000.0), min_size=30, max_size=30))
def test_nothing_that_leaves_no_trace_is_restarted_for_ever(place: Place, runs: list[float]) -> None:
    """Wherever in its course it fails, the ceiling ends it."""
    decisions = _live(place, runs, lambda nodes: True)
    node_days = place.needs * sum(runs) / 86_400.0
    most = POLICY.restarts_ceiling + node_days * POLICY.restarts_ceiling_per_1000_node_days / 1000
    assert sum(item.action is Action.RESTART for item in decisions) <= most + 1e-9
