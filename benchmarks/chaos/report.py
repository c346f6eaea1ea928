"""The report of a run, for people: what was done, what became of it, what did not hold. No paths of the machine."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks.chaos.run import Outcome


def write(outcome: Outcome, command: str) -> str:
    schedule, account = outcome.schedule, outcome.account
    lines = [
        f"### Seed {schedule.seed}, {schedule.seconds / 60:.1f} minutes, "
        f"{outcome.replicas} advisor{'s' if outcome.replicas > 1 else ''}",
        "",
        f"Again: `{command}`",
        "",
        f"{len(account.verdicts)} jobs, {len(outcome.hostile)} hostile ones, {len(outcome.injected)} injections, "
        f"{outcome.decisions} decisions. Calm after {outcome.calm:.0f} s; slurmctld did not answer for "
        f"{outcome.slurm_silent:.0f} s; a job was launched up to {outcome.lateness:.0f} s later than planned for "
        f"want of room; {outcome.refused} submissions were refused (slurmctld away).",
        "",
        _delays(outcome.delays[0], "in all") + " " + _delays(outcome.delays[1], "with nothing broken from 10 s before"),
        "",
        "| story | " + " | ".join(_outcomes(outcome)) + " |",
        "|---|" + "---|" * len(_outcomes(outcome)),
        *_stories(outcome),
        "",
        "| injected | times | not done (nothing to do it to) |",
        "|---|---|---|",
        *_injections(outcome),
        "",
        "| program | ended and was started again | memory of its own, MB | descriptors | threads | children |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {outcome.gone.get(name, 0)} | {use.resident_mb:.0f} | {use.descriptors} | {use.threads} | "
            f"{use.children} |"
            for name, use in sorted(outcome.uses.items())
        ),
        "",
        f"**Breaches: {len(account.breaches)}**",
        "",
        *(f"* {invariant}: {what}" for invariant, what in account.breaches),
    ]
    explained = [verdict for verdict in account.verdicts if verdict.outcome == "explained"]
    if explained:
        lines += ["", "Explained:", "", *(f"* job {one.job_id} ({one.story}): {one.why}" for one in explained)]
    if account.notes:
        lines += ["", "Notes:", "", *(f"* {note}" for note in account.notes)]
    return "\n".join(lines) + "\n"


def write_log(outcome: Outcome) -> str:
    """Every injection with its times, one line each: seconds after the first one."""
    zero = outcome.injected[0].began - outcome.injected[0].what.at if outcome.injected else 0.0
    lines = [f"seed {outcome.schedule.seed}"]
    for done in outcome.injected:
        what, ended = done.what, "" if done.ended is None else f"{done.ended - zero:8.1f}"
        state = "" if done.done else " NOT DONE:"
        lines.append(f"{done.began - zero:8.1f} {ended:>8} {what.kind} {what.target}{state} {done.note}")
    lines += [f"job {one.job_id} {one.story}: {one.outcome}. {one.why}" for one in outcome.account.verdicts]
    return "\n".join(lines) + "\n"


def _delays(seconds: Sequence[float], what: str) -> str:
    if not seconds:
        return f"Nothing was requeued {what}."
    return (
        f"From an attempt's end to its requeue, {len(seconds)} of them {what}: p50 {_quantile(seconds, 0.5):.1f} s, "
        f"p95 {_quantile(seconds, 0.95):.1f} s, max {seconds[-1]:.1f} s."
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _outcomes(outcome: Outcome) -> list[str]:
    return sorted(outcome.account.outcomes)


def _stories(outcome: Outcome) -> list[str]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in outcome.account.verdicts:
        table[verdict.story][verdict.outcome] += 1
    return [
        f"| {story} | " + " | ".join(str(row[name] or "") for name in _outcomes(outcome)) + " |"
        for story, row in sorted(table.items())
    ]


def _injections(outcome: Outcome) -> list[str]:
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for done in outcome.injected:
        table[f"{done.what.kind} {done.what.target}"][0 if done.done else 1] += 1
    return [f"| {name} | {times} | {left or ''} |" for name, (times, left) in sorted(table.items())]
