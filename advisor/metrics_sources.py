"""Metrics sources as configured: from a `[[metrics]]` table to a source. Part of the composition root."""

from collections.abc import Sequence
from typing import assert_never

from advisor.config import Config, ConfigError, MetricsSection, Problem
from advisor.ports import Clock, MetricsSource
from connectors.metrics.dcgm import AT_ONCE, DcgmExporters
from connectors.metrics.prometheus import PrometheusMetrics
from connectors.web.access import Access
from connectors.web.pacing import Pace
from connectors.web.server import Server


def open_metrics(config: Config, clock: Clock) -> Sequence[MetricsSource]:
    """Raises `ConfigError` for what only the parts themselves can tell."""
    sources = []
    for section in config.metrics:
        try:
            sources.append(_source(section, clock))
        except ValueError as error:
            raise ConfigError((Problem(key="metrics", message=str(error), origin=section.name),)) from None
    return tuple(sources)


def access_of(section: MetricsSection) -> Access:
    return Access(
        url=section.url,
        headers={"X-Scope-OrgID": section.tenant} if section.tenant else {},
        user=section.user,
        password_file=section.password_file,
        token_file=section.token_file,
        ca_file=section.ca_file,
        certificate_file=section.certificate_file,
        key_file=section.key_file,
        timeout_seconds=section.timeout_seconds,
    )


def _source(section: MetricsSection, clock: Clock) -> MetricsSource:
    match section.kind:
        case "prometheus":
            pace = Pace(clock, per_second=section.questions_per_second, burst=max(1.0, section.questions_per_second))
            return PrometheusMetrics(
                section.name,
                Server(access_of(section), clock=clock, pace=pace),
                interval_seconds=section.interval_seconds,
                collect_seconds=section.collect_seconds,
                selector=section.selector,
                node_label=section.node_label,
            )
        case "dcgm":
            # Many servers, each asked once per interval: what bounds the load is that, not a pace over all of them.
            pace = Pace(clock, per_second=1e6, burst=1e6)
            return DcgmExporters(
                section.name,
                Server(access_of(section), clock=clock, pace=pace, connections_max=AT_ONCE),
                clock=clock,
                urls=section.url.split(),
                interval_seconds=section.interval_seconds,
                collect_seconds=section.collect_seconds,
            )
        case _:
            assert_never(section.kind)
