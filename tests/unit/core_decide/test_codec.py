"""Canonical JSON: one spelling per value, strict reading, errors that name their place."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import pytest

from advisor.core.codec import CodecError, content_hash, decode, encode
from advisor.core.model import Attempt, Job, Signal, Snapshot, SourceReport, Unavailable
from advisor.core.policy import Policy
from advisor.core.words import AttemptState, Category, Trust, UnavailableReason

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    data: bytes = b""
    tags: frozenset[str] = frozenset()
    every: timedelta = timedelta(0)
    pair: tuple[int, str] = (0, "")
    which: Literal["one", "two"] = "one"
    derived: int = field(init=False, default=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    child: Leaf | Unavailable
    maybe: float | None = None


def _snapshot(**changes: Any) -> Snapshot:
    values: dict[str, Any] = {
        "job": Job(key="k", cluster="c", job_id="1", user="u"),
        "attempt": Attempt(number=0, state=AttemptState.RUNNING),
    }
    return Snapshot(**(values | changes))


def test_equal_values_have_equal_bytes_whatever_made_them() -> None:
    """An int in a float field, a negative zero, another zone and another insertion order change no byte."""
    assert encode(Policy(hang_seconds=600)) == encode(Policy(hang_seconds=600.0))
    assert encode(Policy(suspect_score=-0.0)) == encode(Policy(suspect_score=0))
    two = timezone(timedelta(hours=2))
    first = Attempt(number=0, state=AttemptState.RUNNING, rank_nodes={9: "a", 10: "b"}, started_at=NOON)
    second = Attempt(
        number=0, state=AttemptState.RUNNING, rank_nodes={10: "b", 9: "a"}, started_at=NOON.astimezone(two)
    )
    assert first == second
    assert encode(first) == encode(second)


def test_reading_gives_mappings_one_order() -> None:
    """Rank 10 follows rank 9 after reading, so that code which iterates decides alike on replay."""
    attempt = Attempt(number=0, state=AttemptState.RUNNING, rank_nodes={10: "b", 9: "a", 2: "c"})
    assert list(decode(Attempt, encode(attempt)).rank_nodes) == [2, 9, 10]


def test_every_kind_of_field_comes_back() -> None:
    """Bytes, sets, durations, fixed tuples, tagged unions, optional numbers and derived fields survive a round trip."""
    leaf = Leaf(data=b"\x00\xff", tags=frozenset({"b", "a"}), every=timedelta(microseconds=-3), pair=(1, "x"))
    for tree in (
        Tree(child=leaf, maybe=0.1),
        Tree(child=Unavailable(source="s", reason=UnavailableReason.TIMEOUT), maybe=None),
    ):
        assert decode(Tree, encode(tree)) == tree
    assert b"derived" not in encode(leaf)
    with pytest.raises(CodecError, match=r"\$.which: expected one of 'one', 'two'"):
        decode(Leaf, b'{"which":"three"}')
    assert encode(None) == b"null"
    assert decode(Policy, encode(Policy())) == Policy()
    assert decode(tuple[Leaf, ...], encode((leaf, leaf))) == (leaf, leaf)


def test_hostile_text_comes_back_unchanged() -> None:
    """Surrogate escapes, control bytes and line separators in a log line survive, and the output stays ASCII."""
    text = b"\xff\xfe caf\xc3\xa9 \x00\x1b[0m \xe2\x80\xa8".decode("utf-8", "surrogateescape")
    signal = Signal(id="1", rule="r", trust=Trust.LOG, source="s", seen_at=NOON, text=text, fields={text: text})
    assert encode(signal).isascii()
    assert decode(Signal, encode(signal)) == signal


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Policy(hang_seconds=float("nan")), "$.hang_seconds: nan"),
        (Policy(settle_seconds={Category.NONE: float("inf")}), "$.settle_seconds['none']: inf"),
        (Attempt(number=True, state=AttemptState.RUNNING), "$.number: expected a whole number, found bool"),
        (Attempt(number=0, state=AttemptState.RUNNING, ended_at=NOON.replace(tzinfo=None)), "$.ended_at: time without"),
        (_snapshot(user_excluded=("\ud83d\ude00",)), "$.user_excluded[0]: text holds a pair of surrogates"),
    ],
)
def test_a_value_without_a_spelling_is_refused_with_its_place(value: object, place: str) -> None:
    """What has no one spelling is never written."""
    with pytest.raises(CodecError) as caught:
        encode(value)
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"source":"s","trust":"log","trust":"log"}', "$: key 'trust' appears twice"),
        (b'{"source":"s","trust":"log","x":1}', "$: SourceReport has no field 'x'"),
        (b'{"source":"s"}', "$: SourceReport needs the field 'trust'"),
        (b'{"source":"s","trust":"user"}', "$.trust: 'user' is not a Trust"),
        (b'{"source":"s","trust":"log","lines":1.0}', "$.lines: expected a whole number, found float"),
        (b'{"source":"s","trust":"log","capped":1}', "$.capped: expected true or false, found int"),
        (b'{"source":"s","trust":"log","unavailable":{"source":1}}', "$.unavailable: Unavailable needs"),
        (b'{"source":"s","trust":"log","newest_at":"2026-01-31T12:00:00Z"}', "$.newest_at: expected a UTC time"),
        (b'{"source":"s","trust":"log","lines":NaN}', "$: NaN is not a JSON number"),
        (b"[" * 100_000, "$: not canonical JSON"),
        (b"\xff", "$: not canonical JSON"),
        (b"[]", "$: expected an object (SourceReport), found list"),
    ],
)
def test_wrong_text_is_refused_with_its_place(text: bytes, problem: str) -> None:
    """Reading is strict, and the first problem names where it is."""
    with pytest.raises(CodecError) as caught:
        decode(SourceReport, text)
    assert str(caught.value).startswith(problem)


def test_a_field_added_later_takes_its_default() -> None:
    """A value that an older build wrote without a newer optional field is still readable."""
    assert decode(SourceReport, b'{"source":"s","trust":"log"}') == SourceReport(source="s", trust=Trust.LOG)


def test_bytes_do_not_depend_on_the_process() -> None:
    """Another process with another hash seed writes the same bytes, sets included."""
    program = "from advisor.core import codec, policy; print(codec.content_hash(codec.encode(policy.Policy())))"
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert other.stdout.strip() == content_hash(encode(Policy()))
