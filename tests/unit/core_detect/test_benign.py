"""The benign corpus opens no incident, blames nobody and fakes no progress, alone and all together."""

from collections import Counter
from dataclasses import replace

import pytest

from advisor.core.decide import decide
from advisor.core.model import Attribution, Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.scan import FileContext
from advisor.core.words import Action, AttemptState, Category, IncidentKind, Role
from tests.corpus.benign_lines import Group, load_groups, shape
from tests.unit.core_detect.logs import NOON, RULES, context, kernel, scan, snapshot

GROUPS = load_groups()
STEP = " iteration {:8d}/  500000 | elapsed time per iteration (ms): 5021.7 | lm loss: 2.084E+00 |\n"


def where(group: Group) -> FileContext:
    return context() if group.node is None else kernel(group.node)


def named(group: Group) -> str:
    return group.name


def accusations(found: Decision | Attribution) -> tuple[str, ...]:
    blame = found.attribution if isinstance(found, Decision) else found
    return (*blame.nodes, *blame.gpus, *(implication.node for implication in blame.implications))


def ruling(world: Snapshot) -> Decision:
    return decide(world, RULES, Policy(), NOON)


def rules_that_saw(world: Snapshot) -> list[str]:
    return [f"{signal.rule} ({signal.role}): {signal.text}" for signal in world.signals]


def test_the_corpus_is_large_and_each_shape_is_there_once() -> None:
    """At least 600 shapes that stay different when their numbers are masked, and every group names its source."""
    shapes = Counter(shape(line) for group in GROUPS for line in group.lines)
    assert [text for text, count in shapes.items() if count > 1] == []
    assert len(shapes) >= 600
    assert all(len(group.source) > 8 for group in GROUPS)


@pytest.mark.parametrize("group", GROUPS, ids=named)
@pytest.mark.parametrize("state", [AttemptState.RUNNING, AttemptState.COMPLETED])
def test_a_benign_line_alone_is_no_incident(group: Group, state: AttemptState) -> None:
    """Each line is the only thing its source holds: no incident, nobody implicated, nothing to do."""
    for line in group.lines:
        world = snapshot((where(group), line + "\n"), state=state)
        ruled = ruling(world)
        assert ruled.incident.kind is IncidentKind.NONE, rules_that_saw(world)
        assert ruled.attribution.category is Category.NONE, rules_that_saw(world)
        assert (accusations(ruled), ruled.action) == ((), Action.NONE), rules_that_saw(world)


@pytest.mark.parametrize("group", GROUPS, ids=named)
def test_a_benign_line_takes_no_blame_when_the_attempt_fails(group: Group) -> None:
    """Noise beside a failure of unknown cause names no node, and is no cause that ends the job for good."""
    for line in group.lines:
        world = snapshot((where(group), line + "\n"))
        ruled = ruling(world)
        assert accusations(ruled) == (), rules_that_saw(world)
        assert not ruled.attribution.certain, rules_that_saw(world)
        if group.node is None:
            causes = [signal.rule for signal in world.signals if signal.role is Role.INITIATING]
            assert causes == [], rules_that_saw(world)


@pytest.mark.parametrize("state", [AttemptState.RUNNING, AttemptState.COMPLETED])
def test_all_benign_lines_between_steps_are_no_incident(state: AttemptState) -> None:
    """A job that prints all of them and goes on stepping, and nodes that print theirs meanwhile."""
    job, step = [], 0
    nodes: dict[str, list[str]] = {}
    for group in GROUPS:
        for line in group.lines:
            if group.node is not None:
                nodes.setdefault(group.node, []).append(line)
                continue
            if len(job) % 8 == 0:
                step += 10
                job.append(STEP.format(step).rstrip("\n"))
            job.append(line)
    job.append(STEP.format(step + 10).rstrip("\n"))
    parts = [(context(), "\n".join(job) + "\n")]
    parts.extend((kernel(node), "\n".join(lines) + "\n") for node, lines in nodes.items())
    world = snapshot(*parts, state=state)
    ruled = ruling(world)
    assert ruled.incident.kind is IncidentKind.NONE, rules_that_saw(world)
    assert (accusations(ruled), ruled.action) == ((), Action.NONE), rules_that_saw(world)
    assert (world.progress.in_job_restarts, world.progress.last_step) == (0, step + 10)


@pytest.mark.parametrize("group", [group for group in GROUPS if group.node is not None], ids=named)
def test_a_kernel_line_that_a_job_prints_is_no_incident_either(group: Group) -> None:
    """Jobs print `dmesg`."""
    for line in group.lines:
        world = snapshot((context(), line + "\n"), state=AttemptState.RUNNING)
        ruled = ruling(world)
        assert ruled.incident.kind is IncidentKind.NONE, rules_that_saw(world)
        assert accusations(ruled) == (), rules_that_saw(world)


@pytest.mark.parametrize("group", [group for group in GROUPS if group.node is None], ids=named)
def test_only_the_end_of_training_is_taken_for_it(group: Group) -> None:
    """A false end would hide what comes after it."""
    for line in group.lines:
        assert scan(line + "\n").state.progress.finished is group.ends, line


def test_an_unknown_allocation_makes_no_line_an_accusation() -> None:
    """The job's lines before anybody knows its nodes."""
    text = "\n".join(line for group in GROUPS if group.node is None for line in group.lines) + "\n"
    world = snapshot((context(nodes=None), text), state=AttemptState.RUNNING, nodes=None)
    ruled = ruling(replace(world, offline=True))
    assert ruled.incident.kind is IncidentKind.NONE, rules_that_saw(world)
    assert accusations(ruled) == (), rules_that_saw(world)
