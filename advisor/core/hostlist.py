"""Slurm hostlists, `node[01-03,7],login1`, to names and back; and the short name of a host.

The implementation is the agent's, which is pure and standard library only (docs/decisions/0002-one-slurm-reader.md).
Expansion is bounded: a hostlist from a job's own text may ask for a billion names.
"""

from slurm_plugin.hostlist import HostlistError as HostlistError
from slurm_plugin.hostlist import expand as expand
from slurm_plugin.hostlist import fold as fold


def short(name: str) -> str:
    """The host's short name: `node22.cluster.internal` is Slurm's `node22`. Addresses stay whole."""
    if name.replace(".", "").isdigit() or ":" in name:
        return name
    return name.partition(".")[0]
