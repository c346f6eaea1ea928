"""Saving what ticks leave behind: one statement per table, whatever the number of attempts.

What is saved of thousands of attempts goes over as one run of bytes, and where each one's part of it ends: a parameter
for each would cost more than what it carries.
"""

from collections.abc import Mapping, Sequence
from functools import cache
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
    bindparam,
    cast,
    column,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP, Insert, insert
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
    given: Mapping[str, Sequence[object]] = {
        "state": _ends([state.state for _, state in ordered]),
        "signals": _ends(packed),
        "seen_over": [state.seen_over for _, state in ordered],
    }
    parts = {"states": b"".join(state.state for _, state in ordered), "of_signals": b"".join(packed)}
    await connection.execute(_saving(), _given(keys, given) | parts)
    progress, documents = _progress([state for _, state in ordered])
    await connection.execute(_progressing(), _given(keys, progress) | {"documents": documents})
    return int((await connection.execute(_WRITER)).scalar_one())


@cache
def _saving() -> Insert:
    names = ("state", "signals", "seen_over")
    kept = _table({"state": _WHOLE, "signals": _WHOLE, "seen_over": Boolean()})
    statement = insert(detector_states).from_select(
        ["job_key", "number", *names],
        select(
            kept.c.job_key,
            kept.c.number,
            _part("states", kept.c.state),
            _part("of_signals", kept.c.signals),
            kept.c.seen_over,
        ),
    )
    return statement.on_conflict_do_update(
        index_elements=["job_key", "number"], set_={name: statement.excluded[name] for name in names}
    )


def _progress(states: Sequence[DetectorState]) -> tuple[Mapping[str, Sequence[object]], bytes]:
    """Columns, and the documents that `progress` is the ends of."""
    made = [state.progress for state in states]
    documents = [encode(progress) for progress in made]
    columns: Mapping[str, Sequence[object]] = {
        "first_step": [item.first_step for item in made],
        "last_step": [item.last_step for item in made],
        "checkpoint_step": [item.checkpoint_step for item in made],
        "resumed_step": [item.resumed_step for item in made],
        "in_job_restarts": [item.in_job_restarts for item in made],
        "first_progress_at": [item.first_at for item in made],
        "last_progress_at": [item.last_at for item in made],
        "save_seconds": [_numbers(saves_of(item.pace)) for item in made],
        "foreign_count": [state.foreign for state in states],
        "progress": _ends(documents),
    }
    return columns, b"".join(documents)


@cache
def _progressing() -> Update:
    steps = ("first_step", "last_step", "checkpoint_step", "resumed_step")
    numbers = (*steps, "in_job_restarts", "foreign_count", "progress")
    given = _table(
        dict.fromkeys(numbers, _WHOLE) | {"first_progress_at": _TIME, "last_progress_at": _TIME, "save_seconds": Text()}
    )
    plain = (*steps, "first_progress_at", "last_progress_at", "foreign_count")
    return (
        update(attempts)
        .where(attempts.c.job_key == given.c.job_key, attempts.c.number == given.c.number)
        .values(
            {name: given.c[name] for name in plain}
            | {
                "in_job_restarts": cast(given.c.in_job_restarts, Integer()),
                "save_seconds": cast(given.c.save_seconds, ARRAY(DOUBLE())),
                "progress": _part("documents", given.c.progress),
            }
        )
    )


def _given(keys: Sequence[AttemptKey], columns: Mapping[str, Sequence[object]]) -> dict[str, object]:
    """As `_table` wants it."""
    of_keys = {"given_job_key": [key.job_key for key in keys], "given_number": [key.number for key in keys]}
    return of_keys | {f"given_{name}": values for name, values in columns.items()}


def _table(columns: Mapping[str, Any]) -> FromClause:
    """A table of keys with columns of these types, each given as an array, `given_` before its name. Of bytes, a
    column holds where each part ends; see `_part`."""
    kinds = {"job_key": Uuid(as_uuid=False), "number": Integer(), **columns}
    arrays = [bindparam(f"given_{name}", type_=ARRAY(kind)) for name, kind in kinds.items()]
    named = [column(name, kind) for name, kind in kinds.items()]
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


def _part(data: str, end: ColumnElement[int]) -> ColumnElement[bytes]:
    """The part that `_ends` told of the bytes given by the name `data`."""
    return func.substring(
        bindparam(data, type_=LargeBinary()),
        cast(end // _LENGTH - end % _LENGTH + 1, Integer()),
        cast(end % _LENGTH, Integer()),
    )


def _numbers(values: Sequence[float]) -> str | None:
    return "{" + ",".join(map(repr, values)) + "}" if values else None
