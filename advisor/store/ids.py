"""Row ids: by time (UUIDv7) where a row is an event, from content (UUIDv5) where writing twice must give one row."""

import os
import re
import uuid
from datetime import datetime

# One namespace per project, so that equal text means the same row here and nothing elsewhere.
_NAMESPACE = uuid.UUID("6f0d4a52-8f0b-5d0e-9d3c-1b6a2c7e41aa")
_RANDOM_BITS = 74


def new_id(now: datetime) -> str:
    """A UUIDv7 (RFC 9562): 48 bits of milliseconds, then 74 random bits. Sorts by time of creation."""
    milliseconds = int(now.timestamp() * 1000) & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big") & ((1 << _RANDOM_BITS) - 1)
    high, low = random >> 62, random & ((1 << 62) - 1)
    return str(uuid.UUID(int=(milliseconds << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low))


def content_id(kind: str, *parts: str | int) -> str:
    """The same parts give the same id. Parts are length-prefixed: no two lists of parts read alike."""
    text = "".join(f"{len(str(part))}:{part}" for part in (kind, *parts))
    return str(uuid.uuid5(_NAMESPACE, text))


def as_id(text: str) -> str | None:
    """The canonical spelling of an id that somebody gave us, None when it cannot be one."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def span_of(text: str) -> tuple[str, str] | None:
    """The first and the last id that begin with `text`, None when none can."""
    digits = text.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits) or not re.fullmatch(r"[0-9A-Fa-f]+(?:-[0-9A-Fa-f]*)*", text):
        return None
    first, last = (str(uuid.UUID(digits.ljust(32, fill))) for fill in "0f")
    return (first, last) if first.startswith(text.lower()) or "-" not in text else None
