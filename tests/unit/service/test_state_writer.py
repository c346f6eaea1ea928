"""Writing an attempt's state file by file gives the bytes that writing it whole does."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core import codec
from advisor.core.scan_state import FileState
from advisor.core.words import NodeState
from advisor.packed import plain, plain_hash
from advisor.sighting import Away, SourceState, TickState, decoded_state
from advisor.state_writing import MANY_FILES, StateWriter
from advisor.store.records import AttemptKey

KEY = AttemptKey(job_key="01a229b6-579d-7ef7-80c3-59cef20e15cf", number=0)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
# Names and texts that look like the places where documents are put together.
odd = ['"files":{}', '"sources":{}', "\\", '"', "é\udce9", "", "a", "b/%j", "rank=1 (late)"]
texts = st.sampled_from(odd) | st.text(max_size=5)
plain_texts = texts.filter(str.isascii)
files = st.builds(FileState, tail=plain_texts, offset=st.integers(0, 9))
sources = st.builds(
    SourceState,
    cursor=plain_texts,
    files=st.dictionaries(texts, files, max_size=4),
    lines=st.integers(0, 3),
)
states = st.builds(
    TickState,
    sources=st.dictionaries(texts, sources, max_size=3),
    away=st.dictionaries(texts, st.just(Away(state=NodeState.DOWN, since=NOON)), max_size=2),
    essence=texts,
)


def _large(state: TickState) -> TickState:
    many = {f"rank-{n}": FileState(offset=n) for n in range(MANY_FILES)}
    return replace(state, sources={**state.sources, "files": SourceState(files=many)})


@given(st.lists(states, min_size=1, max_size=3))
def test_written_by_file_as_written_whole(ticks: list[TickState]) -> None:
    """Tick after tick, whatever names are, and whether few files or many: `codec.encode`'s own bytes."""
    writer = StateWriter()
    for state in (*ticks, *map(_large, ticks), *ticks):
        written = writer.write(KEY, state)
        assert plain(written) == codec.encode(state)
        assert plain_hash(written) == codec.content_hash(codec.encode(state))
    assert decoded_state(KEY, writer.write(KEY, _large(ticks[0]))) == _large(ticks[0])


def test_a_file_that_changed_is_written_anew() -> None:
    """Of many files only the changed one differs, and its change is in the bytes."""
    writer, state = StateWriter(), _large(TickState())
    writer.write(KEY, state)
    held = state.sources["files"]
    changed = {**held.files, "rank-3": replace(held.files["rank-3"], offset=99)}
    after = replace(state, sources={"files": replace(held, files=changed)})
    assert plain(writer.write(KEY, after)) == codec.encode(after) != codec.encode(state)


def test_a_broken_document_is_no_state() -> None:
    """A packed state that was cut, or holds other bytes, is an error of reading, and reading begins anew."""
    written = StateWriter().write(KEY, _large(TickState()))
    assert len(written) < len(codec.encode(_large(TickState())))
    for broken in (written[:-1], written[:-40], written[:30] + b"\xff" * 30 + written[60:]):
        with pytest.raises(codec.CodecError):
            plain(broken)
        assert decoded_state(KEY, broken) == TickState()
