"""Attribution by other programs, asked beside the tick: each failed attempt once, never waited for.

An answer that comes within the source's budget becomes a signal of trust EXTERNAL among the attempt's others, so that
it is kept and replayed with them. One that comes later, or that nobody is there for any more, is dropped and told so.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from advisor.core.lines import cap, decode
from advisor.core.model import Unavailable
from advisor.core.opinions import opinion_signal
from advisor.core.scan import FileContext, FileState, Scanned, Scanner, fold_signals
from advisor.core.words import AttemptState, Category, Role, Trust, UnavailableReason
from advisor.gathering import Answered
from advisor.ports import Clock, Opinion, OpinionRequest, OpinionSource
from advisor.sighting import Sighting, SourceState
from advisor.store.records import AttemptKey

log = structlog.get_logger(__name__)

AT_ONCE = 8  # questions to one source
TEXT_CHARS_MAX = 400
_NO_FAILURE = frozenset({AttemptState.COMPLETED, AttemptState.CANCELLED, AttemptState.PREEMPTED})


@dataclass(slots=True)
class _Line:
    """One source and the questions to it that are on their way."""

    source: OpinionSource
    asked: dict[AttemptKey, "asyncio.Task[Opinion | Unavailable]"] = field(default_factory=dict)


class Opining:
    """Asks all sources about all attempts that have failed. `scanner`: not needed without sources."""

    def __init__(
        self, *, sources: Sequence[OpinionSource], scanner: Scanner | None, clock: Clock, signals_max: int
    ) -> None:
        self.sources = tuple(sources)
        self.last: dict[str, Answered] = {}
        self._scanner = scanner
        self._clock = clock
        self._signals_max = signals_max
        self._lines = [_Line(source) for source in self.sources]

    async def gather(self, sightings: Sequence[Sighting]) -> None:
        """Take what has come and ask what is to be asked. Waits for nothing."""
        known = {sighting.key: sighting for sighting in sightings}
        for line in self._lines:
            for key in [key for key, task in line.asked.items() if task.done() or key not in known]:
                self._take(line, known.get(key), line.asked.pop(key))
            for sighting in sightings:
                if len(line.asked) >= AT_ONCE:
                    break
                if sighting.key not in line.asked and self._wanted(line.source, sighting):
                    request = _request(sighting)
                    line.asked[sighting.key] = asyncio.create_task(_bounded(line.source, request))

    async def close(self) -> None:
        """Ends what is on its way; the sources are closed by whoever opened them."""
        tasks = [task for line in self._lines for task in line.asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wanted(self, source: OpinionSource, sighting: Sighting) -> bool:
        attempt = sighting.item.attempt
        held = sighting.state.sources.get(source.name)
        if sighting.failed is not None or (held is not None and held.final):
            return False
        failed = attempt.state.ended or attempt.state is AttemptState.REQUEUE_HELD
        if not failed or attempt.state in _NO_FAILURE or attempt.ended_at is None:
            return False
        return (
            sighting.item.stdout_path.startswith("/")
            and (self._clock.now() - attempt.ended_at).total_seconds() < source.budget_seconds
        )

    def _take(self, line: _Line, sighting: Sighting | None, task: "asyncio.Task[Opinion | Unavailable]") -> None:
        name = line.source.name
        if sighting is None:
            task.cancel()  # the attempt is not watched any more
            return
        answer = _answer(name, task)
        now = self._clock.now()
        absent = answer if isinstance(answer, Unavailable) else None
        self.last[name] = Answered(
            at=now, attempts=1, failed=int(absent is not None), first=absent, job_id=sighting.item.job.job_id
        )
        held = SourceState(final=True, unavailable=(absent,) if absent is not None else ())
        if isinstance(answer, Opinion):
            signal = opinion_signal(
                source=name,
                action=answer.action,
                category=self._category(answer.texts),
                text=_text(answer),
                seen_at=now,
                attempt=str(sighting.key),
            )
            scanned = Scanned(state=FileState(), signals=(signal,))
            sighting.signals = fold_signals(sighting.signals, scanned, self._signals_max)
            held = replace(held, lines=1, newest_at=now)
        sighting.state = replace(sighting.state, sources={**sighting.state.sources, name: held})

    def _category(self, texts: Sequence[str]) -> Category:
        """Ours, of what the other program says is wrong: by the rules that we read logs by."""
        if self._scanner is None:
            return Category.UNKNOWN
        data = "".join(f"{' '.join(text.split())}\n" for text in texts).encode("utf-8", "surrogateescape")
        context = FileContext(source="opinion", trust=Trust.LOG, file="opinion")
        found = self._scanner.scan(context, FileState(), data, fresh=True, final=True, seen_at=self._clock.now())
        causes = [signal.category for signal in found.signals if signal.role is Role.INITIATING]
        return causes[0] if causes else Category.UNKNOWN


async def _bounded(source: OpinionSource, request: OpinionRequest) -> Opinion | Unavailable:
    try:
        async with asyncio.timeout(source.budget_seconds):
            return await source.ask(request)
    except TimeoutError:
        text = f"no result within {source.budget_seconds:g} s"
        return Unavailable(source=source.name, reason=UnavailableReason.TIMEOUT, detail=text)


def _answer(name: str, task: "asyncio.Task[Opinion | Unavailable]") -> Opinion | Unavailable:
    """One that raised is absent, and no more than that."""
    error = task.exception()
    if error is None:
        return task.result()
    log.error("source_failed", source=name, exc_info=error)  # the boundary to a connector: its defect is not ours
    text = f"the connector failed: {error!r:.200}"
    return Unavailable(source=name, reason=UnavailableReason.GARBLED, detail=text)


def _request(sighting: Sighting) -> OpinionRequest:
    item = sighting.item
    return OpinionRequest(
        key=str(sighting.key),
        job_id=item.job.job_id,
        attempt=sighting.key.number,
        user=item.job.user,
        path=item.stdout_path,
    )


def _text(opinion: Opinion) -> str:
    """One line, harmless: a model wrote it about what a user wrote."""
    said = "; ".join(opinion.texts)
    whole = f"{opinion.told_by or 'it'} would {opinion.action}{': ' if said else ''}{said}"
    return cap(" ".join(decode(whole.encode("utf-8", "surrogateescape")).split()), TEXT_CHARS_MAX)
