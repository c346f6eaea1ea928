"""Saving what ticks leave behind: one statement per table, whatever the number of attempts."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import bindparam, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import encode
from advisor.core.course import saves_of
from advisor.store.documents import pack_signals
from advisor.store.records import AttemptKey, DetectorState
from advisor.store.tables import attempts, detector_states


async def save_states(
    connection: AsyncConnection, states: Mapping[AttemptKey, DetectorState], *, now: datetime
) -> None:
    """Replace the states of these attempts, in key order: two writers of the same ones never wait in a circle."""
    if not states:
        return
    ordered = sorted(states.items())
    statement = upsert(detector_states)
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["job_key", "number"],
            set_={name: statement.excluded[name] for name in ("state", "signals", "saved_at")},
        ),
        [
            {
                "job_key": key.job_key,
                "number": key.number,
                "state": state.state,
                "signals": pack_signals(state.signals),
                "saved_at": now,
            }
            for key, state in ordered
        ],
    )
    await connection.execute(
        update(attempts).where(
            attempts.c.job_key == bindparam("k", type_=attempts.c.job_key.type), attempts.c.number == bindparam("n")
        ),
        [
            {
                "k": key.job_key,
                "n": key.number,
                "first_step": state.progress.first_step,
                "last_step": state.progress.last_step,
                "checkpoint_step": state.progress.checkpoint_step,
                "in_job_restarts": state.progress.in_job_restarts,
                "first_progress_at": state.progress.first_at,
                "last_progress_at": state.progress.last_at,
                "save_seconds": list(saves_of(state.progress.pace)) or None,
                "foreign_count": state.foreign,
                "progress": encode(state.progress),
            }
            for key, state in ordered
        ],
    )
