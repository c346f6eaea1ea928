"""Kernel logs of nodes in Loki or VictoriaLogs, as a trusted source.

Trusted means that the kernel said it, and that is told by a label or field which only a collector sets from the
transport: journald's `_TRANSPORT=kernel`, or what our own forwarder sets. It is asked for in the query and looked for
again in every answer (`Labels.proof`); a syslog tag or facility is what its sender chose, and is refused as a proof.
Which node a line is from is told by the collector's label, never by the text.

All nodes are asked about in one question: kernels say little. A node whose kernel says nothing is no news, so what is
missing is told by the past: nodes of which the store never had a line, and a selector that never found any.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from advisor.core.hostlist import short
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Clock, LogBatch, LogRequest
from connectors.logs.store import NS, LogStore, Stream
from connectors.logs.store_reader import StoreLimits, StoreLogs, from_ns, to_ns
from connectors.web.server import AskError

SEEN_SECONDS = 7 * 86_400.0  # within which a node's kernel will have said something
LOOK_SECONDS = 300.0  # between two looks at which nodes have lines at all
LOOK_SECONDS_FAILED = 15.0
PATIENCE_SECONDS = 0.4
NAMED_MAX = 8
NEVER_SEEN = "no kernel line was ever seen for this selector: are tenant, selector and transport right?"
# What senders of syslog and programs choose, however it is written.
_NO_PROOF = """
    app appname app_name comm component detected_level facility ident identifier kind level log_level message msg name
    priority prog program programname service service_name severity source sourcetype syslog_facility syslog_identifier
    syslog_tag syslog_app_name tag unit
"""
NO_PROOF = frozenset(_NO_PROOF.split())


def proof_of(transport: str) -> tuple[str, str]:
    """`NAME=VALUE` as a proof. Raises `ValueError`, with what is wrong in words."""
    name, equals, value = transport.partition("=")
    if not equals or not name or not value:
        raise ValueError("write the label that proves the transport, and its value: _TRANSPORT=kernel")
    if name.strip("_").lower() in NO_PROOF:
        raise ValueError(
            f"{name} is what the sender of a line chose: it proves nothing, any user can log as the kernel"
        )
    return name, value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """Which nodes have lines. `several`: names that hosts of more than one domain have. `looked_at`: by the monotonic
    clock.
    """

    nodes: frozenset[str]
    several: frozenset[str]
    looked_at: float
    failed: bool = False


class KernelStoreLogs:
    """Implements `LogSource`, trust KERNEL. `store` has labels with a proof and a node, and no job."""

    trust = Trust.KERNEL

    def __init__(
        self,
        name: str,
        store: LogStore,
        *,
        clock: Clock,
        limits: StoreLimits | None = None,
        patience: float | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self._clock = clock
        self._patience = PATIENCE_SECONDS if patience is None else patience
        # What is missing is told here: that a kernel says nothing is usual.
        wanted = replace(limits or StoreLimits(), missing_seconds=1e18, quiet_seconds=1e18)
        self._logs = StoreLogs(
            name, store, clock=clock, trust=Trust.KERNEL, limits=wanted, whole=True, of_nodes=True, written=_written
        )
        self._present: _Present | None = None
        self._looking: asyncio.Task[_Present] | None = None

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        asked = [replace(request, nodes=tuple(map(short, request.nodes))) for request in requests]
        answers = dict(await self._logs.read(asked))
        await self._look()
        for request in asked:
            answers[request.key] = self._judged(request, answers[request.key])
        return answers

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._logs.close()

    def _judged(self, request: LogRequest, answer: LogBatch | Unavailable) -> LogBatch | Unavailable:
        if not request.nodes:
            return self._absent(f"{request.key}: no allocation is known, so no node's kernel log can be read")
        present = self._present
        if isinstance(answer, Unavailable) or present is None:
            return answer
        several = present.several.intersection(request.nodes)
        if several:
            # Of another cluster: no word about this one's, and whose is whose cannot be told.
            text = f"hosts of several domains are called {' '.join(sorted(several)[:NAMED_MAX])}: name one cluster's in"
            answer = replace(
                answer,
                chunks=tuple(chunk for chunk in answer.chunks if short(chunk.node or "") not in several),
                unavailable=(*answer.unavailable, self._absent(f"{text} the selector")),
            )
        if present.failed:
            return answer
        spoke = {short(chunk.node or "") for chunk in answer.chunks}
        missing = [node for node in request.nodes if node not in present.nodes and node not in spoke]
        if not missing:
            return answer
        days = SEEN_SECONDS / 86_400
        names = " ".join(missing[:NAMED_MAX]) + (f" and {len(missing) - NAMED_MAX} more" if missing[NAMED_MAX:] else "")
        absent = self._absent(
            NEVER_SEEN if not present.nodes else f"no kernel line for {days:g} days of {names}: are they collected?"
        )
        if len(missing) == len(request.nodes) and not answer.chunks and not answer.final:
            return absent
        return replace(answer, unavailable=(*answer.unavailable, absent))

    async def _look(self) -> None:
        """Which nodes have lines at all, looked at now and then and never waited for long."""
        known, now = self._present, self._clock.monotonic()
        wait = LOOK_SECONDS_FAILED if known is not None and (known.failed or not known.nodes) else LOOK_SECONDS
        if self._looking is None and (known is None or now - known.looked_at >= wait):
            self._looking = asyncio.create_task(self._count(now))
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=self._patience)
            if self._looking.done():
                looked, self._looking = self._looking, None
                self._present = looked.result()

    async def _count(self, now: float) -> _Present:
        """Raises nothing that a server can do: the questions for lines tell what is wrong with it."""
        try:
            hosts = await hosts_seen(self.store, self._clock)
        except AskError:
            known = self._present or _Present(nodes=frozenset(), several=frozenset(), looked_at=now)
            return replace(known, looked_at=now, failed=True)
        whole = Counter(short(host) for host in hosts if short(host) != host)
        several = frozenset(name for name, count in whole.items() if count > 1)
        return _Present(nodes=frozenset(map(short, hosts)), several=several, looked_at=now)

    def _absent(self, detail: str) -> Unavailable:
        return Unavailable(source=self.name, reason=UnavailableReason.MISSING, detail=detail)


async def nodes_seen(store: LogStore, clock: Clock) -> frozenset[str]:
    """Short names of the nodes of which the store has had lines. Raises `AskError`."""
    return frozenset(map(short, await hosts_seen(store, clock)))


async def hosts_seen(store: LogStore, clock: Clock) -> frozenset[str]:
    """Their names as the collectors spell them. Raises `AskError`."""
    now_ns = to_ns(clock.now())
    return frozenset(await store.counts((), now_ns - int(SEEN_SECONDS * NS), now_ns + int(LOOK_SECONDS * NS)))


def _written(ns: int, stream: Stream, text: bytes) -> bytes:
    """As syslog writes the kernel's lines: in a store the time stands beside the text."""
    at, node = from_ns(ns), short(stream.node or "")
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}+00:00 {node} kernel: ".encode() + text.replace(b"\n", b"\\n")
