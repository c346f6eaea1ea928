"""Whose a cancel is that is seen while our stop was out and nobody has told what came of it.

An agent may die between its cancel and its word, and Slurm's answer may be lost. Then the next look shows a cancelled
job, and not by whom. Only accounting keeps that, where a site has it: it is asked about such a job, and no other.
Our own account is an answer only where it is not root's, as whom operators act too. What cannot be known is told as
that, so that it is neither held against people nor claimed for us.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from slurm_plugin import guard, sacct
from slurm_plugin.clock import Clock
from slurm_plugin.guard import Action, Phase, Reason, Satisfied, phase_of
from slurm_plugin.squeue import JobRow, Slurm, SlurmError

log = structlog.get_logger(__name__)

ASKED_SECONDS = 20.0  # accounting hears of an end a little later
_PAUSE_SECONDS = 2.0  # between two questions
_ROOT = 0


@dataclass(slots=True, kw_only=True)
class Unreported:
    """`accounting`: None where it is not to be asked. `user_id`: the agent's own."""

    accounting: Slurm | None
    clock: Clock
    user_id: int
    _before_us: bool = True  # whether what is heard next may have been carried out by an agent before this one
    _open: set[tuple[str, int]] = field(default_factory=set)  # (job key, attempt) of stops that may have been
    _answers: dict[str, Satisfied] = field(default_factory=dict)  # by advice
    _asked: dict[str, tuple[float, float]] = field(default_factory=dict)  # by advice: first and last

    def heard(self, advice: Sequence[guard.Advice]) -> None:
        """All open advice. What is in the first list, another process may have acted on before."""
        about = {_attempt(item) for item in advice if item.action is Action.STOP and item.autonomous}
        self._open = about if self._before_us else self._open & about
        self._before_us = False
        ids = {item.advice_id for item in advice}
        self._answers = {key: value for key, value in self._answers.items() if key in ids}
        self._asked = {key: value for key, value in self._asked.items() if key in ids}

    def told_nothing(self) -> None:
        """Another store, or one that was restored: what it holds open was perhaps carried out, and told to another."""
        self._before_us = True

    def lost(self, advice: guard.Advice) -> None:
        """Slurm was asked for it, and its answer did not arrive."""
        if advice.action is Action.STOP:
            self._open.add(_attempt(advice))

    def answered(self, advice: guard.Advice, outcome: guard.Outcome) -> guard.Outcome:
        """The outcome, with what is known by now of whose doing it was."""
        return self._answers.get(advice.advice_id, outcome) if _stopped(outcome) else outcome

    def unclear(self, advice: guard.Advice, row: JobRow | None, outcome: guard.Outcome) -> bool:
        """The job is cancelled, that may have been us, and it is still to be found out."""
        cancelled = row is not None and phase_of(row.state) is Phase.CANCELLED
        unknown = _attempt(advice) in self._open and advice.advice_id not in self._answers
        return cancelled and unknown and _stopped(outcome)

    async def find_out(self, advice: guard.Advice, row: JobRow) -> bool:
        """True when there is an answer, if only that nobody can tell. False: to be asked again."""
        now = self.clock.monotonic()
        first, last = self._asked.get(advice.advice_id, (now, now - _PAUSE_SECONDS))
        if now - last < _PAUSE_SECONDS:
            return False
        self._asked[advice.advice_id] = (first, now)
        by: int | None = None
        if self.accounting is not None:
            try:
                past = sacct.newest(await asyncio.to_thread(sacct.of_jobs, self.accounting, row.job_id), row.shown_id)
            except SlurmError as error:
                past, waits = None, error.problem not in {"not_configured", "missing"}
            else:
                waits = past is None or not past.over or past.row.submit != row.submit
                by = past.cancelled_by if past is not None and not waits else None
            if waits and now - first < ASKED_SECONDS:
                return False
        answer = self._answer(by)
        self._answers[advice.advice_id] = answer
        log.warning(
            "stop_unreported",
            job=advice.job_id,
            attempt=advice.attempt,
            advice=advice.advice_id,
            cancelled_by=by,
            detail=answer.detail,
        )
        return True

    def _answer(self, by: int | None) -> Satisfied:
        if by is None:
            detail = "cancelled while our stop was out, by it or by somebody else: nothing tells"
            return Satisfied(reason=Reason.STOP_UNREPORTED, detail=detail)
        if by != self.user_id:
            return Satisfied(reason=Reason.ALREADY_STOPPED, detail=f"cancelled by user id {by}, as accounting says")
        if by == _ROOT:
            detail = "cancelled by root while our stop was out: by it or by an operator"
            return Satisfied(reason=Reason.STOP_UNREPORTED, detail=detail)
        return Satisfied(
            reason=Reason.OBSERVED, by_us=True, detail="cancelled by this agent's own account, as accounting says"
        )


def _attempt(advice: guard.Advice) -> tuple[str, int]:
    return advice.job_key, advice.attempt


def _stopped(outcome: guard.Outcome) -> bool:
    return isinstance(outcome, Satisfied) and outcome.reason is Reason.ALREADY_STOPPED
