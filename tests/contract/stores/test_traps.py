"""What each store alone was seen to do, and what must not follow from it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from connectors.logs.store import Ask, Labels
from connectors.logs.store_reader import StoreLimits, to_ns
from connectors.logs.victorialogs import format_time, parse_time
from tests.contract.stores.fake_loki import ENTRIES_MAX, FakeLoki
from tests.contract.stores.fake_victorialogs import FakeVictoriaLogs
from tests.contract.stores.front import Asked, Behind, Told
from tests.contract.stores.world import LogBatch, Reader, Unavailable, UnavailableReason, World, Written, ask, batch

# Loki


async def test_structured_metadata_and_made_up_labels_split_no_stream(loki: World) -> None:
    """`detected_level` and a collector's trace ids differ from line to line; the stream is one all the same."""
    await loki.write(*(Written(text=f"{n}", at=-5 + n, metadata={"trace": f"id{n}"}) for n in range(4)))
    answer = await batch(loki.make(), loki.request())
    assert [(chunk.data, chunk.node) for chunk in answer.chunks] == [(b"0\n1\n2\n3\n", "node1")]


async def test_lines_that_differ_in_their_metadata_only_are_two(loki: World) -> None:
    """Two ranks that print the same in one nanosecond are told apart, and come once each."""
    await loki.write(*(Written(text="same", metadata={"rank": rank}) for rank in ("1", "2")))
    labels = Labels(node="host", rank="rank")
    reader = Reader(loki, loki.make(labels=labels))
    await reader.read()
    await reader.restart(loki.make(labels=labels))
    await reader.read()
    assert len(reader.got) == 2
    assert {"rank=1" in file for file, _ in reader.got} == {True, False}


async def test_a_job_id_in_structured_metadata(loki: World) -> None:
    """Job ids as labels make an index large; as metadata they are asked for and counted just as well."""
    labels = Labels(job="slurm_job", node="host", indexed=False)
    source = loki.make(labels=labels)
    assert isinstance(await ask(source, loki.request()), Unavailable)
    await loki.write(
        Written(text="mine", metadata={"slurm_job": loki.job}),
        Written(text="not mine", metadata={"slurm_job": f"{loki.job}1"}),
    )
    answer = await batch(loki.make(labels=labels), loki.request())
    assert b"".join(chunk.data for chunk in answer.chunks) == b"mine\n"


async def test_a_page_is_as_long_as_the_server_allows(loki: World) -> None:
    """Its refusal tells how long that is; then no page is asked for that is longer."""
    assert loki.front is not None
    if loki.real:
        pytest.skip("the real Loki of these tests allows what we begin with")
    await loki.write(*(Written(text=f"{n}", at=-20 + n * 0.01) for n in range(ENTRIES_MAX + 200)))
    reader = Reader(loki, loki.make())
    await reader.read()
    limits = [int(asked.form["limit"]) for asked in loki.front.asked if "limit" in asked.form]
    assert (limits[0], set(limits[1:])) == (5_000, {ENTRIES_MAX})
    assert reader.texts == [f"{n}" for n in range(ENTRIES_MAX + 200)]


async def test_more_lines_of_one_nanosecond_than_can_be_told_apart_are_said(loki: World) -> None:
    """Where no part gets short enough reading goes on behind it, and that lines are missing is said."""
    if loki.real:
        pytest.skip("takes a real Loki minutes")
    fake = loki.fake
    assert isinstance(fake, FakeLoki)
    fake.entries_max = 20
    # All end alike, for as long as the parts look.
    await loki.write(*(Written(text=f"{n} " + "a" * 400, at=-2) for n in range(50)), Written(text="behind", at=-1))
    reader = Reader(loki, loki.make())
    await reader.read()
    assert reader.texts[-1] == "behind"
    assert 20 <= len(reader.texts) < 51
    assert {item.reason for item in reader.absent} == {UnavailableReason.LIMIT}
    assert "nanosecond" in reader.absent[0].detail


async def test_times_are_sent_as_nanoseconds(loki: World) -> None:
    """Milliseconds would be taken, and answered with nothing."""
    assert loki.front is not None
    await loki.write("x")
    await batch(loki.make(), loki.request())
    for asked in loki.front.asked:
        assert all(len(asked.form[name]) == 19 for name in ("start", "end", "time") if name in asked.form)


async def test_answers_without_data_are_empty(loki: World) -> None:
    """The label interface leaves `data` out where there is none."""
    store = loki.store(loki.server())
    now = to_ns(loki.clock.now())
    seen = await store.look(now - 10**9, now)
    await store.close()
    assert (seen.streams, seen.lines, seen.newest_ns) == (0, 0, None)


async def test_the_job_filter_cannot_be_broken_out_of(loki: World) -> None:
    """Job ids and selectors are quoted: nothing in them becomes a part of the query."""
    await loki.write("x", Written(text="other", job=f"{loki.tag}9"))
    odd = f'{loki.job}"}} or {{source="{loki.tag}'
    store = loki.store(loki.server())
    now = to_ns(loki.clock.now())
    for jobs in ((odd,), (odd, "2"), (".*", "3")):
        asked = Ask(jobs=jobs, start_ns=now - 60 * 10**9, end_ns=now, whole=True, bytes_max=1_000)
        assert (await store.lines(asked)).streams == []
    await store.close()


# VictoriaLogs


async def test_lines_that_show_up_seconds_later_are_read_then(victorialogs: World) -> None:
    """What was taken before our read and shown after it comes once, though newer lines came already."""
    fake = victorialogs.fake
    if not isinstance(fake, FakeVictoriaLogs):
        pytest.skip("a real server shows lines when it likes")
    reader = Reader(victorialogs, victorialogs.make())
    await victorialogs.write(Written(text="hidden", at=-1, node="node2"))
    hidden = fake.arrivals - 1
    fake.shown = lambda arrival: arrival != hidden
    await victorialogs.write(Written(text="seen", at=-0.5))
    await reader.read()
    assert reader.texts == ["seen"]
    victorialogs.clock.advance(5)
    fake.shown = lambda _: True
    await reader.read()
    assert reader.texts == ["seen", "hidden"]


async def test_numbers_are_one_line_however_they_are_told(victorialogs: World) -> None:
    """A block of numbers is kept as numbers: "1.50" comes as "1.5" later, and is no other line."""
    reader = Reader(victorialogs, victorialogs.make())
    await victorialogs.write(*(Written(text=f"{n}.50", at=-2 + n * 0.1) for n in range(5)))
    await reader.read()
    if isinstance(victorialogs.fake, FakeVictoriaLogs):
        for _, row in victorialogs.fake.rows["0:0"]:
            row["_msg"] = row["_msg"].rstrip("0")
    victorialogs.clock.advance(2)
    await reader.read()
    await reader.restart(victorialogs.make())
    await reader.read()
    assert reader.texts == [f"{n}.5" for n in range(5)]


async def test_a_sequence_orders_lines_of_one_nanosecond(victorialogs: World) -> None:
    """The server has no order of its own there; a number from the collector gives one."""
    texts = [f"part {n}" for n in range(30)]
    await victorialogs.write(
        *(Written(text=text, at=-1, metadata={"seq": str(n)}) for n, text in reversed(list(enumerate(texts))))
    )
    answer = await batch(victorialogs.make(labels=Labels(node="host", sequence="seq")), victorialogs.request())
    assert b"".join(chunk.data for chunk in answer.chunks).decode().split("\n")[:-1] == texts


async def test_windows_are_half_open_to_the_nanosecond(victorialogs: World) -> None:
    """A line at the border of two windows is in one of them."""
    await victorialogs.write(*(Written(text=f"{n}", at=-5, ns=n) for n in range(4)))
    store = victorialogs.store(victorialogs.server())
    first = victorialogs.ns(Written(text="", at=-5))
    for start, end, expected in ((0, 2, {b"0", b"1"}), (2, 4, {b"2", b"3"}), (1, 1, set()), (3, 4, {b"3"})):
        asked = Ask(jobs=(victorialogs.job,), start_ns=first + start, end_ns=first + end, whole=True, bytes_max=10_000)
        answer = await store.lines(asked)
        assert {line[1] for stream in answer.streams for line in stream.lines} == expected
    await store.close()


async def test_short_lines_are_not_free(victorialogs: World) -> None:
    """What an answer holds is bounded by what it takes in memory, and a line without text takes a row, too."""
    await victorialogs.write(*(Written(text=".", at=-5, ns=n) for n in range(1_000)))
    store = victorialogs.store(victorialogs.server())
    first = victorialogs.ns(Written(text="", at=-5))
    wish = Ask(jobs=(victorialogs.job,), start_ns=first, end_ns=first + 1_000, whole=True, bytes_max=20_000)
    answer = await store.lines(wish)
    assert 0 < sum(len(stream.lines) for stream in answer.streams) < 400
    assert answer.until_ns < wish.end_ns
    await store.close()


async def test_a_window_that_breaks_off_is_made_shorter(victorialogs: World) -> None:
    """The server's time is over in the middle of a long answer, always: shorter questions get through."""
    assert victorialogs.front is not None
    await victorialogs.write(*(Written(text=f"{n} " + "y" * 200, at=-1_800 + n) for n in range(1_500)))
    limits = StoreLimits(patience_seconds=20.0, missing_seconds=1e9, quiet_seconds=1e9, overlap_seconds=20.0)

    async def tired(asked: Asked, behind: Behind) -> Told:
        told = await behind(asked)
        return replace(told, cut=60_000, last_words=b"the connection has been aborted")

    victorialogs.front.always = tired
    reader = Reader(victorialogs, victorialogs.make(limits=limits))
    reader.changes = {"started_at": victorialogs.clock.now().replace(microsecond=0) - timedelta(minutes=31)}
    for _ in range(30):
        answer = await reader.read()
        if isinstance(answer, LogBatch):
            break
        victorialogs.clock.advance(0.0)
        reader.source.store._server.breaker.succeeded()  # type: ignore[attr-defined]  # no pauses here
    assert [int(text.split()[0]) for text in reader.texts] == list(range(1_500))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-29T11:25:21.000001Z", 1795951521_000001000),
        ("2026-11-29T11:25:21.123456789Z", 1795951521_123456789),
        ("2026-11-29T11:25:21.5Z", 1795951521_500000000),
        ("2026-11-29T13:25:21.5+02:00", 1795951521_500000000),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, ns: int) -> None:
    """With zeros trimmed from their ends, with and without a zone."""
    assert parse_time(text) == ns
    assert parse_time(text) == ns  # also where its second is known
    assert parse_time(format_time(ns)) == ns


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00Z", "2026-11-29T11:25:21.1234567890Z", "1e9"])
def test_what_is_no_time_is_an_error(text: str) -> None:
    """Never a wrong time."""
    with pytest.raises(ValueError, match=r"time|month"):
        parse_time(text)
