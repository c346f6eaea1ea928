"""A real Prometheus, as Debian ships it, in a folder of its own on a free port, scraping what a test exports."""

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.contract.metrics.exporter import Cluster

PROGRAM = "prometheus"
SCRAPE_MS = 200
READY_SECONDS = 30.0


@dataclass(slots=True)
class Prometheus:
    url: str
    process: "subprocess.Popen[bytes]"
    shown: Cluster

    def ask(self, query: str) -> list[dict[str, object]]:
        with urllib.request.urlopen(f"{self.url}/api/v1/query?query={urllib.request.quote(query)}", timeout=5) as got:
            found: list[dict[str, object]] = json.loads(got.read())["data"]["result"]
        return found

    def scraped(self, rounds: int = 1) -> None:
        """Wait until every node was scraped so many times from now on, and a moment for what was read to be stored."""
        seen = self.shown.scrapes
        until = {node: seen.get(node, 0) + rounds + 1 for node in self.shown.nodes}  # one may be on its way
        deadline = time.monotonic() + READY_SECONDS
        while any(seen.get(node, 0) < count for node, count in until.items()):
            assert time.monotonic() < deadline, "Prometheus does not scrape"
            time.sleep(0.02)
        time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def prometheus(shown: Cluster, *, scrape_ms: int = SCRAPE_MS) -> Iterator[Prometheus]:
    """The targets are called as the nodes' exporters would be, NODE:9400, as relabelling does on real sites."""
    targets = [
        {
            "job_name": node,
            "metrics_path": f"/{node}/metrics",
            "static_configs": [{"targets": [f"127.0.0.1:{shown.port}"]}],
            "relabel_configs": [{"target_label": "instance", "replacement": f"{node}:9400"}],
        }
        for node in shown.nodes
    ]
    settings = {
        "global": {"scrape_interval": f"{scrape_ms}ms", "scrape_timeout": f"{scrape_ms}ms"},
        "scrape_configs": targets,
    }
    with started(settings) as (url, process):
        yield Prometheus(url, process, shown)


@contextmanager
def started(
    settings: Mapping[str, object], files: Mapping[str, str] = MappingProxyType({})
) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """The program with these settings, its address and its process; `files` lie beside the settings."""
    program = shutil.which(PROGRAM)
    assert program is not None, "install the Debian package prometheus (make packages)"
    folder = Path(tempfile.mkdtemp(prefix="ra-metrics-", dir="/tmp"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _until_ready(url, process, folder / "log")
        yield url, process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
