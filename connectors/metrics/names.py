"""How metrics name a node, a GPU and a field: what both ways of getting them have in common.

`Hostname` until dcgm-exporter 4.5, `hostname` since its main branch of May 2026; node_exporter has neither, but the
`instance` that Prometheus adds. A node that is called differently there than in Slurm is no node of any attempt.
"""

import re
from collections.abc import Mapping

from advisor.core.hostlist import short
from advisor.core.measured import HOST, HOST_FIELDS

# Why a node is silent.
NOT_ANSWERING = "its exporter does not answer"
NOT_SCRAPED = "no exporter of it is scraped"
NOTHING_SHOWN = "its exporter answers and shows nothing of it"
SEVERAL = "hosts of several domains are called so: name one cluster's in `selector`"
NODE_LABELS = ("Hostname", "hostname")
INSTANCE = "instance"
_INDEX = re.compile(r"\d{1,3}")
_BUS = re.compile(r"(?i)(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}:[0-9a-f]{2})\.[0-7]")
_PORT = re.compile(r":\d{1,5}$")


def node_of(labels: Mapping[str, str], chosen: str = "") -> str:
    """The short name of the node that a series is about, "" where it tells none. `chosen`: the site's own label."""
    return short(host_of(labels, chosen))


def host_of(labels: Mapping[str, str], chosen: str = "") -> str:
    """The same with its domain, where there is one."""
    for label in (chosen,) if chosen else (*NODE_LABELS, INSTANCE):
        name = labels.get(label, "")
        if name:
            return _PORT.sub("", name)[:253]
    return ""


def address_of(labels: Mapping[str, str]) -> str:
    """Bus and device of the GPU that a series is about, as kernel lines name it: `3b:00`; "" where it tells none."""
    found = _BUS.fullmatch(labels.get("pci_bus_id", ""))
    return found[1].lower() if found is not None else ""


def unit_of(labels: Mapping[str, str], field: str) -> int | None:
    """The index of the GPU, `HOST` for what is the whole node's; None where the series does not tell."""
    if field in HOST_FIELDS:
        return HOST
    index = labels.get("gpu", "")
    return int(index) if _INDEX.fullmatch(index) else None
