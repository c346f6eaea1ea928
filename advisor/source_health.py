"""How every source of a running service is, for `status` and `doctor`."""

from collections.abc import Iterable, Mapping

from advisor.brought_rules import BroughtRules
from advisor.core.words import UnavailableReason
from advisor.gathering import Answered, Gatherer
from advisor.measuring import Measurer
from advisor.opining import Opining
from advisor.ports import LogSource, MetricsSource, OpinionSource
from advisor.service.operator_servicer import SourceHealth


def all_healths(gatherer: Gatherer, measurer: Measurer, opining: Opining) -> list[SourceHealth]:
    return [
        *_of_sources(gatherer.sources, gatherer.last),
        *_of_sources(measurer.sources, measurer.last),
        *_of_sources(opining.sources, opining.last),
        *_of_rules(gatherer.brought),
    ]


def _of_sources(
    sources: Iterable[LogSource | MetricsSource | OpinionSource], answered: Mapping[str, Answered]
) -> list[SourceHealth]:
    """A source is available while it serves anybody; what it could not serve is told all the same."""
    found = []
    for source in sources:
        last = answered.get(source.name)
        first = last.first if last is not None else None
        served = last is None or last.attempts > last.failed
        share = f"{last.failed} of {last.attempts} attempts: " if last is not None and last.failed else ""
        whose = f"job {last.job_id}: " if last is not None and last.job_id else ""
        found.append(
            SourceHealth(
                name=source.name,
                kind=f"{source.trust}, {'trusted' if source.trust.trusted else 'not trusted'}",
                available=served,
                reason=first.reason if first is not None else "",
                detail=f"{share}{whose}{first.detail}" if first is not None else "",
                newest_at=last.at if last is not None else None,
            )
        )
    return found


def _of_rules(brought: BroughtRules) -> list[SourceHealth]:
    """Log rules that jobs and the site bring, when there are any: what is wrong with them is told."""
    found = []
    broken = list(brought.all_problems().values())
    if brought.named:
        detail = f"{len(broken)} of {brought.named} attempts: {broken[0]}" if broken else ""
        found.append(_of_rules_from("job-rules", "log rules of jobs", detail))
    if brought.site is not None:
        more = len(brought.site.problems) - 1
        detail = brought.site.problems[0] + (f"; {more} more" if more > 0 else "") if more >= 0 else ""
        found.append(_of_rules_from("site-rules", "log rules of the site", detail))
    return found


def _of_rules_from(name: str, kind: str, detail: str) -> SourceHealth:
    reason = UnavailableReason.GARBLED if detail else ""
    return SourceHealth(name=name, kind=kind, available=True, reason=reason, detail=detail, newest_at=None)
