"""Saving what ticks leave behind: one statement per table, whatever the number of attempts.

What is saved of thousands of attempts goes over as one run of bytes, and where each one's part of it ends: a parameter
for each would cost more than what it carries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    LargeBinary,
    Text,
    Update,
    Uuid,
    cast,
    column,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP, insert
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION as DOUBLE
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import encode
from advisor.core.course import saves_of
from advisor.store.documents import pack_signals
from advisor.store.records import AttemptKey, DetectorState
from advisor.store.tables import attempts, detector_states

_WRITER = text("SELECT pg_current_xact_id()::xid::text::bigint")
_WHOLE = BigInteger()
_TIME = TIMESTAMP(timezone=True)


async def save_states(connection: AsyncConnection, states: Mapping[AttemptKey, DetectorState]) -> int:
    """Replace the states of these attempts, in key order: two writers of the same ones never wait in a circle. Returns
    the transaction that wrote them."""
    if not states:
        return 0
    ordered = sorted(states.items())
    keys = [key for key, _ in ordered]
    packed = [pack_signals(state.signals) for _, state in ordered]
    kept = _table(
        keys,
        {
            "state": (_WHOLE, _ends([state.state for _, state in ordered])),
            "signals": (_WHOLE, _ends(packed)),
            "seen_over": (Boolean(), [state.seen_over for _, state in ordered]),
        },
    )
    statement = insert(detector_states).from_select(
        ["job_key", "number", "state", "signals", "seen_over"],
        select(
            kept.c.job_key,
            kept.c.number,
            _part(b"".join(state.state for _, state in ordered), kept.c.state),
            _part(b"".join(packed), kept.c.signals),
            kept.c.seen_over,
        ),
    )
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["job_key", "number"],
            set_={name: statement.excluded[name] for name in ("state", "signals", "seen_over")},
        )
    )
    await connection.execute(_progress(keys, [state for _, state in ordered]))
    return int((await connection.execute(_WRITER)).scalar_one())


def _progress(keys: Sequence[AttemptKey], states: Sequence[DetectorState]) -> Update:
    made = [state.progress for state in states]
    documents = [encode(progress) for progress in made]
    given = _table(
        keys,
        {
            "first_step": (_WHOLE, [item.first_step for item in made]),
            "last_step": (_WHOLE, [item.last_step for item in made]),
            "checkpoint_step": (_WHOLE, [item.checkpoint_step for item in made]),
            "in_job_restarts": (_WHOLE, [item.in_job_restarts for item in made]),
            "first_progress_at": (_TIME, [item.first_at for item in made]),
            "last_progress_at": (_TIME, [item.last_at for item in made]),
            "save_seconds": (Text(), [_numbers(saves_of(item.pace)) for item in made]),
            "foreign_count": (_WHOLE, [state.foreign for state in states]),
            "progress": (_WHOLE, _ends(documents)),
        },
    )
    plain = ("first_step", "last_step", "checkpoint_step", "first_progress_at", "last_progress_at", "foreign_count")
    return (
        update(attempts)
        .where(attempts.c.job_key == given.c.job_key, attempts.c.number == given.c.number)
        .values(
            {name: given.c[name] for name in plain}
            | {
                "in_job_restarts": cast(given.c.in_job_restarts, Integer()),
                "save_seconds": cast(given.c.save_seconds, ARRAY(DOUBLE())),
                "progress": _part(b"".join(documents), given.c.progress),
            }
        )
    )


def _table(keys: Sequence[AttemptKey], columns: Mapping[str, tuple[Any, Sequence[object]]]) -> FromClause:
    """A table of the keys with these columns. Of bytes, a column holds where each part ends; see `_part`."""
    given: dict[str, tuple[Any, Sequence[object]]] = {
        "job_key": (Uuid(as_uuid=False), [key.job_key for key in keys]),
        "number": (Integer(), [key.number for key in keys]),
        **columns,
    }
    arrays = [cast(list(values), ARRAY(kind)) for kind, values in given.values()]
    named = [column(name, kind) for name, (kind, _) in given.items()]
    return func.unnest(*arrays).table_valued(*named, name="given").render_derived()


_LENGTH = 2**28  # a part's length and its end in one number: no part is longer


def _ends(parts: Sequence[bytes]) -> list[int]:
    found, end = [], 0
    for part in parts:
        end += len(part)
        if len(part) >= _LENGTH:
            raise ValueError(f"a state of {len(part)} bytes is more than is ever saved")
        found.append(end * _LENGTH + len(part))
    return found


def _part(data: bytes, end: ColumnElement[int]) -> ColumnElement[bytes]:
    """The part of `data` that `_ends` told."""
    return func.substring(
        literal(data, LargeBinary()),
        cast(end // _LENGTH - end % _LENGTH + 1, Integer()),
        cast(end % _LENGTH, Integer()),
    )


def _numbers(values: Sequence[float]) -> str | None:
    return "{" + ",".join(map(repr, values)) + "}" if values else None
