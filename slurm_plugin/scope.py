"""Whether a job may be acted on at all. Standard library only, pure.

Most batch jobs are not safe to run twice, so the default is no. A job opts in or out by its own `--comment`:

    {"advisor": {"enabled": true, "max_restarts": 5, "rules": "/home/ada/rules.json"}}
    {"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 5}}

`rules` are log rules of the job's own: the path of their file, or the rules themselves. They are passed on and judged
by who reads logs; what is wrong with them changes nothing here.

A site may select partitions, users or accounts; a job's own opt-out still wins. A comment is hostile text: it is
bounded, parsed without following anything, and whatever is not exactly one of these forms says nothing.
"""

import json
from dataclasses import dataclass

OPT_IN = '{"advisor": {"enabled": true}}'
COMMENT_CHARACTERS_MAX = 16384
RESTARTS_MAX = 10_000
RULES_CHARACTERS_MAX = 2 * COMMENT_CHARACTERS_MAX  # as JSON: numbers may be longer than they were written


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


def job_rules(comment: str) -> str:
    """The job's own log rules: an absolute path, or JSON (of the rules, or of what was written in their place)."""
    ours = _document(comment).get("advisor")
    value = ours.get("rules") if isinstance(ours, dict) else None
    if value is None:
        return ""
    try:
        text = value if isinstance(value, str) and value.startswith("/") else _json(value)
    except RecursionError:
        text = "\0"
    return text if len(text) <= RULES_CHARACTERS_MAX and "\0" not in text else '"too long, too deep, or no path"'


def _json(value: object) -> str:
    """ASCII only where it must be: escapes are six times as long."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


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
    return Scope(inside=False, reason=_not_opted_in(comment), restarts_max=restarts_max)


def _not_opted_in(comment: str) -> str:
    """Why a comment says nothing, for the user who meant it to: a slip of the quotes is easy to make in a shell."""
    if "advisor" not in comment.lower():
        return "not opted in, and no selector matches"
    document = _document(comment)
    if not document:
        return f"its comment is not JSON; an opt-in is {OPT_IN}"
    return f"its comment's JSON is no opt-in, and no selector matches; an opt-in is {OPT_IN}"


def _document(comment: str) -> dict[str, object]:
    """The keys of the JSON objects of a comment, beside whatever text; of a key that stands twice the first holds.

    Several tools may each have written an object of its own. What follows text that looks like one and is none is not
    read: a guess there could be an opt-in that nobody gave.
    """
    found: dict[str, object] = {}
    at = comment.find("{") if len(comment) <= COMMENT_CHARACTERS_MAX else -1
    while at >= 0:
        try:
            value, at = _DECODER.raw_decode(comment, at)
        except (ValueError, RecursionError):
            break
        found = value | found
        at = comment.find("{", at)
    return found


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _wish(comment: str) -> tuple[bool | None, int | None]:
    """(opted in | opted out | said nothing, restarts the job allows)."""
    value = _document(comment)
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
