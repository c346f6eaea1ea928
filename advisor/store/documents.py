"""Core values as they lie in the tables: canonical JSON of `advisor.core.codec`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from advisor.core.codec import CodecError, decode, encode
from advisor.core.model import Decision, Signal
from advisor.store.errors import Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSignals:
    """A row's signals, as one document."""

    signals: tuple[Signal, ...]


def pack_signals(signals: Sequence[Signal]) -> bytes:
    return encode(KeptSignals(signals=tuple(signals)))


# Signals are read every tick and hardly ever change; reading them is most of what loading an attempt costs.
@lru_cache(maxsize=4096)
def unpack_signals(data: bytes) -> tuple[Signal, ...]:
    """Raises `CodecError` when another build wrote them in a form that this one does not know."""
    return decode(KeptSignals, data).signals


# All open advice is read again whenever some of it changed: with a thousand open, reading them anew each time took
# most of the time that their being committed took.
@lru_cache(maxsize=4096)
def _decision(data: bytes) -> Decision:
    return decode(Decision, data)


def unpack_decision(decision_id: str, build: str, data: bytes) -> Decision:
    try:
        return _decision(data)
    except CodecError as error:
        raise Unreadable(f"decision {decision_id} was written by build {build!r}, in another form: {error}") from error
