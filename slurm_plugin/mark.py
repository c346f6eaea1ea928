"""Our mark: a JSON fragment in a job's AdminComment. Standard library only, pure.

It holds all that is needed to undo us without any state of ours, so the watchdog reads the same fragment. Other
tools and people write into AdminComment too: the text around the fragment is kept, and whatever looks like a mark
but is not one of ours, key by key and type by type, is text of others.
"""

import json
from dataclasses import dataclass

PREFIX = '{"advisor":'
VERSION = 1
NODES_MAX = 1024
TEXT_MAX = 200
TOLD_MAX = 400
ARGUMENT_BYTES_MAX = 120 * 1024  # one argument of a process holds 128 KiB
_LOOKS_MAX = 64  # occurrences of the prefix that are tried; more are somebody's joke


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What we did to the successor of `attempt`. Times are epoch seconds.

    `inherited`: those of `nodes` that another job's advice named, because this one is a component of the same
    heterogeneous job or waited for that one's end. With `job` empty that is all the mark is about: no advice on this
    job's own attempts, whose number and generation are then 0.
    `returned`: the watchdog gave our exclusions or our StartTime back; advice for this attempt is not applied again.
    `spared`: nodes that we gave back so that the job can start; no other job's advice excludes them again.
    `incarnation`: the store whose generations `generation` counts in. `told`: for the job's user, who can see it here.
    `advice`: the id of what set it, for whoever has to say more about it: another agent, or this one after a restart.
    """

    job: str
    attempt: int
    generation: int
    deadline: int | None = None
    nodes: tuple[str, ...] = ()
    start: int | None = None
    found: int | None = None
    returned: bool = False
    incarnation: str = ""
    inherited: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    told: str = ""
    advice: str = ""

    @property
    def advised(self) -> bool:
        """Whether advice on this very job stands behind it."""
        return bool(self.job)


def find(comment: str) -> Mark | None:
    """The mark in a comment; with several of them, the one for the latest attempt and generation."""
    marks = [mark for _, _, mark in _occurrences(comment)]
    return max(marks, key=lambda mark: (mark.attempt, mark.generation), default=None)


def merge(comment: str, mark: Mark) -> str | None:
    """The comment with our mark in place of any earlier ones. None when the result would be too long to send, or when
    the mark could not be found in it again: what nobody recognises as ours nobody would ever give back.
    """
    others = remove(comment)
    merged = f"{others} {render(mark)}" if others else render(mark)
    return merged if fits_argument(merged) and find(merged) == mark else None


def fits_argument(text: str) -> bool:
    """Whether an update can carry it as one argument. Text that Slurm printed may hold bytes that are no UTF-8."""
    return len(text.encode("utf-8", "surrogateescape")) <= ARGUMENT_BYTES_MAX


def remove(comment: str) -> str:
    """The text of others: every mark cut out, together with the one space that `merge` put before it."""
    kept, at = [], 0
    for start, end, _ in _occurrences(comment):
        kept.append(comment[at:start].removesuffix(" "))
        at = end
    kept.append(comment[at:])
    return "".join(kept)


def render(mark: Mark) -> str:
    """The fragment, ASCII only and without newlines."""
    value: dict[str, object] = {
        "v": VERSION,
        "job": mark.job,
        "attempt": mark.attempt,
        "generation": mark.generation,
        "deadline": mark.deadline,
        "nodes": list(mark.nodes),
        "start": mark.start,
        "found": mark.found,
    }
    if mark.incarnation:
        value["incarnation"] = mark.incarnation
    if mark.advice:
        value["advice"] = mark.advice
    if mark.inherited:
        value["inherited"] = list(mark.inherited)
    if mark.spared:
        value["spared"] = list(mark.spared)
    if mark.returned:
        value["returned"] = True
    if mark.told:
        value["told"] = mark.told
    return PREFIX + json.dumps(value, separators=(",", ":")) + "}"


def _occurrences(comment: str) -> list[tuple[int, int, Mark]]:
    found: list[tuple[int, int, Mark]] = []
    decoder = json.JSONDecoder()
    at = comment.find(PREFIX)
    for _ in range(_LOOKS_MAX):
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(comment, at)
        except (ValueError, RecursionError):
            value, end = None, at + 1
        mark = _mark(value)
        if mark is not None:
            found.append((at, end, mark))
        at = comment.find(PREFIX, end if mark is not None else at + 1)
    return found


def _mark(value: object) -> Mark | None:
    body = value.get("advisor") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(body, dict) or not _is_integer(body.get("v")) or body["v"] != VERSION:
        return None
    nodes, returned = body.get("nodes"), body.get("returned", False)
    inherited, spared = body.get("inherited", []), body.get("spared", [])
    times = [body.get(key) for key in ("deadline", "start", "found")]
    good = (
        all(_is_text(body.get(key, "")) for key in ("job", "incarnation", "advice"))
        and "job" in body
        and _is_integer(body.get("attempt"))
        and _is_integer(body.get("generation"))
        and all(_are_nodes(value) for value in (nodes, inherited, spared))
        and all(time is None or _is_integer(time) for time in times)
        and isinstance(returned, bool)
        and isinstance(body.get("told", ""), str)
        and len(body.get("told", "")) <= TOLD_MAX
    )
    if not good:
        return None
    deadline, start, found = times
    return Mark(
        job=body["job"],
        attempt=body["attempt"],
        generation=body["generation"],
        deadline=deadline,
        nodes=tuple(body["nodes"]),
        start=start,
        found=found,
        returned=returned,
        incarnation=body.get("incarnation", ""),
        inherited=tuple(node for node in inherited if node in body["nodes"]),
        spared=tuple(spared),
        told=body.get("told", ""),
        advice=body.get("advice", ""),
    )


def _are_nodes(value: object) -> bool:
    return isinstance(value, list) and len(value) <= NODES_MAX and all(_is_text(node) and node for node in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_MAX


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
