"""An exporter in dcgm-exporter's own text format (and node_exporter's), written by the tests: no GPU is needed.

It serves `/NODE/metrics` for every node, as the exporters of a cluster would at `NODE:9400`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

# What dcgm-exporter exports without being told to, as far as it matters here.
DEFAULTS = {
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_POWER_USAGE": 640.0,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0.0,
    "DCGM_FI_DEV_GPU_UTIL": 98.0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.6,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
}
XID = "DCGM_FI_DEV_XID_ERRORS"


@dataclass(slots=True)
class Gpu:
    """`jobs`: one series per job that the site maps to the GPU. `gone`: it has no values, and is left out."""

    values: dict[str, float] = field(default_factory=lambda: dict(DEFAULTS))
    xid_text: str = ""
    jobs: tuple[str, ...] = ()
    gone: bool = False


@dataclass(slots=True)
class Cluster:
    """`labels`: how this release of the exporter calls the node, and its domain; `Hostname` and none otherwise."""

    nodes: dict[str, list[Gpu]]
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)
    host: dict[str, dict[str, float]] = field(default_factory=dict)  # node_exporter's values, by node
    down: set[str] = field(default_factory=set)  # exporters that do not answer
    port: int = 0
    scrapes: dict[str, int] = field(default_factory=dict)  # so far, by node

    def reset(self) -> bool:
        """All nodes answer, and all GPUs compute. False: that was so already."""
        well, gpus = Gpu(), [gpu for gpus in self.nodes.values() for gpu in gpus]
        if all(gpu == well for gpu in gpus) and not (self.labels or self.host or self.down):
            return False
        for gpu in gpus:
            gpu.values, gpu.xid_text, gpu.jobs, gpu.gone = dict(DEFAULTS), "", (), False
        self.labels.clear()
        self.host.clear()
        self.down.clear()
        return True

    def xid(self, node: str, gpu: int, code: int) -> None:
        """A GPU meets an Xid: value and labels change, and so the series."""
        found = self.nodes[node][gpu]
        found.values[XID] = float(code)
        found.xid_text = f'err_code="{code}",err_msg="Some words, with a comma and \\"quotes\\""'

    def text(self, node: str) -> bytes:
        """One exporter's answer."""
        lines: list[str] = []
        names = sorted({name for gpu in self.nodes[node] for name in gpu.values})
        for name in names:
            lines += [f"# HELP {name} Some help.", f"# TYPE {name} gauge"]
            for index, gpu in enumerate(self.nodes[node]):
                if gpu.gone or name not in gpu.values:
                    continue
                label, domain = self.labels.get(node, ("Hostname", ""))
                host = f'{label}="{node}{domain}",' if label else ""
                labels = (
                    f'gpu="{index}",UUID="GPU-{node}-{index}",pci_bus_id="00000000:4{index}:00.0",'
                    f'device="nvidia{index}",modelName="NVIDIA H200",{host}DCGM_FI_DRIVER_VERSION="570.86.15"'
                )
                if name == XID and gpu.xid_text:
                    labels += f",{gpu.xid_text}"
                lines += [
                    f"{name}{{{labels}{more}}} {gpu.values[name]:g}"
                    for more in ([f',hpc_job="{job}"' for job in gpu.jobs] or [""])
                ]
        for name, value in sorted(self.host.get(node, {}).items()):
            lines += [f"# TYPE {name.partition('{')[0]} counter", f"{name} {value:g}"]
        return ("\n".join(lines) + "\n").encode()


def cluster(nodes: int = 4, gpus: int = 8, **values: float) -> Cluster:
    """Healthy, computing."""
    return Cluster(
        nodes={f"node{n}": [Gpu(values={**DEFAULTS, **values}) for _ in range(gpus)] for n in range(1, nodes + 1)}
    )


class QuietServer(ThreadingHTTPServer):
    """A scraper that gave up is no news. Python 3.11 reads source lines with `ast` to print a trace, and a thread that
    does so breaks whoever uses `ast` at that moment (SystemError: AST constructor recursion depth mismatch).
    """

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def exporting(shown: Cluster) -> Iterator[str]:
    """Serve until left; gives the address, `http://127.0.0.1:PORT`, under which each node has a folder."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            node = self.path.strip("/").partition("/")[0]
            known = node in shown.nodes and node not in shown.down
            body = shown.text(node) if known else b"not here"
            shown.scrapes[node] = shown.scrapes.get(node, 0) + 1
            self.send_response(200 if known else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = QuietServer(("127.0.0.1", shown.port), Handler)
    server.daemon_threads, server.block_on_close = True, False  # Prometheus keeps its connections
    shown.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{shown.port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
