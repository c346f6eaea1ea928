"""Shadow evidence, earned autonomy and reliability figures on a made history in a real Postgres."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.board import Board
from advisor.clock import SystemClock
from advisor.core.autonomy import Earned, EarningRules
from advisor.core.course import Pace, Pause, Phase
from advisor.core.model import Progress
from advisor.core.people import Correction, Did, Said, ShadowRules
from advisor.core.reliability import Window
from advisor.core.shadow import Case, Outcome, Proof
from advisor.core.words import Action, AttemptState, Category, Mode, NodeState, Reason
from advisor.earning import Earning
from advisor.reporting import Reporting, Shadow
from advisor.store.errors import NotFound
from advisor.store.records import (
    AttemptKey,
    AuditFilter,
    DetectorState,
    Milestone,
    MilestoneKind,
    ObservedJob,
    ObservedNode,
    Page,
    Reconciliation,
    ReconciliationReason,
    ReconciliationStatus,
)
from advisor.store.reliability_queries import ReliabilityWanted, attempts_statement
from advisor.store.shadow_queries import ShadowWanted, incidents_statement
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, at, decision, record, report, seen

pytestmark = pytest.mark.postgres

RULES = ShadowRules()
DAY = 86_400.0
WANTED = ShadowWanted(since=at(-3600), until=at(2 * DAY))
FAILED_AT = 3600.0


class StandingClock(SystemClock):
    """Stands where the test put it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> Any:
        return at(self.seconds)


def job(number: str, state: AttemptState = AttemptState.RUNNING, **changes: Any) -> ObservedJob:
    return seen(state, **({"job_id": number, "name": f"llama-{number}", "gpus": 32} | changes))


async def failed(store: Store, number: str, made: Any = None, **changes: Any) -> AttemptKey:
    """A job that failed an hour after it was submitted, with advice ten seconds later."""
    recorded = await report(store, job(number, **changes), complete=False)
    key: AttemptKey = recorded.changed[0]
    ended = {"ended_at": at(FAILED_AT), "observed_at": at(FAILED_AT + 1)} | changes
    await report(store, job(number, AttemptState.FAILED, **ended), complete=False)
    await advise(store, key, made or decision())
    return key


async def advise(store: Store, key: AttemptKey, made: Any, seconds: float = FAILED_AT + 10) -> str:
    incident = replace(made.incident, detected_at=at(seconds - 5))
    committed = await store.commit_decision(
        record(key, decision=replace(made, incident=incident), created_at=at(seconds))
    )
    return committed.decision_id


async def requeued(store: Store, number: str, seconds: float, **changes: Any) -> None:
    values = {"attempt": 1, "submitted_at": at(seconds), "observed_at": at(seconds + 1)}
    waiting = {"nodes": (), "started_at": None}
    await report(store, job(number, AttemptState.PENDING, **(values | waiting | changes)), complete=False)


async def shadow(store: Store, seconds: float = DAY + FAILED_AT, wanted: ShadowWanted = WANTED) -> Shadow:
    return await Reporting(store, RULES).shadow(wanted, at(seconds))


def by_job(cases: Sequence[Case]) -> dict[str, Case]:
    return {case.job_id: case for case in cases}


async def test_what_people_did_is_read_from_what_agents_reported(store: Store) -> None:
    """One job requeued, one submitted again under another id, one cancelled while it waited, one left, one by Slurm."""
    for number in ("1", "2", "3", "4", "5"):
        await failed(store, number, **({"name": "run-again"} if number == "2" else {}))
    await requeued(store, "1", FAILED_AT + 610)
    again = {"submitted_at": at(FAILED_AT + 300), "observed_at": at(FAILED_AT + 310), "started_at": at(FAILED_AT + 305)}
    await report(store, job("20", name="run-again", **again), complete=False)
    await requeued(store, "3", FAILED_AT + 60)
    cancelled = {"attempt": 1, "submitted_at": at(FAILED_AT + 60), "ended_at": at(FAILED_AT + 90), "started_at": None}
    await report(
        store,
        job("3", AttemptState.CANCELLED, nodes=(), observed_at=at(FAILED_AT + 91), **cancelled),
        complete=False,
    )
    found = await shadow(store)
    cases = by_job(found.report.cases)
    assert {number: case.act.did for number, case in cases.items()} == {
        "1": Did.REQUEUED,
        "2": Did.RESUBMITTED,
        "3": Did.CANCELLED,
        "4": Did.NOTHING,
        "5": Did.NOTHING,
    }
    assert (cases["1"].delay_seconds, cases["1"].gpus, cases["2"].act.job_id) == (600.0, 32, "20")
    (row,) = found.report.rows
    assert row.outcomes == {Outcome.AGREED: 2, Outcome.WE_RESTART: 3}
    assert row.gpu_hours_waited == pytest.approx((600 + 290) / 3600 * 32)
    assert not found.capped


async def test_what_its_scheduler_has_forgotten_nobody_did(store: Store) -> None:
    """A requeue by people, one of ours, and a stop of ours: each was seen, and is as if it had never been."""
    for number in ("1", "2", "3"):
        action = Action.STOP if number == "3" else Action.RESTART
        mode = Mode.MONITOR if number == "1" else Mode.AUTONOMOUS
        key = await failed(store, number, decision(action=action, mode=mode))
        if number != "1":
            (told,) = await store.open_advice(CLUSTER, at(FAILED_AT + 20))
            accepted = Reconciliation(
                status=ReconciliationStatus.VERIFIED, reason=ReconciliationReason.OBSERVED, at=at(FAILED_AT + 20)
            )
            await store.record_reconciliation(told.advice_id, accepted, who="agent")
        await requeued(store, number, FAILED_AT + 30)
        again = {"ended_at": at(FAILED_AT), "observed_at": at(FAILED_AT + 40)}
        shown = await report(store, job(number, AttemptState.FAILED, **again), complete=False)
        assert shown.withdrawn == (AttemptKey(job_key=key.job_key, number=1),)
    cases = by_job((await shadow(store)).report.cases)
    assert {number: case.act.did for number, case in cases.items()} == dict.fromkeys(("1", "2", "3"), Did.NOTHING)
    window = Window(since=at(-3600), until=at(DAY))
    facts = (await store.reliability_rows(ReliabilityWanted(window=window))).attempts
    assert [(item.advised, item.acted) for item in facts] == [(True, False)] * 3


async def test_a_node_that_went_down_explains_a_requeue(store: Store) -> None:
    """The agent's report of nodes is kept as changes: Slurm requeued this one by itself."""
    recorded = await report(store, job("1"), complete=False)
    (key,) = recorded.changed
    up = [ObservedNode(name=f"node{n}", state=NodeState.UP, observed_at=at(5)) for n in range(1, 5)]
    down = ObservedNode(name="node2", state=NodeState.DOWN, observed_at=at(FAILED_AT - 30), reason="Not responding")
    for nodes in (up, [down]):
        await store.record_observations(CLUSTER, (), nodes, complete=False, now=at(FAILED_AT))
    await advise(store, key, decision())
    await requeued(store, "1", FAILED_AT)
    (case,) = (await shadow(store)).report.cases
    assert (case.act.did, case.outcome) == (Did.SCHEDULER, Outcome.NOBODYS)


async def test_a_drain_by_people_is_their_answer_and_proves_the_node_bad(store: Store) -> None:
    """Node2, which we would have excluded, was drained by hand 20 minutes later."""
    up = ObservedNode(name="node2", state=NodeState.UP, observed_at=at(5))
    drained = ObservedNode(
        name="node2", state=NodeState.DRAINING, observed_at=at(FAILED_AT + 1200), reason="bob: DIMM", partitions=()
    )
    await failed(store, "1")
    for node in (up, drained, replace(drained, state=NodeState.DRAINED, observed_at=at(FAILED_AT + 1300))):
        await store.record_observations(CLUSTER, (), [node], complete=False, now=node.observed_at)
    await requeued(store, "1", FAILED_AT + 610)
    found = await shadow(store)
    assert found.report.cases[0].act.drained == ("node2",)
    (proof,) = found.report.nodes
    assert (proof.node, proof.proof) == ("node2", Proof.BAD)
    assert found.report.rows[0].nodes_bad == 1


async def test_a_node_that_served_others_well_is_proved_good(store: Store) -> None:
    """30 hours of another user's job on it, and a week without anything wrong."""
    await failed(store, "1")
    other = {"user": "bob", "nodes": ("node2",), "submitted_at": at(DAY), "started_at": at(DAY)}
    await report(store, job("9", observed_at=at(DAY + 10), **other), complete=False)
    ended = {"ended_at": at(DAY + 30 * 3600), "observed_at": at(DAY + 30 * 3600)}
    await report(store, job("9", AttemptState.COMPLETED, **(other | ended)), complete=False)
    assert (await shadow(store, 2 * DAY)).report.nodes[0].proof is Proof.OPEN
    assert (await shadow(store, 9 * DAY)).report.nodes[0].proof is Proof.GOOD


async def test_a_restart_that_failed_the_same_way_is_told_by_its_fingerprint(store: Store) -> None:
    """People requeued what we would have stopped; the second attempt's own decision says that it is the same."""
    stop = decision(
        action=Action.STOP,
        reason=Reason.SAME_FAILURE_SAME_PROGRESS,
        attribution=replace(decision().attribution, category=Category.APPLICATION, nodes=(), implications=()),
        isolation=replace(decision().isolation, exclude_for_job=()),
    )
    key = await failed(store, "1", stop)
    await requeued(store, "1", FAILED_AT + 600)
    ran = {"attempt": 1, "submitted_at": at(FAILED_AT + 600), "started_at": at(FAILED_AT + 700)}
    ended = {"ended_at": at(FAILED_AT + 700 + 3600), "observed_at": at(FAILED_AT + 4301)}
    await report(store, job("1", AttemptState.FAILED, **ran, **ended), complete=False)
    await advise(store, AttemptKey(job_key=key.job_key, number=1), stop, FAILED_AT + 4310)
    first = next(case for case in (await shadow(store)).report.cases if case.number == 0)
    assert (first.outcome, [item.gpu_hours for item in first.wasted]) == (Outcome.AGREED, [32.0])


async def test_what_somebody_records_wins_and_is_audited(store: Store, url: str) -> None:
    """The newest record counts; an unknown attempt is refused."""
    key = await failed(store, "1")
    said = Said(did=Did.OTHER, did_at=at(FAILED_AT + 60), who="bob", why="moved away", nodes=("node3",))
    await store.record_shadow(key, said, origin="unix socket", now=at(FAILED_AT + 100))
    assert (await shadow(store)).report.cases[0].outcome is Outcome.NOBODYS
    requeue = replace(said, did=Did.REQUEUED)
    await store.record_shadow(key, requeue, origin="unix socket", now=at(FAILED_AT + 200))
    (case,) = (await shadow(store)).report.cases
    assert (case.outcome, case.act.by, case.act.nodes) == (Outcome.OTHER_NODES, "bob", ("node3",))
    with pytest.raises(NotFound, match="no attempt"):
        await store.record_shadow(key._replace(number=9), said, origin="", now=at(0))
    assert await audited(url, "shadow_recorded") == 2


async def test_a_correction_counts_as_disagreement(store: Store) -> None:
    """Over the requeue that agreed; one that says the same is a confirmation."""
    key = await failed(store, "1")
    await requeued(store, "1", FAILED_AT + 610)
    decided = (await shadow(store)).report.cases[0].advice
    assert decided is not None
    said = Correction(who="bob", at=at(FAILED_AT + 900), why="yes", nodes=("node2",))
    await store.correct(decided.decision_id, said, origin="unix socket")
    assert (await shadow(store)).report.cases[0].outcome is Outcome.AGREED
    said = Correction(who="bob", at=at(FAILED_AT + 950), why="a switch", category=Category.INTERCONNECT)
    await store.correct(decided.decision_id, said, origin="unix socket")
    (case,) = (await shadow(store)).report.cases
    assert (case.job_key, case.outcome) == (key.job_key, Outcome.CORRECTED)
    assert "bob says that category should be otherwise" in case.why


async def audited(url: str, what: str) -> int:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT count(*) FROM audit WHERE what = :what"), {"what": what})
        count: int = found.scalar_one()
    await engine.dispose()
    return count


def earning(store: Store, seconds: float = DAY, **changes: Any) -> Earning:
    clock = StandingClock(seconds)
    rules = EarningRules(
        **(
            {
                "categories": frozenset({Category.GPU_HARDWARE}),
                "count_min": 5,
                "agreement_min": 0.5,
                "fall_below": 0.4,
            }
            | changes
        )
    )
    return Earning(
        store=store,
        reporting=Reporting(store, RULES),
        board=Board(store, clock),
        clock=clock,
        rules=rules,
        window_days=30,
        interval_seconds=60,
    )


async def agreed_jobs(store: Store, count: int) -> None:
    for number in range(1, count + 1):
        await failed(store, str(number))
        await requeued(store, str(number), FAILED_AT + 610)


async def test_a_category_earns_its_autonomy_and_loses_it_with_the_numbers_in_the_audit(store: Store, url: str) -> None:
    """Five of five agree; then four that people left alone bring the lower bound from 0.57 to 0.27."""
    await agreed_jobs(store, 4)
    assert await earning(store).look() == ()
    await failed(store, "5")
    await requeued(store, "5", FAILED_AT + 610)
    (gained,) = await earning(store).look()
    assert (gained.held, gained.agreed, gained.counted, gained.cluster) == (True, 5, 5, CLUSTER)
    assert await earning(store).look() == ()
    for number in ("6", "7", "8", "9"):
        await failed(store, number)
    later = DAY + FAILED_AT
    (lost,) = await earning(store, later).look()
    assert (lost.held, lost.agreed, lost.counted) == (False, 5, 9)
    assert lost.lower == pytest.approx(0.2667, abs=1e-4)
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        rows = await connection.execute(
            text("SELECT what, why, detail FROM audit WHERE what LIKE 'autonomy%' ORDER BY seq")
        )
        told = [(row.what, "5 of" in row.why, '"lower_bound": "0.' in row.detail) for row in rows]
    await engine.dispose()
    assert told == [("autonomy_earned", True, True), ("autonomy_lost", True, True)]


async def test_nothing_earned_is_left_when_it_is_switched_off(store: Store, url: str) -> None:
    """With an audit row for what was held."""
    await agreed_jobs(store, 5)
    await earning(store).look()
    assert await store.forget_earned(why="not enabled", now=at(DAY)) == 1
    assert await store.earned() == ()
    assert await audited(url, "autonomy_switched_off") == 1


async def test_losing_it_takes_open_advice_back(store: Store) -> None:
    """Autonomous advice that rested on it is no longer published, and is again when it is held again."""
    made = decision(mode=Mode.AUTONOMOUS)
    key = await failed(store, "1", made)
    clock = StandingClock(FAILED_AT + 20)
    board = Board(store, clock)
    held = Earned(
        cluster=CLUSTER, category=Category.GPU_HARDWARE, held=True, agreed=5, counted=5, lower=0.5, since=at(0)
    )
    for change, shown in ((held, [key]), (replace(held, held=False), []), (held, [key])):
        await store.set_earned([change])
        await board.refresh((CLUSTER,))
        assert [row.key for row in await board.open_for(CLUSTER)] == shown


async def test_our_own_action_is_judged_by_whether_it_stood(store: Store) -> None:
    """Accepted advice is neither agreement nor disagreement of people's, unless they undo it."""
    key = await failed(store, "1", decision(mode=Mode.AUTONOMOUS))
    (row,) = await store.open_advice(CLUSTER, at(FAILED_AT + 20))
    news = Reconciliation(
        status=ReconciliationStatus.APPLIED, reason=ReconciliationReason.OBSERVED, at=at(FAILED_AT + 20)
    )
    await store.record_reconciliation(row.advice_id, news, who="agent")
    await requeued(store, "1", FAILED_AT + 21, marked_generation=1, marked_attempt=0)
    (case,) = (await shadow(store)).report.cases
    assert (case.act.did, case.outcome, case.autonomous) == (Did.ADVISOR, Outcome.AGREED, True)
    cancelled = {"attempt": 1, "submitted_at": at(FAILED_AT + 21), "ended_at": at(FAILED_AT + 80), "started_at": None}
    await report(
        store,
        job("1", AttemptState.CANCELLED, nodes=(), observed_at=at(FAILED_AT + 90), **cancelled),
        complete=False,
    )
    assert (await shadow(store)).report.cases[0].outcome is Outcome.WE_RESTART
    assert key.number == 0


async def test_reliability_figures_of_a_made_history(store: Store) -> None:
    """A failure with all its milestones, a job that completed, and one of another user that still runs."""
    key = await failed(store, "1")
    moments = ((FAILED_AT - 2, "fault_visible"), (FAILED_AT + 5, "detected"), (FAILED_AT + 10, "advised"))
    after = ((FAILED_AT + 700, "first_progress"), (FAILED_AT + 900, "caught_up"))
    milestones = [Milestone(kind=MilestoneKind(kind), at=at(seconds)) for seconds, kind in (*moments, *after)]
    await store.record_milestones({key: milestones})
    await requeued(store, "1", FAILED_AT + 610, eligible_at=at(FAILED_AT + 631))
    ran = {"attempt": 1, "submitted_at": at(FAILED_AT + 610), "eligible_at": at(FAILED_AT + 631)}
    started = {"started_at": at(FAILED_AT + 640), "observed_at": at(FAILED_AT + 650)}
    await report(store, job("1", **ran, **started), complete=False)
    second = await report(store, job("2", observed_at=at(20)), complete=False)
    saves = tuple(Pause(step=n, seconds=32.0, phase=Phase.CHECKPOINT) for n in range(1, 4))
    progress = Progress(
        first_step=1, last_step=100, first_at=at(100), last_at=at(DAY / 2 - 100), pace=Pace(gaps=(2.0,), pauses=saves)
    )
    await store.save_states({second.changed[0]: DetectorState(state=b"{}", progress=progress)})
    done = {"ended_at": at(DAY / 2), "observed_at": at(DAY / 2)}
    await report(store, job("2", AttemptState.COMPLETED, **done), complete=False)
    await report(store, job("3", user="bob", partition="other", observed_at=at(30)), complete=False)
    window = Window(since=at(-3600), until=at(DAY))
    reporting = Reporting(store, RULES)
    found = await reporting.reliability(ReliabilityWanted(window=window), by="user", groups_max=1, now=at(DAY))
    everything = found.everything
    ran_seconds = (FAILED_AT - 5) + (DAY - FAILED_AT - 640) + (DAY / 2 - 5) + (DAY - 5)
    assert everything.node_days == pytest.approx(4 * ran_seconds / DAY)
    assert everything.gpu_hours == pytest.approx(32 * ran_seconds / 3600)
    assert (everything.attempts, everything.failures, everything.without_gpus) == (4, 1, 0)
    assert everything.rto.median.value == 902.0
    assert {name: part.median.value for name, part in everything.rto_parts.items()} == {
        "detect": 7.0,
        "decide": 5.0,
        "act": 600.0,
        "slurm_delay": 21.0,
        "queue": 9.0,
        "start": 60.0,
        "catch_up": 200.0,
    }
    assert (everything.restart_success.value, everything.restart_success.count) == (1.0, 1)
    assert everything.ettr == pytest.approx((DAY / 2 - 200) / (DAY / 2 - 5))
    assert (everything.ettr_runs, everything.interval.cost_seconds, everything.interval.saves) == (1, 30.0, 3)
    assert everything.interval.why_not == "0 failures of jobs that save, 3 are needed"
    assert [(group.group, group.failures) for group in found.groups] == [("ada", 1)]
    assert found.groups_left_out == 1
    only_bob = await reporting.reliability(
        ReliabilityWanted(window=window, user="bob"), by="", groups_max=1, now=at(DAY)
    )
    assert (only_bob.everything.attempts, only_bob.groups) == (1, ())


async def test_lost_steps_are_counted_from_the_checkpoint_that_was_loaded(store: Store) -> None:
    """A line every hundred steps, and a checkpoint of step 1000: what was lost before step 1100 is not forgotten."""
    key = await failed(store, "1")
    await requeued(store, "1", FAILED_AT + 610)
    began = {"started_at": at(FAILED_AT + 640), "observed_at": at(FAILED_AT + 650)}
    await report(store, job("1", attempt=1, submitted_at=at(FAILED_AT + 610), **began), complete=False)
    reached = {
        key: Progress(first_step=100, last_step=1400, resumed_step=0),
        AttemptKey(job_key=key.job_key, number=1): Progress(first_step=1100, last_step=1200, resumed_step=1000),
    }
    await store.save_states({one: DetectorState(state=b"{}", progress=made) for one, made in reached.items()})
    window = Window(since=at(-3600), until=at(DAY))
    found = await Reporting(store, RULES).reliability(
        ReliabilityWanted(window=window), by="", groups_max=1, now=at(DAY)
    )
    assert found.everything.rpo_steps.median.value == 400
    assert [row.progress.resumed_step for row in (await store.audit.attempts(AuditFilter(), Page())).rows] == [1000, 0]


async def test_both_reports_walk_an_index(store: Store, url: str) -> None:
    """Neither the incidents of a window nor the attempts of one are found by reading a whole table."""
    window = Window(since=at(0), until=at(DAY))
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.execute(text("SET enable_seqscan = off"))
        for statement in (
            incidents_statement(WANTED),
            incidents_statement(replace(WANTED, cluster=CLUSTER)),
            attempts_statement(ReliabilityWanted(window=window)),
            attempts_statement(ReliabilityWanted(window=window, user="ada")),
        ):
            plain = statement.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
            rows = await connection.execute(text("EXPLAIN " + str(plain).replace(":", r"\:")))
            plan = "\n".join(rows.scalars())
            assert "Seq Scan on incidents" not in plan
            assert "Seq Scan on attempts" not in plan
    await engine.dispose()


async def test_an_empty_store_has_empty_reports(store: Store) -> None:
    """No figure from nothing."""
    assert (await shadow(store)).report.rows == ()
    window = Window(since=at(0), until=at(DAY))
    found = await Reporting(store, RULES).reliability(
        ReliabilityWanted(window=window), by="job", groups_max=5, now=at(DAY)
    )
    assert (found.everything.failure_rate.value, found.groups, found.lemons) == (None, (), ())
