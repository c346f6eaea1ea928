"""Who keeps the others waiting: flight-recorder dumps of many ranks, compared group by group.

In each group the ranks that wait stand at one collective. Whoever has not enqueued it is late; whoever has no dump,
where most have, is absent; whoever enqueued another operation under the same number disagrees. A late rank that itself
waits elsewhere only passes the delay on, so blame is followed until it stops.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from advisor.core.amounts import many
from advisor.core.flight_recorder import Collective, Dump, Group, Standing
from advisor.core.lines import cap
from advisor.core.model import Signal
from advisor.core.ranks import RANKS_MAX, fold_ranks
from advisor.core.rules import Rule
from advisor.core.words import Trust

_DEFAULT = ("0", "default_pg", "")  # names of the group of all ranks


class Stall(StrEnum):
    """What the dumps show."""

    MISSING = "missing"  # some ranks never came to the collective that the others wait in
    MISMATCH = "mismatch"  # ranks are in different collectives under the same number
    CIRCLE = "circle"  # ranks wait for each other in different groups
    UNFINISHED = "unfinished"  # all came; most finished or began it, some did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Who, where, and how it is known. `ranks` are those that it began with, `absent` those without a dump."""

    stall: Stall
    ranks: tuple[int, ...]
    how: str
    group: str = ""
    seq: int | None = None
    op: str = ""
    where: str = ""  # what the first such rank did last
    absent: tuple[int, ...] = ()
    waiting: int = 0  # ranks that wait
    since: datetime | None = None  # since when the first of them waits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One group: where the others wait, and who is not there."""

    group: Group
    seq: int
    waiting: Mapping[int, Standing]
    late: tuple[int, ...]
    absent: tuple[int, ...]

    def example(self) -> Collective | None:
        return next((s.newest[self.seq] for s in self.waiting.values() if self.seq in s.newest), None)


def compare(dumps: Sequence[Dump], world_size: int | None, unreadable: Iterable[int] = ()) -> Finding | None:
    """What the dumps of one attempt show, None when they show nothing. `unreadable`: ranks whose dump is broken."""
    by_rank = {dump.rank: dump for dump in dumps}
    if len(by_rank) < 2:
        return None
    groups: dict[Group, dict[int, Standing]] = {}
    for rank, dump in sorted(by_rank.items()):
        for group, standing in dump.groups.items():
            groups.setdefault(group, {})[rank] = standing
    present = set(by_rank) | set(unreadable)
    for group, standings in sorted(groups.items(), key=str):
        found = _mismatch(group, standings)
        if found is not None:
            return found
    places = [
        place
        for group, standings in sorted(groups.items(), key=str)
        if (
            place := _place(
                group, standings, _members(group, standings, by_rank, present, world_size), by_rank.keys(), present
            )
        )
        is not None
    ]
    return _missing(places, by_rank) or _unfinished(groups)


def _members(
    group: Group,
    standings: Mapping[int, Standing],
    dumps: Mapping[int, Dump],
    present: set[int],
    world_size: int | None,
) -> set[int]:
    """All ranks of a group. Where no dump says, those that recorded something in it; everybody in the default group."""
    if group[1]:
        return set(dumps[next(iter(standings))].members[group])
    if group[0] in _DEFAULT and world_size is not None and world_size <= 4 * len(present):
        return set(range(world_size)) | set(standings)
    return set(standings)


def _mismatch(group: Group, standings: Mapping[int, Standing]) -> Finding | None:
    """Ranks whose collective is another one than most ranks' at the place where some wait."""
    seq = _stuck_at(standings)
    if seq is None:
        return None
    at = {rank: s.newest[seq] for rank, s in standings.items() if seq in s.newest and not s.newest[seq].completed}
    for name, what in (("op", "are in another operation"), ("shape", "bring another size or type")):
        words = {rank: str(getattr(collective, name)) for rank, collective in at.items()}
        counted = Counter(word for word in words.values() if word).most_common()
        if len(counted) < 2:
            continue
        usual, most = counted[0]
        odd = tuple(sorted(rank for rank, word in words.items() if word and word != usual))
        if most == counted[1][1]:
            odd = tuple(sorted(words))  # as many on either side: nobody can say who is right
        return Finding(
            stall=Stall.MISMATCH,
            ranks=odd,
            how=f"{what} ({words[odd[0]]}) than the others ({usual if words[odd[0]] != usual else counted[1][0]})",
            group=group[0],
            seq=seq,
            op=at[odd[0]].op,
            where=at[odd[0]].where,
            waiting=len(at),
            since=_earliest(at.values()),
        )
    return None


def _stuck_at(standings: Mapping[int, Standing]) -> int | None:
    """The collective that the first ranks wait in: the first unfinished, or the last if completion is not known."""
    waits = [seq for s in standings.values() if (seq := s.waits_at) is not None]
    if waits:
        return min(waits)
    if all(s.newest[max(s.newest)].completed for s in standings.values()):
        return None
    return max(s.enqueued for s in standings.values())


def _place(
    group: Group, standings: Mapping[int, Standing], members: set[int], dumped: Set[int], present: set[int]
) -> _Place | None:
    seq = _stuck_at(standings)
    if seq is None:
        # Everybody who left a dump has finished all that it began: then only a late rank tells a stall.
        return None
    late = tuple(rank for rank, s in standings.items() if s.enqueued < seq)
    # Who left a dump but recorded nothing in a group that it belongs to has not come to its first collective.
    late += tuple(sorted((members & dumped) - set(standings))) if group[1] else ()
    absent = tuple(sorted(members - present))
    if len(absent) > len(present & members):
        absent = ()  # the dumps were not collected everywhere
    waiting = {rank: s for rank, s in standings.items() if s.enqueued >= seq and _unfinished_at(s, seq)}
    if not waiting:
        return None
    return _Place(group=group, seq=seq, waiting=waiting, late=late, absent=absent)


def _unfinished_at(standing: Standing, seq: int) -> bool:
    recorded = standing.newest.get(seq)
    if recorded is not None:
        return not recorded.completed
    return standing.completed is None or standing.completed < seq


def _missing(places: Sequence[_Place], dumps: Mapping[int, Dump]) -> Finding | None:
    """Those that others wait for and that wait for nobody themselves."""
    waiting: set[int] = set()
    blamed: set[int] = set()
    for place in places:
        if place.late or place.absent:
            waiting.update(place.waiting)
            blamed.update(place.late, place.absent)
    # A transfer that both ends have begun is between the two; one that one end has begun waits for the other.
    ends = Counter(pair for dump in dumps.values() for pair in dump.transfers)
    for rank, dump in dumps.items():
        for pair in dump.transfers:
            other = pair[1] if pair[0] == rank else pair[0]
            if ends[pair] < 2 and other != rank:
                waiting.add(rank)
                blamed.add(other)
    if not blamed:
        return None
    roots = tuple(sorted(blamed - waiting))
    if not roots:
        return _circle(places, blamed)
    named = [place for place in places if not set(roots).isdisjoint((*place.late, *place.absent))]
    widest = max(named, key=lambda item: (len(item.waiting), str(item.group)), default=None)
    return _found(roots, widest, dumps, len(waiting))


def _found(roots: tuple[int, ...], place: _Place | None, dumps: Mapping[int, Dump], waiting: int) -> Finding:
    """Missing ranks, told at the place where most wait for them."""
    absent = tuple(rank for rank in roots if rank not in dumps)
    seen = tuple(rank for rank in roots if rank in dumps)
    if seen and absent:
        how = "did not come to it, or left no dump"
    else:
        how = "left no dump, and the others wait" if absent else "did not come to it"
    last = next((_last(dumps[rank]) for rank in seen), None)
    example = place.example() if place is not None else None
    at = [s.newest[place.seq] for s in place.waiting.values() if place.seq in s.newest] if place is not None else []
    return Finding(
        stall=Stall.MISSING,
        ranks=roots,
        how=how,
        group=place.group[0] if place is not None else "",
        seq=place.seq if place is not None else None,
        op=example.op if example is not None else "a transfer",
        where=last.where if last is not None else "",
        absent=absent,
        waiting=waiting,
        since=_earliest(at),
    )


def _circle(places: Sequence[_Place], blamed: set[int]) -> Finding:
    names = [place.group[0] for place in places if place.late]
    return Finding(
        stall=Stall.CIRCLE,
        ranks=tuple(sorted(blamed)),
        how="wait for each other in different groups",
        group=", ".join(dict.fromkeys(names))[:200],
        waiting=len(blamed),
    )


def _unfinished(groups: Mapping[Group, Mapping[int, Standing]]) -> Finding | None:
    """Everybody came; a minority has not begun, or not finished, what the others have."""
    for group, standings in sorted(groups.items(), key=str):
        seq = _stuck_at(standings)
        if seq is None or any(s.enqueued < seq for s in standings.values()):
            continue
        begun = {rank: s.started for rank, s in standings.items() if s.started is not None}
        behind = [
            ({rank for rank, s in standings.items() if _unfinished_at(s, seq)}, "have not finished what others have"),
            ({rank for rank, started in begun.items() if started < seq}, "have not begun it on their GPU"),
        ]
        for ranks, how in behind:
            if ranks and 2 * len(ranks) < len(standings):
                at = [s.newest[seq] for s in standings.values() if seq in s.newest]
                return Finding(
                    stall=Stall.UNFINISHED,
                    ranks=tuple(sorted(ranks)),
                    how=how,
                    group=group[0],
                    seq=seq,
                    op=at[0].op if at else "",
                    waiting=len(standings),
                    since=_earliest(at),
                )
    return None


def _last(dump: Dump) -> Collective | None:
    """The newest collective that a rank recorded."""
    newest = [s.newest[max(s.newest)] for s in dump.groups.values() if s.newest]
    timed = [collective for collective in newest if collective.created_at is not None]
    return max(timed, key=lambda item: str(item.created_at), default=newest[0] if newest else None)


def _earliest(collectives: Iterable[Collective]) -> datetime | None:
    return min((item.created_at for item in collectives if item.created_at is not None), default=None)


_RULES = {
    Stall.MISSING: "flight_recorder.missing_rank",
    Stall.MISMATCH: "flight_recorder.mismatch",
    Stall.CIRCLE: "flight_recorder.circular_wait",
    Stall.UNFINISHED: "flight_recorder.unfinished",
}
_RANK_FIELDS = frozenset({"ranks", "absent"})  # parsed again: never cut
SHOWN = 8


def signal_of(finding: Finding, rules: Mapping[str, Rule], *, source: str, seen_at: datetime) -> Signal | None:
    """A finding as evidence, None for a rule that is not there. Dumps are written by the job: trust is LOG."""
    rule = rules.get(_RULES[finding.stall])
    if rule is None:
        return None
    ranks = fold_ranks(finding.ranks[:RANKS_MAX])
    shown = ", ".join(map(str, finding.ranks[:SHOWN])) + (", ..." if len(finding.ranks) > SHOWN else "")
    place = f"{finding.op} #{finding.seq} of group {finding.group!r}" if finding.seq is not None else finding.op
    text = f"rank {shown}: {finding.how}; {many(finding.waiting, 'rank')} waiting" + (f" in {place}" if place else "")
    if finding.where:
        text += f"; last seen in {finding.where}"
    fields = {"op": finding.op, "seq": str(finding.seq), "group": finding.group, "how": finding.how, "ranks": ranks}
    if finding.absent:
        fields["absent"] = fold_ranks(finding.absent)
    return Signal(
        id=hashlib.sha256(f"{source}|{rule.id}|{text}".encode()).hexdigest()[:24],
        rule=rule.id,
        trust=Trust.LOG,
        source=source,
        seen_at=seen_at,
        at=finding.since,
        rank=finding.ranks[0] if len(finding.ranks) == 1 else None,
        file=source,
        text=cap("".join(char if char.isprintable() else "?" for char in text)),
        role=rule.role,
        category=rule.category,
        fields={name: value if name in _RANK_FIELDS else cap(value, 300) for name, value in sorted(fields.items())},
    )
