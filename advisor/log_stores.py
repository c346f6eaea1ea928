"""Log stores as configured: from a `[[logs]]` table to a source. Part of the composition root."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from advisor.config import ConfigError, LogsSection, Problem
from advisor.core.line_filter import LineFilter, line_filter
from advisor.ports import Clock
from advisor.rules.loader import RulesError, load_rules
from connectors.logs.loki import Loki
from connectors.logs.store import Labels, LogStore
from connectors.logs.store_reader import StoreLimits, StoreLogs
from connectors.logs.victorialogs import VictoriaLogs
from connectors.web.access import Access
from connectors.web.pacing import Pace
from connectors.web.server import Server


def open_log_store(section: LogsSection, rules_files: Sequence[Path], clock: Clock) -> StoreLogs:
    """Raises `ConfigError` for what only the parts themselves can tell."""
    server = Server(access_of(section), clock=clock, pace=pace_of(section, clock))
    try:
        store = _store(section, server, _filter(rules_files) if section.push_down else None)
    except ValueError as error:
        raise ConfigError((Problem(key="logs", message=str(error), origin=section.name),)) from None
    limits = StoreLimits(overlap_seconds=section.overlap_seconds, settle_seconds=section.settle_seconds)
    return StoreLogs(section.name, store, clock=clock, limits=limits)


def pace_of(section: LogsSection, clock: Clock) -> Pace:
    return Pace(clock, per_second=section.questions_per_second, burst=max(1.0, section.questions_per_second))


def access_of(section: LogsSection) -> Access:
    return Access(
        url=section.url,
        headers=_tenant(section),
        user=section.user,
        password_file=section.password_file,
        token_file=section.token_file,
        ca_file=section.ca_file,
        certificate_file=section.certificate_file,
        key_file=section.key_file,
        timeout_seconds=section.timeout_seconds,
    )


def _tenant(section: LogsSection) -> dict[str, str]:
    if not section.tenant:
        return {}
    if section.kind == "victorialogs":
        account, _, project = section.tenant.partition(":")
        return {"AccountID": account, "ProjectID": project}
    return {"X-Scope-OrgID": section.tenant}


def _store(section: LogsSection, server: Server, chosen: LineFilter | None) -> LogStore:
    labels = Labels(
        job=section.job_label,
        node=section.node_label,
        rank=section.rank_label,
        sequence=section.sequence_label,
        indexed=section.job_label_indexed,
    )
    match section.kind:
        case "loki":
            return Loki(server, selector=section.selector, labels=labels, chosen=chosen)
        case "victorialogs":
            return VictoriaLogs(server, selector=section.selector, labels=labels, chosen=chosen)
        case "files":
            raise ValueError("files are no store")
        case _:
            assert_never(section.kind)


def _filter(rules_files: Sequence[Path]) -> LineFilter:
    try:
        return line_filter(load_rules(tuple(rules_files)).rules)
    except RulesError as error:
        problems = tuple(Problem(key="rules_files", message=text, origin="rules") for text in error.problems)
        raise ConfigError(problems) from None
