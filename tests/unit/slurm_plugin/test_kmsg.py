"""The forwarder of kernel records: from the device to the spool to a file and to stores, each record once."""

import http.server
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_plugin.kmsg.__main__ import StartError, parser, receivers_of
from slurm_plugin.kmsg.forwarder import DeliveryGoneError, Device, DeviceGoneError, forward
from slurm_plugin.kmsg.receivers import (
    DeliveryError,
    LokiStore,
    NodeFile,
    Receiver,
    StoreAccess,
    VictoriaLogsStore,
)
from slurm_plugin.kmsg.records import Cap, KernelTime, Record, parse
from slurm_plugin.kmsg.spool import Entry, Place, Spool, set_aside_if_broken
from tests.unit.slurm_plugin.kmsg_device import KernelLog, kernel_log

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
LABELS = {"source": "kernel", "transport": "kernel", "host": "node1"}


@pytest.fixture
def log() -> Iterator[KernelLog]:
    with kernel_log() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.sqlite"


def opened(path: Path, receiver: str = "r", **options: int) -> Spool:
    spool = Spool(path, **options)
    spool.register([receiver])
    return spool


def device(log: KernelLog, spool: Spool, *, boot: str = "b1", per_second: float = 1e6) -> Device:
    return Device(log.reading.fileno(), boot=boot, spool=spool, cap=Cap(per_second, per_second))


def texts(spool: Spool, receiver: str = "r") -> list[str]:
    return [row.text for row in spool.waiting(receiver, 10_000)]


def test_a_record_is_its_first_line_with_number_time_and_facility() -> None:
    """Properties that follow it are left out, and what the kernel escaped stays escaped."""
    record = parse(b"4,4711,98765432101,-,caller=T1;tab\\x09 and bad \xff\n SUBSYSTEM=pci\n")
    assert record == Record(sequence=4711, uptime_us=98765432101, facility=0, text="tab\\x09 and bad \ufffd")
    assert parse(b"12,1,2,-;of a user")  # facility 1
    assert [parse(data) for data in (b"", b"garbage", b"1,2;x", b"6,1,2,-")] == [None] * 4


def test_what_is_not_the_kernels_own_is_not_forwarded(log: KernelLog, path: Path) -> None:
    """Root and services may write into the device, but not as the kernel."""
    spool = opened(path)
    log.say(XID, facility=1)
    log.say(XID, facility=3)
    log.say("pci 0000:3b:00.0: AER: error")
    device(log, spool).turn(0)
    assert texts(spool) == ["boot b1", "pci 0000:3b:00.0: AER: error"]


def test_a_restart_neither_loses_nor_repeats(path: Path) -> None:
    """The device tells everything again to who opens it: what was kept is known by its number."""
    for upto in (3, 5, 9):
        with kernel_log() as again:
            for number in range(upto):
                again.say(f"record {number}")
            spool = opened(path)
            device(again, spool).turn(0)
            spool.close()
    assert texts(opened(path)) == ["boot b1", *(f"record {number}" for number in range(9))]


def test_a_boot_begins_anew(path: Path) -> None:
    """Numbers start again with each boot, and the same number is another record."""
    for boot in ("b1", "b2"):
        with kernel_log() as again:
            again.say(f"of {boot}")
            spool = opened(path)
            device(again, spool, boot=boot).turn(0)
            spool.close()
    assert texts(opened(path)) == ["boot b1", "of b1", "boot b2", "of b2"]


def test_records_that_were_overwritten_are_told(log: KernelLog, path: Path) -> None:
    """A gap in the numbers stands in the log where it was, with how many are missing."""
    spool = opened(path)
    log.say("before")
    log.say("after", skip=17)
    reading = device(log, spool)
    reading.turn(0)
    assert texts(spool)[1:] == ["before", "17 kernel records were overwritten before they were read", "after"]
    assert reading.lost == 17


def test_a_device_that_ends_is_none(log: KernelLog, path: Path) -> None:
    """Reading nothing for ever would look like a quiet kernel."""
    log.writing.close()
    with pytest.raises(DeviceGoneError):
        device(log, opened(path)).turn(0)


def test_a_flood_leaves_room_for_what_tells_a_failure(log: KernelLog, path: Path) -> None:
    """A job that crashes in a loop fills its own share only; how much was left out is said."""
    spool = opened(path)
    for number in range(100):
        log.say(f"a.out[{number}]: segfault at 0 ip 0 sp 0 error 4")
    log.say(XID)
    device(log, spool, per_second=10).turn(0)
    assert texts(spool)[-1] == XID
    assert len(texts(spool)) == 1 + 10 + 1
    cap = Cap(10, 10)
    flood = Record(sequence=0, uptime_us=0, facility=0, text="x")
    assert sum(cap.lets(flood, 100.0) for _ in range(50)) == 10
    assert cap.take_left_out() == 0  # it goes on
    assert cap.lets(flood, 101.0)
    assert (cap.take_left_out(), cap.take_left_out()) == (40, 0)


def test_wall_time_follows_the_clock_and_not_the_kernels_drift() -> None:
    """A kernel clock that runs 90 s behind is corrected by records read at once, also for those that were waiting."""
    second = 1_000_000_000
    clock = KernelTime()
    wall, monotonic, drift = 1_800_000_000 * second, 1_000_000 * second, 90 * second

    def told(age: int, *, at_once: bool) -> int:
        uptime_us = (monotonic - drift - age) // 1_000
        return clock.wall_ns(uptime_us, wall_ns=wall, monotonic_ns=monotonic, at_once=at_once)

    assert told(100 * second, at_once=False) == wall - 190 * second  # nothing better is known
    assert told(2_000_000, at_once=True) == wall - 0
    assert told(0, at_once=True) == wall + 1  # later than the last, if by a nanosecond
    wall, monotonic = wall + 3_600 * second, monotonic + 10 * second  # somebody set the clock
    assert told(5 * second, at_once=False) == wall - 5 * second


def test_each_record_has_its_own_moment() -> None:
    """Stores take two lines of one text and one moment for one."""
    clock = KernelTime()
    times = [clock.wall_ns(7, wall_ns=10**18, monotonic_ns=7_000, at_once=False) for _ in range(3)]
    assert times == [10**18, 10**18 + 1, 10**18 + 2]


def test_a_full_spool_drops_the_oldest_and_says_so(path: Path) -> None:
    """A receiver that was away for days gets what is left, and the number of what is not."""
    spool = opened(path, rows_max=100)
    entries = [Entry(sequence=n, uptime_us=n, ns=n, text=f"record {n}") for n in range(150)]
    spool.add(entries, Place(boot="b", next=150, last_ns=150))
    left = texts(spool)
    assert left[-1] == "55 kernel records were dropped: the spool was full"
    assert left[:-1] == [f"record {n}" for n in range(55, 150)]


def filled(path: Path, receiver: str, count: int) -> Spool:
    spool = opened(path, receiver)
    entries = [
        Entry(sequence=n, uptime_us=12_345_678_901 + n, ns=1_795_951_521_000_001_000 + n, text=f"record {n}")
        for n in range(count)
    ]
    spool.add(entries, Place(boot="b", next=count, last_ns=10**18))
    return spool


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"no database" * 100), damage_pages])
def test_a_broken_spool_is_set_aside(path: Path, damage: Callable[[Path], None]) -> None:
    """A disk that lost a page does not end a node's forwarding; the file is kept for who wants to look."""
    spool = filled(path, "r", 2_000)
    spool.close()
    assert not set_aside_if_broken(path)
    assert len(texts(opened(path))) == 2_000
    damage(path)
    assert set_aside_if_broken(path)
    assert path.with_name(f"{path.name}.broken").exists()
    assert texts(opened(path)) == []


def test_a_file_has_the_lines_as_syslog_writes_them(tmp_path: Path, path: Path) -> None:
    """With wall time in UTC, the node, and the kernel's own seconds."""
    file = NodeFile(tmp_path / "node1.log", "node1")
    spool = filled(path, file.name, 1)
    assert (file.deliver(spool), file.deliver(spool)) == (1, 0)
    written = (tmp_path / "node1.log").read_text()
    assert written == "2026-11-29T11:25:21.000001+00:00 node1 kernel: [12345.678901] record 0\n"


class Killed(BaseException):
    pass


class DyingSpool:
    """Dies before or after one of the steps of a delivery, as a process that is killed there."""

    def __init__(self, spool: Spool, step: str, *, after: bool) -> None:
        self._spool, self._step, self._after = spool, step, after

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if name == self._step and not self._after:
                raise Killed
            found = getattr(self._spool, name)(*arguments)
            if name == self._step:
                raise Killed
            return found

        return call


@pytest.mark.parametrize("step", ["intend", "delivered"])
@pytest.mark.parametrize("after", [False, True])
def test_a_file_gets_each_line_once_wherever_the_forwarder_dies(
    tmp_path: Path, path: Path, step: str, after: bool
) -> None:
    """Before or after it notes what it is about to write, and before or after it remembers that it did."""
    place = tmp_path / "node1.log"
    place.write_text("there before\n")
    file = NodeFile(place, "node1")
    spool = filled(path, file.name, 5)
    with pytest.raises(Killed):
        file.deliver(DyingSpool(spool, step, after=after))  # type: ignore[arg-type]  # a spool that dies
    spool.add([Entry(sequence=9, uptime_us=9, ns=9, text="came later")], Place(boot="b", next=10, last_ns=10**18))
    again = NodeFile(place, "node1")
    while again.deliver(spool):
        pass
    lines = place.read_text().splitlines()
    assert [line.rpartition("] ")[2] for line in lines] == [
        "there before",
        *(f"record {n}" for n in range(5)),
        "came later",
    ]


def test_a_line_that_was_cut_by_a_crash_is_finished(tmp_path: Path, path: Path) -> None:
    """Only the first bytes were written: the rest follows, not all of it again."""
    place = tmp_path / "node1.log"
    file = NodeFile(place, "node1")
    spool = filled(path, file.name, 3)
    with pytest.raises(Killed):
        file.deliver(DyingSpool(spool, "delivered", after=False))  # type: ignore[arg-type]  # a spool that dies
    whole = place.read_bytes()
    os.truncate(place, len(whole) - 30)
    NodeFile(place, "node1").deliver(spool)
    assert place.read_bytes() == whole


def test_a_file_that_others_put_there_is_not_written(tmp_path: Path, path: Path) -> None:
    """A link or a FIFO in the place of the file is refused, and the lines wait."""
    file = NodeFile(tmp_path / "node1.log", "node1")
    spool = filled(path, file.name, 1)
    (tmp_path / "node1.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeliveryError) as raised:
        file.deliver(spool)
    assert raised.value.retry
    assert len(texts(spool, file.name)) == 1
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "node1.log").unlink()
    os.mkfifo(tmp_path / "node1.log")
    with pytest.raises(DeliveryError):
        file.deliver(spool)


def test_a_file_is_renamed_when_it_is_full(tmp_path: Path, path: Path) -> None:
    """One older generation is kept."""
    place = tmp_path / "node1.log"
    place.write_text("x" * 2_000)
    file = NodeFile(place, "node1", bytes_max=1_000)
    file.deliver(filled(path, file.name, 1))
    assert (place.read_text().count("record 0"), (tmp_path / "node1.log.1").read_text()) == (1, "x" * 2_000)


@dataclass
class Store:
    """Takes pushes and answers as told. `answers`: status and text of the next ones; then success."""

    url: str = ""
    answers: list[tuple[int, str]] = field(default_factory=list)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def store() -> Iterator[Store]:
    held = Store()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, text = held.answers.pop(0) if held.answers else (204, "")
            held.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{held.url}/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        held.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield held
        server.shutdown()
        thread.join()


def access(store: Store, **options: Path) -> StoreAccess:
    return StoreAccess(url=store.url, headers={"X-Scope-OrgID": "hpc"}, **options)


def test_loki_gets_the_moment_the_text_and_the_numbers(store: Store, path: Path) -> None:
    """The stream says who and by which transport; boot and number are metadata."""
    loki = LokiStore(access(store), LABELS)
    assert loki.deliver(filled(path, loki.name, 1)) == 1
    where, headers, body = store.got[0]
    assert (where, headers["x-scope-orgid"]) == ("/loki/api/v1/push", "hpc")
    value = ["1795951521000001000", "record 0", {"boot": "b", "sequence": "0"}]
    assert json.loads(body) == {"streams": [{"stream": LABELS, "values": [value]}]}


def test_victorialogs_gets_a_row_per_record(store: Store, path: Path) -> None:
    """Labels are the stream's fields; boot and number are fields of the row."""
    logs = VictoriaLogsStore(access(store), LABELS)
    assert logs.deliver(filled(path, logs.name, 2)) == 2
    where, _, body = store.got[0]
    assert where == "/insert/jsonline?_stream_fields=source%2Ctransport%2Chost"
    rows = [json.loads(line) for line in body.splitlines()]
    assert rows[1] == {
        "_time": "2026-11-29T11:25:21.000001001Z", "_msg": "record 1", **LABELS, "boot": "b", "sequence": "1",
    }  # fmt: skip


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_a_store_cannot_take_now_stays(store: Store, path: Path, status: int) -> None:
    """Overload and faults of the server cost no line, and the same lines are sent again, with the same times."""
    store.answers = [(status, "later, please")]
    loki = LokiStore(access(store), LABELS)
    spool = filled(path, loki.name, 3)
    with pytest.raises(DeliveryError, match=f"{status}: later, please") as raised:
        loki.deliver(spool)
    assert raised.value.retry
    assert loki.deliver(spool) == 3
    assert store.got[0][2] == store.got[1][2]


def test_one_line_that_is_never_taken_does_not_hold_up_the_others(store: Store, path: Path) -> None:
    """A line that is too old for the store is found by halving, passed over and told; the others arrive. That it takes
    any is seen by the newest, which arrives twice therefore.
    """
    store.answers = [(400, "too old"), (400, "too old")]
    loki = LokiStore(access(store), LABELS)
    spool = filled(path, loki.name, 3)
    with pytest.raises(DeliveryError) as raised:
        loki.deliver(spool)
    assert not raised.value.retry
    while loki.deliver(spool):
        pass
    taken = [value[1] for _, _, body in store.got[2:] for value in json.loads(body)["streams"][0]["values"]]
    assert taken == ["record 2", "record 1", "record 2"]


def test_a_store_that_takes_no_line_at_all_costs_none(store: Store, path: Path) -> None:
    """Refused for how the store is set up, or by another server: the lines wait until somebody has put it right."""
    store.answers = [
        (400, "structured metadata is not allowed")
    ] * 13  # three lines, one, the newest; then one and the newest again and again
    loki = LokiStore(access(store), LABELS)
    spool = filled(path, loki.name, 3)
    while store.answers:
        with pytest.raises(DeliveryError, match="is not allowed") as raised:
            loki.deliver(spool)
        assert raised.value.retry
    assert loki.deliver(spool) > 0
    while loki.deliver(spool):
        pass
    taken = [value[1] for _, _, body in store.got[13:] for value in json.loads(body)["streams"][0]["values"]]
    assert taken == ["record 0", "record 1", "record 2"]


def test_one_line_alone_that_is_refused_waits_for_another(store: Store, path: Path) -> None:
    """Nothing tells whether it is the line or the store."""
    store.answers = [(400, "no")]
    loki = LokiStore(access(store), LABELS)
    spool = filled(path, loki.name, 1)
    with pytest.raises(DeliveryError) as raised:
        loki.deliver(spool)
    assert (raised.value.retry, texts(spool, loki.name)) == (True, ["record 0"])


def test_a_token_is_read_anew_and_never_follows_a_redirect(store: Store, path: Path, tmp_path: Path) -> None:
    """What was renewed holds at the next delivery; a redirect is a failure."""
    token = tmp_path / "token"
    loki = LokiStore(access(store, token_file=token), LABELS)
    spool = filled(path, loki.name, 1)
    with pytest.raises(DeliveryError):
        loki.deliver(spool)
    token.write_text("first\n")
    store.answers = [(302, "")]
    with pytest.raises(DeliveryError):
        loki.deliver(spool)
    token.write_text("second\n")
    assert loki.deliver(spool) == 1
    assert [headers["authorization"] for _, headers, _ in store.got] == ["Bearer first", "Bearer second"]
    assert {where for where, _, _ in store.got} == {"/loki/api/v1/push"}


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 500 X\r\nContent-Length: 500\r\n\r\ncut",
        b"HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 X\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 X\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>log in</html>",
        b"HTTP/1.1 400 X\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>plain HTTP, TLS port",
    ],
)
def test_an_answer_that_is_none_of_the_stores_costs_no_line(path: Path, answer: bytes) -> None:
    """Garbage, half an answer, a proxy's page for logging in: the lines stay, and may be sent again."""
    with answering(answer) as url:
        loki = LokiStore(StoreAccess(url=url, headers={}), LABELS)
        spool = filled(path, loki.name, 2)
        with pytest.raises(DeliveryError) as raised:
            loki.deliver(spool)
    assert raised.value.retry
    assert texts(spool, loki.name) == ["record 0", "record 1"]


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that takes one request and says exactly this."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while not connection.recv(65_536).endswith(b"]}"):
                    pass
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


@pytest.mark.parametrize("text", ["s3cret\nof two lines", "s3crét"])
def test_a_token_that_cannot_be_sent_is_not_told(store: Store, path: Path, tmp_path: Path, text: str) -> None:
    """The journal names the file, and not what is in it."""
    token = tmp_path / "token"
    token.write_text(text)
    loki = LokiStore(access(store, token_file=token), LABELS)
    with pytest.raises(DeliveryError, match=str(token)) as raised:
        loki.deliver(filled(path, loki.name, 1))
    assert "s3cr" not in str(raised.value)


def test_a_store_that_repeats_the_token_does_not_have_it_told(store: Store, path: Path, tmp_path: Path) -> None:
    """Some proxies answer with the request's headers."""
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    store.answers = [(401, "no: Bearer s3cret-token")]
    loki = LokiStore(access(store, token_file=token), LABELS)
    with pytest.raises(DeliveryError, match="no: Bearer") as raised:
        loki.deliver(filled(path, loki.name, 1))
    assert "s3cret" not in str(raised.value)


class Collected:
    """A receiver that keeps what it is given; `broken` makes it fail."""

    def __init__(self, name: str) -> None:
        self.name, self.lines, self.broken = name, [], False  # type: tuple[str, list[str], bool]

    def deliver(self, spool: Spool) -> int:
        if self.broken:
            raise DeliveryError("away")
        rows = spool.waiting(self.name, 7)
        self.lines += [row.text for row in rows]
        if rows:
            spool.delivered(self.name, rows[-1].id)
        return len(rows)


def test_one_receiver_that_is_away_holds_up_no_other(log: KernelLog, path: Path) -> None:
    """Each has its own place in the spool."""
    well, away = Collected("well"), Collected("away")
    away.broken = True
    receivers: list[Receiver] = [well, away]
    spool = Spool(path)
    spool.register(["well", "away"])
    told: list[str] = []
    stopping = threading.Event()
    for number in range(30):
        log.say(f"record {number}")
    stop_at = time.monotonic() + 20

    def look() -> None:
        if (len(well.lines) >= 31 and told) or time.monotonic() > stop_at:
            stopping.set()
        log.say("one more")

    forward(
        device(log, spool), receivers, lambda: Spool(path), tell=lambda event, **_: told.append(event),
        stopping=stopping, alive=look,
    )  # fmt: skip
    assert well.lines[:31] == ["boot b1", *(f"record {n}" for n in range(30))]
    assert told == ["delivery_failed"]
    assert texts(Spool(path), "away")[:31] == well.lines[:31]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_delivery_that_ended_ends_the_forwarder(log: KernelLog, path: Path) -> None:
    """A thread that is gone is not noticed by who reads the store: systemd starts the whole anew."""

    class Broken(Collected):
        def deliver(self, spool: Spool) -> int:
            raise AssertionError  # a defect of ours, whatever it is

    spool = Spool(path)
    spool.register(["broken"])
    stop_at = time.monotonic() + 20

    def look() -> None:
        assert time.monotonic() < stop_at
        log.say("one more")

    with pytest.raises(DeliveryGoneError, match="broken"):
        forward(
            device(log, spool), [Broken("broken")], lambda: Spool(path), tell=lambda *_, **__: None,
            stopping=threading.Event(), alive=look,
        )  # fmt: skip


def test_a_spool_without_room_is_tried_again(log: KernelLog, path: Path) -> None:
    """The disk is full for a moment: the receiver goes on when it is not."""

    class Full(Collected):
        def deliver(self, spool: Spool) -> int:
            if not told:
                raise sqlite3.OperationalError("database or disk is full")
            stopping.set()
            return super().deliver(spool)

    told: list[str] = []
    stopping = threading.Event()
    spool = Spool(path)
    spool.register(["full"])
    log.say("record")
    stop_at = time.monotonic() + 20

    def look() -> None:
        assert time.monotonic() < stop_at
        log.say("one more")

    full = Full("full")
    forward(
        device(log, spool), [full], lambda: Spool(path), tell=lambda event, **_: told.append(event),
        stopping=stopping, alive=look,
    )  # fmt: skip
    assert (told[0], full.lines[:2]) == ("delivery_failed", ["boot b1", "record"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --file"),
        (["--file", "kernel/%n.log"], "absolute path"),
        (["--file", "/var/log/kernel.log"], "%n"),
        (["--loki", "ftp://x"], "https"),
        (["--loki", "http://loki:3100", "--token-file", "/t"], "https"),
        (["--loki", "http://loki:3100", "--label", "host=other"], "--label"),
        (["--victorialogs", "http://logs:9428", "--tenant", "hpc"], "AccountID"),
        (["--file", "/k/%n.log", "--node", "../x"], "--node"),
    ],
)
def test_what_cannot_be_meant_is_said_at_the_start(arguments: list[str], said: str) -> None:
    """One line that names the option."""
    options = parser().parse_args(arguments)
    with pytest.raises(StartError, match=said):
        receivers_of(options, options.node or "node1")
