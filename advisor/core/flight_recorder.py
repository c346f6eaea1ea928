"""PyTorch's flight-recorder dumps, one per rank: read without torch, without running anything, and compared.

A dump lists the newest collectives of one rank by process group, with the state of each. Ranks that wait stand at the
same place in a group; who is behind that place keeps them waiting. Whoever is behind and waits in another group is a
victim as well, so the blame is passed on until it stops at ranks that wait for nobody. A rank without a dump, where
most have left one, is evidence too. Work grows with the number of ranks and their groups.

Errors:
    DumpError(ValueError)   what is wrong with one dump
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from advisor.core.lines import cap
from advisor.core.primitive_pickle import RefusedPickleError, read_primitives
from advisor.core.ranks import parse_ranks

JSON_BYTES_MAX = 16 << 20
ENTRIES_MAX = 200_000
TAIL = 256  # newest collectives kept per group
GROUPS_MAX = 4_096
TRANSFERS_MAX = 256
RANKS_MAX = 65_536
NAME_CHARS_MAX = 200
_COUNT_MAX = 1 << 60
_YEAR_2100 = 4_102_444_800 * 10**9
_TRANSFER = re.compile(r":(?:send|recv) (\d{1,6})(->|<-)(\d{1,6})$")
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "<string>", "<frozen")
# Collectives whose sizes must agree on all ranks.
_EVEN = ("all_reduce", "allreduce", "_all_gather_base", "_allgather_base", "_reduce_scatter_base", "broadcast")

Group = tuple[str, str]  # its name, and a hash of its ranks where the dump says them: names repeat


class DumpError(ValueError):
    """Not a flight-recorder dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective as one rank recorded it. `shape`: what must agree between ranks."""

    op: str
    shape: str
    completed: bool
    created_at: datetime | None
    where: str = ""  # the innermost frame outside libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one rank stands in one group. None: the dump does not say."""

    enqueued: int
    started: int | None
    completed: int | None
    newest: Mapping[int, Collective] = field(default_factory=dict)  # by sequence number

    @property
    def waits_at(self) -> int | None:
        """The first collective that this rank has enqueued and not completed."""
        if self.completed is None or self.completed >= self.enqueued:
            return None
        return self.completed + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one rank's dump says."""

    rank: int
    version: str
    groups: Mapping[Group, Standing]
    members: Mapping[Group, tuple[int, ...]]  # ranks of the groups whose ranks are known, in the group's own order
    transfers: frozenset[tuple[int, int]]  # unfinished sends and receives: from rank, to rank
    host: str = ""


def read_dump(data: bytes, rank: int | None) -> Dump:
    """One dump, pickled or as JSON. Fields that are missing or of another type are left out. Raises `DumpError`.

    `rank`: from the file's name, for the versions whose dumps do not carry it.
    """
    value = _value(data)
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list | tuple):
        raise DumpError("not a flight-recorder dump: no entries")
    entries = value["entries"][-ENTRIES_MAX:]
    own = value.get("rank")
    rank = own if isinstance(own, int) and not isinstance(own, bool) and 0 <= own < RANKS_MAX else rank
    if rank is None:
        raise DumpError("neither its name nor its content carries a rank")
    groups = _groups(value.get("pg_config"), rank)
    newest: dict[Group, dict[int, list[Mapping[str, Any]]]] = {}
    of_id: dict[str, Group] = {}
    known: dict[Group, tuple[int, ...]] = {}
    transfers: set[tuple[int, int]] = set()
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        name = _group_name(entry.get("process_group", entry.get("pg_name")))
        group, members = groups.get(name, ((name, ""), None))
        if members is not None:
            known[group] = members
        of_id.setdefault(str(entry.get("pg_id")), group)
        if entry.get("is_p2p") is True:
            _transfer(entry, members, transfers)
            continue
        seq = _count(entry.get("collective_seq_id", entry.get("seq_id")))
        if seq is not None and (group in newest or len(newest) < GROUPS_MAX):
            newest.setdefault(group, {}).setdefault(seq, []).append(entry)
    status = value.get("pg_status")
    reported: dict[Group, Mapping[str, Any]] = {}
    for key, item in (status if isinstance(status, dict) else {}).items():
        if isinstance(item, dict) and str(key) in of_id:
            reported[of_id[str(key)]] = item
    host = value.get("host_name", value.get("hostname"))
    return Dump(
        rank=rank,
        version=str(value.get("version", ""))[:16],
        groups={group: _standing(found, reported.get(group, {})) for group, found in newest.items()},
        members=known,
        transfers=frozenset(transfers),
        host=host[:253] if isinstance(host, str) else "",
    )


def _value(data: bytes) -> Any:
    if data[:1] == b"\x80":
        try:
            return read_primitives(data)
        except RefusedPickleError as error:
            raise DumpError(f"refused: {error}") from error
    if len(data) > JSON_BYTES_MAX:
        raise DumpError(f"JSON larger than {JSON_BYTES_MAX >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DumpError("neither a pickle nor JSON") from error


def _groups(config: Any, rank: int) -> dict[str, tuple[Group, tuple[int, ...]]]:
    """Groups by name that this rank is in, with their ranks: a text `[0, 1]`, or a list."""
    found: dict[str, tuple[Group, tuple[int, ...]]] = {}
    for name, item in (config if isinstance(config, dict) else {}).items():
        ranks = item.get("ranks") if isinstance(item, dict) else None
        if isinstance(ranks, list | tuple):
            ranks = ",".join(str(number) for number in ranks[:RANKS_MAX] if isinstance(number, int))
        if not isinstance(ranks, str) or len(ranks) > 10 * RANKS_MAX or len(found) >= GROUPS_MAX:
            continue
        members, has, digest = _members(ranks)
        if rank in has:
            text = str(name)[:NAME_CHARS_MAX]
            found[text] = ((text, digest), members)
    return found


@lru_cache(maxsize=1_024)
def _members(text: str) -> tuple[tuple[int, ...], frozenset[int], str]:
    """Ranks of a group in its own order, as a set, and a hash of them. All dumps of a job say the same."""
    members = tuple(number for word in re.findall(r"\d{1,6}", text)[:RANKS_MAX] if (number := int(word)) < RANKS_MAX)
    digest = hashlib.sha256(",".join(map(str, members)).encode()).hexdigest()[:16]
    return members, frozenset(members), digest


def _group_name(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return str(value)[:NAME_CHARS_MAX] if isinstance(value, str | int) else ""


def _count(value: Any) -> int | None:
    """A sequence number; some versions write them as text."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < _COUNT_MAX else None


def _transfer(entry: Mapping[str, Any], members: tuple[int, ...] | None, transfers: set[tuple[int, int]]) -> None:
    if entry.get("state") == "completed" or entry.get("retired") is True or len(transfers) >= TRANSFERS_MAX:
        return
    match = _TRANSFER.search(str(entry.get("profiling_name", ""))[:200])
    if match is None:
        return
    first, second = int(match[1]), int(match[3])
    if members is not None:
        if max(first, second) >= len(members):
            return
        first, second = members[first], members[second]
    transfers.add((first, second) if match[2] == "->" else (second, first))


def _standing(found: Mapping[int, Sequence[Mapping[str, Any]]], status: Mapping[str, Any]) -> Standing:
    kept = {seq: _collective(found[seq]) for seq in sorted(found)[-TAIL:]}
    newest = max(found)
    done = [seq for seq, collective in kept.items() if collective.completed]
    enqueued = _count(status.get("last_enqueued_collective"))
    started = _count(status.get("last_started_collective"))
    completed = _count(status.get("last_completed_collective"))
    if completed is None and done:
        completed = max(done)
    if completed is None and min(kept) <= 1:
        completed = 0
    return Standing(
        enqueued=max(newest, enqueued if enqueued is not None else newest),
        started=started if started is not None and started >= 0 else None,
        completed=completed,
        newest=kept,
    )


def _collective(entries: Sequence[Mapping[str, Any]]) -> Collective:
    """One collective; coalesced ones have several entries under one number."""
    names = [str(entry.get("profiling_name", ""))[:100] for entry in entries[:16]]
    op = "+".join(dict.fromkeys(name.partition(":")[2] or name for name in names))
    shape = ""
    if len(entries) == 1 and op in _EVEN:
        sizes, kinds = entries[0].get("input_sizes"), entries[0].get("input_dtypes")
        shape = cap(f"{_elements(sizes)} {_words(kinds)}".strip(), 100)
    return Collective(
        op=op[:200],
        shape=shape,
        completed=all(entry.get("state") == "completed" for entry in entries),
        created_at=_time(entries[0].get("time_created_ns", entries[0].get("time_created_us"))),
        where=_where(entries[-1].get("frames")),
    )


def _elements(sizes: Any) -> str:
    """How many elements each tensor has: that is what must agree, not the shape."""
    counts = []
    for size in sizes[:16] if isinstance(sizes, list | tuple) else ():
        product = 1
        for number in size[:16] if isinstance(size, list | tuple) else ():
            if not isinstance(number, int) or not 0 <= number < _COUNT_MAX:
                return ""
            product *= number
        counts.append(str(product))
    return ",".join(counts)


def _words(value: Any) -> str:
    return ",".join(item for item in value[:16] if isinstance(item, str)) if isinstance(value, list | tuple) else ""


def _where(frames: Any) -> str:
    for frame in frames[:64] if isinstance(frames, list | tuple) else ():
        if not isinstance(frame, dict):
            continue
        file, name, line = str(frame.get("filename", "")), str(frame.get("name", "")), _count(frame.get("line"))
        if file and not any(part in file for part in _LIBRARY):
            return cap(f"{name} ({file.rpartition('/')[2]}:{line})", 120)
    return ""


def _time(value: Any) -> datetime | None:
    """When, from nanoseconds since the epoch."""
    if not isinstance(value, int) or isinstance(value, bool) or not 10**18 < value < _YEAR_2100:
        return None
    return datetime.fromtimestamp(value / 1e9, UTC)


def rank_of_name(name: str) -> int | None:
    """The rank that a dump's file name carries: torch appends it to a prefix that a job chooses."""
    match = re.search(r"(?:^|\D)(\d{1,6})(?:\.(?:json|pkl|pickle|bin|dump|trace))?$", name)
    if match is None:
        return None
    ranks = parse_ranks(match[1])
    return next(iter(ranks)) if ranks and max(ranks) < RANKS_MAX else None
