"""Job-defined rules over an attempt's life: beginnings, pauses, restarts, what is said and what comes of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from advisor.core import codec, job_watch
from advisor.core.decide import decide
from advisor.core.job_rules import OWN, SITE, Comparison, JobRuleEvaluator, LogRule
from advisor.core.job_watch import Applied, Piece, Watch
from advisor.core.model import Attempt, Decision, Job, Progress, Signal, Snapshot, SourceReport, Unavailable
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Reason, Trust, UnavailableReason
from advisor.rules.loader import load_rules
from advisor.rules.policy import load_policy

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FILE = "job-output:/out.log"
JOB = Job(key="j", cluster="c", job_id="7", user="u", in_scope=True, batch=True, requeueable=True)
RUNNING = Attempt(number=0, state=AttemptState.RUNNING, nodes=("node1", "node2"), started_at=T0)
RULES = load_rules()
POLICY = load_policy(None)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def rule(number: int = 1, pattern: str = ".*step", **values: Any) -> LogRule:
    return LogRule(number=number, name=f"r{number}", log_pattern=pattern, log_re2=pattern, **values)


HANG = rule(recurring_seconds=60.0, start_cutoff_seconds=300.0)
FAULT = rule(2, ".*burst", fault_on_match=True)
SLOW = rule(3, ".*ms (\\d+)", metric_threshold=5.0, comparison=Comparison.GT)


def applied(*rules: LogRule, of: str = OWN, digest: str = "d") -> Applied:
    return Applied(of=of, digest=digest, evaluator=JobRuleEvaluator(rules))


ALL = applied(HANG, FAULT, SLOW)


def begun(item: Applied, *, unread: bool = True, now: datetime = T0) -> Watch:
    return job_watch.begun(Watch(), [item], RUNNING, 0, now, unread=unread)


def fed(watch: Watch, item: Applied, data: bytes, now: datetime, **piece: Any) -> Watch:
    watch, batches = job_watch.split_up(watch, [Piece(file=FILE, data=data, **piece)], now)
    for batch in batches:
        watch = job_watch.fold(watch, item, batch, now)
    return watch


def said(
    watch: Watch, item: Applied, now: datetime, attempt: Attempt = RUNNING, *, readable: bool = True
) -> tuple[Signal, ...]:
    return job_watch.signals(watch, [item], JOB, attempt, now, readable=readable)


def names(*signals: Signal) -> list[str]:
    return [signal.rule for signal in signals]


def concluded(signals: tuple[Signal, ...], now: datetime, attempt: Attempt = RUNNING, **values: Any) -> Decision:
    log = values.pop("log", SourceReport(source="out", trust=Trust.LOG, lines=3))
    snapshot = Snapshot(job=JOB, attempt=attempt, signals=signals, sources=(log,), **values)
    return decide(snapshot, RULES, POLICY, now)


@pytest.mark.parametrize("step", [3600.0, -3600.0, 90_000.0, -5.0], ids=str)
def test_where_the_clock_is_set_silence_begins_anew(step: float) -> None:
    """Nobody waited for a line through an hour that nobody lived through; nor is a hang hidden until it has passed
    again. What was read keeps its meaning."""
    burst = fed(begun(ALL), ALL, b"step 1\nms 9\nburst\n", at(10))
    set_at = at(50 + step)

    def later(seconds: float) -> datetime:
        return set_at + timedelta(seconds=seconds)

    def since(watch: Watch, seconds: float) -> Watch:
        found = job_watch.since_set(watch, set_at, later(seconds))
        assert job_watch.since_set(found, set_at, later(seconds + 1)) == found
        return found

    before = names(*said(burst, ALL, at(50)))
    assert before == ["job.fault", "job.slow"]
    assert names(*said(since(burst, 0.1), ALL, later(0.1))) == before
    assert names(*said(since(burst, 0.1), ALL, later(60))) == before
    assert names(*said(since(burst, 0.1), ALL, later(61))) == ["job.hang", *before]
    again = fed(since(burst, 0.1), ALL, b"step 2\n", later(55))
    assert names(*said(since(again, 115), ALL, later(115))) == before
    assert names(*said(since(again, 116), ALL, later(116))) == ["job.hang", *before]
    awaiting = since(begun(ALL), 0.1)
    assert said(awaiting, ALL, later(300)) == ()
    assert names(*said(awaiting, ALL, later(301))) == ["job.hang"]


@pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["forward", "back"])
def test_where_the_clock_is_set_a_pause_and_a_half_line_go_on(step: float) -> None:
    """A suspended attempt is still so, and what is only half written waits for its end as long as ever."""
    watch = fed(begun(ALL), ALL, b"step 1\nbur", at(10))
    paused = job_watch.passed(watch, replace(RUNNING, state=AttemptState.SUSPENDED), 0, at(12))
    set_at = at(12 + step)
    since = job_watch.since_set(paused, set_at, set_at)
    assert said(since, ALL, set_at + timedelta(seconds=500)) == ()
    on = job_watch.passed(since, RUNNING, 0, set_at + timedelta(seconds=500))
    assert said(on, ALL, set_at + timedelta(seconds=560)) == ()
    assert names(*said(on, ALL, set_at + timedelta(seconds=561))) == ["job.hang"]
    assert job_watch.waited(since, set_at + timedelta(seconds=4), final=False)[1] == ()
    assert job_watch.waited(since, set_at + timedelta(seconds=5), final=False)[1][0].lines == (b"bur",)


@pytest.mark.parametrize("suspended", [0.0, 900.0])
def test_what_was_heard_since_the_clock_was_set_is_heard(suspended: float) -> None:
    """Each replica finds the step at a moment of its own, or not at all: whoever has the job days later, and found it
    later, does not take for silence what lies between."""
    first, second = at(3650.1), at(3650.9)
    watch = job_watch.since_set(fed(begun(ALL), ALL, b"step 1\n", at(10)), first, first)
    paused = job_watch.passed(watch, replace(RUNNING, state=AttemptState.SUSPENDED), 0, at(10_000))
    watch = job_watch.passed(paused, RUNNING, 0, at(10_000 + suspended))
    watch = fed(watch, ALL, b"step 2\n", at(100_000))
    for known in (watch, fed(begun(ALL), ALL, b"step 2\n", at(100_000))):
        moved = job_watch.since_set(known, second, at(100_010))
        assert job_watch.since_set(moved, second, at(100_011)) == moved
        assert said(moved, ALL, at(100_060)) == ()
        (hang,) = said(moved, ALL, at(100_061))
        assert hang.rule == "job.hang"
    paused = job_watch.passed(watch, replace(RUNNING, state=AttemptState.SUSPENDED), 0, at(100_020))
    moved = job_watch.since_set(job_watch.passed(paused, RUNNING, 0, at(100_500)), second, at(100_501))
    assert said(moved, ALL, at(100_540)) == ()
    assert names(*said(moved, ALL, at(100_541))) == ["job.hang"]


def test_a_clock_that_was_set_before_an_attempt_changes_nothing() -> None:
    """Whoever knows of a step long ago does not begin anew for it, with every tick."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    assert job_watch.since_set(watch, at(-100), at(50)) is watch
    assert job_watch.since_set(watch, None, at(50)) is watch


def test_a_hang_is_the_same_signal_as_long_as_it_lasts_and_clears_itself() -> None:
    """It is dated by the moment its limit passed, and gone when its line comes again."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    assert said(watch, ALL, at(70)) == ()
    first, later = said(watch, ALL, at(71)), said(watch, ALL, at(500))
    assert first == later
    assert (first[0].rule, first[0].at, first[0].line, first[0].nodes) == ("job.hang", at(70), 1, ())
    assert said(fed(watch, ALL, b"step 2\n", at(501)), ALL, at(502)) == ()


def test_what_cannot_be_read_is_no_silence() -> None:
    """An unavailable or capped source hides a hang, never a fault that was read."""
    watch = fed(begun(ALL), ALL, b"step 1\nburst\n", at(10))
    assert names(*said(watch, ALL, at(500), readable=True)) == ["job.hang", "job.fault"]
    assert names(*said(watch, ALL, at(500), readable=False)) == ["job.fault"]


def test_a_pause_stops_the_clock() -> None:
    """Nobody waits for lines while the attempt is suspended."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    watch = job_watch.passed(watch, replace(RUNNING, state=AttemptState.SUSPENDED), 0, at(20))
    assert said(watch, ALL, at(5000)) == ()
    watch = job_watch.passed(watch, RUNNING, 0, at(5000))
    assert said(watch, ALL, at(5049)) == ()
    assert names(*said(watch, ALL, at(5051))) == ["job.hang"]


def test_a_restart_of_the_ranks_begins_anew() -> None:
    """An old fault is forgotten, and what the new ranks printed before the restart showed is not awaited again."""
    watch = fed(begun(ALL), ALL, b"step 1\nburst\n", at(10))
    watch = job_watch.passed(watch, RUNNING, 1, at(20))
    assert said(watch, ALL, at(2000)) == ()
    assert names(*said(fed(watch, ALL, b"step 1\n", at(2000)), ALL, at(2061))) == ["job.hang"]
    assert job_watch.passed(watch, RUNNING, 1, at(30)) == watch


def test_the_first_line_is_awaited_only_by_rules_that_saw_the_beginning() -> None:
    """Rules that came late, or changed, do not take a line that they never saw for one that never came."""
    assert names(*said(begun(ALL), ALL, at(301))) == ["job.hang"]
    assert said(begun(ALL, unread=False, now=at(400)), ALL, at(4000)) == ()
    other = applied(HANG, digest="other")
    changed = job_watch.begun(begun(ALL), [other], RUNNING, 0, at(10), unread=False)
    assert said(changed, other, at(4000)) == ()
    assert names(*said(fed(changed, other, b"step 1\n", at(20)), other, at(81))) == ["job.hang"]
    old = fed(begun(ALL), ALL, b"burst\nstep 1\n", at(5), old=True)
    assert said(old, ALL, at(4000)) == ()


def test_states_of_sets_that_saw_not_all_lines_are_dropped() -> None:
    """When rules are not there for a while, lines went by: their state would take them for silence."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    assert job_watch.without_others(watch, [ALL]) is watch
    assert job_watch.without_others(watch, []).runs == {}


def test_the_silence_of_the_dead_is_no_hang() -> None:
    """At its end the attempt's clock stops: what was no hang by then never becomes one, what was one stays."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    ended = replace(RUNNING, state=AttemptState.FAILED, ended_at=at(60))
    assert said(watch, ALL, at(900), ended) == ()
    assert names(*said(watch, ALL, at(900), replace(ended, ended_at=at(80)))) == ["job.hang"]


def test_an_unfinished_line_counts_after_a_while() -> None:
    """The last words of a process that died in the middle of a line."""
    watch = fed(begun(ALL), ALL, b"step 1\nburst", at(10))
    assert job_watch.waited(watch, at(12), final=False) == (watch, ())
    for now, final in ((at(16), False), (at(12), True)):
        after, batches = job_watch.waited(watch, now, final=final)
        assert names(*said(job_watch.fold(after, ALL, batches[0], now), ALL, now)) == ["job.fault"]


def test_a_state_survives_storage() -> None:
    """What was seen is canonical JSON and back, half a line of raw bytes too."""
    watch = fed(begun(ALL), ALL, b"step 1\nms 9\n\xff half", at(10))
    assert codec.decode(Watch, codec.encode(watch)) == watch


def test_many_lines_cost_a_bounded_read() -> None:
    """Lines come in batches that can be stopped between, numbered on."""
    item = applied(rule(pattern=".*", recurring_seconds=5.0))
    watch, batches = job_watch.split_up(begun(item), [Piece(file=FILE, data=b"\n" * 10_000, line=5)], at(1))
    assert [(len(batch.lines), batch.first) for batch in batches] == [(4096, 6), (4096, 4102), (1808, 8198)]
    for batch in batches:
        watch = job_watch.fold(watch, item, batch, at(1))
    assert said(watch, item, at(10))[0].line == 10_005


# --- what decisions make of it ---------------------------------------------------------------------------------------


def test_the_jobs_own_hang_ends_a_live_attempt_by_policy() -> None:
    """A HANG at once; after its settle time the restart, though the general limit is far away."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    progress = Progress(last_step=1, last_at=at(10))
    assert concluded(said(watch, ALL, at(71)), at(71), progress=progress).incident.kind is IncidentKind.HANG
    decision = concluded(said(watch, ALL, at(100)), at(100), progress=progress)
    assert (decision.incident.kind, decision.action, decision.reason) == (
        IncidentKind.HANG,
        Action.RESTART,
        Reason.HANG,
    )
    assert decision.may_end_live_attempt
    assert decision.isolation.exclude_for_job == ()
    assert decision.attribution.nodes == ()


def test_a_sites_hang_ends_nothing_by_itself() -> None:
    """It is an incident to look at; the general limit decides."""
    item = applied(HANG, of=SITE)
    watch = fed(begun(item), item, b"step 1\n", at(10))
    decision = concluded(said(watch, item, at(100)), at(100), progress=Progress(last_step=1, last_at=at(10)))
    assert (decision.incident.kind, decision.action, decision.reason) == (
        IncidentKind.HANG,
        Action.NONE,
        Reason.AWAITING_EXIT,
    )


def test_a_hang_beside_an_unreadable_log_ends_nothing() -> None:
    """Even if a rule says so: its silence may be that of the source."""
    watch = fed(begun(ALL), ALL, b"step 1\n", at(10))
    absent = Unavailable(source="err", reason=UnavailableReason.TIMEOUT)
    log = SourceReport(source="err", trust=Trust.LOG, unavailable=absent)
    decision = concluded(said(watch, ALL, at(100)), at(100), log=log)
    assert decision.action is Action.NONE


def test_a_fault_and_then_silence_is_a_hang() -> None:
    """A crash seen only in the log of a live attempt waits; that the job then breaks its own limit does not."""
    watch = fed(begun(ALL), ALL, b"step 1\nburst\n", at(10))
    waits = concluded(said(watch, ALL, at(20)), at(20))
    assert (waits.incident.kind, waits.reason) == (IncidentKind.CRASH, Reason.AWAITING_EXIT)
    assert waits.attribution.evidence == (said(watch, ALL, at(20))[0].id,)
    assert concluded(said(watch, ALL, at(71)), at(71)).incident.kind is IncidentKind.HANG


def test_slow_waits_for_the_next_checkpoint() -> None:
    """The job's own word for too slow is a straggler, and never a reason to end an attempt."""
    watch = fed(begun(ALL), ALL, b"step 1\nms 4\nms 9\n", at(10))
    decision = concluded(said(watch, ALL, at(20)), at(20))
    assert (decision.incident.kind, decision.reason) == (IncidentKind.STRAGGLER, Reason.NEXT_CHECKPOINT)
    assert decision.attribution.root_cause.startswith("the job's rule 3 (r3): value 9 is gt 5")
    assert said(fed(watch, ALL, b"ms 5\n", at(21)), ALL, at(22)) == ()


def test_what_shipped_rules_know_outranks_what_a_job_says() -> None:
    """A job's fault line says that it failed; why, a signature that names the cause says better."""
    watch = fed(begun(ALL), ALL, b"burst\n", at(10))
    known = max((item for item in RULES.rules if item.category is Category.STORAGE), key=lambda item: item.weight)
    other = Signal(
        id="other",
        rule=known.id,
        trust=Trust.LOG,
        source="out",
        seen_at=at(11),
        role=known.role,
        category=known.category,
    )
    ended = replace(RUNNING, state=AttemptState.FAILED, ended_at=at(12))
    decision = concluded((*said(watch, ALL, at(20), ended), other), at(30), ended)
    assert decision.attribution.category is Category.STORAGE
