"""Who waits longest is seen to first, and nobody waits for long."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.oldest_first import AT_ONCE, SHARE, OldestFirst
from advisor.store.records import AttemptKey


def keys(numbers: range) -> list[AttemptKey]:
    return [AttemptKey(job_key=str(number), number=0) for number in numbers]


def test_where_there_is_little_nothing_waits() -> None:
    turns = OldestFirst()
    wanting = keys(range(AT_ONCE))
    assert turns.take(wanting) == turns.take(wanting) == set(wanting)


@given(st.integers(AT_ONCE + 1, 5_000))
def test_of_many_each_has_its_turn_within_some_ticks(count: int) -> None:
    """Also when all of them want another one as soon as they had it."""
    turns, wanting = OldestFirst(), keys(range(count))
    seen: list[AttemptKey] = []
    for _ in range(SHARE):
        taken = turns.take(wanting)
        assert max(AT_ONCE, count // SHARE) <= len(taken) <= max(AT_ONCE, count // SHARE + 1)
        seen += taken
    assert set(seen) == set(wanting)


def test_who_came_first_goes_first_and_who_wants_nothing_more_has_lost_its_place() -> None:
    turns = OldestFirst()
    older, newer = keys(range(2 * AT_ONCE)), keys(range(2 * AT_ONCE, 5 * AT_ONCE))
    assert turns.take(older) == set(older[:AT_ONCE])
    left = [*newer, *older[AT_ONCE:]]
    assert turns.take(left) == set(older[AT_ONCE:])
    gone, back = newer[1:], newer
    assert turns.take(gone) == set(newer[1 : AT_ONCE + 1])
    assert turns.take(back) == set(newer[AT_ONCE + 1 : 2 * AT_ONCE + 1])
