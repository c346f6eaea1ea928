"""Read signatures and the Xid table from their data files, strictly.

Every problem is reported, with file, rule id and key, and all together: who edits twenty rules wants one list.

Errors:
    RulesError(ValueError)  - carries all problems, one per line
"""

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import re2

from advisor.core.rules import Rule, RuleSet, XidEntry, digest_of
from advisor.core.words import Category, Implicates, IncidentKind, Role

RULES_MAX = 2_000
PATTERN_CHARS_MAX = 4_000
_ID_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.")
_WORDS: Mapping[str, type[StrEnum]] = {
    "category": Category,
    "role": Role,
    "implicates": Implicates,
    "kind": IncidentKind,
}
_FLAGS = frozenset({"certain", "certain_always", "deterministic", "transient_storage", "guess", "clears", "ends"})
_TEXTS = frozenset({"id", "title", "pattern", "source"})
_REQUIRED = ("id", "title", "category", "role", "source")
_XID_COLUMNS = ("code", "name", "words", "blame", "category", "role", "fatal", "weight", "note")
_Word = TypeVar("_Word", bound=StrEnum)


class RulesError(ValueError):
    """The rules cannot be used. `problems` has one line each: `file: rule id: key: what`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def load_rules(extra: Sequence[Path] = ()) -> RuleSet:
    """The shipped rules, then those of `extra` files, which may replace shipped ones by id. Raises `RulesError`."""
    problems: list[str] = []
    rules: dict[str, Rule] = {}
    folder = resources.files("advisor.rules")
    shipped = sorted(
        (item.name, item.read_bytes()) for item in (folder / "signatures").iterdir() if item.name.endswith(".toml")
    )
    for name, data in shipped:
        _take(name, data, rules, problems, may_replace=False)
    for path in extra:
        try:
            data = path.read_bytes()
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
            continue
        _take(str(path), data, rules, problems, may_replace=True)
    xids = _load_xids("xid.csv", (folder / "xid.csv").read_text("utf-8"), problems)
    if len(rules) > RULES_MAX:
        problems.append(f"{len(rules)} rules; at most {RULES_MAX} are allowed")
    if problems:
        raise RulesError(problems)
    ordered = tuple(rules.values())
    return RuleSet(rules=ordered, xids=xids, digest=digest_of(ordered, xids))


def load_changed(path: Path) -> tuple[Rule, ...]:
    """The rules of one file, by themselves: to try them on what others have decided. Raises `RulesError`."""
    problems: list[str] = []
    rules: dict[str, Rule] = {}
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RulesError([f"{path}: cannot be read: {error.strerror}"]) from None
    _take(str(path), data, rules, problems, may_replace=True)
    if problems:
        raise RulesError(problems)
    return tuple(rules.values())


def _take(name: str, data: bytes, rules: dict[str, Rule], problems: list[str], *, may_replace: bool) -> None:
    """Parse one file's rules into `rules`; within a file and among shipped files an id is unique."""
    mine: set[str] = set()
    for rule in parse_rules(name, data, problems):
        if rule.id in mine or (rule.id in rules and not may_replace):
            problems.append(f"{name}: {rule.id}: id: used twice")
            continue
        mine.add(rule.id)
        rules[rule.id] = rule


def parse_rules(name: str, data: bytes, problems: list[str]) -> list[Rule]:
    """Rules of one TOML text. Problems are appended, the good rules returned."""
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problems.append(f"{name}: not TOML: {error}")
        return []
    problems.extend(f"{name}: {key}: unknown table" for key in document if key != "rule")
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append(f"{name}: rule: must be [[rule]] tables")
        return []
    parsed: list[Rule] = []
    for index, table in enumerate(tables, 1):
        label = table["id"] if isinstance(table.get("id"), str) else f"rule {index}"
        found: list[str] = []
        values = _values(table, found)
        if found:
            problems.extend(f"{name}: {label}: {problem}" for problem in found)
        else:
            parsed.append(Rule(**values))
    return parsed


def _values(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Checked constructor arguments of one rule."""
    known = {item.name for item in fields(Rule)}
    values: dict[str, Any] = {}
    problems.extend(f"{key}: missing" for key in _REQUIRED if not table.get(key))
    for key, value in table.items():
        if key not in known:
            problems.append(f"{key}: unknown key")
        elif key in _WORDS:
            values[key] = _word(_WORDS[key], key, value, problems)
        elif key in _FLAGS:
            values[key] = _typed(bool, key, value, problems)
        elif key in _TEXTS:
            values[key] = _typed(str, key, value, problems)
        elif key == "weight":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
                problems.append("weight: must be a number from 0 to 1")
            else:
                values[key] = float(value)
        elif not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            problems.append(f"{key}: must be a list of strings")
        else:
            values[key] = tuple(value)
    values.setdefault("pattern", "")
    if not problems:
        _check_id(values["id"], problems)
        _check_pattern(values, problems)
    return values


def _word(word: type[_Word], key: str, value: object, problems: list[str]) -> _Word | None:
    try:
        return word(str(value))
    except ValueError:
        problems.append(f"{key}: {value!r} is not one of {', '.join(sorted(item.value for item in word))}")
        return None


def _typed(kind: type, key: str, value: object, problems: list[str]) -> object:
    if type(value) is not kind:
        problems.append(f"{key}: must be {'true or false' if kind is bool else 'text'}")
    return value


def _check_id(rule_id: str, problems: list[str]) -> None:
    if not set(rule_id) <= _ID_CHARS or "." not in rule_id or rule_id.startswith(".") or rule_id.endswith("."):
        problems.append("id: must be lower-case words joined by dots and underscores, like nccl.port_error")


def _check_pattern(values: Mapping[str, Any], problems: list[str]) -> None:
    pattern = values["pattern"]
    if not pattern:
        if values.get("positive") or values.get("negative"):
            problems.append("pattern: missing, but there are examples")
        return
    if len(pattern) > PATTERN_CHARS_MAX or not pattern.isascii():
        problems.append(f"pattern: must be ASCII and at most {PATTERN_CHARS_MAX} characters")
        return
    try:
        compiled = re2.compile(pattern.encode(), latin1())
    except re2.error as error:
        problems.append(f"pattern: RE2 refuses it: {error.args[0] if error.args else error!r}")
        return
    if compiled.search(b"") is not None:
        problems.append("pattern: matches an empty line")


def latin1() -> Any:
    """RE2 options of every pattern: bytes as Latin-1, since `.` in UTF-8 mode refuses lines with a broken byte."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return options


def _load_xids(name: str, text: str, problems: list[str]) -> dict[int, XidEntry]:
    entries: dict[int, XidEntry] = {}
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    reader = csv.DictReader(lines, strict=True)
    if tuple(reader.fieldnames or ()) != _XID_COLUMNS:
        problems.append(f"{name}: columns: must be {','.join(_XID_COLUMNS)}")
        return entries
    for row in reader:
        found: list[str] = []
        code = row["code"]
        category = _word(Category, "category", row["category"], found)
        role = _word(Role, "role", row["role"], found)
        blame = _word(Implicates, "blame", row["blame"], found)
        if not code.isdigit() or int(code) in entries:
            found.append("code: must be a number, once")
        if not row["words"]:
            found.append("words: missing")
        if row["fatal"] not in {"yes", "no"}:
            found.append("fatal: must be yes or no")
        try:
            weight = float(row["weight"])
        except ValueError:
            found.append("weight: must be a number")
            continue
        if found or category is None or role is None or blame is None:
            problems.extend(f"{name}: Xid {code}: {problem}" for problem in found)
            continue
        entries[int(code)] = XidEntry(
            code=int(code),
            name=row["name"],
            words=row["words"],
            category=category,
            role=role,
            implicates=blame,
            fatal=row["fatal"] == "yes",
            weight=weight,
            note=row["note"] or "",
        )
    return entries
