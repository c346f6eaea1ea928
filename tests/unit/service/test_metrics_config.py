"""Metrics sources in the configuration: what cannot be used is refused with its key, and what can becomes a source."""

from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.config import ConfigError, load
from advisor.metrics_sources import access_of, open_metrics
from connectors.metrics.dcgm import DcgmExporters
from connectors.metrics.prometheus import PrometheusMetrics


def written(folder: Path, text: str) -> Path:
    path = folder / "advisor.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("", "metrics[0].url", "must be given"),
        ('url = "ftp://x"', "metrics[0].url", "begin with http:// or https://"),
        ('url = "http://x:1 http://y:1"', "metrics[0].url", "one address"),
        ('url = "http://x:1"\nselector = "a} or {b"', "metrics[0].selector", "matchers"),
        ('url = "http://x:1"\nnode_label = "a b"', "metrics[0].node_label", "write a label"),
        ('url = "http://x:1"\nquestions_per_second = 50', "metrics[0].questions_per_second", "at most 5"),
        ('url = "http://x:1"\nuser = "a"', "metrics[0].user", "go together"),
        ('url = "http://x:1"\ntoken_file = "/t"', "metrics[0].url", "in the clear"),
        ('url = "https://x:1"\ncertificate_file = "/c"', "metrics[0].key_file", "go together"),
        ('url = "http://x:1"\nname = "job-output"', "logs", "two sources are named"),
        ('kind = "dcgm"\nurl = "http://x:9400/metrics"', "metrics[0].url", "%n"),
        ('kind = "dcgm"\nurl = "http://%n:9400/metrics"\nselector = "a"', "metrics[0].selector", "no meaning"),
        ('kind = "graphite"', "metrics[0].kind", "choose one of"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused_with_their_key(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    """Each problem names the key and says what to write."""
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, f"[[metrics]]\n{text}\n"), {})
    assert any(problem.key == key and message in problem.message for problem in caught.value.problems), str(
        caught.value
    )


async def test_what_is_configured_is_opened(tmp_path: Path) -> None:
    """A server and exporters, with their addresses, tenants and intervals."""
    text = """
    [[metrics]]
    url = "https://prometheus:9090"
    tenant = "team-a"
    selector = '{cluster="a",}'
    interval_seconds = 30.0
    [[metrics]]
    kind = "dcgm"
    name = "exporters"
    url = "http://%n:9400/metrics http://%n:9100/metrics"
    """
    config = load(written(tmp_path, text), {}).config
    server, exporters = open_metrics(config, SystemClock())
    assert isinstance(server, PrometheusMetrics)
    assert isinstance(exporters, DcgmExporters)
    assert (server.name, server.interval_seconds, server.blur_seconds) == ("metrics", 30.0, 60.0)
    assert ', cluster="a"}' in server.query(["node1"], host=False)
    assert access_of(config.metrics[0]).headers == {"X-Scope-OrgID": "team-a"}
    assert (exporters.name, exporters.blur_seconds) == ("exporters", 30.0)


def test_environment_variables_reach_metrics() -> None:
    """A container needs no file."""
    config = load(None, {"ADVISOR_METRICS__0__URL": "http://prometheus:9090"}).config
    assert config.metrics[0].url == "http://prometheus:9090"
