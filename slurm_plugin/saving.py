"""Before the kill: which live attempts were asked to save, and whether they are still given time. Stdlib only.

Off unless the agent's configuration names a signal and the advice says until when to wait. The wait ends early when
the advisor has seen a newer checkpoint, and it never lasts longer than the agent's own bound. An agent that was started
anew asks once more: a program that saves on a signal can be asked twice, and the advice's own end does not move.
"""

from dataclasses import dataclass, field

from slurm_plugin.terms import Advice

ASKED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    at: float  # monotonic
    resume_step: int | None
    heard: bool  # Slurm took the signal


@dataclass(slots=True, kw_only=True)
class Saving:
    signals: tuple[str, ...]
    wait_seconds_max: float
    _asked: dict[tuple[str, int, int], Asked] = field(default_factory=dict)

    def state(self, advice: Advice, now: float) -> str:
        """ "ask", "wait", or "" when the attempt may be ended."""
        if advice.save_until is None or not advice.may_end_live_attempt or not self.signals:
            return ""
        asked = self._asked.get(_key(advice))
        if asked is None:
            return "ask"
        saved = advice.resume_step is not None and advice.resume_step > (asked.resume_step or -1)
        over = now - asked.at >= self.wait_seconds_max
        return "" if saved or over or not asked.heard else "wait"

    def asked(self, advice: Advice, *, heard: bool, now: float) -> None:
        if len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[_key(advice)] = Asked(at=now, resume_step=advice.resume_step, heard=heard)


def _key(advice: Advice) -> tuple[str, int, int]:
    return advice.job_id, advice.attempt, advice.submitted_at
