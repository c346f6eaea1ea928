"""Earned autonomy: gained by numbers, lost by numbers, and below everything that a person has set."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from advisor.core.autonomy import Earned, EarningRules, Standing, judge, mode_of, taken_back
from advisor.core.modes import ModeSetting, Subject
from advisor.core.words import Action, Category, Mode

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GPU = Category.GPU_HARDWARE
RULES = EarningRules(categories=frozenset({GPU}))
SUBJECT = Subject(cluster="alps", partition="gpu", account="physics", job_id="7", job_key="k1", category=GPU)


def held(**changes: Any) -> Earned:
    values: dict[str, Any] = {
        "cluster": "alps",
        "category": GPU,
        "held": True,
        "agreed": 30,
        "counted": 30,
        "lower": 0.886,
        "since": NOW - timedelta(days=1),
    }
    return Earned(**(values | changes))


def test_thirty_of_thirty_earn_it() -> None:
    """The lower bound is 0.886; the change carries the numbers that caused it."""
    change = judge("alps", GPU, (30, 30), None, RULES, NOW)
    assert change is not None
    assert (change.held, change.agreed, change.counted, change.lower) == (True, 30, 30, 0.8865)
    assert "30 of 30" in change.why


@pytest.mark.parametrize("evidence", [(29, 29), (28, 30), (0, 0), (900, 1100)])
def test_too_few_or_too_little_agreement_earn_nothing(evidence: tuple[int, int]) -> None:
    """The count and the lower bound must both pass."""
    assert judge("alps", GPU, evidence, None, RULES, NOW) is None


def test_a_category_that_was_not_named_earns_nothing() -> None:
    """The default names none."""
    assert judge("alps", GPU, (1000, 1000), None, EarningRules(), NOW) is None


def test_what_was_earned_is_kept_between_the_thresholds_and_lost_below() -> None:
    """A lower bound of 0.79 neither gains nor loses; one of 0.74 loses, also when evidence has become old."""
    between, below = (27, 30), (25, 30)
    assert judge("alps", GPU, between, None, RULES, NOW) is None
    assert judge("alps", GPU, between, held(), EarningRules(categories=frozenset({GPU}), fall_below=0.7), NOW) is None
    for evidence in (below, (0, 0)):
        change = judge("alps", GPU, evidence, held(), RULES, NOW)
        assert change is not None
        assert not change.held
        assert "below 0.75" in change.why


def test_what_was_lost_rests_before_it_is_earned_again() -> None:
    """Seven days, whatever the evidence says."""
    lost = held(held=False, since=NOW - timedelta(days=6))
    assert judge("alps", GPU, (40, 40), lost, RULES, NOW) is None
    change = judge("alps", GPU, (40, 40), lost, RULES, NOW + timedelta(days=2))
    assert change is not None
    assert change.held


def test_a_category_taken_out_of_the_configuration_loses_it() -> None:
    """Also with perfect agreement."""
    change = judge("alps", GPU, (40, 40), held(), EarningRules(), NOW)
    assert change is not None
    assert not change.held


def test_stops_that_are_no_longer_included_are_taken_out() -> None:
    """The category keeps its restarts."""
    change = judge("alps", GPU, (40, 40), held(with_stop=True), RULES, NOW)
    assert change is not None
    assert (change.held, change.with_stop) == (True, False)


def mode(*settings: ModeSetting, action: Action = Action.RESTART, **earned: Any) -> Mode:
    return mode_of(settings, Mode.MONITOR, (held(**earned),), SUBJECT, action)


def test_it_holds_for_restarts_and_not_for_stops() -> None:
    """A stop needs its own word."""
    assert mode() is Mode.AUTONOMOUS
    assert mode(action=Action.STOP) is Mode.MONITOR
    assert mode(action=Action.STOP, with_stop=True) is Mode.AUTONOMOUS


@pytest.mark.parametrize("earned", [{"held": False}, {"cluster": "other"}, {"category": Category.STORAGE}])
def test_it_holds_for_its_own_category_on_its_own_cluster(earned: dict[str, Any]) -> None:
    """And only while it is held."""
    assert mode(**earned) is Mode.MONITOR


@pytest.mark.parametrize(
    "where",
    [{}, {"cluster": "alps"}, {"partition": "gpu"}, {"job_id": "7"}, {"category": "gpu_hardware"}],
    ids=["everything", "cluster", "partition", "job", "category"],
)
def test_any_monitor_of_a_person_wins(where: dict[str, str]) -> None:
    """However wide it is: what was earned is narrower than nothing."""
    assert mode(ModeSetting(mode=Mode.MONITOR, **where)) is Mode.MONITOR


def test_a_setting_for_something_else_does_not_matter() -> None:
    """It says nothing about this job."""
    assert mode(ModeSetting(mode=Mode.MONITOR, partition="other")) is Mode.AUTONOMOUS


def test_a_canary_of_a_person_is_a_setting_of_a_person() -> None:
    """The jobs outside its share stay in monitor mode."""
    canary = ModeSetting(mode=Mode.AUTONOMOUS, partition="gpu", percent=1)
    assert canary.mode_for("k1") is Mode.MONITOR
    assert mode(canary) is Mode.MONITOR


def test_without_anything_earned_settings_and_default_hold_as_ever() -> None:
    """The default where nothing matches, the narrowest setting where something does."""
    wide = ModeSetting(mode=Mode.MONITOR)
    narrow = ModeSetting(mode=Mode.AUTONOMOUS, partition="gpu")
    assert Standing(default=Mode.AUTONOMOUS).mode(SUBJECT, Action.STOP) is Mode.AUTONOMOUS
    assert Standing(settings=(wide, narrow)).mode(SUBJECT, Action.STOP) is Mode.AUTONOMOUS
    assert Standing(settings=(wide,), default=Mode.AUTONOMOUS).mode(SUBJECT, Action.STOP) is Mode.MONITOR


def test_losing_it_takes_open_advice_back_unless_a_person_says_otherwise() -> None:
    """Also where no tick decides about it any more."""
    lost = (held(held=False),)
    assert taken_back((), lost, SUBJECT)
    assert not taken_back((), (held(),), SUBJECT)
    assert not taken_back((ModeSetting(mode=Mode.AUTONOMOUS, cluster="alps"),), lost, SUBJECT)
