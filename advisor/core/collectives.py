"""Who is missing or behind in a collective that timed out, from what the watchdogs of many ranks print.

Every rank that waits prints the time-out; who does not print it is missing. Among those that print, a few that are at
an earlier collective of the same group than the rest hold the others up. A group is told by its tag; without a tag only
collectives of one operation and size that are close to each other are taken for one group. Ranks within a group's tag
are not global ranks; those of the line's prefix are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from advisor.core.model import Signal
from advisor.core.places_of_signals import ranks_of

REPORTS = frozenset({"torch.collective_timeout", "torch.timeout_at_work"})
APART_MAX = 32  # reports of one rule that a file keeps apart by their numbers; the others are counted together
NEAR = 16  # collectives of one group whose numbers are further apart belong to two groups without tags
_ROOTED = frozenset({"GATHER", "SCATTER", "REDUCE"})
_ALL_BUT = 4  # of so many ranks one may be silent: a log of one node of two has no word of the half
_WORLD = re.compile(rb"(?i)\bworld[ _-]?size\b[\"']?[ \t]{0,3}[:=]?[ \t]{0,3}(\d{1,7})\b")
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\d{1,9})(?: PG GUID (?P<guid>[^\s(\]]{1,40}))?[^\]]{0,80}? ?Rank \d{1,7}\]")
# Captures that tell one report from another, each in its spellings.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "seq": ("seq", "seq2", "seq3"),
    "enqueued": ("enqueued", "enqueued2", "enqueued3"),
    "completed": ("completed", "completed2", "completed3"),
}


def group_of(text: str) -> str:
    """The process group that a line is tagged with: its unique name, or its number. "" without a tag."""
    match = _GROUP.search(text)
    return (match["guid"] or match["id"]) if match is not None else ""


def distinct(rule: str, captures: Mapping[str, str], text: str) -> str:
    """What keeps two reports apart that are otherwise alike: lines are counted, and the numbers must not get lost."""
    if rule not in REPORTS:
        return ""
    numbers = (captures.get(name, "") for names in _NUMBERS.values() for name in names)
    return "|".join((group_of(text), captures.get("op", ""), captures.get("numel", ""), *numbers))


def without_numbers(captures: Mapping[str, str]) -> dict[str, str]:
    """The captures of a report that stands for others at other places."""
    numbers = {name for names in _NUMBERS.values() for name in names}
    return {name: value for name, value in captures.items() if name not in numbers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One place at which ranks say they stand. None: not said."""

    group: str
    ranks: frozenset[int]
    op: str
    numel: int | None
    seq: int | None
    enqueued: int | None
    completed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Who kept the others waiting, how that is known, and what they wait in."""

    ranks: tuple[int, ...] = ()
    how: str = ""
    op: str = ""
    seq: int | None = None
    first: bool = False  # the job's first collective: ranks start at different times
    barrier: bool = False  # one element: the ranks only meet; what the late ones did meanwhile is the question


def reports(signals: Iterable[Signal]) -> list[Report]:
    """What watchdog signals say, one by one."""
    found = []
    for signal in signals:
        if signal.rule not in REPORTS:
            continue
        numbers = {key: _number(signal.fields, names) for key, names in _NUMBERS.items()}
        found.append(
            Report(
                group=group_of(signal.text),
                ranks=ranks_of(signal),
                op=signal.fields.get("op", ""),
                numel=_number(signal.fields, ("numel",)),
                seq=numbers["seq"],
                enqueued=numbers["enqueued"],
                completed=numbers["completed"],
            )
        )
    return found


def worlds_told(text: bytes) -> frozenset[int]:
    """How many ranks there are, by all that a log says of it."""
    return frozenset(int(match[1]) for match in _WORLD.finditer(text))


def believed_world(told: frozenset[int], signals: Iterable[Signal]) -> int | None:
    """How many ranks a job has whose scheduler is not asked, where its time-outs make that worth knowing: told by one
    number, and nearly all of them reported one.
    """
    ranks = frozenset().union(*(report.ranks for report in reports(signals)))
    (world,) = told if len(told) == 1 else (0,)
    whole = bool(ranks) and max(ranks) < world and _ALL_BUT * (world - len(ranks)) <= world
    return world if whole else None


def _number(fields: Mapping[str, str], names: Iterable[str]) -> int | None:
    text = next((fields[name] for name in names if fields.get(name)), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def arrival(signals: Iterable[Signal], world_size: int | None) -> Arrival:
    """Who is missing from, or behind in, the collective that timed out. No ranks where that is not visible."""
    found = reports(signals)
    reporters = frozenset().union(*(report.ranks for report in found)) if found else frozenset()
    told = Arrival()
    for report in found:
        if report.op and not told.op:
            told = Arrival(op=report.op, seq=report.seq, first=report.seq == 1, barrier=report.numel == 1)
    behind = _behind(found)
    if behind is not None:
        ranks, how = behind
    elif world_size and len(reporters) > 1 and 0 < len(missing := set(range(world_size)) - reporters) <= len(reporters):
        ranks, how = tuple(sorted(missing)), "did not report the time-out"
    elif reporters and 0 not in reporters and any(report.op in _ROOTED for report in found):
        ranks, how = (0,), "is the root that the others wait for"
    else:
        ranks, how = (), ""
    return Arrival(ranks=ranks, how=how, op=told.op, seq=told.seq, first=told.first, barrier=told.barrier)


def _behind(found: Sequence[Report]) -> tuple[tuple[int, ...], str] | None:
    """A minority of the reporters of one group that stands at an earlier place than the rest."""
    families: dict[tuple[str, str, int | None], list[Report]] = {}
    for report in found:
        tagged = bool(report.group)
        families.setdefault((report.group, "" if tagged else report.op, None if tagged else report.numel), []).append(
            report
        )
    for key in sorted(families, key=str):
        family = families[key]
        for name, how in (
            ("seq", "timed out at an earlier collective than the others"),
            ("enqueued", "came to fewer collectives than the others"),
            ("completed", "finished fewer collectives than the others"),
        ):
            at: dict[int, int] = {}
            for report in family:
                number = getattr(report, name)
                for rank in report.ranks if number is not None else ():
                    at[rank] = min(number, at.get(rank, number))
            low = _minority(at)
            if low:
                return low, how
    return None


def _minority(at: Mapping[int, int]) -> tuple[int, ...]:
    """Ranks below the place where most stand; none where most do not stand at one place."""
    if len(at) < 3:
        return ()
    places = sorted(at.values())
    usual = places[len(places) // 2]
    low = tuple(sorted(rank for rank, number in at.items() if number < usual))
    if 3 * len(low) >= len(at) or usual - places[0] > NEAR:
        return ()
    return low
