"""One job through many attempts: what bounds its restarts, and what costs nothing."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from advisor.core.isolation import isolate
from advisor.core.model import Attempt, Attribution, Decision, Incident, Job, PastAttempt, Progress, Snapshot
from advisor.core.policy import Policy
from advisor.core.remediation import conclude
from advisor.core.traceless import INFRASTRUCTURE
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Reason
from tests.property.strategies import NOON

EITHER = {Category.UNKNOWN, *INFRASTRUCTURE}
ALLOCATION = ("n1", "n2", "n3", "n4", "n5", "n6")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one attempt of the simulated job ends."""

    state: AttemptState = AttemptState.FAILED
    category: Category = Category.UNKNOWN
    fingerprint: str = "f1"
    step: int | None = None
    nodes: tuple[str, ...] = ()
    trusted: bool = False
    deterministic: bool = False
    certain: bool = False
    hours: int = 0  # that it had the allocation

    @property
    def started_at(self) -> datetime:
        return NOON - timedelta(hours=self.hours)


failures = st.builds(
    Failure,
    state=st.sampled_from([AttemptState.FAILED, AttemptState.OUT_OF_MEMORY, AttemptState.TIME_LIMIT]),
    category=st.sampled_from(list(Category)).filter(
        lambda category: category not in {Category.SCHEDULER_EVENT, Category.USER_CANCEL}
    ),
    fingerprint=st.sampled_from(["", "f1", "f2"]),
    step=st.none() | st.integers(0, 6),
    nodes=st.sampled_from([(), ("n1",), ("n2",), ("n1", "n3")]),
    trusted=st.booleans(),
    deterministic=st.booleans(),
    certain=st.booleans(),
    hours=st.integers(0, 48),
)
preemptions = st.builds(Failure, state=st.sampled_from([AttemptState.PREEMPTED, AttemptState.NODE_FAILURE]))
small_policies = st.builds(
    Policy,
    restarts_per_root_cause=st.integers(0, 3),
    restarts_unexplained=st.integers(0, 5),
    restarts_ceiling=st.integers(0, 6),
    restarts_ceiling_per_1000_node_days=st.floats(0.0, 1000.0),
    confirmation_retries=st.integers(0, 2),
)


def _decide(failure: Failure, past: tuple[PastAttempt, ...], policy: Policy) -> Decision:
    snapshot = Snapshot(
        job=Job(key="k", cluster="c", job_id="7", user="u", batch=True, requeueable=True),
        attempt=Attempt(
            number=len(past), state=failure.state, nodes=ALLOCATION, started_at=failure.started_at, ended_at=NOON
        ),
        progress=Progress(first_step=0 if failure.step is not None else None, last_step=failure.step),
        past=past,
    )
    incident = Incident(kind=IncidentKind.CRASH, visible_at=NOON)
    attribution = Attribution(
        category=failure.category,
        root_cause="it broke",
        confidence=0.8,
        nodes=failure.nodes,
        trusted=failure.trusted and bool(failure.nodes),
        deterministic=failure.deterministic,
        certain=failure.certain,
        fingerprint=failure.fingerprint,
    )
    now = NOON + timedelta(seconds=60)
    isolation = isolate(snapshot, incident, attribution, policy, now)
    return conclude(snapshot, incident, attribution, isolation, policy, now)


def _remember(failure: Failure, decision: Decision, number: int) -> PastAttempt:
    return PastAttempt(
        number=number,
        category=failure.category,
        fingerprint=failure.fingerprint,
        reason=decision.reason,
        action=decision.action,
        implicated_nodes=failure.nodes,
        excluded_nodes=decision.isolation.exclude_for_job,
        trusted=failure.trusted and bool(failure.nodes),
        nodes=ALLOCATION,
        started_at=failure.started_at,
        ended_at=NOON,
        first_step=0 if failure.step is not None else None,
        last_step=failure.step,
    )


def _live(story: list[Failure], policy: Policy) -> list[Decision]:
    """Decisions up to the first that is no restart."""
    past: tuple[PastAttempt, ...] = ()
    decisions: list[Decision] = []
    for failure in story:
        decision = _decide(failure, past, policy)
        decisions.append(decision)
        if decision.action is not Action.RESTART:
            break
        past += (_remember(failure, decision, len(past)),)
    return decisions


@given(st.lists(failures, min_size=1, max_size=15), small_policies)
def test_the_ceiling_bounds_every_story(story: list[Failure], policy: Policy) -> None:
    """Whatever a job claims of its progress, its paid restarts never exceed the ceiling with what its nodes earned."""
    decisions = _live(story, policy)
    paid = [item for item in decisions if item.action is Action.RESTART and not item.free]
    node_days = sum(failure.hours for failure in story[: len(decisions)]) * len(ALLOCATION) / 24
    assert len(paid) <= policy.restarts_ceiling + node_days * policy.restarts_ceiling_per_1000_node_days / 1000 + 1e-9


@given(
    st.lists(failures, min_size=1, max_size=15).map(lambda story: [replace(item, step=None) for item in story]),
    small_policies,
)
def test_without_progress_each_root_cause_is_bounded(story: list[Failure], policy: Policy) -> None:
    """Per root cause, and per place where trusted evidence tells places apart, budget is all there is, if failures come
    at the same point of the job's course each time.
    """
    policy = replace(policy, restarts_ceiling=1000)
    story = [replace(failure, step=None, hours=1) for failure in story]
    spent: dict[tuple[str, str], int] = {}
    for failure, decision in zip(story, _live(story, policy), strict=False):
        if decision.action is Action.RESTART and not decision.free and not (failure.trusted and failure.nodes):
            key = (failure.fingerprint, failure.category if not failure.fingerprint else "")
            spent[key] = spent.get(key, 0) + 1
    # Neither against the job nor against a machine speaks what may be either's.
    most = max(policy.restarts_per_root_cause, policy.restarts_unexplained)
    either = {failure.fingerprint for failure in story if failure.category in EITHER}
    for (fingerprint, category), count in spent.items():
        patient = category in EITHER or (bool(fingerprint) and fingerprint in either)
        assert count <= (most if patient else policy.restarts_per_root_cause)


@given(st.lists(failures, min_size=1, max_size=8), st.lists(preemptions, max_size=5), st.data())
def test_scheduler_events_cost_nothing(story: list[Failure], events: list[Failure], data: st.DataObject) -> None:
    """Preemptions and node failures put in anywhere change nothing about what else is decided."""
    policy = Policy(restarts_ceiling=4)
    places = data.draw(st.lists(st.integers(0, len(story)), min_size=len(events), max_size=len(events)))
    mixed = list(story)
    for event, place in sorted(zip(events, places, strict=True), key=lambda pair: -pair[1]):
        mixed.insert(place, event)
    undisturbed = _live(story, policy)
    disturbed = _live(mixed, policy)
    paid = [item for item in disturbed if item.reason is not Reason.SCHEDULER_EVENT]
    expected = [item for item in undisturbed if item.reason is not Reason.SCHEDULER_EVENT]
    assert [(item.action, item.reason) for item in paid] == [(item.action, item.reason) for item in expected]


@given(st.lists(failures, min_size=1, max_size=10), small_policies)
def test_exclusions_survive_every_requeue(story: list[Failure], policy: Policy) -> None:
    """What one attempt excluded, all later ones exclude."""
    earlier: set[str] = set()
    for decision in _live(story, policy):
        assert earlier <= set(decision.isolation.exclude_for_job)
        earlier = set(decision.isolation.exclude_for_job)


@given(st.integers(0, 5), st.integers(0, 2))
def test_an_endless_deterministic_failure_is_stopped_soon(step: int, retries: int) -> None:
    """The same traceback at the same step gets its confirmation retries and no more."""
    policy = Policy(confirmation_retries=retries)
    failure = Failure(category=Category.APPLICATION, step=step, deterministic=True)
    decisions = _live([failure] * 10, policy)
    assert [item.action for item in decisions] == [Action.RESTART] * retries + [Action.STOP]
    assert decisions[-1].reason is Reason.SAME_FAILURE_SAME_PROGRESS


@given(st.lists(st.sampled_from(ALLOCATION[:5]), min_size=1, max_size=5, unique=True))
def test_a_run_of_bad_luck_with_nodes_goes_on(nodes: list[str]) -> None:
    """A different node each time, each with its own trusted evidence, is restarted as often as it takes."""
    story = [
        Failure(category=Category.GPU_HARDWARE, fingerprint="xid79", nodes=(node,), trusted=True) for node in nodes
    ]
    decisions = _live(story, Policy())
    assert [item.reason for item in decisions] == [Reason.NODES_IMPLICATED] * len(nodes)
    assert set(decisions[-1].isolation.exclude_for_job) == set(nodes)
