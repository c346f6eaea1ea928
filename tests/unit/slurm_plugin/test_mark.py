"""The mark in AdminComment: found in hostile text, merged without touching anybody else's."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.mark import ARGUMENT_BYTES_MAX, Mark, find, merge, remove, render

MARK = Mark(job="k1", attempt=1, generation=3, deadline=99, nodes=("node2",), start=50, found=40, incarnation="i")
OTHERS = 'health "ok" = {"x": 1}\n\tÄ\\ '


def test_round_trip() -> None:
    """What is written is what is found."""
    assert find(render(MARK)) == MARK


def test_text_of_others_is_kept() -> None:
    """Before, between and after."""
    merged = merge(OTHERS, MARK)
    assert merged is not None
    assert merged.startswith(OTHERS)
    assert find(merged) == MARK
    assert remove(merged) == OTHERS
    assert remove(f"a {render(MARK)} b") == "a b"


def test_merge_replaces_the_earlier_mark() -> None:
    """There is one mark, however often a job is restarted."""
    once = merge(OTHERS, MARK)
    assert once is not None
    later = Mark(job="k1", attempt=2, generation=1, nodes=("node2", "node3"))
    twice = merge(once, later)
    assert twice is not None
    assert find(twice) == later
    assert twice.count('{"advisor":') == 1


@pytest.mark.parametrize("others", ["x" * ARGUMENT_BYTES_MAX, "\u4e2d" * (ARGUMENT_BYTES_MAX // 3), '{"advisor":' * 64])
def test_merge_refuses_what_cannot_be_sent_or_found_again(others: str) -> None:
    """One argument of an update is bounded in bytes; and behind so many beginnings nobody would look for ours."""
    assert merge(others, MARK) is None


@pytest.mark.parametrize(
    "mark",
    [
        Mark(job="k" * 201, attempt=1, generation=3),
        Mark(job="k", attempt=1, generation=2**53),
        Mark(job="k", attempt=1, generation=3, deadline=-5),
        Mark(job="k", attempt=1, generation=3, nodes=tuple(f"n{number}" for number in range(1025))),
        Mark(job="k", attempt=1, generation=3, incarnation="i" * 201),
    ],
)
def test_no_mark_is_written_that_could_not_be_read_again(mark: Mark) -> None:
    """What nobody recognises as ours is never given back: not by us, and not by the watchdog."""
    assert merge(OTHERS, mark) is None


def changed(**changes: object) -> str:
    body = json.loads(render(MARK))["advisor"] | changes
    return '{"advisor":' + json.dumps(body) + "}"


@pytest.mark.parametrize(
    "comment",
    [
        "",
        '{"advisor":',
        '{"advisor":{}}',
        '{"advisor":[]}',
        '{"advisor":null}',
        changed(v=2),
        changed(v=True),
        changed(attempt="1"),
        changed(attempt=-1),
        changed(attempt=True),
        changed(generation=1.5),
        changed(nodes="node1"),
        changed(nodes=[1]),
        changed(nodes=[""]),
        changed(nodes=["n"] * 2000),
        changed(start="now"),
        changed(deadline=1e300),
        changed(job=None),
        changed(returned=1),
        '{"advisor":' * 5000,
        "[" * 100_000 + '{"advisor":' + "[" * 100_000,
    ],
)
def test_what_looks_like_a_mark_and_is_none(comment: str) -> None:
    """Checked key by key and type by type; then it is text of others and stays."""
    assert find(comment) is None
    assert remove(comment) == comment


def test_of_several_the_latest_counts() -> None:
    """By attempt, then generation."""
    old, new = Mark(job="k", attempt=0, generation=9), Mark(job="k", attempt=1, generation=1)
    assert find(render(new) + render(old)) == new


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_surroundings(before: str, after: str) -> None:
    """Finding, merging and removing never lose a character of others."""
    comment = before + render(MARK) + after
    if '{"advisor":' in before + after:
        return
    assert find(comment) == MARK
    assert remove(comment) == before.removesuffix(" ") + after
    merged = merge(before, MARK)
    assert merged is not None
    assert remove(merged) == before
