"""Rank, node and GPU of a log line, from the many spellings that launchers and frameworks use.

Careful by design: 'GPU node-1 (Agent handle ...)' is no host, '[0]' after host:pid:tid is a CUDA device, 'comm 432' no
rank, and srun's label is a task, which is a rank only with one task per rank. What is not certain stays None.
"""

import re
from dataclasses import dataclass

from advisor.core.hostlist import short

RANK_MAX = 1_000_000

_HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?"
_TIME = (
    r"(?:\[?(?:task )?\d{4}[-/]\d\d[-/]\d\d[T ,]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|[+-]\d\d:?\d\d))?\]?:?"
    r"|\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}\]"
    r"|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?|\[ *\d{1,10}\.\d{3,6}\]|1[4-9]\d{8}\.\d{1,9}(?=[ \t]))"
)
# A host's name where nothing says that it is one: it has a digit, and is neither a source file nor a counter.
_NUMBERED = (
    r"(?=[\w-]{0,60}\d)(?![\w.-]{0,200}\.(?:py|pyx|cc|cpp|cu|cuh|c|h|go|rs)(?![\w.-]))"
    rf"(?!(?i:step|iter|epoch|batch|rank|attempt|try))(?P<tag>{_HOST})"
)

# Each is tried at the start of what the ones before left over, so that they can be nested in any order.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<time>{_TIME})[ \t]*",
        rf"(?P<knode>{_HOST}) kernel:[ \t]*",
        # srun --label, before a line that may be indented. A heterogeneous job's names the component, and only those
        # of the first count tasks from the job's first. What minutes follow is the time of day.
        r"(?:P0 +)?(?P<label>\d{1,7}):(?!\d\d(?:[:.,\s]|$)) *(?=\S)",
        r"P\d{1,5} +\d{1,7}: *(?=\S)",
        r"\[\d{1,10}(?:[_+]\d{1,7})?\.(?:\d{1,7}|batch|extern|interactive)\][ \t]*",  # a step, as slurmstepd logs it
        # A progress bar that something is glued to: tqdm's, keras's, rich's.
        r"[^|\n]{0,80}\|[^|\n]{0,60}\| *\d{1,9}/\d{1,9} \[[^\]\n]{0,300}\][ \t]*(?=\S)",
        r"[^|\n━]{0,80}\d{1,12}/(?:\d{1,12} (?:[━╸╺]{1,80}|\[[=>.]{30}\] -)|Unknown)[ \d:]{1,24}s? \d{1,9}[mu]?s/step"
        r"(?: - \w[\w/.@ ]{0,60}: -?(?:\d[\d.]{0,20}(?:e[-+]\d\d)?|nan|inf)){0,40}[ \t]*(?=\S)",
        r"[^\n━╸╺]{0,120}+[━╸╺]{2,400} +(?:[\d:.%/•-]{1,20} +){0,8}"
        r"(?:\d{1,9}/\d{1,9}|\d{0,5}:?\d\d:\d\d)[ \t]*(?=[A-Za-z\[])",
        r"\[(?:RANK|rank|Rank)[ :=]?(?P<rank>\d{1,7})\]:?[ \t]*",
        rf"{_NUMBERED} \[(?:RANK|rank|Rank)[ :=]?(?P<rank>\d{{1,7}})\]:[ \t]*",
        # `[gpu-3:1]: text`: some launchers give the local rank, others the global one, so that it is neither.
        rf"\[(?=[A-Za-z]){_NUMBERED}:\d{{1,7}}\]:[ \t]*",
        r"\[default(?P<local>\d{1,4})\]:?[ \t]*",  # torchrun's tee: the local rank
        r"\[\d{1,6},(?P<mpirank>\d{1,7})\]<std(?:out|err)>:[ \t]*",
        r"[A-Za-z_][\w-]{0,40}/(?P<replica>\d{1,5}) \[(?P<xlocal>\d{1,4})\]:[ \t]*",  # torchx
        r"\((?:Ray|raylet|[A-Z]\w{2,40})[\w.]{0,40} ?(?:pid=\d+)?(?:, ip=(?P<ip>[\d.]+))?\)[ \t]*",
        rf"slurmstepd(?:-(?P<stepd>{_HOST}))?: [ \t]*",
        rf"\[(?P<ucx>{_HOST}):\d+ ?:\d+:\d+\][ \t]*",
        rf"(?P<nccl>{_HOST}):\d{{1,8}}:\d{{1,8}} \[(?P<dev>-?\d{{1,3}})\][ \t]*",
        r"\[[IWEF]\d{0,4}[^\]\n]{0,80}\][ \t]*",
        r"[IWEFD]\d{3,4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]\n]{1,160}?\][ \t]*",
        r"\[PG (?:ID )?\d+[^\]\n]{0,80}?Rank (?P<pgrank>\d{1,7})\][ \t]*",
    )
)
_ALLOCATED_HOST = re.compile(rf"(?P<host>{_HOST}): ")
# pdsh's label where the allocation is unknown, or has other names than addresses: only before what is a Python error.
_LABEL = re.compile(
    rf"{_NUMBERED}: +(?=Traceback \(most recent call last\):"
    r"|(?:\w{1,40}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)(?::|$))"
)
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")

# Anywhere in the line. Only spellings that always mean the global rank of the process that printed it.
_RANKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank(\d{1,7})\]:",
        r"\[(?:rank|RANK|Rank)[ :=]{1,2}(\d{1,7})\]",
        r"\[PG ID \d+ PG GUID 0(?:\(default_pg\))? Rank (\d{1,7})\]",
        r"\[PG 0 (?:\(default_pg\) )?Rank (\d{1,7})\]",
        r"\bGLOBAL_RANK: ?(\d{1,7})\b",
        r"\bglobal_rank[=:] ?(\d{1,7})\b",
        r"\bwith rank id: ?(\d{1,7})\b",
        r"\bRank=(\d{1,7}) Node=",
        r"/replica:\d+/task:(\d{1,7})\b",
        r"\bMPICH ERROR \[Rank (\d{1,7})\]",
        r"^\[(\d{1,7})\] is setting up NCCL communicator",
        r"--local_rank=(\d{1,4})\b.* exits with return code",
        r"(?:^|[\s(\[])[Rr]ank[ :=]?(\d{1,7})[\])]?\s*$",
        r"^(?:AssertionError: )?Rank (\d{1,7}): ",
    )
)
_RANK_HINTS = ("rank", "Rank", "RANK", "/task:", "setting up NCCL")  # one of them is in every spelling above
_MPICH_NODE = re.compile(rf"MPICH ERROR \[Rank \d+\] \[job id [^\]]*\] \[[^\]]*\] \[({_HOST})\]")
_GPU = re.compile(r"\bGPU ?#?(\d{1,2})\b(?! ?[/.:%])|\bcuda:(\d{1,2})\b|\bDevice: (\d{1,2})\b")
_PCI = re.compile(r"\bPCI:(?:[0-9a-fA-F]{4,8}:)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who printed a line. `task` is srun's label, `local` a rank within its node; `body` what follows the prefixes."""

    rank: int | None = None
    task: int | None = None
    local: int | None = None
    replica: int | None = None
    node: str | None = None
    kernel: bool = False  # the text has the shape of a kernel record (which proves nothing)
    gpu: int | None = None
    pci: str = ""
    body: str = ""


def place_of(text: str, nodes: frozenset[str] | None = None) -> Place:
    """Parse one decoded line. `nodes`: the allocation, when known: allows the bare `node3: text` of pdsh and clush."""
    found: dict[str, str] = {}
    rest = text.lstrip()
    for _ in range(8):  # nested prefixes; a bound, not a limit anybody meets
        for pattern in _PREFIXES:
            match = pattern.match(rest)
            if match is not None and match.end():
                for key, value in match.groupdict().items():
                    if value is not None:
                        found.setdefault(key, value)
                rest = rest[match.end() :]
                break
        else:
            host = _ALLOCATED_HOST.match(rest) if nodes else None
            if host is not None and nodes is not None and short(host["host"]) in nodes:
                found.setdefault("host", host["host"])
                rest = rest[host.end() :]
                continue
            label = _LABEL.match(rest)
            if label is None or (nodes is not None and not _ADDRESS.fullmatch(label["tag"])):
                break
            rest = rest[label.end() :]
    if nodes is not None and short(found.get("tag", "")) in nodes:
        found.setdefault("host", found["tag"])
    return Place(
        rank=_rank(text, found),
        task=int(found["label"]) if "label" in found else None,
        local=int(found.get("local") or found["xlocal"]) if "local" in found or "xlocal" in found else None,
        replica=int(found["replica"]) if "replica" in found else None,
        node=_node(text, found),
        kernel="knode" in found,
        gpu=_gpu(rest, found),
        pci=match[1].lower() if (match := _PCI.search(rest)) else "",
        body=rest,
    )


def _rank(text: str, found: dict[str, str]) -> int | None:
    for key in ("rank", "mpirank"):
        if key in found:
            return int(found[key])
    if not any(hint in text for hint in _RANK_HINTS):
        return None
    for pattern in _RANKS:
        match = pattern.search(text)
        if match is not None:
            return int(match[1])
    # `[E socket.cpp] [Rank 3]`: c10d's own tag, global in the default group only.
    tag = re.search(r"\[Rank (\d{1,7})\]", text)
    return int(tag[1]) if tag else None


def _node(text: str, found: dict[str, str]) -> str | None:
    for key in ("knode", "nccl", "ucx", "host", "stepd"):
        if key in found:
            return short(found[key])
    match = _MPICH_NODE.search(text)
    return short(match[1]) if match else None


def _gpu(body: str, found: dict[str, str]) -> int | None:
    if found.get("dev", "-1").isdigit():
        return int(found["dev"])
    match = _GPU.search(body)
    if match is None:
        return None
    return int(next(group for group in match.groups() if group is not None))
