"""Which attempts a tick looks at, and when one is done with."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, null, or_, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from advisor.core.policy import Policy
from advisor.core.words import Action, AttemptState, Mode, Reason
from advisor.store.records import AttemptKey, ReconciliationReason, ReconciliationStatus
from advisor.store.scheduler_memory import forgotten_as_said
from advisor.store.sql import id_given, of_advice, of_attempt, time_given, wanted_attempts
from advisor.store.tables import (
    advice,
    attempts,
    decisions,
    detector_states,
    incidents,
    jobs,
    leases,
    reconciliations,
)

# An attempt that is over is looked at for this long at most, whatever is still missing.
WATCH_HORIZON = timedelta(hours=1)
# Open for so long, whatever was looked at: a clock that was a day back when an end was seen has made no day of it.
_KEPT_OPEN = timedelta(days=7)
_ISOLATE_SECONDS = 5.0  # beyond settling: some ticks, of whoever has the job by then
_WATCHED_MAX = 100_000
_FREE_MAX = 10_000

_ENDED = [state.value for state in AttemptState if state.ended]
_WAITING = [AttemptState.PENDING.value, AttemptState.REQUEUE_HELD.value]
# What is said of a failure whose end is to come, or cannot be told yet: by its own words not the last word.
_NOT_THE_LAST = [Reason.AWAITING_EXIT.value, Reason.OUTCOME_NOT_VISIBLE.value]
_STARTED = [AttemptState.RUNNING.value, AttemptState.SUSPENDED.value, *_ENDED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long after its end an attempt is not yet done with: its exclusions may be `refined`, whatever its newest
    decision says; and where trusted evidence names nodes, `isolated`: wants of nodes settle for so long, and whoever
    takes the job over meanwhile must come to them again.
    """

    refined: timedelta
    isolated: timedelta = timedelta()

    @classmethod
    def of(cls, policy: Policy) -> "Patience":
        settle = policy.isolation_settle_seconds + _ISOLATE_SECONDS if policy.isolate else 0.0
        return cls(refined=timedelta(seconds=policy.decision_deadline_seconds), isolated=timedelta(seconds=settle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """`epoch`: of the lease by which the asking replica holds the job, None where nobody holds it."""

    key: AttemptKey
    epoch: int | None = None


async def watched(
    connection: AsyncConnection, now: datetime, *, patience: Patience, replica_id: str = ""
) -> tuple[Watched, ...]:
    """Attempts to tick: not ended, or ended and not yet done with, the most important first. Closes those that are.

    First are those that may be acted on, and of those each user's largest in turn, so that whoever can look at some of
    them only does not lose a training job among one user's thousands of small ones.

    A waiting attempt is not among them: nothing of it can fail, and the tick of the one before sees it as successor.
    Nor is one whose requeue the scheduler has forgotten, or one that it forgot while it ran: nobody will ever see how
    that ended.

    `replica_id`: only of jobs that it holds or that are free. The caller has locked its row (`leases`).
    """
    given = _given(now, patience, replica_id)
    found = (await connection.execute(_ticked(among_replicas=bool(replica_id)), given)).all()
    # Nearly always none is over, and that costs nothing to see: to look for what may be closed is dear.
    over = found[0].any_over if found else True
    closed = await _close(connection, given, among_replicas=bool(replica_id)) if over else frozenset()
    seen = (Watched(key=AttemptKey(job_key=row.job_key, number=row.number), epoch=row.epoch) for row in found)
    return tuple(item for item in seen if item.key not in closed)


async def _close(
    connection: AsyncConnection, given: Mapping[str, object], *, among_replicas: bool
) -> frozenset[AttemptKey]:
    closed = await connection.execute(_closing(among_replicas=among_replicas), given)
    done = [AttemptKey(job_key=row.job_key, number=row.number) for row in closed]
    if done:
        table = wanted_attempts(done)
        await connection.execute(
            update(incidents)
            .where(of_attempt(incidents, table), incidents.c.closed_at.is_(None))
            .values(closed_at=given["now"])
        )
    return frozenset(done)


def _given(now: datetime, patience: Patience, replica_id: str) -> Mapping[str, object]:
    return {
        "now": now,
        "horizon": now - WATCH_HORIZON,
        "kept": now - _KEPT_OPEN,
        "refined": now - patience.refined,
        "isolated": now - patience.isolated,
        **({"replica": replica_id} if replica_id else {}),
    }


@cache
def _closing(*, among_replicas: bool) -> ReturningUpdate[Any]:
    next_one = attempts.alias("next_one")
    successors = select(next_one.c.number).where(
        next_one.c.job_key == attempts.c.job_key,
        next_one.c.number > attempts.c.number,
        next_one.c.withdrawn_generation.is_(None),
    )
    started = successors.where(next_one.c.state.in_(_STARTED)).exists()
    return (
        update(attempts)
        .where(
            attempts.c.open,
            ~_held_by_another() if among_replicas else true(),
            attempts.c.over_seen_at.is_not(None),
            or_(
                attempts.c.over_seen_at < time_given("kept"),
                and_(
                    attempts.c.over_seen_at < time_given("horizon"),
                    _looked_at_since_its_end(),
                    or_(~or_(_still_to_be_decided(), _still_to_be_applied(), _undone()), forgotten_as_said(), started),
                ),
                and_(
                    or_(~successors.exists(), started),
                    _looked_at_since_its_end(),
                    or_(attempts.c.orders == attempts.c.orders_decided, started),
                    or_(~_undone(), forgotten_as_said(), started),
                    _decided_for_good(),
                ),
            ),
        )
        .values(open=False)
        .returning(attempts.c.job_key, attempts.c.number)
    )


@cache
def _ticked(*, among_replicas: bool) -> Select[Any]:
    epoch: ColumnElement[Any] = null()
    joined = attempts.join(jobs, jobs.c.key == attempts.c.job_key)
    ours: ColumnElement[bool] = true()
    if among_replicas:
        joined, epoch = joined.outerjoin(leases, _lease_of_attempt()), leases.c.epoch
        ours = or_(leases.c.job_key.is_(None), leases.c.replica_id == id_given("replica"))
    return (
        select(attempts.c.job_key, attempts.c.number, epoch.label("epoch"), _any_over().label("any_over"))
        .select_from(joined)
        .where(*_to_tick(), ours)
        .order_by(jobs.c.in_scope.desc(), _turn_of_user(), attempts.c.job_key, attempts.c.number)
        .limit(_WATCHED_MAX)
    )


async def by_importance(connection: AsyncConnection, now: datetime) -> tuple[str, ...]:
    """Jobs with something to tick, whoever holds them, the most important first: the same order for all replicas, so
    that what one gives up for a more important one does not go round."""
    found = await connection.execute(_by_importance(), {"horizon": now - WATCH_HORIZON})
    return tuple(dict.fromkeys(found.scalars()))


@cache
def _by_importance() -> Select[Any]:
    return (
        select(attempts.c.job_key)
        .join(jobs, jobs.c.key == attempts.c.job_key)
        .where(*_to_tick())
        .order_by(jobs.c.in_scope.desc(), _turn_of_user(), attempts.c.job_key, attempts.c.number)
        .limit(_WATCHED_MAX)
    )


async def free_jobs(connection: AsyncConnection, now: datetime) -> tuple[str, ...]:
    """Jobs with something to tick that no replica holds."""
    found = await connection.execute(_free_jobs(), {"horizon": now - WATCH_HORIZON})
    return tuple(found.scalars())


@cache
def _free_jobs() -> Select[Any]:
    return (
        select(attempts.c.job_key)
        .join(jobs, jobs.c.key == attempts.c.job_key)
        .where(*_to_tick(), ~select(leases.c.job_key).where(_lease_of_attempt()).exists())
        .distinct()
        .limit(_FREE_MAX)
    )


def _any_over() -> ColumnElement[bool]:
    """Of all that are open, whoever holds them."""
    own = attempts.alias("over")
    return select(own.c.number).where(own.c.open, own.c.over_seen_at.is_not(None)).exists()


def _turn_of_user() -> ColumnElement[int]:
    return func.row_number().over(
        partition_by=(jobs.c.in_scope, jobs.c.user_name),
        order_by=(jobs.c.nodes_requested.desc().nulls_last(), attempts.c.job_key, attempts.c.number),
    )


def _lease_of_attempt() -> ColumnElement[bool]:
    """A row without a replica is of a job that was given up, and free."""
    return and_(leases.c.job_key == attempts.c.job_key, leases.c.replica_id.is_not(None))


def _held_by_another() -> ColumnElement[bool]:
    return select(leases.c.job_key).where(_lease_of_attempt(), leases.c.replica_id != id_given("replica")).exists()


def _to_tick() -> tuple[ColumnElement[bool], ...]:
    over = or_(attempts.c.state.in_(_ENDED), attempts.c.ended_at.is_not(None))
    return (
        attempts.c.open,
        attempts.c.state.not_in(_WAITING),
        attempts.c.withdrawn_generation.is_(None),
        or_(jobs.c.forgotten_at.is_(None), over),
        or_(
            attempts.c.ended_at.is_(None),
            func.greatest(attempts.c.ended_at, attempts.c.observed_at) >= time_given("horizon"),
        ),
    )


def _looked_at_since_its_end() -> Any:
    # A tick saves its state once more when it has seen the end and what it decided then is stored. Its time, or a
    # decision's, would not do: the end may be reported between the look and the decision, and clocks are set.
    return (
        select(detector_states.c.seen_over)
        .where(of_attempt(detector_states, attempts), detector_states.c.seen_over)
        .exists()
    )


def _still_to_be_decided() -> ColumnElement[bool]:
    """The newest decision is, by its own words, not the last one. An hour on the clock does not make it one: the clock
    may have been an hour back when the end was seen.
    """
    return (
        _newest_decision()
        .where(decisions.c.reason.in_(_NOT_THE_LAST), attempts.c.state != AttemptState.COMPLETED.value)
        .exists()
    )


def _still_to_be_applied() -> ColumnElement[bool]:
    """Nobody has taken the newest advice yet. That an hour has gone by, or its time has run out, says as little: the
    clock may have been an hour ahead just then. It is said again (`verdicts.lapsed`).
    """
    return (
        _newest_decision()
        .where(
            decisions.c.mode != Mode.MONITOR.value,
            decisions.c.action != Action.NONE.value,
            or_(advice.c.open, advice.c.status == ReconciliationStatus.EXPIRED.value),
        )
        .exists()
    )


def _undone() -> ColumnElement[bool]:
    """The scheduler has forgotten what came of the newest advice: that is said again."""
    return _newest_decision().where(advice.c.undone).exists()


def _newest_decision() -> Select[Any]:
    return (
        select(decisions.c.id)
        .join(advice, of_advice(decisions, advice))
        .where(of_attempt(advice, attempts), advice.c.generation == attempts.c.generation)
    )


def _stop_unreported() -> Any:
    """An agent cannot say whether it carried it out: that is still to be decided about."""
    return and_(
        decisions.c.action == Action.STOP.value,
        select(reconciliations.c.seq)
        .where(
            reconciliations.c.decision_id == advice.c.decision_id,
            reconciliations.c.reason == ReconciliationReason.STOP_UNREPORTED.value,
        )
        .exists(),
    )


def _decided_for_good() -> Any:
    now = time_given("now")
    # A decision that stays as it is while its evidence settles is not committed again, so its row never says that it
    # is settled. Left open, an attempt that failed in monitor mode would be restarted up to an hour later by whoever
    # sets the mode to autonomous. Advice that ran out untaken is left to be said once more, settled or not, for as long
    # as the scheduler knows the attempt: a restart of what it has forgotten can be applied to nothing. Until when it
    # does is not reckoned here, since a clock that is an hour ahead for ten seconds would make it forget.
    forgotten = forgotten_as_said()
    # What an operator ordered in monitor mode waits for the mode that lets it be done.
    on_paper = decisions.c.mode == Mode.MONITOR.value
    final = or_(
        and_(on_paper, decisions.c.reason != Reason.OPERATOR.value),
        decisions.c.action == Action.NONE.value,
        and_(
            ~on_paper,
            advice.c.status != ReconciliationStatus.EXPIRED.value,
            or_(~advice.c.open, advice.c.expires_at > now),
            ~_stop_unreported(),
        ),
        forgotten,
    )
    return (
        _newest_decision()
        .where(
            # Its tick may have been of an older build, which called an end seen whose decision could not be stored.
            or_(
                decisions.c.reason.not_in(_NOT_THE_LAST),
                attempts.c.state == AttemptState.COMPLETED.value,
                forgotten,
            ),
            or_(decisions.c.settled, attempts.c.over_seen_at < time_given("refined")),
            or_(
                ~decisions.c.trusted,
                decisions.c.implicated_nodes == text("'{}'::text[]"),
                attempts.c.over_seen_at < time_given("isolated"),
            ),
            final,
            or_(~advice.c.open, advice.c.expires_at <= now, decisions.c.action == Action.NONE.value),
        )
        .exists()
    )
