"""One case of job-defined rules, written down briefly and run."""

import json
from collections.abc import Sequence

from advisor.rules.job_rule_cases import read_cases, run_case

Rule = dict[str, object]


def states(
    rules: Sequence[Rule],
    lines: Sequence[tuple[float, str]],
    checks: Sequence[float],
    *,
    raw: bool = False,
    restarts: Sequence[tuple[float, float]] = (),
) -> list[str]:
    """The overall state at each check. Rules without a name get one."""
    named = [{"name": f"rule-{number}", **rule} for number, rule in enumerate(rules)]
    document = {"name": "x", "rules": named, "lines": lines, "checks": checks, "raw": raw, "restarts": restarts}
    (case,) = read_cases("cases.jsonl", json.dumps(document).encode())
    return [state.value for _, state in run_case(case)]
