"""What a tick reads: which attempts, and all that is known of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event

from advisor.core.model import Decision, Progress
from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Category, Mode, NodeState, Reason
from advisor.store.records import (
    AttemptKey,
    DetectorState,
    Milestone,
    MilestoneKind,
    ObservedNode,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.store import Store
from tests.integration.store.worlds import (
    CLUSTER,
    at,
    decision,
    healthy,
    implication,
    pending,
    record,
    register,
    report,
    running,
    seen,
    signal,
)

pytestmark = pytest.mark.postgres

FAILED = seen(AttemptState.FAILED, observed_at=at(60), ended_at=at(59))
REQUEUED = pending(attempt=1, submitted_at=at(90), observed_at=at(91))
STATE = DetectorState(
    state=b"\x00cursor",
    progress=Progress(first_step=1, last_step=50, checkpoint_step=40, in_job_restarts=2, last_at=at(30)),
    signals=(signal(),),
    foreign=3,
)
OVER = replace(STATE, seen_over=True)
VERIFIED = Reconciliation(
    status=ReconciliationStatus.VERIFIED, reason=ReconciliationReason.OBSERVED, at=at(95), excluded_nodes=("node2",)
)
MONITORED = Reconciliation(status=ReconciliationStatus.WITHHELD, reason=ReconciliationReason.MONITOR_MODE, at=at(70))


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every statement that is sent to a database meanwhile."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_state_is_given_back_as_it_was_saved(store: Store) -> None:
    """Detector state, progress, signals and the foreign count come back equal, and the next save replaces them."""
    key = await running(store)
    fresh = (await store.load([key], now=at(11)))[key]
    assert (fresh.detector_state, fresh.signals, fresh.progress, fresh.foreign) == (b"", (), Progress(), 0)
    await store.save_states({key: STATE})
    stored = (await store.load([key], now=at(32)))[key]
    assert (
        DetectorState(
            state=stored.detector_state, progress=stored.progress, signals=stored.signals, foreign=stored.foreign
        )
        == STATE
    )
    await store.save_states({key: replace(STATE, signals=(), state=b"2")})
    stored = (await store.load([key], now=at(34)))[key]
    assert (stored.detector_state, stored.signals) == (b"2", ())


async def test_job_and_attempt_as_observed(store: Store) -> None:
    """What the agent saw of the job is in the loaded values; the mode is left for the category to decide."""
    key = await running(store, restarts_max=5)
    stored = (await store.load([key], now=at(11)))[key]
    assert (stored.job.user, stored.job.partition, stored.job.restarts_max) == ("ada", "gpu", 5)
    assert (stored.job.in_scope, stored.job.batch, stored.job.requeueable) == (True, True, True)
    assert stored.job.mode is Mode.MONITOR
    assert stored.job_rules == "/home/ada/rules.json"
    assert (stored.stdout_path, stored.user_id, stored.nodes_fitting) == ("/home/ada/out.log", 1001, 8)
    assert [fact.name for fact in stored.nodes] == ["node1", "node2", "node3", "node4"]


async def test_constant_number_of_queries(store: Store) -> None:
    """Loading and saving a hundred attempts takes as many statements as one does."""
    jobs = [seen(job_id=str(number)) for number in range(100)]
    keys = (await report(store, *jobs)).changed
    await store.load(keys[:1], now=at(20))  # what is kept of nodes is read the first time
    with statements() as for_one:
        await store.load(keys[1:2], now=at(20))
        await store.save_states({keys[0]: STATE})
    with statements() as for_all:
        assert len(await store.load(keys, now=at(20))) == 100
        await store.save_states(dict.fromkeys(keys, STATE))
    assert len(for_all) == len(for_one)


async def test_unknown_keys_are_left_out(store: Store) -> None:
    """A key that the store does not know is not in the answer."""
    key = await running(store)
    unknown = AttemptKey(job_key=key.job_key, number=9)
    assert list(await store.load([key, unknown], now=at(20))) == [key]
    assert await store.load([], now=at(20)) == {}


async def test_past_attempts_carry_their_decisions(store: Store) -> None:
    """Earlier attempts come oldest first, with the newest decision about each and how far they got."""
    first = await running(store)
    await store.save_states({first: STATE})
    await store.commit_decision(record(first, decision=healthy()))
    await store.commit_decision(record(first, 1))
    await report(store, seen(attempt=1, submitted_at=at(90), observed_at=at(100)))
    await report(store, seen(attempt=2, submitted_at=at(190), observed_at=at(200)))
    third = AttemptKey(job_key=first.job_key, number=2)
    stored = (await store.load([third], now=at(201)))[third]
    assert stored.predecessor_state == b""
    one, two = stored.past
    assert (one.number, one.category, one.fingerprint, one.reason, one.action) == (
        0,
        Category.GPU_HARDWARE,
        "xid79",
        Reason.NODES_IMPLICATED,
        Action.RESTART,
    )
    assert (one.implicated_nodes, one.excluded_nodes, one.trusted) == (("node2",), ("node2",), True)
    assert (one.first_step, one.last_step, one.checkpoint_step) == (1, 50, 40)
    assert (two.number, two.category, two.reason, two.action) == (1, Category.UNKNOWN, None, None)
    second = AttemptKey(job_key=first.job_key, number=1)
    stored = (await store.load([second], now=at(201)))[second]
    assert stored.predecessor_state == b"\x00cursor"
    assert stored.successor is not None
    assert stored.successor.number == 2


@pytest.mark.parametrize(
    ("states", "spent"),
    [
        ((NodeState.DRAINED, NodeState.UP), True),
        ((NodeState.DRAINING, NodeState.UP), True),
        ((NodeState.DOWN, NodeState.UP), False),
        ((NodeState.NOT_RESPONDING, NodeState.UP), False),
        ((NodeState.DRAINED,), False),
    ],
)
async def test_exclusions_end_when_somebody_puts_the_node_back(
    store: Store, states: tuple[NodeState, ...], spent: bool
) -> None:
    """A drained node that is up again was put back by a person; one that was down may be as bad as before."""
    first = await running(store)
    await store.commit_decision(record(first))
    await store.record_observations(CLUSTER, (), [_node(NodeState.UP, 0)], complete=False, now=at(1))
    await report(store, seen(attempt=1, submitted_at=at(90), observed_at=at(100)))
    second = AttemptKey(job_key=first.job_key, number=1)
    assert (await store.load([second], now=at(101)))[second].past[0].excluded_nodes == ("node2",)
    for place, state in enumerate(states):
        moment = 110 + place
        await store.record_observations(CLUSTER, (), [_node(state, moment)], complete=False, now=at(moment))
    past = (await store.load([second], now=at(120)))[second].past[0]
    assert (past.excluded_nodes == ()) is spent
    assert past.implicated_nodes == ("node2",)


def _node(state: NodeState, seconds: float) -> ObservedNode:
    return ObservedNode(name="node2", state=state, observed_at=at(seconds))


async def test_node_history_of_other_jobs_only(store: Store) -> None:
    """A node's score counts what other jobs said of it, decayed, and not what this job said."""
    mine = await running(store)
    others = [await running(store, job_id=str(number)) for number in (8, 9)]
    for key in [mine, *others]:
        await store.commit_decision(record(key))
    now = at(21) + timedelta(days=7)
    facts = {fact.name: fact for fact in (await store.load([mine], now=now))[mine].nodes}
    assert facts["node2"].other_jobs == 2
    assert facts["node2"].score == pytest.approx(2 * 0.95 / 2)
    assert (facts["node1"].score, facts["node1"].other_jobs) == (0.0, 0)


async def test_node_that_is_no_longer_named_has_no_weight(store: Store) -> None:
    """A later generation that blames another node takes the weight off the first, and keeps its row."""
    mine = await running(store)
    other = await running(store, job_id="8")
    await store.commit_decision(record(other))
    changed = replace(decision().attribution, nodes=("node3",), implications=(implication("node3", 0.5),))
    await store.commit_decision(record(other, 1, decision=decision(attribution=changed)))
    facts = {fact.name: fact for fact in (await store.load([mine], now=at(22)))[mine].nodes}
    assert facts["node2"].score == 0.0
    assert facts["node3"].score == pytest.approx(0.5, rel=1e-3)
    node = await store.audit.node("alps", "node2", now=at(22))
    assert node is not None
    assert [row.weight for row in node.implications] == [0.0]


async def test_open_advice_is_the_newest(store: Store) -> None:
    """The newest advice is there with its generation, and counts as applied once the scheduler accepted any of it."""
    key = await running(store)
    assert (await store.load([key], now=at(20)))[key].advice is None
    first = await store.commit_decision(record(key, decision=decision(settled=False)))
    await store.record_reconciliation(
        first.decision_id, replace(VERIFIED, status=ReconciliationStatus.APPLIED), who="a"
    )
    await store.commit_decision(record(key, 1, created_at=at(23)))
    stored = (await store.load([key], now=at(24)))[key]
    assert stored.generation == 2
    advice = stored.advice
    assert advice is not None
    assert (advice.generation, advice.action, advice.applied) == (2, Action.RESTART, True)
    assert (advice.exclude_nodes, advice.created_at) == (("node2",), at(23))
    await store.commit_decision(record(key, 2, decision=decision(action=Action.STOP)))
    stopped = (await store.load([key], now=at(24)))[key].advice
    assert stopped is not None
    assert not stopped.applied


async def test_milestones_come_once(store: Store) -> None:
    """Milestones are known with the attempt, and the first of each kind stays."""
    key = await running(store)
    await store.record_milestones({key: [Milestone(kind=MilestoneKind.DETECTED, at=at(20))]})
    await store.record_milestones({key: [Milestone(kind=MilestoneKind.DETECTED, at=at(99))]})
    assert (await store.load([key], now=at(20)))[key].milestones == {MilestoneKind.DETECTED: at(20)}
    row = await store.audit.attempt(cluster="alps", job_id="7", number=0)
    assert row is not None
    assert [milestone.at for milestone in row.milestones] == [at(20)]


# which attempts are watched


async def test_running_is_watched_and_waiting_is_not(store: Store) -> None:
    """A running attempt is looked at; one that waits for the first time has nothing that could fail."""
    key = await running(store)
    await report(store, pending(job_id="8"), complete=False)
    assert await store.watched(at(20)) == (key,)


async def test_ended_is_watched_until_its_advice_is_final_and_it_runs_again(store: Store) -> None:
    """An ended attempt stays watched until its settled advice is verified and its successor runs."""
    key = await running(store)
    await report(store, FAILED)
    assert key in await store.watched(at(61))
    committed = await store.commit_decision(record(key, created_at=at(62)))
    await store.save_states({key: OVER})
    assert key in await store.watched(at(63))
    await report(store, REQUEUED)
    assert await store.watched(at(92)) == (key,)
    successor = AttemptKey(job_key=key.job_key, number=1)
    await report(store, seen(attempt=1, submitted_at=at(90), observed_at=at(94)))
    assert await store.watched(at(94)) == (key, successor)
    await store.record_reconciliation(committed.decision_id, VERIFIED, who="agent")
    assert await store.watched(at(96)) == (successor,)


async def test_waiting_successor_keeps_it_watched(store: Store) -> None:
    """While the next attempt waits to start it may still need exclusions: the tick of the one before sees to it."""
    key = await running(store)
    await report(store, FAILED)
    committed = await store.commit_decision(record(key, created_at=at(62)))
    await store.save_states({key: OVER})
    await report(store, REQUEUED)
    await store.record_reconciliation(committed.decision_id, MONITORED, who="agent")
    assert await store.watched(at(92)) == (key,)
    await report(store, seen(attempt=1, submitted_at=at(90), observed_at=at(94)))
    assert key not in await store.watched(at(95))


async def test_running_successor_alone_does_not_close(store: Store) -> None:
    """When the scheduler restarts a job before we looked, its failed attempt is still looked at."""
    key = await running(store)
    await report(store, FAILED)
    await report(store, seen(attempt=1, submitted_at=at(90), observed_at=at(94)))
    assert key in await store.watched(at(95))


async def test_look_from_before_the_end_does_not_close(store: Store) -> None:
    """A look at the running attempt says nothing about its end: it is looked at once more."""
    key = await running(store)
    await store.commit_decision(record(key, decision=healthy(), created_at=at(30)))
    await store.save_states({key: STATE})
    await report(store, FAILED)
    assert key in await store.watched(at(61))
    await store.save_states({key: OVER})
    assert await store.watched(at(63)) == ()


async def test_a_clock_that_was_set_loses_no_failure(store: Store) -> None:
    """A look that was saved an hour ahead is none at the end; and an end that was noticed while the clock was an hour
    back is not an hour old: the failed attempt is looked at before it is done with.
    """
    ahead, back = await running(store), await running(store, job_id="8")
    await store.commit_decision(record(ahead, decision=healthy(), created_at=at(30)))
    await store.save_states({ahead: STATE})
    await report(store, FAILED, now=at(61), complete=False)
    await report(store, replace(FAILED, job_id="8"), now=at(61 - 3600), complete=False)
    assert set(await store.watched(at(300))) == {ahead, back}
    await store.commit_decision(record(back, created_at=at(301)))
    await store.save_states(dict.fromkeys((ahead, back), OVER))
    assert await store.watched(at(302)) == ()


async def test_a_clock_that_comes_back_ends_no_decision_that_is_to_come(store: Store) -> None:
    """The end was seen, and what it means was still to be told, while the clock was an hour or a day back. Once the
    scheduler has forgotten the job, an hour is enough.
    """
    keys = []
    for number, back in enumerate((3_600, 86_400)):
        key = await running(store, job_id=str(number))
        await report(store, replace(FAILED, job_id=str(number)), now=at(61 - back), complete=False)
        waits = decision(action=Action.NONE, reason=Reason.OUTCOME_NOT_VISIBLE, settled=False)
        await store.commit_decision(record(key, created_at=at(62 - back), decision=waits))
        await store.save_states({key: OVER})
        keys.append(key)
    assert set(await store.watched(at(63))) == set(keys)
    await report(store, now=at(400))
    assert await store.watched(at(401)) == ()


async def test_advice_that_ran_out_while_the_clock_was_ahead_is_said_again(store: Store) -> None:
    """For ten seconds it was an hour later, by which the scheduler had long forgotten the job. It had not."""
    key = await running(store)
    await report(store, FAILED)
    await store.commit_decision(record(key, created_at=at(62), decision=decision(mode=Mode.AUTONOMOUS)))
    await store.save_states({key: OVER})
    assert await store.expire_advice(at(3_670)) == 1
    await store.watched(at(3_670))
    assert await store.watched(at(75)) == (key,)
    await report(store, now=at(400))
    assert await store.watched(at(401)) == ()


async def test_unsettled_advice_is_watched(store: Store) -> None:
    """Advice whose exclusions may still be refined is not final, whatever came of it."""
    key = await running(store)
    await report(store, FAILED)
    committed = await store.commit_decision(record(key, created_at=at(62), decision=decision(settled=False)))
    await store.save_states({key: OVER})
    await store.record_reconciliation(committed.decision_id, MONITORED, who="agent")
    assert key in await store.watched(at(71))


async def test_exclusions_are_not_refined_for_ever(store: Store) -> None:
    """Past the decision deadline a monitored failure is done with: a later change of mode must not restart it."""
    key = await running(store)
    await report(store, FAILED)
    committed = await store.commit_decision(record(key, created_at=at(62), decision=decision(settled=False)))
    await store.save_states({key: OVER})
    await store.record_reconciliation(committed.decision_id, MONITORED, who="agent")
    assert key in await store.watched(at(149))
    assert await store.watched(at(151)) == ()


async def test_where_nodes_may_be_isolated_wants_settle_before_an_attempt_is_done_with(store: Store, url: str) -> None:
    """Whoever takes the job over until then comes to the same wants again; without trusted evidence nobody waits."""
    isolating = await Store.open(url, policy=Policy(isolate=True, isolation_settle_seconds=30))
    key, other = await running(store), await running(store, job_id="8")
    await report(store, FAILED, replace(FAILED, job_id="8"))
    untrusted = decision()
    untrusted = replace(untrusted, attribution=replace(untrusted.attribution, trusted=False))
    for each, made in ((key, decision()), (other, untrusted)):
        committed = await store.commit_decision(record(each, created_at=at(62), decision=made))
        await store.save_states({each: OVER})
        await store.record_reconciliation(committed.decision_id, MONITORED, who="agent")
    assert await isolating.watched(at(94)) == (key,)
    assert await isolating.watched(at(96)) == ()
    await isolating.close()


async def test_autonomous_advice_that_ran_out_while_refined_is_said_once_more(store: Store) -> None:
    """No agent was there to take it: the attempt stays watched, so that the tick can say it again."""
    key = await running(store)
    await report(store, FAILED)
    unsettled = decision(settled=False, mode=Mode.AUTONOMOUS)
    await store.commit_decision(record(key, created_at=at(62), decision=unsettled))
    await store.save_states({key: OVER})
    await store.expire_advice(at(310))
    assert await store.watched(at(310)) == (key,)
    again = record(key, created_at=at(311), seen_generation=1, decision=replace(unsettled, settled=True))
    await store.commit_decision(again)
    await store.expire_advice(at(600))
    assert await store.watched(at(600)) == (key,)
    await report(store, now=at(601))
    assert await store.watched(at(602)) == ()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize(("memory", "until"), [(None, 359), (timedelta(seconds=600), 659)])
async def test_advice_that_ran_out_is_watched_while_the_scheduler_knows_the_attempt(
    store: Store, settled: bool, memory: timedelta | None, until: float
) -> None:
    """One rule for settled and unsettled: until it says that it has forgotten it, as it will MinJobAge after the end
    (300 s where the agent did not say). By the clock alone nothing is forgotten.
    """
    await register(store, now=at(0), job_memory=memory)
    key = await running(store)
    await report(store, FAILED)
    await store.commit_decision(
        record(key, created_at=at(62), decision=decision(settled=settled, mode=Mode.AUTONOMOUS))
    )
    await store.save_states({key: OVER})
    await store.expire_advice(at(310))
    assert await store.watched(at(until - 1)) == (key,)
    assert (await store.load([key], now=at(311)))[key].remembered_until == at(until)
    assert await store.watched(at(until)) == (key,)
    await report(store, now=at(until + 1))
    assert await store.watched(at(until + 2)) == ()


async def test_monitored_advice_is_done(store: Store) -> None:
    """In monitor mode nothing follows, and the attempt is done; its incident is closed."""
    key = await running(store)
    await report(store, FAILED)
    committed = await store.commit_decision(record(key, created_at=at(62)))
    await store.save_states({key: OVER})
    assert await store.open_incident_count() == 1
    await store.record_reconciliation(committed.decision_id, MONITORED, who="agent")
    assert await store.watched(at(71)) == ()
    assert await store.open_incident_count() == 0


async def test_expired_advice_is_done(store: Store) -> None:
    """Advice that nobody took in its time is final."""
    key = await running(store)
    await report(store, FAILED)
    await store.commit_decision(record(key, created_at=at(62)))
    await store.save_states({key: OVER})
    assert key in await store.watched(at(301))
    assert await store.watched(at(302)) == ()


async def test_nothing_is_watched_for_ever(store: Store) -> None:
    """An ended attempt that nobody ever decides on is dropped after an hour, also when only a hook told of its end."""
    key = await running(store)
    silent = await running(store, job_id="8")
    await report(store, FAILED, complete=False)
    await report(
        store,
        seen(AttemptState.COMPLETING, job_id="8", observed_at=at(60), ended_at=at(60), nodes=None),
        complete=False,
    )
    assert set(await store.watched(at(61))) == {key, silent}
    assert await store.watched(at(61) + timedelta(hours=1)) == ()


async def test_forgotten_while_running_is_not_watched(store: Store) -> None:
    """Nobody will see how a job ended that the scheduler forgot while it ran; an ended one is still decided."""
    running_key = await running(store)
    ended = await running(store, job_id="8")
    await report(store, replace(FAILED, job_id="8"), complete=False)
    await report(store, now=at(100))
    watched = await store.watched(at(101))
    assert ended in watched
    assert running_key not in watched


@pytest.mark.parametrize(
    ("waiting", "failed", "beside"),
    [
        ({"waits_for": ("7",)}, {}, True),
        ({"waits_for": ("70",)}, {}, False),
        ({"singleton": True}, {}, True),
        ({"singleton": True, "name": "other"}, {}, False),
        ({"singleton": True, "user": "bob"}, {}, False),
        ({"waits_for": ("19_*",)}, {"array_job_id": "19", "array_task": 2}, True),
        ({"waits_for": ("19_2",)}, {"array_job_id": "19", "array_task": 2}, True),
        ({"waits_for": ("7",)}, {"array_job_id": "19", "array_task": 2}, False),
    ],
)
async def test_a_job_that_waited_for_the_end_of_another_and_runs(
    store: Store, waiting: dict[str, Any], failed: dict[str, Any], beside: bool
) -> None:
    """Its dependency is no longer shown when it runs; what it waited for is remembered, for its next attempt too."""
    key = (await report(store, seen(AttemptState.RUNNING, **failed), complete=False)).changed[0]
    who = {"job_id": "8"} | {name: waiting[name] for name in ("name", "user") if name in waiting}
    await report(store, pending(**(who | waiting)), complete=False)
    await report(store, pending(**who, observed_at=at(11)), complete=False)
    ended = seen(AttemptState.FAILED, **failed, ended_at=at(20), observed_at=at(21))
    await report(store, ended, complete=False)
    assert not (await store.load([key], now=at(22)))[key].dependents_running
    await report(store, seen(**who, started_at=at(21), observed_at=at(22)), complete=False)
    assert (await store.load([key], now=at(23)))[key].dependents_running is beside
    again = pending(**who, attempt=1, submitted_at=at(30), observed_at=at(31))
    await report(store, again, complete=False)
    assert not (await store.load([key], now=at(32)))[key].dependents_running
    await report(
        store, replace(again, state=AttemptState.RUNNING, started_at=at(40), observed_at=at(41)), complete=False
    )
    assert (await store.load([key], now=at(42)))[key].dependents_running is beside
    await report(store, replace(again, state=AttemptState.COMPLETED, observed_at=at(51)), complete=False)
    assert not (await store.load([key], now=at(52)))[key].dependents_running


async def test_a_job_that_ran_already_does_not_count_as_a_dependent(store: Store) -> None:
    """Somebody started this one beside it: both are meant to run."""
    await report(store, pending(job_id="8", singleton=True), complete=False)
    await report(store, seen(job_id="8", started_at=at(1)), complete=False)
    key = (await report(store, FAILED, complete=False)).changed[0]
    assert not (await store.load([key], now=at(200)))[key].dependents_running


async def test_the_gpus_that_other_jobs_named_are_told(store: Store) -> None:
    """All of them, and none where somebody meant the whole node: what repeats counts on the same GPU only."""
    mine = await running(store)
    for number, unit in ((8, "0000:3b:00"), (9, "0000:86:00")):
        key = await running(store, job_id=str(number))
        await store.commit_decision(record(key, decision=_blaming(unit)))
    assert await _units(store, mine) == ("0000:3b:00", "0000:86:00")
    await store.commit_decision(record(await running(store, job_id="10"), decision=_blaming("")))
    assert await _units(store, mine) == ()


def _blaming(unit: str) -> Decision:
    blamed = replace(implication("node2"), unit=unit)
    return decision(attribution=replace(decision().attribution, implications=(blamed,)))


async def _units(store: Store, key: AttemptKey) -> tuple[str, ...]:
    facts = (await store.load([key], now=at(60)))[key].nodes
    return next(fact.units for fact in facts if fact.name == "node2")
