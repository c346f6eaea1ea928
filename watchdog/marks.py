"""The advisor's mark in AdminComment, read and edited without anything of the advisor. Pure.

`{"advisor": {"v": 1, "job", "attempt", "generation", "deadline", "nodes", "start", "found"}}` somewhere in the text;
other text and keys that we do not know are kept as they are.
"""

import json
from dataclasses import dataclass
from typing import TypeGuard

PREFIX = '{"advisor":'
NODES_MAX = 1024
_LOOKS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`begin` and `end` are where the fragment stands in the text it was found in."""

    attempt: int
    generation: int
    deadline: int | None
    nodes: tuple[str, ...]
    start: int | None
    found: int | None
    begin: int
    end: int
    shared: bool = False  # all of it comes from another job's advice: not tied to an attempt of this one


def find(comment: str) -> Mark | None:
    """The mark for the latest attempt and generation; None where nothing is one, type by type."""
    best: Mark | None = None
    decoder = json.JSONDecoder()
    at = comment.find(PREFIX)
    for _ in range(_LOOKS_MAX):
        if at < 0:
            break
        mark = None
        try:
            value, end = decoder.raw_decode(comment, at)
            mark = _mark(value, at, end)
        except (ValueError, RecursionError):
            end = at + 1
        if mark is not None and (best is None or _rank(mark) >= _rank(best)):
            best = mark
        at = comment.find(PREFIX, end if mark is not None else at + 1)
    return best


def given_back(comment: str, mark: Mark, *, nodes: bool, start: bool) -> str:
    """The comment, its mark saying that our exclusions (`nodes`) or our StartTime (`start`) are no more."""
    value = json.loads(comment[mark.begin : mark.end])
    body = value["advisor"]
    if nodes:
        body["nodes"], body["returned"] = [], True
    if start:
        body["start"], body["found"] = None, None
    return comment[: mark.begin] + json.dumps(value, separators=(",", ":")) + comment[mark.end :]


def _rank(mark: Mark) -> tuple[int, int]:
    return mark.attempt, mark.generation


def _mark(value: object, begin: int, end: int) -> Mark | None:
    body = value.get("advisor") if isinstance(value, dict) else None
    if not isinstance(body, dict) or body.get("v") != 1:
        return None
    attempt, generation, nodes = body.get("attempt"), body.get("generation"), body.get("nodes")
    deadline, start, found = body.get("deadline"), body.get("start"), body.get("found")
    if not isinstance(nodes, list) or len(nodes) > NODES_MAX or not all(isinstance(node, str) for node in nodes):
        return None
    if not _is_whole(attempt) or not _is_whole(generation):
        return None
    if not all(time is None or _is_whole(time) for time in (deadline, start, found)):
        return None
    return Mark(
        attempt=attempt,
        generation=generation,
        deadline=deadline,
        nodes=tuple(nodes),
        start=start,
        found=found,
        begin=begin,
        end=end,
        shared=body.get("job") == "",
    )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
