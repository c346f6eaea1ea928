"""The small file from which job_submit.lua learns which nodes the advisor has isolated.

`{"v":1, "written": epoch, "nodes": [...]}`, replaced atomically. Whoever reads it takes a file that is two minutes old
for none, so that nodes are avoided at submission only while the agent lives and has looked lately.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from slurm_plugin import tick_file
from slurm_plugin.clock import Clock

log = structlog.get_logger(__name__)

NODES_MAX = 64  # more than that at once is not for every single job to avoid
REWRITE_SECONDS = 30.0


def write(path: Path, *, written: float, nodes: Sequence[str]) -> None:
    """Raises OSError. With more nodes than may be told, none are."""
    told = list(nodes) if len(nodes) <= NODES_MAX else []
    tick_file.replace(path, {"v": 1, "written": int(written), "nodes": told})


@dataclass(slots=True, kw_only=True)
class IsolatedFile:
    """Written when what it says changes, and again before it becomes old."""

    path: Path
    clock: Clock
    _nodes: tuple[str, ...] | None = None
    _due: float = 0.0
    _problem: str = field(default="")

    def tell(self, wanted: Iterable[str], known: Iterable[str]) -> None:
        """`known`: the nodes that Slurm showed at the last look. It refuses a job that names another."""
        nodes = tuple(sorted(set(wanted) & set(known)))
        now = self.clock.monotonic()
        if nodes == self._nodes and now < self._due:
            return
        try:
            write(self.path, written=self.clock.wall(), nodes=nodes)
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._problem:
                log.warning("isolated_file_unwritable", path=str(self.path), error=problem)
            self._problem = problem
            return
        self._nodes, self._due, self._problem = nodes, now + REWRITE_SECONDS, ""
