"""States of attempts as they are saved: of many files, only those that changed are written again.

A job of thousands of ranks has thousands of files, of which few print between two ticks, and each one's state is
kilobytes. So from `MANY_FILES` on what was written of each file is kept, packed, and put together with the others.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from advisor.core import codec
from advisor.core.scan import FileState
from advisor.packed import joined, pack
from advisor.sighting import SourceState, TickState
from advisor.store.records import AttemptKey

MANY_FILES = 16
_COMMA = pack(b",")
_Written = dict[tuple[str, str], tuple[FileState, bytes]]


@dataclass(slots=True)
class StateWriter:
    """`write` gives what `sighting.decoded_state` reads: plain up to `MANY_FILES`, packed from there on."""

    _written: dict[AttemptKey, _Written] = field(default_factory=dict)

    def keep(self, keys: Collection[AttemptKey]) -> None:
        """Forget all other attempts."""
        self._written = {key: held for key, held in self._written.items() if key in keys}

    def write(self, key: AttemptKey, state: TickState) -> bytes:
        """Raises `codec.CodecError`."""
        if sum(len(held.files) for held in state.sources.values()) < MANY_FILES:
            self._written.pop(key, None)
            return codec.encode(state)
        before = self._written.get(key, {})
        kept: _Written = {}
        # No string holds these bytes: a quote within one has a backslash before it.
        start, end = codec.encode(replace(state, sources={})).split(b'"sources":{}', 1)
        parts = [pack(start + b'"sources":{')]
        for place, name in enumerate(sorted(state.sources)):
            parts += [_COMMA] * (place > 0)
            parts += self._source(name, state.sources[name], before, kept)
        parts.append(pack(b"}" + end))
        self._written[key] = kept
        return joined(parts)

    @staticmethod
    def _source(source: str, held: SourceState, before: _Written, kept: _Written) -> Iterator[bytes]:
        start, end = codec.encode(replace(held, files={})).split(b'"files":{}', 1)
        yield pack(_name(source) + start + b'"files":{')
        for place, name in enumerate(sorted(held.files)):
            if place:
                yield _COMMA
            file = held.files[name]
            known = before.get((source, name))
            if known is None or known[0] is not file:
                known = (file, pack(_name(name) + codec.encode(file)))
            kept[source, name] = known
            yield known[1]
        yield pack(b"}" + end)


def _name(name: str) -> bytes:
    return codec.encode(name) + b":"
