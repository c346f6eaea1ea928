"""How decisions are told in few words: one or two lines each, as narrow as the terminal, with short ids."""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC

from advisor.commands.output import one_line
from advisor.v1 import audit_pb2
from advisor.wording import outcome, what

ID_CHARACTERS_MIN = 8  # of those listed fewer would do; these are told from the others too


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Each id's shortest beginning that no other one of these has."""
    ordered = sorted(set(ids))
    short = {}
    for at, name in enumerate(ordered):
        beside = [ordered[other] for other in (at - 1, at + 1) if 0 <= other < len(ordered)]
        shared = max((_alike(name, other) for other in beside), default=0)
        short[name] = name[: max(ID_CHARACTERS_MIN, shared + 1)]
    return short


def _alike(one: str, other: str) -> int:
    """How many characters they have in common from the beginning."""
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def listed(decisions: Sequence[audit_pb2.Decision], columns: int | None) -> Iterator[str]:
    """What was decided on one line, what it is about and what came of it on the next."""
    short = short_ids([decision.advice.advice_id for decision in decisions])
    for decision in decisions:
        advice = decision.advice
        when = f"{advice.created_at.ToDatetime(UTC):%Y-%m-%d %H:%M:%SZ}"
        job = f"{advice.attempt.job_id}#{advice.attempt.attempt}"
        first = f"{short[advice.advice_id]}  {when}  {job}  {what(advice)}"
        second = f"{advice.attempt.user}  {advice.category}  {advice.reason}  {outcome(decision)}"
        if decision.unreadable:
            second += f"  (of build {decision.build}, which this one cannot read)"
        first, second = one_line(first), one_line(second)
        if columns is None:
            yield f"{first}  {second}"
        else:
            yield from textwrap.wrap(first, columns, subsequent_indent="    ", break_on_hyphens=False)
            yield from textwrap.wrap(
                second, columns, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
            )
