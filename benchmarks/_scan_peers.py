"""What others do with the same lines, for `benchmarks.scan`. Each reads a sample: they are too slow for the whole log.

`stdlib_re`: every pattern tried on every line by Python's `re`.
`line_by_line`: log rules as HyperPod's agent evaluates them: `re.match` of each rule's pattern and stop pattern on each
line, state updated on a match. That program itself may not be run here (its licence).
`nvrx`: the deterministic log path of the `nvidia-resiliency-ext` wheel, where a release with one is installed.
"""

import importlib.util
import re
import time
from collections.abc import Callable, Sequence

from advisor.core.scan import Scanner


def stdlib_re(lines: Sequence[str], scanner: Scanner) -> float:
    """CPU seconds. Patterns that only RE2 takes are left out, which favours it."""
    compiled = []
    for rule in scanner.rules:
        try:
            compiled.append(re.compile(rule.pattern))
        except re.error:
            continue
    searches = [pattern.search for pattern in compiled]

    def work() -> None:
        for line in lines:
            for search in searches:
                search(line)

    return _seconds(work)


def line_by_line(lines: Sequence[str], rules: int) -> float:
    """CPU seconds for `rules` log rules of the usual shape: a pattern that must recur, and a pattern that ends it."""
    compiled = [
        (re.compile(rf".*metric{number}: ([0-9.]+)"), re.compile(rf".*stage {number} is done"))
        for number in range(rules)
    ]
    last = [0.0] * rules
    stopped = [False] * rules

    def work() -> None:
        for line in lines:
            now = time.perf_counter()
            for index, (pattern, stop) in enumerate(compiled):
                if stopped[index]:
                    continue
                if pattern.match(line):
                    last[index] = now
                if stop.match(line):
                    stopped[index] = True

    return _seconds(work)


def nvrx() -> str:
    """Why there is no figure for it, or "" where its log analysis can be imported."""
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        return "nvidia-resiliency-ext is not installed"
    if importlib.util.find_spec("nvidia_resiliency_ext.attribution") is None:
        return "the installed nvidia-resiliency-ext has no log attribution"
    return ""


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
