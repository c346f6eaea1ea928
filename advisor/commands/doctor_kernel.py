"""What `advisor doctor` says of kernel logs in files: those of all nodes, whether or not a job runs there.

The service opens a node's file only while it watches a job on it, so that a file which anybody may write, or a path
that leads nowhere, would show with the first failure only.
"""

import pwd
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from advisor.commands.doctor_metrics import Finding
from advisor.commands.service_user import how_to_give, kept_from
from advisor.core.amounts import many
from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import LogRequest
from advisor.wording import TO_DO_ABOUT
from connectors.kernel.files import KernelFileLogs

NODES_MAX = 2_000  # whose files are opened
_BYTES_MAX = 4_096
_TO_DO_NOTHING_THERE = (
    "see path, and what writes there; run doctor where Slurm's tools work to hear of nodes without a file"
)


async def look_at_kernel_files(
    sources: Sequence[KernelFileLogs], nodes: Sequence[str], service: pwd.struct_passwd | None, now: datetime
) -> list[Finding]:
    """Each source's file of each node, opened with every check that reading has.

    `nodes`: all that Slurm knows; empty where that is not known here, and then the files that are there are looked at.
    `service`: who it runs as.
    """
    findings: list[Finding] = []
    for source in sources:
        looked_at = (nodes or _with_files(source))[:NODES_MAX]
        if not looked_at:
            found = f"{source.name}: no node's file is seen at {source.path_of('%n')}"
            findings.append(Finding(found=found, to_do=_TO_DO_NOTHING_THERE))  # and there may be no node
            continue
        answers = await source.read([_request(node, now) for node in looked_at])
        kept: dict[str, Unavailable] = {}
        for node in looked_at:
            answer = answers[node]
            missing = answer if isinstance(answer, Unavailable) else next(iter(answer.unavailable), None)
            if missing is not None:
                kept[node] = missing
        findings += _judged(source, looked_at, kept, service)
    return findings


def _with_files(source: KernelFileLogs) -> list[str]:
    try:
        return source.nodes_with_files()
    except OSError:
        return []


def _request(node: str, now: datetime) -> LogRequest:
    """What is older than `now` is not wanted: files are opened, and not read."""
    return LogRequest(
        key=node,
        job_id="",
        attempt=0,
        user="",
        paths=(),
        nodes=(node,),
        started_at=now,
        ended_at=None,
        cursor="",
        bytes_max=_BYTES_MAX,
    )


def _judged(
    source: KernelFileLogs,
    nodes: Sequence[str],
    kept: Mapping[str, Unavailable],
    service: pwd.struct_passwd | None,
) -> Iterator[Finding]:
    well = [node for node in nodes if node not in kept]
    for reason in sorted({missing.reason for missing in kept.values()}):
        of = [node for node in nodes if node in kept and kept[node].reason is reason]
        share = f"{len(of)} of {many(len(nodes), 'node')}"
        # A node that never was up has written nothing; where no node has, the path is wrong.
        broken = reason is not UnavailableReason.MISSING or not well
        found = f"{source.name}: {share}: {reason}: {kept[of[0]].detail}"
        yield Finding(found=found, to_do=TO_DO_ABOUT.get(reason, "see the text above"), broken=broken)
    if not well:
        return
    example = Path(source.path_of(well[0]))
    if service is not None and kept_from(service, example):
        found = f"{source.name}: {service.pw_name}, who the service runs as, cannot read {example}"
        yield Finding(found=found, to_do=how_to_give(service, example), broken=True)
    elif not kept:
        yield Finding(found=f"{source.name}: the files of {many(len(well), 'node')} can be read, such as {example}")
