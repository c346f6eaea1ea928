"""Log rules that jobs bring and that a site gives: read, checked, compiled once, and applied to what attempts print.

What a user writes can be wrong, huge, unreadable or slow. It is then reported, with its place, and costs that user the
rule or the rules; never another job's tick. States and signals: `advisor.core.job_watch`.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from advisor.core import job_watch
from advisor.core.job_rules import OWN, SITE, Batch, JobRuleEvaluator
from advisor.core.job_watch import Applied, Piece, Watch
from advisor.core.lines import cap
from advisor.core.model import SourceReport, Unavailable
from advisor.core.words import Trust
from advisor.ports import Clock, RulesReader, RulesRequest
from advisor.rules.job_rules import CONFIGURATION_BYTES_MAX, located, read_job_rules
from advisor.store.records import AttemptKey, StoredAttempt

log = structlog.get_logger(__name__)

REREAD = timedelta(seconds=30)  # a file that was changed, or could not be read
READS_MAX = 64  # files in one tick
CHECKS_MAX = 8  # contents that are checked and compiled in one tick,
CHECKS_OF_USER_MAX = 2  # and of one user
KEPT_MAX = 1024  # checked contents
PROBLEMS_MAX = 20  # shown of one content
PROBLEM_CHARS_MAX = 300
CPU_SECONDS_MAX = 0.5  # of one set over what one attempt printed between two ticks, a megabyte at most
SLOW_OF_USER_MAX = 4  # contents that were too slow; then none of the user's is applied any more until we start anew
COMMENT = "the job's comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One content: the rules that work, and one line for everything that is wrong with the others."""

    digest: str
    evaluator: JobRuleEvaluator | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What is known of the rules that one attempt names. `text`: its path, or the rules themselves."""

    text: str
    read_at: datetime
    checked: Checked | None = None
    problem: str = ""  # why it could not be read this time


def check(data: bytes, where: str, *, of_job: bool) -> Checked:
    """Read and compile one configuration. `where` is what its problems are located by."""
    found = read_job_rules(data, of_job=of_job)
    problems = tuple(cap(line, PROBLEM_CHARS_MAX) for line in located(found.problems[:PROBLEMS_MAX], where))
    if len(found.problems) > PROBLEMS_MAX:
        problems += (f"{where}: {len(found.problems) - PROBLEMS_MAX} more",)
    return Checked(
        digest=_digest(data, of_job=of_job),
        evaluator=JobRuleEvaluator(found.rules) if found.rules else None,
        problems=problems,
    )


def _digest(data: bytes, *, of_job: bool) -> str:
    return hashlib.sha256((b"job" if of_job else b"site") + data).hexdigest()[:32]


class BroughtRules:
    """The sets of rules of all watched attempts. `refresh` before a tick reads; the others do not."""

    def __init__(
        self,
        *,
        clock: Clock,
        reader: RulesReader | None = None,
        site: Checked | None = None,
        cpu_seconds_max: float = CPU_SECONDS_MAX,
    ) -> None:
        self._clock = clock
        self._cpu_seconds_max = cpu_seconds_max
        self._reader = reader
        self.site = site
        self._named: dict[AttemptKey, _Named] = {}
        self._checked: dict[tuple[str, str], Checked] = {}  # by place and digest: problems name their place
        self._slow: dict[tuple[str, str], set[str]] = {}  # by cluster and user: digests, switched off

    async def refresh(self, items: Iterable[StoredAttempt]) -> None:
        """Read what attempts name, as far as it is due."""
        wanted = {item.key: item for item in items if item.job_rules}
        self._named = {key: named for key, named in self._named.items() if key in wanted}
        now = self._clock.now()
        due = sorted((item for item in wanted.values() if self._due(item, now)), key=self._read_at)
        contents: list[tuple[StoredAttempt, bytes | Unavailable]] = []
        files: list[StoredAttempt] = []
        for item in due:
            if item.job_rules.startswith("/"):
                files.append(item)
            else:
                contents.append((item, item.job_rules.encode("utf-8", "replace")))
        if files and self._reader is not None:
            requests = [_request(item) for item in files[:READS_MAX]]
            answers = await self._reader.read(requests)
            contents.extend((item, answers[str(item.key)]) for item in files[:READS_MAX])
        if contents:
            await asyncio.to_thread(self._take, contents, now)

    def _due(self, item: StoredAttempt, now: datetime) -> bool:
        named = self._named.get(item.key)
        if named is None or named.text != item.job_rules:
            return True
        over = item.attempt.state.ended and named.checked is not None
        return item.job_rules.startswith("/") and not over and now >= named.read_at + REREAD

    def _read_at(self, item: StoredAttempt) -> float:
        named = self._named.get(item.key)
        return named.read_at.timestamp() if named is not None else 0.0

    def _take(self, contents: Sequence[tuple[StoredAttempt, bytes | Unavailable]], now: datetime) -> None:
        checks: dict[tuple[str, str], int] = {}
        for item, content in contents:
            before = self._named.get(item.key)
            kept = before.checked if before is not None and before.text == item.job_rules else None
            if isinstance(content, Unavailable):
                # What was read before goes on: a file that is being replaced is no end of its rules.
                problem = f"{content.reason}: {content.detail}"
                self._named[item.key] = _Named(text=item.job_rules, read_at=now, checked=kept, problem=problem)
                continue
            where = item.job_rules if item.job_rules.startswith("/") else COMMENT
            where = "".join(char if char.isprintable() else "?" for char in where[:PROBLEM_CHARS_MAX])
            place = (where, _digest(content, of_job=True))
            found = self._checked.pop(place, None)
            if found is None:
                user = (item.job.cluster, item.job.user)
                if sum(checks.values()) >= CHECKS_MAX or checks.get(user, 0) >= CHECKS_OF_USER_MAX:
                    continue  # the next tick goes on
                checks[user] = checks.get(user, 0) + 1
                found = check(content, where, of_job=True)
                if found.problems:
                    log.warning("job_rules_have_problems", job=item.job.job_id, problems=found.problems)
            self._checked[place] = found  # the newest used stays longest
            self._named[item.key] = _Named(text=item.job_rules, read_at=now, checked=found)
        while len(self._checked) > KEPT_MAX:
            del self._checked[next(iter(self._checked))]

    def of(self, item: StoredAttempt) -> tuple[Applied, ...]:
        """The sets that apply to an attempt now."""
        named = self._named.get(item.key)
        own = named.checked if named is not None else None
        return tuple(
            Applied(of=of, digest=found.digest, evaluator=found.evaluator)
            for of, found in ((OWN, own), (SITE, self.site))
            if found is not None and found.evaluator is not None and not self._is_slow(item, found.digest, of)
        )

    def concern(self, item: StoredAttempt) -> bool:
        """There are rules for it, known or not."""
        return self.site is not None or bool(item.job_rules)

    def awaited(self, item: StoredAttempt) -> bool:
        """The attempt names rules that were not read yet."""
        return bool(item.job_rules) and item.key not in self._named

    def _is_slow(self, item: StoredAttempt, digest: str, of: str) -> bool:
        """Whoever brings another slow content each time does not get a read of each out of us."""
        slow = self._slow.get((item.job.cluster, item.job.user), set())
        return digest in slow or (of == OWN and len(slow) >= SLOW_OF_USER_MAX)

    def problems(self, item: StoredAttempt) -> tuple[str, ...]:
        """What is wrong with the rules that the attempt itself names."""
        named = self._named.get(item.key)
        if named is None:
            return ()
        found = named.checked
        slow = found is not None and self._is_slow(item, found.digest, OWN)
        return (
            *((named.problem,) if named.problem else ()),
            *(found.problems if found is not None else ()),
            *(("they take too long on what this user's jobs print: switched off",) if slow else ()),
        )

    def all_problems(self) -> Mapping[AttemptKey, str]:
        """The first problem of each watched attempt that has any."""
        return {
            key: named.problem or (named.checked.problems[0] if named.checked is not None else "")
            for key, named in self._named.items()
            if named.problem or (named.checked is not None and named.checked.problems)
        }

    @property
    def named(self) -> int:
        """Watched attempts that bring rules."""
        return len(self._named)

    def report(self, item: StoredAttempt) -> SourceReport | None:
        """For the sources of a decision: that the attempt brought rules, and what is wrong with them."""
        if not item.job_rules:
            return None
        # The comment came by the scheduler; nothing that is wrong with it makes any log unreadable.
        return SourceReport(source=job_watch.SOURCE, trust=Trust.SCHEDULER, problems=self.problems(item))

    def apply(
        self,
        watch: Watch,
        item: StoredAttempt,
        pieces: Sequence[Piece],
        now: datetime,
        *,
        restarts: Callable[[], int],
        unread: bool,
    ) -> Watch:
        """After these bytes, read now. `restarts`: of the ranks inside the job. `unread`: no line was read before."""
        sets = self.of(item)
        if not sets and not watch.runs:
            return watch
        if any(piece.data for piece in pieces):
            watch = job_watch.without_others(watch, sets)
        watch = job_watch.begun(watch, sets, item.attempt, restarts(), now, unread=unread)
        watch, batches = job_watch.split_up(watch, pieces, now)
        return self._fold_all(watch, item, sets, batches, now)

    def after(
        self,
        watch: Watch,
        item: StoredAttempt,
        now: datetime,
        *,
        restarts: Callable[[], int],
        unread: bool,
        final: bool,
        set_at: datetime | None,
    ) -> Watch:
        """At the end of a tick, whether or not anything was printed. `set_at`: when somebody set the clock."""
        sets = self.of(item)
        if not sets and not watch.runs:
            return watch
        count = restarts()
        watch = job_watch.since_set(watch, set_at, now)
        watch = job_watch.begun(watch, sets, item.attempt, count, now, unread=unread)
        watch, batches = job_watch.waited(watch, now, final=final)
        watch = self._fold_all(watch, item, sets, batches, now)
        return job_watch.passed(watch, item.attempt, count, now)

    def _fold_all(
        self, watch: Watch, item: StoredAttempt, sets: Iterable[Applied], batches: Sequence[Batch], now: datetime
    ) -> Watch:
        for one in sets:
            # The thread's own time: a busy machine makes no rule slow.
            began = time.thread_time()
            for batch in batches:
                watch = job_watch.fold(watch, one, batch, now)
                if time.thread_time() - began > self._cpu_seconds_max:
                    self._slow.setdefault((item.job.cluster, item.job.user), set()).add(one.digest)
                    log.warning("job_rules_too_slow", job=item.job.job_id, user=item.job.user, of=one.of)
                    break
        return watch


def _request(item: StoredAttempt) -> RulesRequest:
    return RulesRequest(
        key=str(item.key),
        user=item.job.user,
        user_id=item.user_id,
        path=item.job_rules,
        bytes_max=CONFIGURATION_BYTES_MAX,
    )
