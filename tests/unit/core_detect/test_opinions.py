"""What other programs think of a failure supports or doubts, and decides nothing."""

from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core.model import Attribution, Snapshot
from advisor.core.opinions import AGREED, opinion_signal
from advisor.core.words import Category, Trust
from tests.unit.core_detect.logs import NOON, context, judge, snapshot

ECC = "[rank9]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def told(world: Snapshot, category: Category, action: str = "STOP") -> Snapshot:
    opinion = opinion_signal(
        source="nvrx",
        action=action,
        category=category,
        text=f"it would {action}: node1 is broken",
        seen_at=NOON + timedelta(seconds=3),
        attempt="k/0",
    )
    return replace(world, signals=(*world.signals, opinion))


def without_words(blame: Attribution) -> Attribution:
    return replace(blame, confidence=0.0, evidence=(), alternatives=())


@pytest.mark.parametrize("category", list(Category))
@pytest.mark.parametrize("log", [ECC, "", "[rank3]: KeyError: 'x'\n"])
def test_no_opinion_changes_what_is_decided(category: Category, log: str) -> None:
    """Incident, category, nodes, ranks and everything that a decision rests on stay what they were without it."""
    world = snapshot((context(), log))
    incident, blame = judge(world)
    with_it, doubted = judge(told(world, category))
    assert with_it == incident
    assert without_words(doubted) == without_words(blame)


def test_one_that_agrees_is_listed_and_adds_a_little() -> None:
    """As evidence, with a trust of its own."""
    world = snapshot((context(), ECC))
    _, blame = judge(world)
    agreed = told(world, Category.GPU_HARDWARE)
    _, found = judge(agreed)
    assert found.confidence == pytest.approx(min(0.99, blame.confidence + AGREED), abs=1e-3)
    assert found.evidence == (*blame.evidence, agreed.signals[-1].id)
    assert agreed.signals[-1].trust is Trust.EXTERNAL


def test_one_that_disagrees_is_told_with_why_it_lost() -> None:
    """Last of the alternatives, without nodes."""
    world = snapshot((context(), ECC))
    _, blame = judge(world)
    _, found = judge(told(world, Category.APPLICATION))
    assert (found.confidence, found.evidence) == (blame.confidence, blame.evidence)
    assert (found.alternatives[-1].category, found.alternatives[-1].nodes) == (Category.APPLICATION, ())
    assert "outside opinion" in found.alternatives[-1].why_not


def test_where_nothing_is_known_it_stays_an_opinion() -> None:
    """No verdict comes from it, however sure it sounds."""
    _, found = judge(told(snapshot((context(), "")), Category.GPU_HARDWARE))
    assert found.category is Category.UNKNOWN
    assert found.alternatives[-1].category is Category.GPU_HARDWARE
