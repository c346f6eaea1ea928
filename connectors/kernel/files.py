"""Kernel logs in one file per node, as a trusted source: `/var/log/kernel/<node>.log`.

Trusted means that only root could have put a line there. That rests on how the file is written (docs/sources.md: from
/dev/kmsg or journald's kernel transport, one file per sending host, never by syslog tag) and on what is checked here
at every read: the file and its folder belong to root or a configured owner, nobody else can write either, and the
last part of the path is no link. Which node a line is from is told by the file's name, never by the text.

Reading begins a bounded piece before the end, at a line start: an Xid may have been written shortly before the attempt
was first looked at. These bytes are marked `backlog`. A file that was not written since the attempt started has none.
After the attempt's end lines are delivered for `late_seconds` more, then the batch is `final`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Clock, LogBatch, LogRequest
from connectors.logs.opening import Access, RefusedError, check_path
from connectors.logs.source import FileReader, Plan, ReadLimits, Tails
from connectors.logs.tail import Tail

# A host name label: what a node may be called in a file name. No dot, so never "..", and no slash.
NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62})")


class KernelFileLogs:
    """Implements `LogSource`, trust KERNEL. `path` is absolute and holds `%n` once or more."""

    trust = Trust.KERNEL

    def __init__(
        self,
        name: str = "kernel",
        *,
        clock: Clock,
        path: str = "/var/log/kernel/%n.log",
        owners: Sequence[int] = (0,),
        owner_name: str = "root",
        backlog_bytes: int = 256 * 1024,
        late_seconds: float = 30.0,
        limits: ReadLimits | None = None,
    ) -> None:
        if "%n" not in path.rsplit("/", 1)[-1]:
            raise ValueError(f"kernel log path {path!r}: the file name must hold %n, the node's name")
        try:
            check_path(path)
        except RefusedError as why:
            raise ValueError(f"kernel log {why.detail}") from why
        self.name = name
        self._clock = clock
        self._path = path
        self._access = Access(owners=frozenset(owners), owner_name=owner_name, sealed=True)
        self._backlog_bytes = backlog_bytes
        self._late_seconds = late_seconds
        self._reader = FileReader(name, plan=self._plan, clock=clock, limits=limits or ReadLimits())

    def path_of(self, node: str) -> str:
        return self._path.replace("%n", node)

    def nodes_with_files(self) -> list[str]:
        """By the names of the files that are there. Raises OSError where they cannot be listed."""
        path = Path(self._path)
        name = re.escape(path.name).replace("%n", f"(?P<node>{NODE_NAME.pattern})", 1).replace("%n", "(?P=node)")
        found = (re.fullmatch(name, entry.name) for entry in path.parent.iterdir())
        return sorted(match["node"] for match in found if match is not None)

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        return await self._reader.read(requests)

    async def close(self) -> None:
        await self._reader.close()

    def _plan(self, request: LogRequest) -> Plan | Unavailable:
        nodes: dict[str, str] = {}
        refused: list[Unavailable] = []
        for node in request.nodes:
            if NODE_NAME.fullmatch(node):
                nodes[self.path_of(node)] = node
            else:
                text = f"node name {node[:80]!r} refused: letters, digits, '-' and '_' are expected"
                refused.append(Unavailable(source=self.name, reason=UnavailableReason.REFUSED, detail=text))
        if not nodes:
            text = f"{request.key}: no allocation is known, so no node's kernel log can be read"
            return refused[0] if refused else self._nothing(text)
        return Plan(
            paths=tuple(nodes),
            owner="",
            unavailable=tuple(refused),
            tails=lambda paths, cursor, before: Tails(
                paths=paths,
                tail=lambda path: Tail(
                    path=path,
                    access=self._access,
                    now=self._clock.now(),
                    started_at=request.started_at,
                    ended_at=request.ended_at,
                    backlog_bytes=self._backlog_bytes,
                    late_seconds=self._late_seconds,
                    node=nodes[path],
                ),
            ),
        )

    def _nothing(self, detail: str) -> Unavailable:
        return Unavailable(source=self.name, reason=UnavailableReason.MISSING, detail=detail)
