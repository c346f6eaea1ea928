"""Log stores as configured: from a `[[logs]]` table to a source, and what a look at one shows. Part of the composition
root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from advisor.config import AttributionSection, ConfigError, KernelSection, LogsSection, Problem, StoreLimitsSection
from advisor.core.amounts import many
from advisor.core.line_filter import LineFilter, line_filter
from advisor.core.words import UnavailableReason
from advisor.ports import Clock
from advisor.rules.loader import RulesError, load_rules
from connectors.kernel.stores import KernelStoreLogs, nodes_seen, proof_of
from connectors.logs.loki import Loki
from connectors.logs.store import NS, Labels, LogStore
from connectors.logs.store_reader import EVER_SECONDS, StoreLimits, StoreLogs, from_ns, to_ns
from connectors.logs.victorialogs import VictoriaLogs
from connectors.web.access import Access
from connectors.web.pacing import Pace
from connectors.web.server import AskError, Server

# How long after it took a line a store may show it: Loki within milliseconds, VictoriaLogs within five seconds. Clocks
# of nodes differ besides. What is later than that waits for the next sweep.
NEAR_SECONDS = {"loki": 3.0, "victorialogs": 10.0}
LOOK_SECONDS = 3_600.0
KERNEL_LATE_SECONDS = 30.0  # after an attempt's end its nodes' kernels may still tell why
STALE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen of one store, in words. `to_do` is empty when it is well; `answers`: it is there at all."""

    found: str
    to_do: str = ""
    answers: bool = True


def open_log_store(section: LogsSection, rules_files: Sequence[Path], clock: Clock) -> StoreLogs:
    """Raises `ConfigError` for what only the parts themselves can tell."""
    limits = StoreLimits(
        overlap_seconds=section.overlap_seconds,
        settle_seconds=section.settle_seconds,
        near_seconds=NEAR_SECONDS[section.kind],
    )
    store = store_of(section, clock, _filter(rules_files) if section.push_down else None)
    return StoreLogs(section.name, store, clock=clock, limits=limits)


def open_kernel_store(section: KernelSection, clock: Clock, *, by_hand: bool = False) -> KernelStoreLogs:
    """Kernel logs of nodes. Raises `ConfigError` for what only the parts themselves can tell."""
    limits = StoreLimits(
        overlap_seconds=section.overlap_seconds,
        settle_seconds=KERNEL_LATE_SECONDS,
        near_seconds=NEAR_SECONDS[section.kind],
        patience_seconds=section.timeout_seconds if by_hand else StoreLimits().patience_seconds,
    )
    patience = section.timeout_seconds if by_hand else None
    return KernelStoreLogs(section.name, kernel_store_of(section, clock), clock=clock, limits=limits, patience=patience)


def open_whole_store(section: LogsSection, clock: Clock) -> StoreLogs:
    """For a person who waits: every line, and no answer before the store's own time is over. Raises `ConfigError`."""
    limits = StoreLimits(
        overlap_seconds=section.overlap_seconds,
        settle_seconds=section.settle_seconds,
        patience_seconds=section.timeout_seconds,
    )
    return StoreLogs(section.name, store_of(section, clock, None), clock=clock, limits=limits)


async def look_at_store(section: LogsSection, clock: Clock) -> Look:
    """Ask for real: streams, jobs, nodes and the age of the newest line. Raises `ConfigError`."""
    store = store_of(section, clock, None)
    now = clock.now()
    try:
        seen = await store.look(to_ns(now) - int(LOOK_SECONDS * NS), to_ns(now) + int(STALE_SECONDS * NS))
        ever = bool(seen.lines) or await store.anything(to_ns(now) - int(EVER_SECONDS * NS), to_ns(now))
    except AskError as error:
        return _no_answer(error)
    finally:
        await store.close()
    if not seen.lines or seen.newest_ns is None:
        return _nothing(ever)
    age = max(0.0, (now - from_ns(seen.newest_ns)).total_seconds())
    parts = [many(seen.streams, "stream"), many(seen.jobs, "job")]
    if section.node_label:
        parts.append(many(seen.nodes, "node"))
    parts.append(f"newest line {age:.0f} s old")
    labels = [(section.job_label, seen.of_job), *([(section.node_label, seen.of_node)] if section.node_label else [])]
    parts.extend(f"{_share(count, seen.lines)} of the lines have {label}" for label, count in labels)
    if seen.page_lines is not None:
        parts.append(f"{seen.page_lines} lines a page")
    found = ", ".join(parts)
    if seen.notes:
        return Look(found=f"{found}; {seen.notes[0]}", to_do="correct job_label")
    if age > STALE_SECONDS:
        return Look(found=found, to_do="see whether the collectors on the nodes still ship")
    if not section.node_label:
        return Look(found=found, to_do="name the node's label in node_label: without it only texts tell nodes")
    if not seen.nodes:
        return Look(found=found, to_do=f"no line has {section.node_label!r}: correct node_label")
    return Look(found=found)


async def look_at_kernel_store(section: KernelSection, nodes: Sequence[str], clock: Clock) -> Look:
    """Ask for real: which nodes' kernels were heard, and the age of the newest line. `nodes`: those that Slurm knows.
    Raises `ConfigError`.
    """
    store = kernel_store_of(section, clock)
    now = clock.now()
    try:
        heard = await nodes_seen(store, clock)
        seen = await store.look(to_ns(now) - int(EVER_SECONDS * NS), to_ns(now) + int(STALE_SECONDS * NS))
    except AskError as error:
        return _no_answer(error)
    finally:
        await store.close()
    if not heard or seen.newest_ns is None:
        return _nothing(bool(seen.lines))
    age = max(0.0, (now - from_ns(seen.newest_ns)).total_seconds())
    found = (
        f"kernels of {many(len(heard), 'node')} in 7 days, {many(seen.streams, 'stream')}, newest line {age:.0f} s old"
    )
    silent = [node for node in nodes if node not in heard]
    if nodes and len(silent) == len(nodes):
        to_do = f"node_label must hold the node's name as Slurm spells it: {min(heard)} there, {nodes[0]} in Slurm"
        return Look(found=f"{found}; none of them is a node of Slurm's", to_do=to_do)
    if silent:
        names = " ".join(silent[:8]) + (f" and {len(silent) - 8} more" if silent[8:] else "")
        return Look(found=f"{found}; none of {names}", to_do="see whether a collector ships these nodes' kernel logs")
    return Look(found=found)


def _share(count: int, lines: int) -> str:
    return "all" if count >= lines else "none" if not count else f"{max(1, min(99, round(100 * count / lines)))} %"


def _no_answer(error: AskError) -> Look:
    to_do = _TO_DO.get(error.reason, "see whether the address is right and the store is well")
    return Look(found=f"{error.reason}: {error.detail}", to_do=to_do, answers=False)


def _nothing(ever: bool) -> Look:
    """The store answers, with nothing of late. `ever`: it had something within a month."""
    if ever:
        to_do = "see whether the collectors on the nodes still ship"
        return Look(found="it answers, and has no line of the last hour; it had some before", to_do=to_do)
    to_do = "the store answers a wrong tenant or selector with nothing, too: check tenant and selector"
    return Look(found="it answers: no stream was ever seen for this selector", to_do=to_do)


_TO_DO = {
    UnavailableReason.PERMISSION: "check tenant, token_file, user and password_file",
    UnavailableReason.NOT_CONFIGURED: "check url: the store knows no such path",
    UnavailableReason.LIMIT: "the store takes no more questions: raise its limits, or lower questions_per_second",
    UnavailableReason.TIMEOUT: "see how loaded the store is",
    UnavailableReason.GARBLED: "check url: what answers there is not the store, or breaks its answers off",
}


def store_of(section: LogsSection, clock: Clock, chosen: LineFilter | None) -> LogStore:
    """Raises `ConfigError`."""
    server = Server(access_of(section), clock=clock, pace=pace_of(section, clock))
    try:
        return _store(section, server, chosen)
    except ValueError as error:
        raise ConfigError((Problem(key="logs", message=str(error), origin=section.name),)) from None


def kernel_store_of(section: KernelSection, clock: Clock) -> LogStore:
    """Raises `ConfigError`."""
    server = Server(access_of(section), clock=clock, pace=pace_of(section, clock))
    try:
        labels = Labels(job="", node=section.node_label, proof=proof_of(section.transport))
        make = Loki if section.kind == "loki" else VictoriaLogs
        return make(server, selector=section.selector, labels=labels, chosen=None)
    except ValueError as error:
        raise ConfigError((Problem(key="kernel", message=str(error), origin=section.name),)) from None


def pace_of(section: StoreLimitsSection, clock: Clock) -> Pace:
    return Pace(clock, per_second=section.questions_per_second, burst=max(1.0, section.questions_per_second))


def access_of(section: LogsSection | KernelSection | AttributionSection) -> Access:
    return Access(
        url=section.url,
        headers={} if isinstance(section, AttributionSection) else _tenant(section),
        user=section.user,
        password_file=section.password_file,
        token_file=section.token_file,
        ca_file=section.ca_file,
        certificate_file=section.certificate_file,
        key_file=section.key_file,
        timeout_seconds=section.timeout_seconds,
    )


def _tenant(section: LogsSection | KernelSection) -> dict[str, str]:
    if not section.tenant:
        return {}
    if section.kind == "victorialogs":
        account, _, project = section.tenant.partition(":")
        return {"AccountID": account, "ProjectID": project}
    return {"X-Scope-OrgID": section.tenant}


def _store(section: LogsSection, server: Server, chosen: LineFilter | None) -> LogStore:
    labels = Labels(
        job=section.job_label,
        node=section.node_label,
        rank=section.rank_label,
        sequence=section.sequence_label,
        indexed=section.job_label_indexed,
    )
    match section.kind:
        case "loki":
            return Loki(server, selector=section.selector, labels=labels, chosen=chosen)
        case "victorialogs":
            return VictoriaLogs(server, selector=section.selector, labels=labels, chosen=chosen)
        case "files":
            raise ValueError("files are no store")
        case _:
            assert_never(section.kind)


def _filter(rules_files: Sequence[Path]) -> LineFilter:
    try:
        return line_filter(load_rules(tuple(rules_files)).rules)
    except RulesError as error:
        problems = tuple(Problem(key="rules_files", message=text, origin="rules") for text in error.problems)
        raise ConfigError(problems) from None
