"""The small file from which job_submit.lua learns which nodes the advisor has isolated.

`{"v":1, "written": epoch, "nodes": [...], "alike": {node: {partition: count}}}`, replaced atomically. Whoever reads it
takes a file that is two minutes old for none, so that nodes are avoided at submission only while the agent lives and
has looked lately. `alike`: nodes of the partition that could stand in for this one, itself counted. A job that could
run on it could run on any of those, so it can do without it when enough of them are left; of others nothing is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from slurm_plugin import capacity, tick_file
from slurm_plugin.clock import Clock
from slurm_plugin.records import NodeRow

log = structlog.get_logger(__name__)

NODES_MAX = 64  # more than that at once is not for every single job to avoid
REWRITE_SECONDS = 30.0


def write(path: Path, *, written: float, alike: Mapping[str, Mapping[str, int]]) -> None:
    """`alike`: of each isolated node. Raises OSError. With more nodes than may be told, none are."""
    told = dict(alike) if len(alike) <= NODES_MAX else {}
    tick_file.replace(path, {"v": 1, "written": int(written), "nodes": list(told), "alike": told})


@dataclass(slots=True, kw_only=True)
class IsolatedFile:
    """Written when what it says changes, and again before it becomes old."""

    path: Path
    clock: Clock
    _alike: Mapping[str, Mapping[str, int]] | None = None
    _due: float = 0.0
    _problem: str = field(default="")

    def tell(self, wanted: Iterable[str], known: Sequence[NodeRow]) -> None:
        """`known`: the nodes that Slurm showed at the last look. It refuses a job that names another."""
        names = set(wanted)
        alike = {node.name: capacity.alike(node, known) for node in known if node.name in names}
        now = self.clock.monotonic()
        if alike == self._alike and now < self._due:
            return
        try:
            write(self.path, written=self.clock.wall(), alike=alike)
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._problem:
                log.warning("isolated_file_unwritable", path=str(self.path), error=problem)
            self._problem = problem
            return
        self._alike, self._due, self._problem = alike, now + REWRITE_SECONDS, ""
