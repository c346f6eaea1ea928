"""The benign corpus opens no incident, blames nobody and fakes no progress, alone and all together."""

from collections import Counter
from datetime import timedelta

import pytest

from advisor.core.decide import decide
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.scan import FileContext
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Role
from tests.corpus.benign_lines import Group, load_groups, shape
from tests.unit.core_detect.logs import NOON, RULES, context, kernel, scan, snapshot

GROUPS = load_groups()
STEP = " iteration {:8d}/  500000 | elapsed time per iteration (ms): 5021.7 | lm loss: 2.084E+00 |\n"
START = NOON - timedelta(minutes=40)  # not yet long without a first step


def text(group: Group, line: str) -> str:
    """The line as its source holds it."""
    return f"{line}\n" if group.node is None else f"2026-11-29T11:30:00.120000+00:00 {group.node} {line}\n"


def where(group: Group) -> FileContext:
    return context() if group.node is None else kernel(group.node)


def named(group: Group) -> str:
    return group.name


def ruling(world: Snapshot) -> Decision:
    return decide(world, RULES, Policy(), NOON)


def accusations(ruled: Decision) -> tuple[str, ...]:
    blame = ruled.attribution
    return (*blame.nodes, *blame.gpus, *(implication.node for implication in blame.implications))


def alarms(world: Snapshot) -> list[str]:
    """Why this is not nothing, with the rules that saw something; empty when it is nothing."""
    ruled = ruling(world)
    found = [f"{signal.rule} ({signal.role}): {signal.text}" for signal in world.signals]
    if ruled.incident.kind is not IncidentKind.NONE or ruled.attribution.category is not Category.NONE:
        return [f"{ruled.incident.kind}, {ruled.attribution.category}", *found]
    if accusations(ruled) or ruled.action is not Action.NONE:
        return [f"{ruled.action}, {accusations(ruled)}", *found]
    return []


def test_the_corpus_is_large_and_each_shape_is_there_once() -> None:
    """At least a thousand shapes, different with their numbers masked; every group names its source."""
    shapes = Counter(shape(line) for group in GROUPS for line in group.lines)
    assert [text for text, count in shapes.items() if count > 1] == []
    assert len(shapes) >= 1000
    assert all(len(group.source) > 8 for group in GROUPS)


@pytest.mark.parametrize("group", GROUPS, ids=named)
@pytest.mark.parametrize("state", [AttemptState.RUNNING, AttemptState.COMPLETED])
def test_a_benign_line_alone_is_no_incident(group: Group, state: AttemptState) -> None:
    """Each line is the only thing its source holds: no incident, nobody implicated, nothing to do."""
    worlds = (snapshot((where(group), text(group, line)), state=state, started_at=START) for line in group.lines)
    assert [found for world in worlds if (found := alarms(world))] == []


@pytest.mark.parametrize("group", GROUPS, ids=named)
def test_a_benign_line_takes_no_blame_when_the_attempt_fails(group: Group) -> None:
    """Noise beside a failure of unknown cause names no node, is no cause, and ends no job for good."""
    wrong = []
    for line in group.lines:
        world = snapshot((where(group), text(group, line)), started_at=START)
        ruled = ruling(world)
        blame = ruled.attribution
        causes = [signal.rule for signal in world.signals if signal.role is Role.INITIATING and group.node is None]
        named_or_out = (*blame.nodes, *blame.gpus, *ruled.isolation.exclude_for_job)
        if named_or_out or causes or blame.certain:
            wrong.append((line, causes, named_or_out, blame.category))
    assert wrong == []


@pytest.mark.parametrize("state", [AttemptState.RUNNING, AttemptState.COMPLETED])
def test_all_benign_lines_between_steps_are_no_incident(state: AttemptState) -> None:
    """A job that prints all of them and goes on stepping, and nodes that print theirs meanwhile."""
    job, step = [], 0
    nodes: dict[str, list[str]] = {}
    for group in GROUPS:
        for line in group.lines:
            if group.node is not None:
                nodes.setdefault(group.node, []).append(text(group, line))
                continue
            if step % 80 == 0:
                job.append(STEP.format(step))
            step += 10
            job.append(text(group, line))
    job.append(STEP.format(step))
    parts = [(context(), "".join(job)), *((kernel(node), "".join(lines)) for node, lines in nodes.items())]
    world = snapshot(*parts, state=state, started_at=START)
    assert alarms(world) == []
    assert (world.progress.in_job_restarts, world.progress.last_step) == (0, step)


@pytest.mark.parametrize("group", [group for group in GROUPS if group.node is not None], ids=named)
def test_a_kernel_line_that_a_job_prints_is_no_incident_either(group: Group) -> None:
    """Jobs print `dmesg`."""
    state = AttemptState.RUNNING
    worlds = (snapshot((context(), f"[  812.204417] {line}\n"), state=state, started_at=START) for line in group.lines)
    assert [found for world in worlds if (found := alarms(world))] == []


@pytest.mark.parametrize("group", [group for group in GROUPS if group.node is None], ids=named)
def test_only_the_end_of_training_is_taken_for_it(group: Group) -> None:
    """A false end would hide what comes after it."""
    assert [line for line in group.lines if scan(line + "\n").state.progress.finished is not group.ends] == []


def test_an_unknown_allocation_makes_no_line_an_accusation() -> None:
    """A bundle with nothing but the job's lines."""
    whole = "".join(text(group, line) for group in GROUPS if group.node is None for line in group.lines)
    state = AttemptState.RUNNING
    world = snapshot((context(nodes=None), whole), state=state, nodes=None, started_at=START, offline=True)
    assert alarms(world) == []
