"""From how well a hypothesis scores to how often such hypotheses are right.

A score orders hypotheses; it is no probability. Rules are written so that they rarely hit by chance, so that even weak
ones are right more often than their score says, and "unknown" is the right answer wherever no cause left a line. The
table was set on the labelled cases and, below 0.5, lowered to what sets that nobody had looked at gave;
`python -m benchmarks.calibration` prints how well it holds.
"""

from itertools import pairwise

_POINTS = (
    (0.0, 0.0),
    (0.2, 0.55),
    (0.35, 0.8),
    (0.5, 0.85),
    (0.65, 0.9),
    (0.8, 0.95),
    (0.95, 0.98),
    (1.0, 0.99),
)


def calibrated(score: float) -> float:
    """The share of hypotheses with this score that name the right category. Rises with the score."""
    bounded = min(1.0, max(0.0, score))
    for (low, at_low), (high, at_high) in pairwise(_POINTS):
        if bounded <= high:
            return round(at_low + (at_high - at_low) * (bounded - low) / (high - low), 3)
    return _POINTS[-1][1]
