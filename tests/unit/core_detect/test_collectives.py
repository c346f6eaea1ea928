"""What the watchdogs of many ranks print, put together: who is missing, who is behind, and in what."""

from collections.abc import Iterable

import pytest

from advisor.core.collectives import APART_MAX, NEAR, Arrival, arrival, group_of
from advisor.core.words import AttemptState
from tests.cost import within
from tests.unit.core_detect.logs import context, judge, scan, snapshot

CAUGHT = (
    "[rank{rank}]:[E1129 12:00:00.123456 ProcessGroupNCCL.cpp:632] {tag} Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for {ran} ms\n"
)
STATUS = (
    "[rank{rank}]:[E430 05:09:48.830445837 ProcessGroupNCCL.cpp:2268] {tag}  failure detected by watchdog at work "
    "sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}\n"
)
WORLD = "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"


def caught(ranks: Iterable[int], seq: int = 20311, op: str = "ALLREDUCE", numel: int = 8192, tag: str = WORLD) -> str:
    return "".join(
        CAUGHT.format(rank=rank, tag=tag.format(rank=rank), seq=seq, op=op, numel=numel, ran=600_000 + rank)
        for rank in ranks
    )


def status(ranks: Iterable[int], seq: int, enqueued: int, completed: int) -> str:
    return "".join(
        STATUS.format(rank=rank, tag=WORLD.format(rank=rank), seq=seq, enqueued=enqueued, completed=completed)
        for rank in ranks
    )


def told(text: str, world: int | None = 32) -> Arrival:
    return arrival(scan(text).signals, world)


def test_who_does_not_report_is_missing() -> None:
    """Thirty of 32 wait; the other two keep them waiting."""
    found = told(caught(range(2, 32)))
    assert (found.ranks, found.how) == ((0, 1), "did not report the time-out")
    assert (found.op, found.seq, found.first, found.barrier) == ("ALLREDUCE", 20311, False, False)
    assert told(caught(range(2, 32)), None).ranks == ()


@pytest.mark.parametrize("seq", [43, 20311])
def test_a_few_at_an_earlier_collective_hold_the_others_up(seq: int) -> None:
    """All report; the one that has not finished what the others have is behind, however long its number is."""
    found = told(caught(range(31), seq) + caught([31], seq - 1))
    assert (found.ranks, found.how) == ((31,), "timed out at an earlier collective than the others")


def test_numbers_of_different_groups_are_not_compared() -> None:
    """Groups count for themselves: by their tag, or by being far apart or of another kind without one."""
    sub = "[PG ID 3 PG GUID 17(tp) Rank 0]"
    assert told(caught(range(30), 20311) + caught([30, 31], 20305, tag=sub)).ranks == ()
    assert told(caught(range(30), 20311, tag="") + caught([30, 31], 20311 - NEAR - 1, tag="")).ranks == ()
    assert told(caught(range(30), 20311, tag="") + caught([30, 31], 20310, "SEND", tag="")).ranks == ()
    assert told(caught(range(30), 20311, tag="") + caught([30, 31], 20310, tag="")).ranks == (30, 31)


def test_half_and_half_names_nobody() -> None:
    """Which half is late is not for a count to say."""
    assert told(caught(range(16), 7) + caught(range(16, 32), 6)).ranks == ()


def test_enqueued_and_completed_work_tell_as_well() -> None:
    """The same collective timed out everywhere; one rank had come no further, another had finished less."""
    found = told(status(range(31), 9, 12, 8) + status([31], 9, 9, 8))
    assert (found.ranks, found.how) == ((31,), "came to fewer collectives than the others")
    found = told(status(range(31), 9, 12, 8) + status([31], 9, 12, 7))
    assert (found.ranks, found.how) == ((31,), "finished fewer collectives than the others")


def test_a_rank_within_a_group_is_no_global_rank() -> None:
    """`Rank 1` in the tag of a group of two stands beside the global rank of the line."""
    text = caught([12, 13], tag="[PG ID 3 PG GUID 17(dp) Rank 1]")
    assert scan(text).signals[0].fields["ranks"] == "12-13"


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("[PG ID 0 PG GUID 0(default_pg) Rank 9] x", "0"),
        ("[PG ID 4 PG GUID 9 Rank 1] x", "9"),
        ("[PG 0 (default_pg) Rank 3] x", "0"),
        ("[PG 7 Rank 3] x", "7"),
        ("[Rank 3] x", ""),
    ],
)
def test_groups_are_known_by_their_tag(text: str, group: str) -> None:
    """The unique name where there is one, else the number."""
    assert group_of(text) == group


def test_the_root_that_all_wait_for_is_named() -> None:
    """A gather ends at rank 0, which says nothing."""
    assert told(caught([3], 9, "GATHER")).ranks == (0,)


def test_the_first_collective_and_barriers_are_called_by_name() -> None:
    """Ranks that start apart are no hang; at a barrier the question is what the others did."""
    _, blame = judge(snapshot((context(), caught(range(31), 1))))
    assert "the first collective timed out" in blame.root_cause
    _, blame = judge(snapshot((context(), caught(range(31), 900, numel=1))))
    assert blame.root_cause.startswith("a barrier (ALLREDUCE #900) timed out: rank 31")


def test_thousands_of_groups_lose_no_reporter() -> None:
    """Where more places are reported than are kept apart, they are counted together: nobody seems to be missing."""
    lines = [caught([rank], 100 * rank + 50_000, tag=f"[PG ID 1 PG GUID {rank} Rank 0]") for rank in range(2_048)]
    signals = scan("".join(lines)).signals
    assert len(signals) <= APART_MAX + 1
    assert arrival(signals, 2_048).ranks == ()
    assert arrival(signals, 2_050).ranks == (2_048, 2_049)
    untagged = [caught([rank], 50_000 + rank % 64 // 60, tag="", numel=rank) for rank in range(2_048)]
    assert arrival(scan("".join(untagged)).signals, 2_048).ranks == ()


def test_thousands_of_ranks_are_put_together_quickly() -> None:
    """Ten thousand reporters, one behind and one missing: the behind one is the better evidence."""
    text = caught(range(1, 9_999), 20311) + caught([9_999], 20310)
    signals = scan(text).signals
    assert within(10.0, lambda: arrival(signals, 10_000)).ranks == (9_999,)
    running = snapshot((context(), text), state=AttemptState.RUNNING, world_size=10_000)
    assert judge(running)[1].ranks == (9_999,)
