"""Intervals against values from published tables and from other programs."""

import pytest

from advisor.core.intervals import chi_square_quantile, median, rate, time_to_failure, wilson


@pytest.mark.parametrize(
    ("share", "degrees", "expected"),
    [(0.975, 2, 7.3778), (0.025, 20, 9.5908), (0.95, 10, 18.3070), (0.025, 1, 0.000982), (0.975, 200, 241.0579)],
)
def test_chi_square_quantiles_are_those_of_the_tables(share: float, degrees: int, expected: float) -> None:
    """Five values of printed tables, from the far left to many degrees of freedom."""
    assert chi_square_quantile(share, degrees) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (30, 30, 0.8865, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_wilsons_interval_is_the_published_one(successes: int, trials: int, low: float, high: float) -> None:
    """Known values, at the edges too: all of one trial proves hardly anything."""
    found = wilson(successes, trials)
    assert found.value == successes / trials
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


def test_the_poisson_interval_is_garwoods() -> None:
    """Three events: 0.6187 to 8.7673, as in every table of exact limits; per unit of exposure."""
    found = rate(3, 2.0)
    assert (found.value, found.count) == (1.5, 3)
    assert found.low == pytest.approx(0.6187 / 2, abs=1e-4)
    assert found.high == pytest.approx(8.7673 / 2, abs=1e-4)


def test_without_an_event_only_one_side_is_known() -> None:
    """No failure in 100 hours: a time to failure of 27 hours or more, and no figure for it."""
    found = time_to_failure(0, 100.0)
    assert (found.value, found.high, found.count) == (None, None, 0)
    assert found.low == pytest.approx(100 / 3.6889, abs=1e-3)


def test_mttf_is_time_over_failures_with_chi_square_bounds() -> None:
    """Four failures in 200 hours: 50 h, from 200 / 10.2416 to 200 / 1.0899."""
    found = time_to_failure(4, 200.0)
    assert found.value == 50.0
    assert found.low == pytest.approx(19.53, abs=0.01)
    assert found.high == pytest.approx(183.51, abs=0.05)


def test_a_median_of_six_has_an_interval_and_of_five_a_range() -> None:
    """The classical table: from the first to the last of six; from the second to the ninth of ten."""
    assert median([6, 1, 5, 2, 4, 3]) == median(range(1, 7))
    six, ten = median(range(1, 7)), median(range(1, 11))
    assert (six.value, six.low, six.high, six.count) == (3.5, 1, 6, 6)
    assert (ten.value, ten.low, ten.high) == (5.5, 2, 9)
    five = median([1, 2, 3, 4, 50])
    assert (five.value, five.low, five.high) == (3, 1, 50)


def test_nothing_counted_is_no_figure() -> None:
    """No trials, no exposure, no values: nothing, and not zero."""
    for found in (wilson(0, 0), rate(0, 0.0), time_to_failure(0, 0.0), median([])):
        assert (found.value, found.low, found.high, found.count) == (None, None, None, 0)


def test_impossible_counts_are_refused() -> None:
    """More successes than trials is the caller's mistake."""
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)
