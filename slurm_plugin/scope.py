"""Whether a job may be acted on at all. Standard library only, pure.

Most batch jobs are not safe to run twice, so the default is no. A job opts in or out by its own `--comment`:

    {"advisor": {"enabled": true, "max_restarts": 5}}
    {"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 5}}

A site may select partitions, users or accounts; a job's own opt-out still wins. A comment is hostile text: it is
bounded, parsed without following anything, and whatever is not exactly one of these forms says nothing.
"""

import json
from dataclasses import dataclass

COMMENT_CHARACTERS_MAX = 16384
RESTARTS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeConfig:
    """`opt_in`: jobs may opt in by comment. Selectors are exact names; empty selects nobody."""

    opt_in: bool = True
    partitions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`reason` is for people. `restarts_max` is the job's own limit, None when it names none."""

    inside: bool
    reason: str
    restarts_max: int | None = None


def judge(config: ScopeConfig, *, comment: str, partition: str, user: str, account: str) -> Scope:
    """Opt-out first, then opt-in, then the site's selectors; otherwise outside."""
    wish, restarts_max = _wish(comment)
    if wish is False:
        return Scope(inside=False, reason="the job opted out in its comment", restarts_max=restarts_max)
    if wish and config.opt_in:
        return Scope(inside=True, reason="the job opted in by its comment", restarts_max=restarts_max)
    for what, name, names in (
        ("partition", partition, config.partitions),
        ("user", user, config.users),
        ("account", account, config.accounts),
    ):
        if name and name in names:
            return Scope(inside=True, reason=f"{what} {name} is selected", restarts_max=restarts_max)
    if wish:
        return Scope(
            inside=False, reason="the job opted in, but opt-in is switched off here", restarts_max=restarts_max
        )
    return Scope(inside=False, reason="not opted in, and no selector matches", restarts_max=restarts_max)


def _wish(comment: str) -> tuple[bool | None, int | None]:
    """(opted in | opted out | said nothing, restarts the job allows)."""
    if not comment or len(comment) > COMMENT_CHARACTERS_MAX:
        return None, None
    start = comment.find("{")
    if start < 0:
        return None, None
    try:
        value, _ = json.JSONDecoder().raw_decode(comment, start)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(value, dict):
        return None, None
    ours, aps = value.get("advisor"), value.get("APS")
    if isinstance(ours, bool):
        return ours, None
    if isinstance(ours, dict):
        enabled = ours.get("enabled", True)
        # A value that is not a truth value is a mistake of the user's: acting on it would be a guess.
        return enabled is True, _limit(ours.get("max_restarts"))
    if isinstance(aps, dict):
        return aps.get("auto_resume_mode") == "requeue" or None, _limit(aps.get("max_requeue_times"))
    return None, None


def _limit(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= RESTARTS_MAX:
        return value
    return None
