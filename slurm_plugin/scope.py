"""Whether a job may be acted on at all. Standard library only, pure.

Most batch jobs are not safe to run twice, so the default is no. A job opts in or out by its own `--comment`:

    {"advisor": {"enabled": true, "max_restarts": 5, "rules": "/home/ada/rules.json"}}
    {"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 5}}

`rules` are log rules of the job's own: the path of their file, or the rules themselves. They are passed on and judged
by who reads logs; what is wrong inside them changes nothing here.

A site may select partitions, users or accounts; a job's own opt-out still wins. A comment is hostile text: it is
bounded and parsed without following anything. One that speaks to us and is not exactly one of these forms (an unknown
key, a value of the wrong kind, no JSON) may have been meant as a no: its job is out, also where the site selects it.
job_submit_advisor.lua refuses such a comment at submission, if a site has it.
"""

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches

from slurm_plugin import telling

OPT_IN = '{"advisor": {"enabled": true}}'
COMMENT_CHARACTERS_MAX = 16384
RESTARTS_MAX = 10_000
KEYS = ("enabled", "max_restarts", "rules")
KEY_CHARACTERS_SHOWN = 40
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
    ours = _read(comment)[0].get("advisor")
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
    """Slips and opt-out first, then opt-in, then the site's selectors; otherwise outside."""
    document, unread = _read(comment)
    slip = _slip(document, unread, characters=len(comment))
    if slip:
        return Scope(inside=False, reason=f"{slip}; an opt-in is {OPT_IN}")
    wish, restarts_max = _wish(document)
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
    return Scope(inside=False, reason=_not_opted_in(comment, document), restarts_max=restarts_max)


def _not_opted_in(comment: str, document: dict[str, object]) -> str:
    """Why a comment says nothing, for the user who meant it to: a slip of the quotes is easy to make in a shell."""
    if "advisor" not in comment.lower():
        return "not opted in, and no selector matches"
    if not document:
        return f"its comment is not JSON; an opt-in is {OPT_IN}"
    return f"its comment's JSON is no opt-in, and no selector matches; an opt-in is {OPT_IN}"


def _read(comment: str) -> tuple[dict[str, object], str]:
    """(the keys of a comment's JSON objects, beside whatever text; what could not be read).

    Several tools may each have written an object of its own: of a key that stands twice the first holds. What follows
    text that looks like one and is none is not read: a guess there could be an opt-in that nobody gave.
    """
    if len(comment) > COMMENT_CHARACTERS_MAX:
        return {}, comment
    found: dict[str, object] = {}
    end, at = 0, comment.find("{")
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(comment, at)
        except (ValueError, RecursionError):
            return found, comment[end:]
        found = value | found
        at = comment.find("{", end)
    return found, ""


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_TO_US = re.compile(r"""\{\s*["']?advis[eo]r|["'](?:advis[eo]r|aps)["']\s*:""", re.ASCII | re.IGNORECASE)


def _slip(document: dict[str, object], unread: str, *, characters: int) -> str:
    """What is wrong with a comment that speaks to us; "" for one that does not, or that is right."""
    # The line that we add ourselves quotes logs, which must not take a job out of scope.
    if "advisor" not in document and _TO_US.search(telling.without(unread)):
        if characters > COMMENT_CHARACTERS_MAX:
            return f"its comment's {characters} characters are more than the {COMMENT_CHARACTERS_MAX} that are read"
        return "its comment is not JSON"
    if any(key != "advisor" and key.lower() in {"advisor", "adviser"} for key in document):
        return 'its comment\'s JSON is no opt-in: the key is "advisor", in small letters'
    ours = document.get("advisor", True)
    problem = _problem(ours) if isinstance(ours, dict) else ""
    if not isinstance(ours, dict | bool):
        problem = "advisor must be true, false or an object"
    return f"its comment's JSON is no opt-in: {problem}" if problem else ""


def _problem(ours: dict[str, object]) -> str:
    for key in ours:
        if key not in KEYS:
            shown = re.sub(r"[^A-Za-z0-9_.-]", "?", key)[:KEY_CHARACTERS_SHOWN]
            near = get_close_matches(shown.lower(), KEYS, 1)
            return f"advisor.{shown}: no such key; " + (f"the nearest is {near[0]}" if near else _KNOWN)
    if not isinstance(ours.get("enabled", True), bool):
        return "advisor.enabled must be true or false, without quotes"
    if "max_restarts" in ours and _limit(ours["max_restarts"]) is None:
        return f"advisor.max_restarts must be a whole number from 0 to {RESTARTS_MAX}"
    if isinstance(ours.get("rules"), bool | int | float):
        return "advisor.rules must be the absolute path of a file, or the rules themselves"
    return ""


_KNOWN = f"known are {', '.join(KEYS)}"


def _wish(document: dict[str, object]) -> tuple[bool | None, int | None]:
    """(opted in | opted out | said nothing, restarts the job allows) of what has no slip."""
    ours, aps = document.get("advisor"), document.get("APS")
    if isinstance(ours, bool):
        return ours, None
    if isinstance(ours, dict):
        return ours.get("enabled", True) is True, _limit(ours.get("max_restarts"))
    if isinstance(aps, dict):
        return aps.get("auto_resume_mode") == "requeue" or None, _limit(aps.get("max_requeue_times"))
    return None, None


def _limit(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= RESTARTS_MAX:
        return value
    return None
