"""Rows of failures that leave nothing but an exit code: a broken node is got rid of, a broken program is given up."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from advisor.core.budgets import since_progress
from advisor.core.isolation import isolate
from advisor.core.model import Attempt, Attribution, Decision, Incident, Job, PastAttempt, Progress, Snapshot
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


@given(
    places | st.sampled_from([128, 400, 4096]).map(lambda needs: Place(needs=needs, cluster=needs + 40)),
    st.lists(st.floats(5.0, 100_000.0), min_size=30, max_size=30),
)
@settings(max_examples=30)
def test_nothing_that_leaves_no_trace_is_restarted_for_ever(place: Place, runs: list[float]) -> None:
    """Wherever in its course it fails, however many node-days that takes: a fixed number of times."""
    decisions = _live(place, runs, lambda nodes: True)
    assert sum(item.action is Action.RESTART for item in decisions) <= 2 * POLICY.restarts_unexplained
    assert decisions[-1].reason is Reason.BUDGET_EXHAUSTED


def _history(rows: list[tuple[float, int, int, int | None]]) -> tuple[PastAttempt, ...]:
    """Of attempts: seconds, first and last step as seen, newest checkpoint."""
    return tuple(
        PastAttempt(
            number=number,
            category=Category.UNKNOWN,
            fingerprint="",
            reason=Reason.WITHIN_BUDGET,
            action=Action.RESTART,
            first_step=first,
            last_step=last,
            checkpoint_step=saved,
            started_at=NOON - timedelta(seconds=seconds),
            ended_at=NOON,
        )
        for number, (seconds, first, last, saved) in enumerate(rows)
    )


def _window(rows: list[tuple[float, int, int, int | None]]) -> tuple[int, bool]:
    """How many earlier attempts count against the newest one, and whether that got further."""
    *before, (seconds, first, last, saved) = rows
    world = Snapshot(
        job=Job(key="k", cluster="c", job_id="7", user="u"),
        attempt=Attempt(
            number=len(before),
            state=AttemptState.FAILED,
            started_at=NOON - timedelta(seconds=seconds),
            ended_at=NOON,
        ),
        past=_history(before),
        progress=Progress(first_step=first, last_step=last, checkpoint_step=saved),
    )
    window, progressed = since_progress(world, NOON)
    return len(window), progressed


@given(
    st.floats(20.0, 50_000.0),
    st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(0, 5), st.integers(0, 8)), min_size=2, max_size=20),
    st.none() | st.just(900),
)
def test_a_log_that_loses_lines_makes_no_progress(
    point: float, lost: list[tuple[float, int, int]], saved: int | None
) -> None:
    """A program that fails at step 1040 each time, of which some of the first and last steps are lost: every attempt
    counts."""
    rows = [(point + more, 1000 + head, 1040 - tail, saved) for more, head, tail in lost]
    assume(all(resumed < 1000 + 0.15 * (last - resumed) for _, resumed, last, _ in rows))
    assert _window(rows) == (len(rows) - 1, False)


@given(
    st.floats(20.0, 50_000.0),
    st.integers(30, 5_000),
    st.integers(2, 12),
    st.floats(0.3, 1.0),
    st.booleans(),
    st.data(),
)
def test_who_resumes_further_on_makes_progress(
    point: float, steps: int, attempts: int, kept: float, told: bool, data: st.DataObject
) -> None:
    """Each attempt fails after the same time, and the next begins from where it saved, whatever its log loses."""
    rows, begin = [], 1
    for _ in range(attempts):
        head, tail = data.draw(st.integers(0, steps // 20)), data.draw(st.integers(0, steps // 20))
        rows.append((point, begin + head, begin + steps - tail, begin - 1 if told else None))
        begin += int(kept * steps)
    assert _window(rows) == (0, True)


@given(st.floats(200.0, 50_000.0), st.floats(1.5, 4.0), st.integers(2, 1_000))
def test_who_runs_longer_and_gets_further_makes_progress(point: float, longer: float, steps: int) -> None:
    """Without a checkpoint, too: another failure than before, as far as anybody knows."""
    assert _window([(point, 1, steps, None), (point * longer, 1, steps + 1, None)]) == (0, True)
