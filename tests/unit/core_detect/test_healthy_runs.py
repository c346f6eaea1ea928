"""Generated healthy runs, read as they grow: no incident at any time, however long a checkpoint takes."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from advisor.core.detection import detect
from advisor.core.model import Attempt, Job, Signal, Snapshot, SourceReport
from advisor.core.policy import Policy
from advisor.core.progress import combine
from advisor.core.scan import FileState, fold_signals
from advisor.core.words import AttemptState, IncidentKind, Trust
from tests.corpus.benign_lines import load_groups
from tests.corpus.healthy import STYLES, Noise, Plan, Style, healthy_run, reads
from tests.unit.core_detect.logs import NODES, NOON, RULES, SCANNER, context, kernel

NOISE = Noise.of(load_groups())
POLICY = Policy()
PLAN = Plan()
READ_SECONDS = 15.0
QUIET = timedelta(seconds=20)


def watched(style: Style, *, seed: int, lines: int, plan: Plan = PLAN) -> Iterator[tuple[Snapshot, datetime]]:
    """What is known of the attempt at each read, and just before a read that comes late; at last with its end."""
    states: dict[str, FileState] = {}
    signals: tuple[Signal, ...] = ()
    began = NOON - timedelta(seconds=30)
    attempt = Attempt(
        number=0, state=AttemptState.RUNNING, nodes=NODES, started_at=began, world_size=32, tasks_per_node=8
    )
    world, now = Snapshot(job=Job(key="j", cluster="c", job_id="7", user="u"), attempt=attempt), began
    for at, texts in reads(healthy_run(style, NOISE, seed=seed, lines=lines, begin=NOON, plan=plan), READ_SECONDS):
        if at - now > QUIET:
            yield world, at
        now = at + timedelta(seconds=1)
        for node, text in texts.items():
            where = context() if node is None else kernel(node, started_at=began)
            state = states.get(where.file, FileState())
            scanned = SCANNER.scan(where, state, text.encode(), fresh=False, final=False, seen_at=now)
            states[where.file] = scanned.state
            signals = fold_signals(signals, scanned, POLICY.signals_max)
        world = Snapshot(
            job=world.job,
            attempt=attempt,
            signals=signals,
            progress=combine({name: state.progress for name, state in states.items()}),
            sources=(SourceReport(source="logs", trust=Trust.LOG),),
        )
        yield world, now


def alarms(style: Style, *, seed: int, lines: int, plan: Plan = PLAN) -> list[str]:
    """Every incident that was seen, with what it rests on."""
    found = []
    world, now = None, NOON
    for world, now in watched(style, seed=seed, lines=lines, plan=plan):
        incident = detect(world, RULES, POLICY, now)
        if incident.kind is not IncidentKind.NONE and len(found) < 5:
            seen = [f"{signal.rule}: {signal.text[:160]}" for signal in incident.signals[:3]]
            found.append(f"{now - NOON} step {world.progress.last_step}: {incident.kind} {seen}")
    assert world is not None
    assert world.progress.in_job_restarts == 0
    assert (world.progress.last_step or 0) > 0
    return found


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_healthy_run_has_no_incident(style: Style) -> None:
    """Some 50,000 lines over all frameworks, looked at every few seconds and at the end of every silence."""
    assert alarms(style, seed=1, lines=50_000 // len(STYLES)) == []


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_million_healthy_lines_have_no_incident(style: Style) -> None:
    """A million lines over all frameworks."""
    assert alarms(style, seed=2, lines=1_000_000 // len(STYLES)) == []


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_long_pauses_below_the_limits_are_no_hang(style: Style) -> None:
    """Checkpoints, evaluations and compilations that take almost as long as policy allows."""
    plan = Plan(
        first_step_max=0.95 * POLICY.hang_startup_seconds,
        pause_max=0.95 * POLICY.hang_seconds,
        save_every=7,
        evaluate_every=11,
        compile_every=13,
        noise_max=3,
    )
    assert alarms(style, seed=3, lines=1_500, plan=plan) == []
