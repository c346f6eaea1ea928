"""Which job and attempt a report is about: the table of cases."""

from dataclasses import replace
from datetime import datetime, timedelta

import psycopg
import pytest

from advisor.core.model import ExitStatus, Progress
from advisor.core.words import AttemptState
from advisor.store.records import AttemptKey, AttemptRef, DetectorState, Notice, ObservedJob
from advisor.store.store import Store
from tests.integration.store.worlds import CLUSTER, T0, at, pending, record, report, seen

pytestmark = pytest.mark.postgres

RUNNING, COMPLETING, FAILED = AttemptState.RUNNING, AttemptState.COMPLETING, AttemptState.FAILED
PENDING = AttemptState.PENDING

FIRST = seen()
FAILED_FIRST = seen(FAILED, observed_at=at(60), ended_at=at(59))
REQUEUED = pending(attempt=1, submitted_at=at(61), observed_at=at(62))

# What is reported, one listing after the other, and which (job, attempt) each of them is about: jobs are numbered in
# the order in which they first appear.
CASES: dict[str, list[tuple[ObservedJob, tuple[int, int]]]] = {
    "same report twice": [(FIRST, (0, 0)), (FIRST, (0, 0))],
    "requeue": [(FIRST, (0, 0)), (FAILED_FIRST, (0, 0)), (REQUEUED, (0, 1))],
    "requeue without a visible end": [(FIRST, (0, 0)), (REQUEUED, (0, 1))],
    "two requeues between listings": [
        (FIRST, (0, 0)),
        (pending(attempt=2, submitted_at=at(99), observed_at=at(100)), (0, 2)),
    ],
    "requeue within the second of its submission": [
        (pending(observed_at=at(0)), (0, 0)),
        (pending(attempt=1, submitted_at=T0, observed_at=at(1)), (0, 1)),
    ],
    "requeue after the clock was set back": [
        (FIRST, (0, 0)),
        (pending(attempt=1, submitted_at=at(-3600), observed_at=at(-3599)), (0, 1)),
    ],
    "requeue of a running job: counted before its submit time is rewritten": [
        (FIRST, (0, 0)),
        (seen(COMPLETING, attempt=1, submitted_at=T0, observed_at=at(30)), (0, 1)),
        (pending(attempt=1, submitted_at=at(40), observed_at=at(41)), (0, 1)),
        (seen(RUNNING, attempt=1, submitted_at=at(40), observed_at=at(50)), (0, 1)),
    ],
    "first seen while it is being requeued": [
        (seen(COMPLETING, attempt=1, submitted_at=T0, observed_at=at(30)), (0, 1)),
        (pending(attempt=1, submitted_at=at(40), observed_at=at(41)), (0, 1)),
    ],
    "id reused by the same user, no restarts both times": [
        (FIRST, (0, 0)),
        (seen(submitted_at=at(86400), observed_at=at(86410)), (1, 0)),
    ],
    "id reused by the same user after restarts": [
        (seen(attempt=3), (0, 3)),
        (seen(submitted_at=at(86400), observed_at=at(86410)), (1, 0)),
    ],
    "id reused by another user who was restarted": [
        (FIRST, (0, 0)),
        (seen(user="bob", attempt=1, submitted_at=at(86400), observed_at=at(86410)), (1, 1)),
    ],
    "requeue of the job that has the id now": [
        (FIRST, (0, 0)),
        (seen(submitted_at=at(86400), observed_at=at(86410)), (1, 0)),
        (pending(attempt=1, submitted_at=at(86500), observed_at=at(86501)), (1, 1)),
    ],
    "a requeue that the scheduler has forgotten, and was asked for again": [
        (FIRST, (0, 0)),
        (FAILED_FIRST, (0, 0)),
        (REQUEUED, (0, 1)),
        (replace(FAILED_FIRST, observed_at=at(70)), (0, 0)),
        (pending(attempt=1, submitted_at=at(80), observed_at=at(81)), (0, 1)),
        (seen(attempt=1, submitted_at=at(80), observed_at=at(90)), (0, 1)),
    ],
    "a requeue that was forgotten, and asked for again within its second": [
        (FIRST, (0, 0)),
        (FAILED_FIRST, (0, 0)),
        (REQUEUED, (0, 1)),
        (replace(FAILED_FIRST, observed_at=at(62.2)), (0, 0)),
        (replace(REQUEUED, observed_at=at(62.4)), (0, 1)),
    ],
    "other jobs": [(FIRST, (0, 0)), (seen(job_id="8"), (1, 0)), (FIRST, (0, 0))],
    "tasks of one array share an id until they are split off": [
        (pending(array_job_id="7", array_task=0), (0, 0)),
        (pending(array_job_id="7", array_task=1), (1, 0)),
        (seen(job_id="9", array_job_id="7", array_task=1, observed_at=at(20)), (1, 0)),
    ],
}


async def places(store: Store, reports: list[ObservedJob], *, complete: bool) -> list[tuple[int, int]]:
    """For each report the (job, attempt) that a reference to it resolves to afterwards."""
    keys: list[AttemptKey | None] = []
    for job in reports:
        await report(store, job, complete=complete)
        ref = AttemptRef(
            cluster=CLUSTER, job_id=job.job_id, number=job.attempt, user=job.user, submitted_at=job.submitted_at
        )
        keys.extend(await store.resolve([ref]))
    order = list(dict.fromkeys(key.job_key for key in keys if key is not None))
    return [(order.index(key.job_key), key.number) for key in keys if key is not None]


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "partial"])
@pytest.mark.parametrize("case", CASES)
async def test_identity(store: Store, case: str, complete: bool) -> None:
    """Each report is about the job and attempt that the scheduler meant."""
    if complete and case == "other jobs":
        complete = False  # a complete listing without a job means that it is gone
    steps = CASES[case]
    if "array" in case:
        complete = False
    assert await places(store, [job for job, _ in steps], complete=complete) == [place for _, place in steps]


async def test_forgotten_job_is_not_restarted(store: Store) -> None:
    """When the scheduler no longer holds a job, a higher restart count under its id is another job's."""
    first = (await report(store, FIRST)).changed[0]
    await report(store, seen(job_id="8", observed_at=at(20)))
    second = (await report(store, pending(attempt=1, submitted_at=at(30), observed_at=at(31)))).changed[0]
    assert second.job_key != first.job_key


async def test_a_forgotten_requeue_leaves_the_attempt_before_it_as_the_last(store: Store, url: str) -> None:
    """Nothing follows it, what came of its advice is undone until there is newer advice, and the log has it once."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, FAILED_FIRST)
    await store.commit_decision(record(key))
    await report(store, REQUEUED)
    before = (await store.load([key], now=at(63)))[key]
    assert before.successor is not None
    assert not before.undone
    again = await report(store, replace(FAILED_FIRST, observed_at=at(70)))
    assert again.withdrawn == (AttemptKey(job_key=key.job_key, number=1),)
    assert key in again.changed
    after = (await store.load([key], now=at(71)))[key]
    assert (after.successor, after.undone) == (None, True)
    assert not (await report(store, replace(FAILED_FIRST, observed_at=at(72)))).withdrawn
    await store.commit_decision(record(key, seen_generation=1))
    assert not (await store.load([key], now=at(73)))[key].undone
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT subject FROM audit WHERE what = 'requeue_forgotten'").fetchall()
    assert found == [(str(AttemptKey(job_key=key.job_key, number=1)),)]
    await report(store, pending(attempt=1, submitted_at=at(80), observed_at=at(81)))
    assert (await store.load([key], now=at(82)))[key].successor is not None


async def test_an_attempt_that_was_done_with_is_looked_at_again_when_its_requeue_is_forgotten(
    store: Store, url: str
) -> None:
    """What came of its advice may be known before the listing that shows its successor: then it was closed."""
    await report(store, FIRST)
    await report(store, FAILED_FIRST)
    await report(store, REQUEUED)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE attempts SET open = false")
        connection.commit()
        await report(store, replace(FAILED_FIRST, observed_at=at(70)))
        assert connection.execute("SELECT number, open FROM attempts ORDER BY number").fetchall() == [
            (0, True),
            (1, False),
        ]


@pytest.mark.parametrize("seen_ended", [True, False], ids=["its end was seen", "its end was never visible"])
@pytest.mark.parametrize("shown", [RUNNING, COMPLETING, PENDING])
async def test_an_attempt_whose_end_is_forgotten_too_is_where_the_scheduler_shows_it(
    store: Store, url: str, seen_ended: bool, shown: AttemptState
) -> None:
    """And not over: what was looked at since its end does not count for the end that is to come."""
    key = (await report(store, FIRST)).changed[0]
    if seen_ended:
        await report(store, replace(FAILED_FIRST, exit=ExitStatus(code=1, signal=0)))
    await report(store, REQUEUED)
    await store.commit_decision(record(key))
    await store.save_states({key: DetectorState(state=b"", progress=Progress(), signals=(), seen_over=True)})
    again = pending(observed_at=at(70)) if shown is PENDING else seen(shown, observed_at=at(70))
    assert (await report(store, again)).withdrawn == (AttemptKey(job_key=key.job_key, number=1),)
    item = (await store.load([key], now=at(71)))[key]
    assert (item.attempt.state, item.attempt.ended_at, item.attempt.exit) == (shown, None, None)
    assert (item.attempt.started_at, item.attempt.nodes) == (again.started_at, again.nodes)
    assert (item.successor, item.undone) == (None, True)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        query = "SELECT over_seen_at, seen_over FROM attempts JOIN detector_states USING (job_key, number)"
        assert connection.execute(query).fetchall() == [(None, False)]
    await report(store, seen(FAILED, observed_at=at(80), ended_at=at(79)))
    ended = (await store.load([key], now=at(81)))[key].attempt
    assert (ended.state, ended.ended_at) == (FAILED, at(79))


async def test_an_attempt_that_has_run_is_not_withdrawn(store: Store) -> None:
    """Nor one that was seen after what is shown of the attempt before."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, FAILED_FIRST)
    await report(store, REQUEUED)
    assert not (await report(store, replace(FAILED_FIRST, observed_at=at(61)))).withdrawn
    await report(store, seen(attempt=1, submitted_at=at(61), observed_at=at(70)))
    assert not (await report(store, replace(FAILED_FIRST, observed_at=at(80)))).withdrawn
    assert (await store.load([key], now=at(81)))[key].successor is not None


async def test_a_late_listing_with_a_forgotten_requeue_forgets_no_job(store: Store) -> None:
    """Two agents whose clocks differ: the job is listed, if as it was a moment ago."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, FAILED_FIRST)
    await report(store, REQUEUED)
    assert (await report(store, replace(FAILED_FIRST, observed_at=at(70)))).withdrawn
    await report(store, replace(REQUEUED, observed_at=at(69)), seen(job_id="8", observed_at=at(72)))
    item = (await store.load([key], now=at(73)))[key]
    assert (item.successor, item.forgotten) == (None, False)
    await report(store, replace(REQUEUED, observed_at=at(71)), seen(job_id="8", observed_at=at(72)))
    assert (await store.load([key], now=at(73)))[key].successor is not None


@pytest.mark.parametrize("back", [1, 60, 119, 121])
async def test_a_clock_that_is_set_back_after_a_withdrawal_hides_no_requeue(store: Store, back: float) -> None:
    """What is shown under a submit time of its own is not what was withdrawn, as it was a moment before."""

    def then(seconds: float) -> datetime:
        return at(70 + seconds - back)

    key = (await report(store, FIRST)).changed[0]
    await report(store, FAILED_FIRST)
    await store.commit_decision(record(key))
    await report(store, REQUEUED)
    assert (await report(store, replace(FAILED_FIRST, observed_at=at(70)))).withdrawn
    assert not (await report(store, replace(FAILED_FIRST, observed_at=then(0.5)))).withdrawn
    item = (await store.load([key], now=at(71)))[key]
    assert (item.attempt.state, item.attempt.ended_at) == (FAILED, at(59))
    assert (item.successor, item.undone, item.forgotten) == (None, True, False)
    again = pending(attempt=1, submitted_at=then(2), observed_at=then(3))
    await report(store, again)
    assert not (await report(store, replace(FAILED_FIRST, observed_at=then(1)))).withdrawn
    item = (await store.load([key], now=at(72)))[key]
    assert item.successor is not None
    assert item.successor.state is PENDING
    await report(store, seen(attempt=1, submitted_at=then(2), started_at=then(4), observed_at=then(5)))
    item = (await store.load([key], now=at(73)))[key]
    assert item.successor is not None
    assert item.successor.state is RUNNING


async def test_an_attempt_that_runs_again_ends_by_a_clock_that_was_set_back(store: Store) -> None:
    """Its end is seen then, and so is the attempt that its scheduler makes of it."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, FAILED_FIRST)
    await report(store, REQUEUED)
    assert (await report(store, seen(observed_at=at(70)))).withdrawn
    await report(store, seen(observed_at=at(12)))
    assert (await store.load([key], now=at(71)))[key].attempt.state is RUNNING
    await report(store, seen(FAILED, ended_at=at(14), observed_at=at(15)))
    assert (await store.load([key], now=at(72)))[key].attempt.ended_at == at(14)
    await report(store, pending(attempt=1, submitted_at=at(16), observed_at=at(17)))
    assert (await store.load([key], now=at(73)))[key].successor is not None


async def test_what_is_withdrawn_is_looked_at_no_more(store: Store) -> None:
    """Nor meant by an order. A running job that is requeued is shown as its next attempt at once, still ending."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, seen(AttemptState.COMPLETING, attempt=1, observed_at=at(61)))
    assert {item.number for item in await store.watched(at(62))} == {0, 1}
    await report(store, replace(FAILED_FIRST, observed_at=at(70)))
    assert await store.watched(at(71)) == (key,)
    assert (await store.find_attempt(cluster=CLUSTER, job_id="7"))[0] == key


async def test_what_was_read_of_a_withdrawn_attempt_is_not_of_the_one_that_has_its_number_then(
    store: Store, url: str
) -> None:
    """Where that one's output begins in a file that both write into, the end of the one before it tells anew."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, seen(AttemptState.COMPLETING, attempt=1, observed_at=at(61)))
    withdrawn = AttemptKey(job_key=key.job_key, number=1)
    made = Progress(first_step=1, last_step=7, resumed_step=0)
    read = DetectorState(state=b"cursor", progress=made, signals=(), foreign=3)
    await store.save_states({withdrawn: read})
    assert (await report(store, replace(FAILED_FIRST, observed_at=at(70)))).withdrawn == (withdrawn,)
    await report(store, pending(attempt=1, submitted_at=at(80), observed_at=at(81)))
    item = (await store.load([withdrawn], now=at(82)))[withdrawn]
    assert (item.detector_state, item.progress, item.foreign) == (b"", Progress(), 0)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        asked = "SELECT first_step, last_step, resumed_step FROM attempts WHERE number = 1"
        found = connection.execute(asked).fetchall()
    assert found == [(None, None, None)]


async def test_forgetting_needs_a_complete_listing(store: Store) -> None:
    """A report that does not claim to be complete says nothing about jobs that it does not name."""
    first = (await report(store, FIRST)).changed[0]
    await report(store, seen(job_id="8", observed_at=at(20)), complete=False)
    assert not (await store.load([first], now=at(21)))[first].forgotten
    await report(store, seen(job_id="8", observed_at=at(22)))
    assert (await store.load([first], now=at(23)))[first].forgotten


async def test_listing_from_before_a_job_does_not_forget_it(store: Store) -> None:
    """A complete listing that was taken before a job was seen, and arrives later, does not make it forgotten."""
    key = (await report(store, seen(observed_at=at(20)), complete=False)).changed[0]
    await report(store, seen(job_id="8", observed_at=at(19)))
    assert not (await store.load([key], now=at(21)))[key].forgotten


async def test_empty_complete_listing_forgets_all(store: Store) -> None:
    """A scheduler that holds nothing has forgotten everything."""
    key = (await report(store, FIRST)).changed[0]
    recorded = await report(store, now=at(100))
    assert recorded.changed == (key,)
    assert (await store.load([key], now=at(101)))[key].forgotten


async def test_job_that_comes_back_is_known_again(store: Store) -> None:
    """A job that a listing lacked once is itself when it is listed again."""
    key = (await report(store, FIRST)).changed[0]
    await report(store, now=at(100))
    await report(store, seen(observed_at=at(110)))
    assert not (await store.load([key], now=at(111)))[key].forgotten


async def test_refused_entry_of_a_complete_listing_forgets_nothing(store: Store) -> None:
    """A job whose entry cannot be used is refused with its place, and is not taken for gone."""
    key = (await report(store, FIRST)).changed[0]
    recorded = await report(store, seen(user="", observed_at=at(20)))
    assert recorded.accepted == 0
    assert "jobs[0]" in recorded.refused[0]
    assert not (await store.load([key], now=at(21)))[key].forgotten


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"user": ""}, "names nobody"),
        ({"job_id": "7\0"}, "job_id is not a name"),
        ({"attempt": -1}, "not a restart count"),
        ({"submitted_at": None}, "without a submit time"),
        ({"ended_at": T0.replace(tzinfo=None)}, "ended_at has no time zone"),
    ],
)
async def test_unusable_entries_are_refused(store: Store, changes: dict[str, object], said: str) -> None:
    """An entry that cannot be true is refused with one line; the others of its report count."""
    recorded = await report(store, seen(**changes), seen(job_id="8"))
    assert recorded.accepted == 1
    assert len(recorded.changed) == 1
    assert len(recorded.refused) == 1
    assert said in recorded.refused[0]


async def test_users_text_is_kept_as_far_as_it_can_be(store: Store) -> None:
    """A name with a NUL byte and a lone surrogate is shown with the broken parts replaced."""
    key = (await report(store, seen(name="a\0b\udc80é"))).changed[0]
    assert (await store.load([key], now=at(20)))[key].job_name == "a\ufffdb?é"


def hook(**changes: object) -> ObservedJob:
    return seen(COMPLETING, notice=Notice.HOOK, nodes=None, submitted_at=None, **changes)


async def test_hook_ends_the_running_attempt(store: Store) -> None:
    """A hook's notice without a submit time ends the attempt that runs, and leaves the outcome to the listing."""
    key = (await report(store, FIRST)).changed[0]
    recorded = await report(store, hook(observed_at=at(59)), complete=False)
    assert recorded.changed == (key,)
    attempt = (await store.load([key], now=at(60)))[key].attempt
    assert (attempt.state, attempt.ended_at) == (RUNNING, at(59))


async def test_hook_of_a_requeued_job_ends_the_attempt_before(store: Store) -> None:
    """The hook at the end of a requeued attempt names the next one already; it is the old one that has ended."""
    first = (await report(store, FIRST)).changed[0]
    await report(store, seen(COMPLETING, attempt=1, submitted_at=T0, observed_at=at(30)))
    told = await report(store, hook(attempt=1, observed_at=at(40), exit=ExitStatus(code=0, signal=15)), complete=False)
    assert told.refused == ()
    second = AttemptKey(job_key=first.job_key, number=1)
    stored = await store.load([first, second], now=at(41))
    assert (stored[second].attempt.ended_at, stored[second].attempt.exit) == (None, None)
    assert stored[first].attempt.exit == ExitStatus(code=0, signal=15)


async def test_hook_before_any_listing_is_refused(store: Store) -> None:
    """A hook names an id, and an id alone is nobody."""
    recorded = await report(store, hook(), complete=False)
    assert recorded.changed == ()
    assert "attempt 0" in recorded.refused[0]


async def test_late_report_of_an_earlier_attempt_fills_the_gap(store: Store) -> None:
    """An older report about an attempt that was never seen is recorded as ended, and moves nothing backwards."""
    newest = (await report(store, seen(attempt=2, submitted_at=at(200), observed_at=at(210)))).changed[0]
    await report(store, seen(attempt=1, submitted_at=at(100), observed_at=at(110)), complete=False, now=at(211))
    stored = (await store.load([newest], now=at(212)))[newest]
    assert stored.attempt.state is RUNNING
    assert [past.number for past in stored.past] == [1]
    assert [key.number for key in await store.watched(at(213))] == [1, 2]


async def test_late_report_of_a_former_owner_of_the_id(store: Store) -> None:
    """An older report about a job that had the id before does not take the id from the one that has it now."""
    now = (await report(store, seen(submitted_at=at(86400), observed_at=at(86410)))).changed[0]
    await report(store, seen(user="bob"), complete=False, now=at(86411))
    await report(store, pending(attempt=1, submitted_at=at(86500), observed_at=at(86501)), now=at(86502))
    stored = (await store.load([now], now=at(86503)))[now]
    assert stored.successor is not None
    assert stored.successor.number == 1


async def test_unknown_references(store: Store) -> None:
    """A reference to an unknown attempt, another user's or a wrong key resolves to nothing."""
    key = (await report(store, FIRST)).changed[0]
    ref = AttemptRef(cluster=CLUSTER, job_id="7", number=0, user="ada", submitted_at=T0)
    wrong = [
        AttemptRef(cluster=CLUSTER, job_id="7", number=0, user="bob", submitted_at=T0),
        AttemptRef(cluster=CLUSTER, job_id="7", number=1, user="ada", submitted_at=T0),
        AttemptRef(cluster=CLUSTER, job_id="7", number=0, user="ada", submitted_at=T0 + timedelta(seconds=1)),
        AttemptRef(cluster="other", job_id="7", number=0, user="ada", submitted_at=T0),
        AttemptRef(cluster=CLUSTER, job_id="7", number=0, user="ada", job_key="not-a-key"),
    ]
    assert await store.resolve([ref, *wrong]) == (key, None, None, None, None, None)


async def test_a_listing_in_several_reports_forgets_only_what_none_of_them_holds(store: Store) -> None:
    """The last report is complete and names what the others held: an array's task, and a job refused before."""
    task = seen(job_id="22", array_job_id="19", array_task=2)
    gone, held, of_array = [
        (await report(store, job, complete=False)).changed[0] for job in (seen(), seen(job_id="8"), task)
    ]
    last = replace(seen(job_id="9"), observed_at=at(20))
    await store.record_observations(CLUSTER, [last], (), complete=False, now=at(20))
    assert not (await store.load([gone], now=at(21)))[gone].forgotten
    await store.record_observations(CLUSTER, [last], (), complete=True, listed=("8", "19_2", "9"), now=at(22))
    found = await store.load([gone, held, of_array], now=at(23))
    assert [found[key].forgotten for key in (gone, held, of_array)] == [True, False, False]
