"""The small file from which job_submit.lua learns which nodes the advisor has isolated.

`{"v":1, "written": epoch, "nodes": [...]}`, replaced atomically. Whoever reads it takes a file that is two minutes old
for none, so that nodes are avoided at submission only while the agent lives and has looked lately.
"""

from collections.abc import Sequence
from pathlib import Path

from slurm_plugin import tick_file

NODES_MAX = 64  # more than that at once is not for every single job to avoid
REWRITE_SECONDS = 30.0


def write(path: Path, *, written: float, nodes: Sequence[str]) -> None:
    """Raises OSError. With more nodes than may be told, none are."""
    told = list(nodes) if len(nodes) <= NODES_MAX else []
    tick_file.replace(path, {"v": 1, "written": int(written), "nodes": told})
