"""The canonical spelling against the standard library's: what is written is what `json` would write of it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core.codec import CodecError, decode, encode
from advisor.core.words import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    word: Category
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    floats: tuple[float, ...]
    wholes: tuple[int, ...]
    truths: tuple[bool, ...]
    at: datetime | None
    tags: frozenset[str]
    named: Mapping[str, float]
    by_rank: Mapping[int, Inner]
    either: Inner | Empty
    number: float


numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53), st.just(-0.0))
texts = st.text(st.characters(exclude_categories=["Cs"]))
inners = st.builds(Inner, word=st.sampled_from(Category), text=texts)
zones = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))
moments = st.floats(0, 4e9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
times = moments | st.builds(lambda moment, zone: moment.astimezone(zone), moments, zones)
values = st.builds(
    Value,
    floats=st.lists(numbers).map(tuple),
    wholes=st.lists(st.integers(-(2**70), 2**70)).map(tuple),
    truths=st.lists(st.booleans()).map(tuple),
    at=st.none() | times,
    tags=st.frozensets(texts),
    named=st.dictionaries(texts, numbers),
    by_rank=st.dictionaries(st.integers(-(2**40), 2**40), inners),
    either=inners | st.just(Empty()),
    number=numbers,
)


@given(values)
def test_a_value_is_spelled_as_json_spells_it_and_comes_back(value: Value) -> None:
    written = encode(value)
    spelled = json.dumps(json.loads(written), sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert written == spelled.encode("ascii")
    assert decode(Value, written) == value
    assert encode(decode(Value, written)) == written


@given(st.lists(numbers), st.integers(0, 100), st.sampled_from([math.nan, math.inf, -math.inf, True, "1", None]))
def test_what_is_no_number_is_found_among_numbers(before: list[float], after: int, wrong: float) -> None:
    """However many plain ones stand beside it, and the error tells which it is."""
    floats = (*before, wrong, *(1.0 for _ in range(after)))
    value = Value(
        floats=floats,
        wholes=(),
        truths=(),
        at=None,
        tags=frozenset(),
        named={},
        by_rank={},
        either=Empty(),
        number=0,
    )
    with pytest.raises(CodecError) as caught:
        encode(value)
    assert caught.value.place == f".floats[{len(before)}]"
