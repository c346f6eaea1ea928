"""Sharing jobs among replicas: whatever joins, leaves and dies, every job is ticked and nothing flaps."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from advisor.core.leases import (
    SLACK_JOBS,
    SLACK_SHARE,
    Standing,
    fitting,
    idle_seconds,
    renew_seconds,
    stuck_seconds,
    to_give,
    to_take,
)


@dataclass(slots=True)
class Cluster:
    """Who holds which job. A turn is what `store.leases.take_turn` does, in one step."""

    jobs: set[int] = field(default_factory=set)
    held: dict[int, set[int]] = field(default_factory=dict)
    dead: list[set[int]] = field(default_factory=list)
    moves: int = 0

    @property
    def free(self) -> set[int]:
        taken = set().union(*self.held.values(), *self.dead)
        return self.jobs - taken

    def turn(self, who: int) -> None:
        mine, live = self.held[who], len(self.held)
        while self.dead:
            mine |= self.dead.pop()
        mine &= self.jobs
        standing = Standing(held=sum(map(len, self.held.values())), free=len(self.free), mine=len(mine), live=live)
        take, give = to_take(standing), to_give(standing)
        assert 0 <= take <= standing.free
        assert 0 <= give <= standing.mine
        assert not (take and give), "whoever takes does not give"
        over = standing.mine - standing.share
        assert not give or (give == over > SLACK_JOBS), "given up is what is over one's share, and no trifle"
        taken, given_up = set(sorted(self.free)[:take]), set(sorted(mine)[:give])
        self.moves += len(taken) + len(given_up)
        self.held[who] = (mine | taken) - given_up

    def settle(self) -> None:
        """As many rounds as it takes: two, with one more to see that nothing moves any more."""
        for _ in range(2):
            for who in sorted(self.held):
                self.turn(who)


EVENT = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("die"), st.integers(0, 5)),
    st.tuples(st.just("turn"), st.integers(0, 5)),
    st.tuples(st.just("begin"), st.integers(0, 60)),
    st.tuples(st.just("end"), st.integers(0, 60)),
)


def played(events: list[tuple[str, int]]) -> Cluster:
    cluster = Cluster()
    for what, which in events:
        match what:
            case "join":
                cluster.held.setdefault(which, set())
            case "leave":
                cluster.held.pop(which, None)
            case "die" if which in cluster.held:
                cluster.dead.append(cluster.held.pop(which))
            case "turn" if which in cluster.held:
                cluster.turn(which)
            case "begin":
                cluster.jobs |= set(range(len(cluster.jobs), len(cluster.jobs) + which))
            case "end":
                cluster.jobs -= set(sorted(cluster.jobs)[:which])
        everybody = [*cluster.held.values(), *cluster.dead]
        assert sum(map(len, everybody)) == len(set().union(*everybody)), "one job, one holder"
    return cluster


@given(st.lists(EVENT, max_size=40))
def test_once_nothing_happens_every_job_is_held_fairly_and_nothing_moves(events: list[tuple[str, int]]) -> None:
    """Two rounds of turns after the last event, all jobs are held, within the slack of the share; then all stay put."""
    cluster = played([*events, ("join", 0)])
    cluster.settle()
    assert not cluster.free
    assert set().union(*cluster.held.values()) == cluster.jobs
    share = -(-len(cluster.jobs) // len(cluster.held))
    slack = max(SLACK_JOBS, int(share * SLACK_SHARE))
    assert all(len(mine) <= share + slack for mine in cluster.held.values())
    before = cluster.moves
    cluster.settle()
    assert cluster.moves == before


@given(st.integers(0, 10_000), st.integers(1, 50), st.data())
def test_counts_that_are_a_moment_old_leave_no_job_free_for_ever(jobs: int, live: int, data: st.DataObject) -> None:
    """However jobs are spread, shares add up to all of them: while one is free somebody has room for it."""
    cuts = sorted(data.draw(st.lists(st.integers(0, jobs), min_size=live, max_size=live)))
    counts = [after - before for before, after in zip([0, *cuts], cuts, strict=False)]
    held, free = sum(counts), jobs - sum(counts)
    room = [to_take(Standing(held=held, free=free, mine=count, live=live)) for count in counts]
    assert not free or any(room)


@given(st.floats(1.0, 300.0))
def test_the_times_of_a_lease_fit_into_it(lease: float) -> None:
    """Renewed several times per lease; a transaction that stands still is over by its end; stuck is much later."""
    assert renew_seconds(lease) * 3 <= lease + 1e-9
    assert 0 < idle_seconds(lease) < lease
    assert stuck_seconds(lease) > 2 * lease


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 30)), min_size=1, max_size=6),
    st.integers(0, 100),
    st.data(),
)
def test_shares_with_little_room_add_up(most: list[int | None], jobs: int, data: st.DataObject) -> None:
    """Whoever can have only so many has no more; together they have all there is, or nobody has room for another."""
    held = data.draw(st.integers(0, jobs))
    standings = [
        Standing(
            held=held,
            free=jobs - held,
            mine=0,
            live=len(most),
            most=own,
            others_most=tuple(most[:at] + most[at + 1 :]),
        )
        for at, own in enumerate(most)
    ]
    shares = [standing.share for standing in standings]
    bounded = [own for own in most if own is not None]
    short = len(bounded) == len(most) and sum(bounded) < jobs
    assert [standing.short for standing in standings] == [short] * len(most)
    assert all(own is None or share <= own for share, own in zip(shares, most, strict=True))
    if short:
        assert shares == most
    else:
        assert sum(shares) >= jobs
        with_room = [share for share, own in zip(shares, most, strict=True) if own is None or share < own]
        assert len(set(with_room)) <= 1, "who has room has an equal part"


@given(st.lists(st.integers(1, 4), max_size=12), st.one_of(st.none(), st.integers(1, 20)))
def test_what_fits_is_whole_jobs_and_the_most_important_one(sizes: list[int], most: int | None) -> None:
    """In order, within the bound, nothing left out that would have fitted; the first job always."""
    size = {str(number): attempts for number, attempts in enumerate(sizes)}
    found = fitting(size, size, most)
    assert found == [job for job in size if job in found]
    used = sum(size[job] for job in found)
    assert most is None or used <= most or len(found) == 1
    assert not size or found[0] == "0"
    assert most is not None or len(found) == len(size)
    assert all(used + size[job] > (most or 0) for job in size if job not in found)
