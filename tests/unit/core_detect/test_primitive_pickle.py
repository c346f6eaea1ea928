"""A pickle is a program: the reader of dumps knows values only, within bounds, whatever it is given."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.core.primitive_pickle import RefusedPickleError, read_primitives
from tests.cost import within

NUMBERS = st.integers(min_value=-(2**63), max_value=2**63) | st.floats(allow_nan=False) | st.booleans() | st.none()
VALUES = st.recursive(
    NUMBERS | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=8) | st.integers(-1000, 1000), inner, max_size=6)
        | st.tuples(inner, inner)
    ),
    max_leaves=30,
)


@given(value=VALUES, protocol=st.integers(2, 5))
@settings(deadline=None)
def test_primitives_come_back_as_they_were(value: Any, protocol: int) -> None:
    """The same value as the standard reader gives, for every protocol that dumps use."""
    assert read_primitives(pickle.dumps(value, protocol)) == value


@given(data=st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    """Nothing else is ever raised."""
    for start in (b"", b"\x80\x02", b"\x80\x04}q\x00("):
        try:
            read_primitives(start + data)
        except RefusedPickleError:
            continue


@given(value=VALUES, protocol=st.integers(2, 5), cut=st.integers(0, 400), flip=st.binary(min_size=1, max_size=3))
@settings(deadline=None)
def test_a_damaged_pickle_is_a_value_or_refused(value: Any, protocol: int, cut: int, flip: bytes) -> None:
    """Cut off or overwritten anywhere."""
    data = pickle.dumps(value, protocol)
    cut = min(cut, len(data))
    for damaged in (data[:cut], data[:cut] + flip + data[cut + len(flip) :]):
        try:
            read_primitives(damaged)
        except RefusedPickleError:
            continue


class Evil:
    """Runs a command when the standard reader meets it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_code_runs(tmp_path: Path, protocol: int) -> None:
    """What the standard reader would run is refused by name, and nothing happens."""
    target = tmp_path / "made"
    data = pickle.dumps({"entries": [Evil(target)]}, protocol)
    with pytest.raises(RefusedPickleError, match="a class or function"):
        read_primitives(data)
    assert not target.exists()
    pickle.loads(data)  # the attack is real
    assert target.exists()


BOMBS = {
    "a memo index of four billion": b"\x80\x02]r\xff\xff\xff\xff.",
    "a text of an exabyte": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b".",
    "a bytearray of an exabyte": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",
    "a number of two gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a number of 255 bytes": b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    "a key that takes for ever to hash": b"\x80\x02)" + b"q\x00h\x00\x86" * 60 + b"q\x01}h\x01Ns.",
    "a key too deep to hash": b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.",
    "keys of one hash": b"\x80\x02}(\x8a\x08" + struct.pack("<q", 2**61 - 1) + b"Nu.",
    "marks within marks": b"\x80\x02" + b"(" * 100_000 + b".",
    "a global by text": b"\x80\x02cos\nsystem\n.",
    "a persistent id": b"\x80\x02Pid\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a set": b"\x80\x04\x8f.",
    "the memo of nothing": b"\x80\x02q\x00.",
    "two values": b"\x80\x02NN.",
    "no value": b"\x80\x02.",
    "an open mark": b"\x80\x02(N.",
    "nothing": b"",
    "protocol 0": b"\x80\x00N.",
    "appending to a number": b"\x80\x02K\x01Na.",
    "a key for a list": b"\x80\x02]NNs.",
    "a key alone": b"\x80\x02}(X\x01\x00\x00\x00au.",
}


@pytest.mark.parametrize("name", [name for name in BOMBS if name != "a memo index of four billion"])
def test_bombs_are_refused_at_once(name: str) -> None:
    """Lengths, indices and depths are taken at their word by the standard reader."""

    def refused() -> None:
        with pytest.raises(RefusedPickleError):
            read_primitives(BOMBS[name])

    within(20.0, refused)


def test_a_huge_memo_index_costs_nothing() -> None:
    """The memo is a dict, not an array."""
    assert read_primitives(BOMBS["a memo index of four billion"]) == []


def test_a_value_may_hold_itself() -> None:
    """A cycle is a value like any other; who reads it looks at a fixed depth."""
    value = read_primitives(b"\x80\x02]q\x00h\x00a.")
    assert value[0] is value


def test_depth_without_marks_is_harmless() -> None:
    """A list in a list in a list, a hundred thousand times, comes and goes."""
    assert isinstance(read_primitives(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."), list)


@pytest.mark.parametrize("many", [b"h\x00" * 9_000, b"j\x00\x00\x00\x00" * 9_000, b"N" * 2_000], ids=["h", "j", "N"])
def test_there_is_a_bound_on_instructions(many: bytes) -> None:
    """Also on those that come many in a row."""
    with pytest.raises(RefusedPickleError, match="more than 1000 instructions"):
        read_primitives(b"\x80\x02]q\x00(" + many + b"t.", operations_max=1_000)


def test_too_many_bytes_are_not_looked_at() -> None:
    """The first bound."""
    with pytest.raises(RefusedPickleError, match="larger than 10 bytes"):
        read_primitives(b"\x80\x02" + b"N" * 20 + b".", bytes_max=10)


def test_text_that_is_no_utf8_is_replaced() -> None:
    """A frame's file name may be anything."""
    assert read_primitives(b"\x80\x02X\x02\x00\x00\x00a\xff.") == "a\ufffd"
