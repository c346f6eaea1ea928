"""Intervals for what was counted: shares, rates, times to failure, medians. Pure, with no library behind it.

Every figure of a report comes with one of these, because a share of 3 in 3 is not a certainty. All are two-sided and
of 95 % unless said otherwise.

Sources: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927); Garwood,
"Fiducial limits for the Poisson distribution", Biometrika 28 (1936); Epstein and Sobel, "Life testing", JASA 48
(1953), for the exponential law with censored lives; David and Nagaraja, "Order Statistics" (2003), for medians.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

CONFIDENCE = 0.95
_Z = 1.959963984540054  # of the normal law, for 95 %
_STEPS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval. `value` None: nothing was counted that could tell; `high` None: no upper bound.

    `count` is of what it rests on: trials of a share, events of a rate, values of a median.
    """

    value: float | None
    low: float | None
    high: float | None
    count: int


NOTHING = Estimate(value=None, low=None, high=None, count=0)


def wilson(successes: int, trials: int) -> Estimate:
    """Share of successes, with Wilson's score interval. Raises ValueError for counts that cannot be."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no share")
    if trials == 0:
        return NOTHING
    share, square = successes / trials, _Z * _Z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = _Z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    # At none and at all the bound is exact; rounding must not put it beside the share itself.
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == trials else min(1.0, middle + half)
    return Estimate(value=share, low=low, high=high, count=trials)


def rate(events: int, exposure: float) -> Estimate:
    """Events per unit of exposure, with Garwood's exact Poisson interval. Without exposure there is no rate."""
    if events < 0 or exposure < 0:
        raise ValueError(f"{events} events in {exposure} is no rate")
    if exposure == 0:
        return NOTHING
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if events == 0 else chi_square_quantile(tail, 2 * events) / 2 / exposure
    high = chi_square_quantile(1 - tail, 2 * events + 2) / 2 / exposure
    return Estimate(value=events / exposure, low=low, high=high, count=events)


def time_to_failure(failures: int, exposure: float) -> Estimate:
    """Mean time to failure under the exponential law: all time that was run, failed or not, over the failures.

    Runs that had not failed when they ended, or run still, are censored: their time counts, and no failure of theirs.
    That is the maximum likelihood estimate. Without any failure only the lower bound is known.
    """
    upside_down = rate(failures, exposure)
    if upside_down.value is None or upside_down.low is None or not upside_down.high:
        return NOTHING
    return Estimate(
        value=1 / upside_down.value if upside_down.value else None,
        low=1 / upside_down.high,
        high=1 / upside_down.low if upside_down.low else None,
        count=failures,
    )


def median(values: Iterable[float]) -> Estimate:
    """The median, with the interval between two order statistics that covers it whatever the law of the values.

    From six values on there is such an interval of 95 %; below, the bounds are the smallest and the largest value.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return NOTHING
    below = 0  # how many of the smallest and of the largest values are left out
    left_out = 0.5**count if count <= 1000 else 0.0
    if count > 1000:
        below = max(0, math.floor(count / 2 - _Z * math.sqrt(count) / 2) - 1)
    else:
        term = left_out
        while below < (count - 1) // 2:
            term = term * (count - below) / (below + 1)
            if 2 * (left_out + term) > 1 - CONFIDENCE:
                break
            left_out += term
            below += 1
    return Estimate(value=quantile(ordered, 0.5), low=ordered[below], high=ordered[count - 1 - below], count=count)


def quantile(ordered: list[float], share: float) -> float | None:
    """Of values in order, linear between two; None of none."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    left = math.floor(place)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (ordered[right] - ordered[left]) * (place - left)


def chi_square_quantile(share: float, degrees: int) -> float:
    """The value below which a chi-square variable of so many degrees of freedom lies with probability `share`."""
    if not 0 < share < 1 or degrees < 1:
        raise ValueError(f"no quantile {share} with {degrees} degrees of freedom")
    half = degrees / 2
    return _root(lambda x: _lower_gamma(half, x / 2) - share, 0.0, degrees + 20 * math.sqrt(2 * degrees) + 50)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a growing function is zero, to the precision of a float."""
    for _ in range(_STEPS_MAX):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _lower_gamma(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function: a series below the mean, a continued fraction above."""
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for step in range(1, 100_000):
            term *= x / (shape + step)
            total += term
            if term < total * 1e-16:
                break
        return min(1.0, total * scale)
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    fraction = d
    for step in range(1, 100_000):
        factor = -step * (step - shape)
        b += 2
        d = factor * d + b
        d = 1 / (d if abs(d) > tiny else tiny)
        c = b + factor / c
        c = c if abs(c) > tiny else tiny
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return max(0.0, 1 - scale * fraction)
