"""What we ship for Prometheus and Grafana, on a real Prometheus that scrapes our own instruments."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from prometheus_client import generate_latest

from advisor.clock import SystemClock
from advisor.core.words import AttemptState
from advisor.instruments import Instruments
from advisor.sighting import Sighting
from advisor.store.records import AttemptKey, MilestoneKind
from tests.contract.metrics.exporter import QuietServer
from tests.contract.metrics.real import started

HERE = Path(__file__).parents[3]
RULES = HERE / "deploy/prometheus/recovery-advisor.rules.yaml"
DASHBOARD = HERE / "deploy/grafana/recovery-advisor.json"
SECONDS = 30.0


class Exporter:
    """Serves a registry until it is told to be down."""

    def __init__(self, instruments: Instruments) -> None:
        self.instruments = instruments
        self.down = False
        self.scrapes = 0
        shown = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if shown.down:
                    self.send_error(500)
                    return
                shown.scrapes += 1
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(generate_latest(shown.instruments.registry))

            def log_message(self, *_: object) -> None:
                pass

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def scraped(self, rounds: int = 3) -> None:
        until = self.scrapes + rounds
        _until(lambda: self.scrapes >= until, "Prometheus does not scrape")


def _until(holds: Callable[[], bool], else_: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, else_
        time.sleep(0.05)


@contextmanager
def monitored() -> Iterator[tuple[Exporter, Callable[[str], list[Any]], Callable[[], set[str]]]]:
    """An exporter, what Prometheus answers to a query, and the alerts that fire; no rule waits before it does."""
    exporter = Exporter(Instruments(SystemClock(), version="1", build="b"))
    thread = threading.Thread(target=exporter.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    settings = {
        "global": {"scrape_interval": "100ms", "scrape_timeout": "100ms", "evaluation_interval": "100ms"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {
                "job_name": "recovery-advisor",
                "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}],
            }
        ],
    }
    rules = re.sub(r"^ *for: .*\n", "", RULES.read_text(), flags=re.MULTILINE)
    try:
        with started(settings, {"rules.yaml": rules}) as (url, _):

            def get(path: str) -> Any:
                with urllib.request.urlopen(url + path, timeout=5) as answer:
                    return json.loads(answer.read())["data"]

            def ask(query: str) -> list[Any]:
                found: list[Any] = get(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")["result"]
                return found

            def firing() -> set[str]:
                alerts = get("/api/v1/alerts")["alerts"]
                return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

            yield exporter, ask, firing
    finally:
        exporter.server.shutdown()
        exporter.server.server_close()
        thread.join()


def make_well(instruments: Instruments) -> None:
    now = SystemClock().now().timestamp()
    instruments.channel("ops")
    instruments.sighted([])
    instruments.sighted([sighting(0, AttemptState.RUNNING)])
    instruments.tick_age.set(0.4)
    instruments.store_up.set(1)
    instruments.source_up.labels("job-files").set(1)
    instruments.open_incidents.set(0)
    instruments.open_advice.labels("alps").set(0)
    instruments.isolated.labels("alps").set(0)
    instruments.breaker.labels("alps").set(0)
    instruments.paused.labels("alps").set(0)
    instruments.autonomous.set(1)
    instruments.agent_seen.labels("alps", "ctl").set(now)
    instruments.agent_acts.labels("alps", "ctl").set(1)
    instruments.agent_stopped.labels("alps", "ctl").set(0)
    instruments.tick_completed(0.01, watched=3, failing=0)
    with instruments.stage("gather"):
        pass
    instruments.source_answered("job-files", 0.01, {})


def sighting(number: int, state: AttemptState) -> Sighting:
    """As much of one as is looked at: an attempt of job `number`."""
    now = SystemClock().now() + timedelta(seconds=1)
    key = AttemptKey(job_key=f"j{number}", number=0)
    attempt = SimpleNamespace(state=state, submitted_at=now, ended_at=now if state.ended else None)
    item = SimpleNamespace(key=key, job=SimpleNamespace(cluster="alps"), attempt=attempt, milestones={})
    return cast(Sighting, SimpleNamespace(item=item))


def make_ill(instruments: Instruments) -> None:
    """Everything that can be wrong at once, but for the scrape itself."""
    now = SystemClock().now()
    instruments.tick_age.set(90)
    instruments.replicas_lost.set(1)
    for number in range(50):
        instruments.tick_completed(20, watched=3, failing=1)
        key = AttemptKey(job_key="slow", number=number)
        late = now + timedelta(seconds=100)
        instruments.reached("alps", key, {MilestoneKind.FAULT_VISIBLE: now, MilestoneKind.DETECTED: late})
    instruments.store_up.set(0)
    instruments.source_up.labels("job-files").set(0)
    instruments.agent_seen.labels("alps", "ctl").set(now.timestamp() - 600)
    instruments.agent_acts.labels("alps", "ctl").set(0)
    instruments.agent_stopped.labels("alps", "ctl").set(1)
    instruments.breaker.labels("alps").set(1)
    instruments.paused.labels("alps").set(1)
    instruments.reconciled("withheld", "scheduler_refused")
    instruments.notified("ops", "given_up")
    for _ in range(10):
        instruments.seal_failed()
    instruments.sighted([sighting(number, AttemptState.NODE_FAILURE) for number in range(100, 200)])


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    """A healthy service raises none; each rule that we ship is raised by what it is there for."""
    wanted = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    with monitored() as (exporter, _, firing):
        make_well(exporter.instruments)
        exporter.scraped(10)
        assert firing() - {"RecoveryAdvisorDown"} == set()
        _until(lambda: firing() == set(), "an alert of a healthy service stays")
        make_ill(exporter.instruments)
        _until(
            lambda: firing() == wanted - {"RecoveryAdvisorDown"},
            f"not raised: {sorted(wanted - firing() - {'RecoveryAdvisorDown'})}",
        )
        exporter.down = True
        _until(lambda: "RecoveryAdvisorDown" in firing(), "not raised: RecoveryAdvisorDown")


def test_every_query_of_the_dashboard_finds_what_we_export() -> None:
    """Prometheus understands each panel's query, and each metric that it names is one of ours."""
    queries = [
        (panel["title"], target["expr"])
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(queries) > 30
    with monitored() as (exporter, ask, _):
        make_well(exporter.instruments)
        exporter.scraped()
        exported = set(re.findall(r"^([a-z_]+)", generate_latest(exporter.instruments.registry).decode(), re.MULTILINE))
        described = {family.name for family in exporter.instruments.registry.collect()}
        for title, query in queries:
            plain = query.replace("$__rate_interval", "5m").replace("$cluster", ".*")
            ask(plain)  # a query that is not understood is answered with an error
            for name in re.findall(r"\b(?:recovery_advisor|process)_[a-z_]+", plain):
                base = re.sub(r"_(bucket|total)$", "", name)
                assert name in exported or base in described, f"{title}: nobody exports {name}"


def test_prometheus_own_checker_takes_the_rules() -> None:
    """promtool finds no fault, and each rule has a severity and tells people what it means."""
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("install the Debian package prometheus (make test-packages)")
    subprocess.run([program, "check", "rules", str(RULES)], check=True, capture_output=True, timeout=30)
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
            assert {"summary", "description"} <= rule["annotations"].keys()
