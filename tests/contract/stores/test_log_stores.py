"""What both log stores promise beyond what every source does: late and doubled lines, clocks, tenants, credentials, and
a server, a network or an answer that fails.
"""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from advisor.core.line_filter import LineFilter
from connectors.logs.store import Ask, Labels
from connectors.logs.store_reader import LATE, StoreLimits, StoreLogs, to_ns
from connectors.web.pacing import Breaker, Pace
from connectors.web.server import AskError, Server
from tests.contract.stores.front import (
    Asked,
    Behind,
    Fault,
    Told,
    cuts,
    garbles,
    hangs_up,
    never_answers,
    passes,
    says,
)
from tests.contract.stores.world import LogBatch, Reader, Unavailable, UnavailableReason, World, Written, ask, batch
from tests.contract.world import StandingClock

QUICK = StoreLimits(patience_seconds=20.0, missing_seconds=0.0, quiet_seconds=0.0)


# Time


@pytest.mark.parametrize("late", [2, 30, 100])
async def test_a_late_line_is_delivered(stored: World, late: int) -> None:
    """A collector that was cut off ships what it held: lines older than what was read come all the same, once."""
    reader = Reader(stored, stored.make())
    reader.changes = {"started_at": stored.clock.now() - timedelta(seconds=300)}
    await stored.write(Written(text="on time", at=-1, node="node1"))
    await reader.read()
    stored.clock.advance(5)
    await stored.write(Written(text="late", at=-late, node="node2"))
    stored.clock.advance(16)
    await reader.read()
    await reader.restart(stored.make())
    stored.clock.advance(16)
    await reader.read()
    assert reader.texts == ["on time", "late"]


async def test_a_line_later_than_the_overlap_is_not_waited_for(stored: World) -> None:
    """The overlap is the bound that an operator chose; beyond it nothing is asked for again."""
    reader = Reader(stored, stored.make(limits=replace(QUICK, overlap_seconds=60.0)))
    reader.changes = {"started_at": stored.clock.now() - timedelta(seconds=300)}
    await stored.write("on time")
    for _ in range(3):
        await reader.read()
        stored.clock.advance(30)
    await stored.write(Written(text="too late", at=-200))
    for _ in range(3):
        await reader.read()
        stored.clock.advance(20)
    assert reader.texts == ["on time"]


async def test_a_line_older_than_its_stream_comes_as_a_stream_of_its_own(stored: World) -> None:
    """Steps that come late must not look like steps that went back: they are not mixed into the stream."""
    reader = Reader(stored, stored.make())
    await stored.write(Written(text="step 11", at=-2))
    await reader.read()
    await stored.write(Written(text="step 10", at=-3), Written(text="step 12", at=-1))
    stored.clock.advance(1)
    await reader.read()
    assert sorted(reader.got[1:]) == sorted([(reader.got[0][0], b"step 12"), (reader.got[0][0] + LATE, b"step 10")])


async def test_lines_written_out_of_order_before_they_are_read_come_in_order(stored: World) -> None:
    """Order is that of the lines' times, not of their arrival."""
    for at in (-3, -1, -5, -2, -4):
        await stored.write(Written(text=f"at {at}", at=at))
    reader = Reader(stored, stored.make())
    await reader.read()
    assert reader.texts == ["at -5", "at -4", "at -3", "at -2", "at -1"]


async def test_a_clock_that_is_ahead_or_behind_loses_nothing(stored: World) -> None:
    """Nodes whose clocks differ by minutes are read as they write, each in its own order, once."""
    reader = Reader(stored, stored.make())
    reader.changes = {"started_at": stored.clock.now() - timedelta(seconds=200)}
    for turn in range(5):
        await stored.write(
            Written(text=f"right {turn}", at=-0.1, node="node1"),
            Written(text=f"ahead {turn}", at=240, node="node2"),
            Written(text=f"behind {turn}", at=-50, node="node3"),
        )
        stored.clock.advance(16)
        await reader.read()
    assert sorted(reader.texts) == sorted(f"{who} {n}" for who in ("right", "ahead", "behind") for n in range(5))
    assert not any(file.endswith(LATE) for file, _ in reader.got)


@pytest.mark.parametrize("hours", [0.03, 1, 24 * 30])
async def test_a_clock_that_is_set_back_loses_nothing(stored: World, hours: float) -> None:
    """Our own clock ran ahead, and was put right: what is written from then on is read as ever, by anybody."""
    reader = Reader(stored, stored.make())
    reader.changes = {"started_at": stored.clock.now() - timedelta(seconds=300)}
    await stored.write("before")
    await reader.read()
    stored.clock.advance(hours * 3600)
    for _ in range(3):
        await reader.read()
        stored.clock.advance(20)
    stored.clock.advance(-hours * 3600)
    for turn in range(4):
        await stored.write(f"after {turn}")
        await reader.read()
        stored.clock.advance(20)
    await reader.restart(stored.make())
    await reader.read()
    assert reader.texts == ["before", *(f"after {turn}" for turn in range(4))]


@pytest.mark.parametrize("behind", [30, 500, 900, 3_600])
async def test_a_clock_that_is_behind_delivers_each_line_once(stored: World, behind: float) -> None:
    """Our host was paused: scheduler, nodes and store tell another time, and each line is read once as it comes."""
    reader = Reader(stored, stored.make())
    reader.changes = {"started_at": stored.clock.now() + timedelta(seconds=behind - 20)}
    for turn in range(8):
        await stored.write(Written(text=f"line {turn}", at=behind - 0.5))
        await reader.read()
        assert reader.texts == [f"line {turn}" for turn in range(turn + 1)]
        stored.clock.advance(5)
    assert reader.absent == []
    stored.clock.advance(behind)
    await reader.restart(stored.make())
    await reader.read()
    assert len(reader.texts) == 8


async def test_a_clock_that_is_further_behind_than_is_asked_is_told(stored: World) -> None:
    """No start of a job says how far: that there are lines later than what is asked for is said."""
    reader = Reader(stored, stored.make())
    reader.changes = {"started_at": stored.clock.now() - timedelta(seconds=30)}
    await stored.write(Written(text="later", at=3_600))
    answer = await reader.read()
    assert isinstance(answer, Unavailable)
    assert "is our clock behind?" in answer.detail
    reader.changes = {"started_at": stored.clock.now() + timedelta(days=3)}
    answer = await reader.read()
    assert isinstance(answer, Unavailable)
    assert "our clock is" in answer.detail


async def test_a_clock_that_is_set_back_delivers_nothing_again(stored: World) -> None:
    """What was delivered last is still known after our clock, an hour ahead, was put right."""
    reader = Reader(stored, stored.make())
    reader.changes = {"started_at": stored.clock.now() - timedelta(seconds=300)}
    stored.clock.advance(3_600)
    for turn in range(3):
        await stored.write(Written(text=f"line {turn}", at=-3_600 - 1))
        await reader.read()
        stored.clock.advance(1)
    stored.clock.advance(-3_600)
    for _ in range(3):
        await reader.read()
        stored.clock.advance(2)
    assert reader.texts == [f"line {turn}" for turn in range(3)]


async def test_more_lines_ahead_of_our_clock_than_are_remembered_are_delivered_once(stored: World) -> None:
    """A flood that is dated after now is no sign that our clock was set back."""
    limits = StoreLimits(patience_seconds=100.0, missing_seconds=0.0, quiet_seconds=0.0, filter_lines=0, known_max=10)
    reader = Reader(stored, stored.make(limits=limits))
    for turn in range(4):
        await stored.write(*(Written(text=f"{turn} {n}", at=300, ns=n) for n in range(40)))
        await reader.read()
        stored.clock.advance(5)
    assert sorted(reader.texts) == sorted(f"{turn} {n}" for turn in range(4) for n in range(40))


async def test_one_odd_count_is_absence_and_passes(stored: World) -> None:
    """What a proxy makes of a count once does not keep the source from being read afterwards."""
    assert stored.front is not None
    odd = {"job_id": stored.job, "n": 5, "status": "success"}
    vector = {"resultType": "vector", "result": [{"metric": {"job_id": stored.job}, "value": [1, "NaN"]}]}

    async def counts_oddly(asked: Asked, behind: Behind) -> Told:
        if "count" not in asked.form["query"]:
            return await behind(asked)
        return Told(body=json.dumps(odd | {"data": vector}).encode() + b"\n")

    stored.front.always = counts_oddly
    reader = Reader(stored, stored.make())
    answer = await reader.read()
    assert isinstance(answer, Unavailable)
    assert (answer.reason, "count" in answer.detail) == (UnavailableReason.GARBLED, True)
    stored.front.always = None
    await stored.write("there")
    await asyncio.sleep(0.11)
    await reader.read()
    assert reader.texts == ["there"]


async def test_a_line_sent_twice_is_delivered_once(stored: World) -> None:
    """Collectors repeat what they are not sure of, before and after we read."""
    again = Written(text="twice", at=-2)
    await stored.write(again, again, Written(text="other", at=-2))
    reader = Reader(stored, stored.make())
    await reader.read()
    await stored.write(again)
    stored.clock.advance(0.5)
    await reader.read()
    stored.clock.advance(16)
    await reader.read()
    assert sorted(reader.texts) == ["other", "twice"]


async def test_attempts_of_a_job_divide_its_lines_by_time(stored: World) -> None:
    """The label is the job's; each attempt gets what was written during it and shortly after, once."""
    now = stored.clock.now()
    first = {"started_at": now - timedelta(seconds=100), "ended_at": now - timedelta(seconds=50)}
    second = {"started_at": now - timedelta(seconds=47), "key": f"{stored.job}/1", "attempt": 1}
    await stored.write(
        Written(text="first", at=-60), Written(text="teardown", at=-49.5), Written(text="second", at=-46.9)
    )
    source = stored.make()
    requests = [stored.request(**first), stored.request(**second)]
    answers = await source.read(requests)
    texts = []
    for request in requests:
        answer = answers[request.key]
        assert isinstance(answer, LogBatch)
        texts.append(b"".join(chunk.data for chunk in answer.chunks))
    assert sorted(b"".join(texts).split()) == [b"first", b"second", b"teardown"]
    assert b"first" in texts[0]
    assert b"second" in texts[1]


async def test_streams_tell_their_node(stored: World) -> None:
    """The collector's label says which node wrote, so that no text can."""
    await stored.write(Written(text="a", node="node1"), Written(text="b", node="node2"))
    answer = await batch(stored.make(), stored.request())
    assert sorted((chunk.node, chunk.data) for chunk in answer.chunks) == [("node1", b"a\n"), ("node2", b"b\n")]


async def test_catching_up_after_an_outage_of_ours(stored: World) -> None:
    """Hours of lines are read window by window, in order, each once."""
    started_at = stored.clock.now() - timedelta(hours=2)
    await stored.write(*(Written(text=f"line {n}", at=-5_000 + n * 5) for n in range(1_000)))
    reader = Reader(stored, stored.make(limits=replace(QUICK, window_seconds=900.0)))
    reader.changes = {"started_at": started_at, "bytes_max": 2_000}
    await reader.read()
    assert reader.texts == [f"line {n}" for n in range(1_000)]


# Absence


async def test_a_wrong_tenant_is_not_a_silent_job(stored: World) -> None:
    """Both stores answer 200 and nothing for a tenant that has nothing. That is said, with what to check."""
    tenant = "8:8" if stored.kind == "victorialogs" else "nobody"
    if stored.real and stored.kind == "loki":
        pytest.skip("the real Loki of these tests has one tenant")
    if stored.fake is not None and stored.kind == "loki":
        stored.fake.tenants = ("right",)  # type: ignore[union-attr]
        await stored.write("x", tenant="right")
    else:
        await stored.write("x")
    answer = await ask(stored.make(tenant=tenant), stored.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING
    assert "tenant" in answer.detail


async def test_a_store_that_empties_is_noticed(stored: World) -> None:
    """A store that had lines and has none of any job any more has lost its tenant, not its jobs' words."""
    if stored.fake is None:
        pytest.skip("a real store does not forget on demand")
    reader = Reader(stored, stored.make())
    await stored.write("x")
    await reader.read()
    for held in (stored.fake.streams if stored.kind == "loki" else stored.fake.rows,):  # type: ignore[union-attr]
        held.clear()
    stored.clock.advance(61)
    answer = await reader.read()
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING


FAULTS: dict[str, tuple[Fault, UnavailableReason]] = {
    "429": (says(429, "ingestion rate limit exceeded"), UnavailableReason.LIMIT),
    "500": (says(500, "rpc error"), UnavailableReason.REFUSED),
    "503": (says(503, "too many outstanding requests"), UnavailableReason.REFUSED),
    "504": (says(504), UnavailableReason.TIMEOUT),
    "401": (says(401, "no org id"), UnavailableReason.PERMISSION),
    "403": (says(403), UnavailableReason.PERMISSION),
    "404": (says(404, "page not found"), UnavailableReason.NOT_CONFIGURED),
    "400": (says(400, "parse error : syntax error"), UnavailableReason.REFUSED),
    "redirect": (says(302, Location="http://127.0.0.1:1/"), UnavailableReason.REFUSED),
    "hang up": (hangs_up, UnavailableReason.GARBLED),
    "cut": (cuts(0.6), UnavailableReason.GARBLED),
    "last words": (cuts(0.6, b"the connection has been aborted; see the last line"), UnavailableReason.GARBLED),
    "no json": (garbles(b"<html>proxy</html>\n"), UnavailableReason.GARBLED),
    "other json": (garbles(b'[1, 2, "x"]\n'), UnavailableReason.GARBLED),
    "half": (garbles(b'{"status":"success","data":{"resultType":"streams","result":[{"str'), UnavailableReason.GARBLED),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_failure_is_absence_with_its_reason_and_loses_nothing(stored: World, name: str) -> None:
    """Whatever a server does wrong: the attempt's source is `Unavailable`, the cursor stays, and what was missed comes
    when the server is well again.
    """
    fault, reason = FAULTS[name]
    assert stored.front is not None
    await stored.write(*(Written(text=f"line {n}", at=-5 + n * 0.01) for n in range(50)))
    reader = Reader(stored, stored.make())
    stored.front.always = fault
    answer = await reader.read()
    assert isinstance(answer, Unavailable), answer
    assert (answer.source, answer.reason) == ("store", reason)
    assert answer.detail
    assert reader.cursor == ""
    stored.front.always = None
    await asyncio.sleep(0.11)  # the breaker's pause
    await reader.read()
    assert reader.texts == [f"line {n}" for n in range(50)]


async def test_a_fault_in_the_middle_of_a_long_read_repeats_and_skips_nothing(stored: World) -> None:
    """Pages before the fault may be delivered or not; in the end each line came once."""
    await stored.write(*(Written(text=f"line {n} " + "x" * 100, at=-20 + n * 0.001) for n in range(4_000)))
    reader = Reader(stored, stored.make(limits=replace(QUICK, answer_bytes=100_000)))
    assert stored.front is not None
    for fault in (hangs_up, cuts(0.5), says(500), cuts(0.9, b"aborted")):
        stored.front.faults = [passes, passes, fault, fault, fault]
        await reader.read()
        await asyncio.sleep(0.11)
    stored.front.faults = []
    await reader.read()
    assert [int(text.split()[1]) for text in reader.texts] == list(range(4_000))


async def test_a_server_that_fails_is_left_alone_for_longer_and_longer(stored: World) -> None:
    """Back-off with a circuit breaker: while it is open nothing is asked, and the first success closes it."""
    assert stored.front is not None
    clock = _HandClock()
    breaker = Breaker(clock, first_seconds=1.0, max_seconds=8.0)
    server = Server(stored.server().access, clock=clock, pace=Pace(clock, per_second=1e6, burst=1e6), breaker=breaker)
    source = StoreLogs("store", stored.store(server), clock=clock, limits=QUICK)
    stored.sources.append(source)
    await stored.write("x")
    request = stored.request()
    stored.front.always = says(503)
    asked = []
    for _ in range(40):
        before = len(stored.front.asked)
        answer = await ask(source, request)
        assert isinstance(answer, Unavailable)
        asked.append(len(stored.front.asked) > before)
        clock.monotonic_now += 0.5
    assert [at for at, yes in enumerate(asked) if yes] == [0, 2, 6, 14, 30]
    stored.front.always = None
    clock.monotonic_now += 8
    assert isinstance(await ask(source, request), LogBatch)
    assert breaker.failures == 0


async def test_the_servers_own_wait_is_kept_to(stored: World) -> None:
    """`Retry-After` holds even where our own pause would be shorter."""
    assert stored.front is not None
    clock = _HandClock()
    breaker = Breaker(clock, first_seconds=0.1, max_seconds=60.0)
    server = Server(stored.server().access, clock=clock, pace=Pace(clock, per_second=1e6, burst=1e6), breaker=breaker)
    source = StoreLogs("store", stored.store(server), clock=clock, limits=QUICK)
    stored.sources.append(source)
    stored.front.always = says(429, "slow down", Retry_After="7")
    await ask(source, stored.request())
    assert 6.5 < breaker.left_seconds <= 7


async def test_no_server_there(stored: World) -> None:
    """A refused connection is absence, told with the address's own error, and the next look finds the server."""
    assert stored.front is not None
    await stored.write("x")
    port = stored.front.port
    await stored.front.stop()
    reader = Reader(stored, stored.make())
    answer = await reader.read()
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.REFUSED
    await stored.front.start(port)
    await asyncio.sleep(0.11)
    await reader.read()
    assert reader.texts == ["x"]


async def test_a_slow_server_does_not_hold_the_tick(stored: World) -> None:
    """After a moment of patience the answer is "nothing new", and what arrives meanwhile comes with the next read."""
    assert stored.front is not None
    await stored.write("slow")
    release = asyncio.Event()

    async def slowly(asked: Asked, behind: Behind) -> Told:
        await release.wait()
        return await behind(asked)

    stored.front.always = slowly
    source = stored.make(limits=replace(QUICK, patience_seconds=0.02))
    async with asyncio.timeout(2):
        first = await ask(source, stored.request())
    assert first == LogBatch(chunks=(), cursor="")
    release.set()
    for _ in range(500):
        answer = await batch(source, stored.request())
        if answer.chunks:
            break
    assert answer.chunks[0].data == b"slow\n"


async def test_a_server_that_never_answers_is_a_time_out(stored: World) -> None:
    """When the store's own time is over the source is absent, and the window is made smaller."""
    assert stored.front is not None
    stored.front.always = never_answers
    answer = await ask(stored.make(timeout_seconds=0.05), stored.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.TIMEOUT


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("piece", [b" ", b"\n"])
async def test_an_answer_that_trickles_is_a_time_out(stored: World, status: int, piece: bytes) -> None:
    """A byte now and then keeps every read of it short, and the whole of it endless: that is no answer."""
    assert stored.front is not None

    async def trickles(_: Asked, __: Behind) -> Told:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield piece
                await asyncio.sleep(0.01)

        return Told(status=status, body=pieces())

    stored.front.always = trickles
    async with asyncio.timeout(10):
        answer = await ask(stored.make(timeout_seconds=0.1), stored.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.TIMEOUT


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate"])
async def test_a_packed_answer_is_not_unpacked(stored: World, encoding: str) -> None:
    """We ask for plain ones; some kilobytes that are gigabytes inside would take the service's memory."""
    assert stored.front is not None
    bomb = gzip.compress(gzip.compress(b"\n" * (64 << 20))) if encoding == "gzip, gzip" else gzip.compress(b"{}")

    async def packed(_: Asked, __: Behind) -> Told:
        return Told(body=bomb, headers={"Content-Encoding": encoding})

    stored.front.always = packed
    answer = await ask(stored.make(), stored.request())
    assert isinstance(answer, Unavailable)
    assert (answer.reason, encoding in answer.detail) == (UnavailableReason.GARBLED, True)


@pytest.mark.parametrize("status", [200, 400, 401, 500])
async def test_a_server_that_repeats_our_secret_does_not_have_it_shown(stored: World, status: int) -> None:
    """Proxies that are being debugged answer with the request's headers; verdicts are shown to every user."""
    assert stored.front is not None
    secret = stored.folder / "secret"
    secret.write_text("s3cret-" + "0123456789" * 300)

    async def repeats(asked: Asked, _: Behind) -> Told:
        return Told(status=status, body=f"no: {asked.headers['authorization']}\n".encode())

    stored.front.always = repeats
    for how in ({"token_file": secret}, {"user": "advisor", "password_file": secret}):
        answer = await ask(stored.make(**how), stored.request())
        assert isinstance(answer, Unavailable)
        shown = base64.b64encode(f"advisor:{secret.read_text()}".encode()).decode()
        assert secret.read_text()[:12] not in answer.detail
        assert shown[:12] not in answer.detail


async def test_a_token_that_no_header_can_carry_is_named_by_its_file(stored: World) -> None:
    """The client's own complaint would hold it."""
    secret = stored.folder / "secret"
    secret.write_text("s3crét-token")
    answer = await ask(stored.make(token_file=secret), stored.request())
    assert isinstance(answer, Unavailable)
    assert (answer.reason, str(secret) in answer.detail) == (UnavailableReason.PERMISSION, True)


async def test_what_a_server_says_is_shown_short_and_harmless(stored: World) -> None:
    """Its text may be anything: capped, without control characters, and never our secret."""
    assert stored.front is not None
    token = stored.folder / "token"
    token.write_text("s3cret-token\n")
    stored.front.always = says(400, "\x1b[2Jboo\r\n" + "x" * 5_000)
    answer = await ask(stored.make(token_file=token), stored.request())
    assert isinstance(answer, Unavailable)
    assert len(answer.detail) < 600
    assert answer.detail.isprintable()
    assert "s3cret" not in answer.detail


# Load


async def test_questions_do_not_grow_with_jobs(stored: World) -> None:
    """A thousand attempts are asked for in one question."""
    assert stored.front is not None
    jobs = [f"{stored.tag}{n}" for n in range(1_000)]
    await stored.write(*(Written(text=f"of {job}", job=job) for job in jobs[::50]))
    source = stored.make(limits=replace(QUICK, missing_seconds=1e9))
    source._counted = 1e18  # type: ignore[attr-defined]  # not now
    await source.read([stored.request(job_id=jobs[0])])  # learns what the server gives at once
    before = len(stored.front.asked)
    answers = await source.read([stored.request(job_id=job) for job in jobs])
    assert len(stored.front.asked) - before == 1
    assert sum(bool(answer.chunks) for answer in answers.values() if isinstance(answer, LogBatch)) == 20


async def test_the_pace_holds_whatever_is_wanted(stored: World) -> None:
    """Five questions per second at most, all purposes together."""
    assert stored.front is not None
    clock = _HandClock()
    pace = Pace(clock, per_second=5.0, burst=5.0)
    await stored.write(*(Written(text=f"{n}", at=-3_000 + n * 10) for n in range(200)))
    server = Server(stored.server().access, clock=clock, pace=pace)
    limits = replace(QUICK, window_seconds=60.0, jobs_per_question=2, missing_seconds=1.0)
    source = StoreLogs("store", stored.store(server), clock=clock, limits=limits)
    stored.sources.append(source)
    began = clock.monotonic_now
    requests = [
        stored.request(job_id=f"{stored.tag}{n}", started_at=stored.clock.now() - timedelta(seconds=60 * n + 300))
        for n in range(20)
    ]
    for _ in range(10):
        await source.read(requests)
        clock.monotonic_now += 0.2
    assert len(stored.front.asked) <= 5 + 5 * (clock.monotonic_now - began) + 1


class _HandClock(StandingClock):
    """Monotonic time is moved by hand, and by sleeping."""

    monotonic_now = 1_000.0

    def monotonic(self) -> float:
        return self.monotonic_now

    async def sleep(self, seconds: float) -> None:
        self.monotonic_now += seconds
        await asyncio.sleep(0)


# Credentials


async def test_basic_authentication_and_a_password_that_changes(stored: World) -> None:
    """The password comes from a file, which is read again when it changes."""
    assert stored.front is not None
    password = stored.folder / "password"
    password.write_text("first\n")
    stored.front.always = _only("Basic YWR2aXNvcjpmaXJzdA==")
    source = stored.make(user="advisor", password_file=password)
    await stored.write("x")
    assert isinstance(await ask(source, stored.request()), LogBatch)
    stored.front.always = _only("Basic YWR2aXNvcjpzZWNvbmQtb25l")
    stored.clock.advance(1)
    assert isinstance(await ask(source, stored.request('{"v":1,"store":{"r":1,"s":1,"w":1,"a":true}}')), Unavailable)
    password.write_text("second-one\n")
    await asyncio.sleep(0.11)
    assert isinstance(await ask(source, stored.request('{"v":1,"store":{"r":1,"s":1,"w":1,"a":true}}')), LogBatch)


async def test_a_token_file_is_read_again_when_it_changes(stored: World) -> None:
    """Tokens are rotated while we run; one that is missing or odd is absence, not an end."""
    assert stored.front is not None
    token = stored.folder / "token"
    source = stored.make(token_file=token)
    await stored.write("x")
    answer = await ask(source, stored.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.PERMISSION
    assert str(token) in answer.detail
    for text in ("one", "another"):
        token.write_text(text)
        stored.front.always = _only(f"Bearer {text}")
        await asyncio.sleep(0.11)
        assert isinstance(await ask(source, stored.request()), LogBatch)
    token.write_text("two\nlines")
    answer = await ask(source, stored.request('{"v":1,"store":{"r":1,"s":1,"w":1,"a":true}}'))
    assert isinstance(answer, Unavailable)
    assert "lines" not in answer.detail


async def test_tenant_headers_are_sent(stored: World) -> None:
    """With every question, under the names that the store knows."""
    assert stored.front is not None
    await ask(stored.make(tenant="3:4" if stored.kind == "victorialogs" else "team-a"), stored.request())
    assert stored.front.asked
    for asked in stored.front.asked:
        if stored.kind == "loki":
            assert asked.headers["x-scope-orgid"] == "team-a"
        else:
            assert (asked.headers["accountid"], asked.headers["projectid"]) == ("3", "4")


def _only(authorization: str) -> Fault:
    async def fault(asked: Asked, behind: Behind) -> Told:
        if asked.headers.get("authorization") != authorization:
            return Told(status=401, body=b"unauthorized", kind="text/plain")
        return await behind(asked)

    return fault


# Filters


@pytest.mark.parametrize("patterns", [(), (r"\bxid[ :]\d+",)])
async def test_the_filter_leaves_lines_out_and_the_attempt_is_there_all_the_same(
    stored: World, patterns: tuple[str, ...]
) -> None:
    """Only lines that pass are sent; an attempt whose lines were all left out is not missing."""
    chosen = LineFilter(texts=("ERROR", "rror", "Step", "\x1b"), patterns=patterns)
    reader = Reader(stored, stored.make(chosen=chosen))
    await stored.write(Written(text="nothing of note", at=-3))
    answer = await reader.read()
    assert isinstance(answer, LogBatch), answer
    await stored.write(
        Written(text="CUDA ERROR here", at=-2.9),
        Written(text='quoted "Error" \\ here', at=-2.8),
        Written(text="xid 79", at=-2.7),
        Written(text="still nothing", at=-2.6),
        Written(text="\x1b[31mcoloured", at=-2.5),
        Written(text="Step 7", at=-2.4),
    )
    await reader.read()
    texts = ["CUDA ERROR here", 'quoted "Error" \\ here', "xid 79", "\x1b[31mcoloured", "Step 7"]
    assert reader.texts == [text for text in texts if patterns or text != "xid 79"]


async def test_whole_requests_get_every_line(stored: World) -> None:
    """A job with rules of its own is read without the filter."""
    chosen = LineFilter(texts=("error",), patterns=())
    await stored.write(Written(text="plain", at=-2), "an error")
    answer = await batch(stored.make(chosen=chosen), stored.request(whole=True))
    assert answer.chunks[0].data == b"plain\nan error\n"


async def test_lines_left_out_are_counted_for_attempts_that_seem_quiet(stored: World) -> None:
    """A job that prints what no rule speaks of is not silent: how much it printed is told, on its last stream."""
    chosen = LineFilter(texts=("step",), patterns=())
    source = stored.make(chosen=chosen, limits=replace(QUICK, pulse_seconds=0.0, filter_lines=0))
    await stored.write("step 1")
    first = await batch(source, stored.request())
    stored.clock.advance(12)
    await stored.write(*(Written(text=f"evaluating {n}", at=-5 + n * 0.1) for n in range(30)))
    source._limits = replace(QUICK, pulse_seconds=10.0)
    source._pulsed = -1e9
    cursor, skipped = first.cursor, []
    for _ in range(3):
        answer = await batch(source, stored.request(cursor))
        cursor = answer.cursor
        skipped.extend((chunk.file, chunk.skipped, chunk.data) for chunk in answer.chunks)
    assert skipped == [(first.chunks[0].file, 30, b"")]


async def test_a_look_tells_what_doctor_shows(stored: World) -> None:
    """Streams, lines, jobs, nodes and the newest line's time; a label that nobody has is named."""
    await stored.write(Written(text="a", node="node1"), Written(text="b", node="node2", at=-0.5))
    now = to_ns(stored.clock.now())
    store = stored.store(stored.server())
    seen = await store.look(now - 3_600 * 10**9, now)
    await store.close()
    assert (seen.streams, seen.lines, seen.jobs, seen.nodes) == (2, 2, 1, 2)
    assert seen.newest_ns == stored.ns(Written(text="b", at=-0.5))
    wrong = stored.store(stored.server(), labels=Labels(job="jobid"))
    seen = await wrong.look(now - 3_600 * 10**9, now)
    await wrong.close()
    assert any("jobid" in note for note in seen.notes)


async def test_a_question_that_is_refused_is_an_error_with_the_servers_words(stored: World) -> None:
    """What the store says of a query that it does not take reaches the operator."""
    server = stored.server()
    store = stored.store(server)
    store._selector = '{source="x}'  # no configuration can be so wrong
    with pytest.raises(AskError) as caught:
        await store.lines(Ask(jobs=("1",), start_ns=0, end_ns=10**9, whole=True, bytes_max=1000))
    await store.close()
    assert caught.value.status == 400
    assert caught.value.reason is UnavailableReason.REFUSED


async def test_the_store_filters_only_where_it_saves_something(stored: World) -> None:
    """While jobs print little every line is sent; after a long answer, those that matter; then it is tried again."""
    chosen = LineFilter(texts=("rror",), patterns=())
    clock = Ticking(stored.clock)
    limits = replace(QUICK, filter_lines=50, filter_seconds=60.0, pulse_seconds=1e9)
    store = stored.store(stored.server(), chosen=chosen)
    source = StoreLogs("store", store, clock=clock, limits=limits)
    stored.sources.append(source)
    reader = Reader(stored, source)
    for count, expected in ((20, 20), (80, 80), (30, 1)):
        before = len(reader.got)
        await stored.write(*(Written(text=f"{count}.{n} all is well", at=-0.5 + n * 0.001) for n in range(count - 1)))
        await stored.write(Written(text=f"{count} an error", at=-0.4))
        await reader.read()
        assert len(reader.got) - before == expected
        stored.clock.advance(5)
    clock.skip(61)
    await stored.write("one more")
    await reader.read()
    assert reader.texts[-1] == "one more"


class Ticking:
    """A clock whose monotonic time can be moved on."""

    def __init__(self, clock: StandingClock) -> None:
        self._clock, self._skipped = clock, 0.0

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def skip(self, seconds: float) -> None:
        self._skipped += seconds
