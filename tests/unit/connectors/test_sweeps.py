"""When an attempt's newest stretch of a log store is read once more."""

from collections import Counter
from typing import cast

from advisor.clock import SystemClock
from connectors.logs.store import NS, LogStore
from connectors.logs.store_reader import StoreLimits, StoreLogs

EVERY = 15
LOGS = StoreLogs("store", cast(LogStore, None), clock=SystemClock(), limits=StoreLimits(sweep_seconds=EVERY))
BEGAN_NS = 1_800_000_000 * NS


def test_thousands_are_swept_apart_and_each_in_time() -> None:
    """Looked at every second, each attempt is swept once in every fifteen, and no second has more than twice its share,
    also after an outage in which all became due."""
    keys = [f"01a229b6-579d-7ef7-80c3-{number:012x}/0" for number in range(1500)]
    swept = dict.fromkeys(keys, BEGAN_NS - 3600 * NS)
    seconds: Counter[int] = Counter()
    for second in range(1 + 4 * EVERY):
        now_ns = BEGAN_NS + second * NS
        for key in keys:
            if LOGS._sweeps(key, swept[key], now_ns):
                assert second == 0 or now_ns - swept[key] <= EVERY * NS
                swept[key] = now_ns
                seconds[second] += 1
    assert seconds.pop(0) == len(keys)
    assert sum(seconds.values()) == 4 * len(keys)
    assert max(seconds.values()) < 2 * len(keys) / EVERY
