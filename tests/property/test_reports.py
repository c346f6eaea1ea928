"""What must hold of figures and comparisons whatever happened."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from advisor.core.autonomy import Earned, EarningRules, judge, mode_of
from advisor.core.intervals import median, rate, time_to_failure, wilson
from advisor.core.modes import ModeSetting, Subject, effective_mode
from advisor.core.people import Advised, Did, NodeChange, Run, ShadowRules, Watched, infer
from advisor.core.reliability import AttemptFacts, Window, daly, figures, young
from advisor.core.shadow import COUNTED, Outcome, compare, tally
from advisor.core.words import Action, AttemptState, Category, Mode, NodeState, Reason

T0 = datetime(2026, 11, 1, tzinfo=UTC)
RULES = ShadowRules()
moments = st.integers(0, 400_000).map(lambda seconds: T0 + timedelta(seconds=seconds))
nodes = st.lists(st.sampled_from(("node1", "node2", "node3")), unique=True).map(tuple)


@st.composite
def runs(draw: st.DrawFn, job: str = "k1", number: int = 0) -> Run:
    submitted = draw(moments)
    started = draw(st.none() | st.integers(0, 9000).map(lambda s: submitted + timedelta(seconds=s)))
    ended = draw(st.none() | st.integers(0, 90_000).map(lambda s: (started or submitted) + timedelta(seconds=s)))
    return Run(
        job_key=job,
        number=number,
        job_id=job[1:],
        state=draw(st.sampled_from(AttemptState)),
        submitted_at=submitted,
        started_at=started,
        ended_at=ended,
        excluded=draw(nodes),
        ours=draw(st.booleans()),
        fingerprint=draw(st.sampled_from(("", "a", "b"))),
        gpus=draw(st.none() | st.integers(0, 64)),
    )


decisions = st.builds(
    Advised,
    decision_id=st.just("d"),
    at=moments,
    action=st.sampled_from(Action),
    category=st.sampled_from(Category),
    reason=st.sampled_from(Reason),
    nodes=nodes,
    fingerprint=st.sampled_from(("", "a", "b")),
    autonomous=st.booleans(),
    applied=st.booleans(),
)
changes = st.builds(
    NodeChange,
    node=st.sampled_from(("node1", "node2", "node9")),
    at=moments,
    before=st.none() | st.sampled_from(NodeState),
    state=st.sampled_from(NodeState),
    reason=st.sampled_from(("", "bob: broken", "NHC: gpu", "advisor: x", "Not responding")),
)


@st.composite
def cases(draw: st.DrawFn) -> Watched:
    return Watched(
        run=draw(runs()),
        cluster="alps",
        user="ada",
        name=draw(st.sampled_from(("", "wrap", "llama"))),
        advised=tuple(sorted(draw(st.lists(decisions, max_size=4)), key=lambda item: item.at)),
        nodes=("node1", "node2", "node3"),
        exit_code=draw(st.none() | st.integers(0, 130)),
        exit_signal=draw(st.none() | st.integers(0, 15)),
        fault_at=draw(st.none() | moments),
        forgotten=draw(st.booleans()),
        followers=tuple(draw(runs(number=1)) for _ in range(draw(st.integers(0, 1)))),
        namesakes=tuple(draw(runs(job=f"k{n}")) for n in range(2, 2 + draw(st.integers(0, 2)))),
        changes=tuple(draw(st.lists(changes, max_size=3))),
    )


@given(watched=cases(), now=moments)
def test_every_attempt_has_an_answer_and_its_sureness(watched: Watched, now: datetime) -> None:
    """Total; surest 1; a cancelled or left job has no resubmission, and nodes named are of the attempt or excluded."""
    act = infer(watched, now, RULES)
    assert 0.0 <= act.sure <= 1.0
    assert set(act.drained) <= set(watched.nodes)
    assert bool(act.job_id) == (act.did is Did.RESUBMITTED)
    if act.did is Did.NOTHING:
        assert (now - watched.base).total_seconds() >= RULES.window_seconds


@given(watched=cases(), now=moments)
def test_what_counts_had_advice_and_was_sure(watched: Watched, now: datetime) -> None:
    """Nothing unsure, nobody's, or without advice from before ever counts; hours are never negative."""
    case = compare(watched, now, RULES)
    if case.outcome in COUNTED:
        assert case.advice is not None
        assert case.advice.action is not Action.NONE
        assert case.act.sure >= RULES.sure_min
        assert case.autonomous == (case.act.did is Did.ADVISOR)
    assert case.delay_seconds is None or case.delay_seconds >= 0
    assert all(item.gpu_hours is None or item.gpu_hours >= 0 for item in case.wasted)


@given(st.lists(cases(), max_size=3), moments)
def test_rows_add_up_to_the_cases(watched: list[Watched], now: datetime) -> None:
    """Each case is in exactly one category, under exactly one outcome, or as ours that stood or was undone."""
    compared = [compare(item, now, RULES) for item in watched]
    rows = tally(compared, []).rows
    ours = sum(case.autonomous and case.outcome in COUNTED for case in compared)
    assert sum(row.stood + row.undone for row in rows) == ours
    assert sum(row.count(*Outcome) for row in rows) == len(compared) - ours
    theirs = [case for case in compared if not case.autonomous]
    assert sum(row.agreement.count for row in rows) == sum(case.outcome in COUNTED for case in theirs)


@given(trials=st.integers(0, 5000), data=st.data())
def test_wilson_holds_the_share_and_tightens(trials: int, data: st.DataObject) -> None:
    """The share lies within its interval, and ten times the evidence gives a narrower one."""
    successes = data.draw(st.integers(0, trials))
    found, more = wilson(successes, trials), wilson(successes * 10, trials * 10)
    if found.low is None or found.high is None or found.value is None or more.low is None or more.high is None:
        assert trials == 0
        return
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert more.high - more.low < found.high - found.low


@given(events=st.integers(0, 200), exposure=st.floats(0.01, 1e6))
def test_a_rate_lies_within_its_bounds_and_mttf_is_its_inverse(events: int, exposure: float) -> None:
    """Also without any event."""
    found, mttf = rate(events, exposure), time_to_failure(events, exposure)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= events / exposure <= found.high
    assert mttf.low is not None
    assert mttf.low * found.high > 0.999
    assert (mttf.value is None) == (events == 0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_a_median_lies_between_values_that_were_seen(values: list[float]) -> None:
    """Whatever their law."""
    found = median(values)
    assert found.low in values
    assert found.high in values
    assert found.value is not None
    assert found.low <= found.value <= found.high


@given(cost=st.floats(0.1, 1e5), mttf=st.floats(1.0, 1e7))
def test_daly_never_saves_more_rarely_than_it_fails_by_much(cost: float, mttf: float) -> None:
    """Positive, never beyond Young's by more than its correction, and the MTTF itself where saving is dear."""
    found = daly(cost, mttf)
    assert found > 0
    assert found <= max(young(cost, mttf) * (1 + 1 / 3 + 1 / 9), mttf)


@st.composite
def facts(draw: st.DrawFn, number: int, job: str) -> AttemptFacts:
    run = draw(runs(job=job, number=number))
    steps = sorted(draw(st.lists(st.integers(0, 1000), min_size=2, max_size=2)))
    seen = run.started_at is not None and draw(st.booleans())
    return AttemptFacts(
        job_key=job,
        number=number,
        job_id=run.job_id,
        cluster="alps",
        partition="gpu",
        user="ada",
        state=run.state,
        submitted_at=run.submitted_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        nodes=draw(st.integers(0, 8)),
        gpus=run.gpus,
        category=draw(st.sampled_from(Category)),
        kind=draw(st.sampled_from(("", "crash", "hang"))),
        advised=draw(st.booleans()),
        acted=draw(st.booleans()),
        first_step=steps[0] if seen else None,
        last_step=steps[1] if seen else None,
        first_at=run.started_at if seen else None,
        last_at=(run.ended_at or run.started_at) if seen else None,
        save_seconds=tuple(draw(st.lists(st.floats(0, 100), max_size=3))),
        moments=draw(st.dictionaries(st.sampled_from(("fault_visible", "detected", "advised", "caught_up")), moments)),
    )


@given(st.lists(facts(0, "k1") | facts(1, "k1") | facts(0, "k2"), max_size=5), moments, st.integers(1, 400_000))
def test_figures_never_contradict_themselves(attempts: list[AttemptFacts], since: datetime, seconds: int) -> None:
    """ETTR is a share; parts and totals are never negative; failures are at most attempts."""
    unique = list({(item.job_key, item.number): item for item in attempts}.values())
    found = figures(unique, Window(since=since, until=since + timedelta(seconds=seconds)))
    assert found.ettr is None or 0.0 <= found.ettr <= 1.0
    assert found.failures <= found.attempts == len(unique)
    assert found.node_days >= 0
    for spread in (found.rto, found.rpo_steps, *found.rto_parts.values()):
        assert spread.median.value is None or spread.median.value >= 0
    assert sum(row.failures for row in found.sizes) <= found.failures


@given(
    evidence=st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda pair: (min(pair), max(pair))),
    held=st.none() | st.booleans(),
    days=st.integers(0, 20),
)
def test_autonomy_never_flaps(evidence: tuple[int, int], held: bool | None, days: int) -> None:
    """What was just judged is judged the same again: nothing changes twice on the same evidence."""
    rules = EarningRules(categories=frozenset({Category.GPU_HARDWARE}))
    before = None
    if held is not None:
        before = Earned(
            cluster="c", category=Category.GPU_HARDWARE, held=held, agreed=0, counted=0, lower=0.0, since=T0
        )
    now = T0 + timedelta(days=days)
    change = judge("c", Category.GPU_HARDWARE, evidence, before, rules, now)
    if change is not None:
        assert change.held != (held or False)
        assert judge("c", Category.GPU_HARDWARE, evidence, change, rules, now) is None


mode_settings = st.builds(
    ModeSetting,
    mode=st.sampled_from(Mode),
    cluster=st.sampled_from(("", "alps", "other")),
    partition=st.sampled_from(("", "gpu", "cpu")),
    category=st.sampled_from(("", "gpu_hardware", "storage")),
    percent=st.none() | st.integers(1, 99),
)


@given(st.lists(mode_settings, max_size=4), st.sampled_from(Action), st.booleans(), st.sampled_from(Mode))
def test_a_persons_setting_always_wins(chosen: list[ModeSetting], action: Action, stops: bool, default: Mode) -> None:
    """With any matching setting the result is what it would be if nothing had been earned."""
    subject = Subject(cluster="alps", partition="gpu", job_id="7", job_key="k1", category="gpu_hardware")
    earned = Earned(
        cluster="alps",
        category=Category.GPU_HARDWARE,
        held=True,
        agreed=9,
        counted=9,
        lower=0.9,
        since=T0,
        with_stop=stops,
    )
    found = mode_of(chosen, default, (earned,), subject, action)
    if any(item.matches(subject) for item in chosen):
        assert found is effective_mode(chosen, subject)
    elif action is Action.STOP and not stops:
        assert found is default
    else:
        assert found is Mode.AUTONOMOUS
