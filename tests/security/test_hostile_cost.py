"""One user's hostile jobs beside a quiet user's, on a live service process with its own Postgres: who pays what."""

import os

import pytest

from benchmarks.hostile_tenant import Figures, measure, quantile

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to write files of two accounts"),
]
DETECTED_SECONDS_MAX = 3.0  # the target's p95
MEMORY_MB_MAX = 600.0
DATABASE_MB_MAX = 40.0
DECISIONS_OF_ONE_MAX = 8


def hold(figures: Figures) -> None:
    """Bounds that hold whatever she prints; seconds are stretched by how busy this machine is with other things."""
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert quantile(figures.beside_seconds, 0.5) < DETECTED_SECONDS_MAX * busy, figures
    assert figures.foreign == []
    assert figures.quiet_stops == 0
    assert figures.memory_mb < MEMORY_MB_MAX
    assert figures.database_mb < DATABASE_MB_MAX
    assert figures.hostile_decisions_of_one <= DECISIONS_OF_ONE_MAX
    assert figures.written_mb_s > 0.5, "there was no flood"


async def test_a_few_hostile_jobs_cost_the_others_little() -> None:
    """Her forged Xids blame nobody else's nodes, and a crash beside them is decided on in time."""
    hold(await measure(24, 2, warm_seconds=1.0))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_five_hundred_hostile_jobs_cost_the_others_little() -> None:
    """Twenty times as many: the same bounds."""
    hold(await measure(500, 8))
