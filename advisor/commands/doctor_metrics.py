"""What `advisor doctor` says about metrics: asked for real, and what is missing by what it would have shown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.core.amounts import many
from advisor.core.measured import (
    CLOCK,
    NVLINK,
    PCIE_REPLAY,
    POWER,
    TENSOR,
    THROTTLE,
    THROTTLE_NEW,
    UTILISATION,
    XID,
)
from advisor.core.model import Unavailable
from advisor.core.policy import Policy
from advisor.core.words import Category
from advisor.ports import MetricsSeen, MetricsSource

OLD_SECONDS = 120.0
TO_DO_ABOUT: Mapping[str, str] = {
    "permission": "see user, password_file, token_file and the certificates of this source",
    "missing": "selector, node_label and tenant must fit the series of dcgm-exporter and node_exporter",
    "timeout": "the server does not answer in time: look at it, or at timeout_seconds",
    "refused": "is url right, and the server running? Its own words are above",
    "not_configured": "see url: the server knows no such address",
    "garbled": "is url that of the server itself, and not of a page in front of it?",
    "limit": "the server is at its limits: it is left alone for a while, and asked for less",
    "stale": "look at the exporters of these nodes, and whether they are scraped",
}
# What a field shows; of several names one is enough. Those that dcgm-exporter leaves out by default are among them.
SHOWS: Sequence[tuple[tuple[str, ...], str]] = (
    ((XID,), "Xids"),
    (("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",), "uncorrectable memory errors"),
    (("DCGM_FI_DEV_ROW_REMAP_FAILURE",), "rows that could not be replaced"),
    (("DCGM_FI_DEV_ROW_REMAP_PENDING",), "GPUs that wait for a reset"),
    ((UTILISATION,), "busy and idle GPUs"),
    ((TENSOR,), "GPUs that are busy without computing"),
    ((POWER,), "GPUs that draw too little power"),
    ((CLOCK,), "GPUs whose clock is too low"),
    ((THROTTLE, THROTTLE_NEW), "GPUs that their hardware slows down"),
    ((PCIE_REPLAY,), "failing PCIe links"),
    ((NVLINK,), "NVLinks that carry too little"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of doctor's. `to_do` is empty when it is well; `broken`: the source cannot be used as it is."""

    found: str
    to_do: str = ""
    broken: bool = False


async def look_at_metrics(
    sources: Iterable[MetricsSource], nodes: Sequence[str], policy: Policy, now: datetime
) -> list[Finding]:
    """Each source asked for real. `nodes`: some that Slurm knows."""
    findings: list[Finding] = []
    for source in sources:
        seen = await source.look(nodes)
        if isinstance(seen, Unavailable):
            text = f"{source.name}: {seen.reason}: {seen.detail}"
            findings.append(Finding(found=text, to_do=TO_DO_ABOUT.get(seen.reason, ""), broken=True))
        else:
            findings += _judged(source, seen, nodes, policy, now)
    return findings


def _judged(
    source: MetricsSource, seen: MetricsSeen, nodes: Sequence[str], policy: Policy, now: datetime
) -> Iterator[Finding]:
    name = source.name
    if not seen.gpus:
        to_do = "is dcgm-exporter scraped by this server? selector, node_label and tenant must fit its series"
        yield Finding(found=f"{name}: answers, and has no GPU", to_do=to_do, broken=True)
        return
    age = (now - seen.newest_at).total_seconds() if seen.newest_at is not None else None
    every = f", one every {seen.interval_seconds:.0f} s" if seen.interval_seconds is not None else ""
    gpus = f"{many(seen.gpus, 'GPU')} of {many(len(seen.nodes), 'node')}"
    text = f"{name}: {gpus}{every}, the newest sample {age or 0:.0f} s old"
    old = age is not None and age > OLD_SECONDS
    yield Finding(found=text, to_do="nothing new comes: look at the exporters and at what scrapes them" if old else "")
    yield from _intervals(source, seen, policy)
    known = [node for node in nodes if node in seen.nodes]
    if nodes and not known:
        examples = f"{seen.nodes[0] if seen.nodes else '?'} there, {nodes[0]} in Slurm"
        to_do = "node_label must name the label that holds the node's name as Slurm spells it"
        yield Finding(found=f"{name}: no node has a name that Slurm knows: {examples}", to_do=to_do, broken=True)
    bare = [node for node in nodes if node not in seen.nodes]
    if known and bare:
        names = " ".join(bare[:8]) + (f" and {len(bare) - 8} more" if bare[8:] else "")
        yield Finding(found=f"{name}: GPUs of {len(known)} of the {len(nodes)} nodes looked at; none of {names}")
    missing = [(fields[0], what) for fields, what in SHOWS if not seen.fields & set(fields)]
    if missing:
        lost = "; ".join(what for _, what in missing)
        to_do = f"add to dcgm-exporter's list of fields (-f): {' '.join(field for field, _ in missing)}"
        yield Finding(found=f"{name}: not exported, so not seen: {lost}", to_do=to_do)


def _intervals(source: MetricsSource, seen: MetricsSeen, policy: Policy) -> Iterator[Finding]:
    told = seen.interval_seconds
    if told is not None and not 0.5 <= told / source.interval_seconds <= 1.5:
        text = f"{source.name}: scraped every {told:.0f} s, and interval_seconds is {source.interval_seconds:g}"
        yield Finding(found=text, to_do=f"set interval_seconds = {told:.0f}: what a sample may hide follows from it")
    needed = source.interval_seconds + source.blur_seconds
    settle = policy.settle_seconds[Category.GPU_HARDWARE]
    if settle < needed:
        text = f"{source.name}: an Xid may show {needed:.0f} s after the end, and evidence settles in {settle:g} s"
        to_do = f"[settle_seconds] of the policy: {needed:.0f} for gpu_hardware, application, unknown, if delays allow"
        yield Finding(found=text, to_do=to_do)
