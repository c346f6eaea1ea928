"""What log stores answer, taken column by column: times of all shapes, and what is no documented shape."""

import contextlib
import gc
from typing import Any

import orjson
import pytest

from connectors.logs.decoding import uncollected
from connectors.logs.loki import _Gathered as LokiPages
from connectors.logs.loki import _Page
from connectors.logs.store import Labels, Stream
from connectors.logs.victorialogs import _Gathered as Rows
from connectors.logs.victorialogs import moments, parse_time
from connectors.web.server import AskError

TIMES = [
    "2026-11-29T23:59:59.9Z",
    "2026-11-29T23:59:59.123456789Z",
    "2026-11-30T00:00:00Z",
    "2026-11-30T00:00:00.000001Z",
    "1970-01-01T00:00:00.0Z",
    "2026-11-29T23:59:59.12Z",
]


def test_times_all_at_once_are_those_of_one_after_the_other() -> None:
    """With any number of digits of a second, none at all, and at the turn of a day."""
    assert moments(TIMES).tolist() == [parse_time(text) for text in TIMES]
    assert moments(TIMES[:1]).tolist() == [parse_time(TIMES[0])]


def test_times_of_other_zones_are_read_too() -> None:
    """One time with an offset among the usual ones changes none of them."""
    times = [*TIMES, "2026-11-30T01:00:00.5+01:00"]
    assert moments(times).tolist() == [parse_time(text) for text in times]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-29T23:59:59.1234567890Z",
        "2026-11-29T23:59:59.12",
        "2026-11-29T23:59:59.1Z2",
        "2026-11-29T23:59:59.1\x00Z2",
        "2026-11-29T23:59:59.1ZZ",
        "2026-11-29T23:59:59,1Z",
        "2026-11-29T23:59:59.½Z",
        "2026-13-29T23:59:59.1Z",
        "2026-11-29T23:59:59.123456789Z-and-more",
    ],
)
def test_text_that_is_no_time_is_refused(text: str) -> None:
    """Beside good ones and alone: no time is made up."""
    for times in ([text], [*TIMES, text]):
        with pytest.raises(ValueError, match=r"time|month"):
            moments(times)


ROW: dict[str, Any] = {"_time": TIMES[0], "_stream": '{job="7"}', "_msg": "m", "job": "7", "host": "n1"}


@pytest.mark.parametrize(
    "change",
    [
        {"_time": None},
        {"_time": 5},
        {"_time": ["2026"]},
        {"_msg": 5},
        {"_msg": {"a": "b"}},
        {"job": 7},
        {"host": ["n1"]},
        {"_stream": None},
        {"_time": "9999-01-01T00:00:00Z"},
    ],
)
def test_row_of_no_documented_shape_is_garbled(change: dict[str, Any]) -> None:
    """A value that is no text, or a time that no store keeps, among good rows: nothing of the answer counts."""
    got = Rows(Labels(job="job", node="host"))
    rows = b"".join(orjson.dumps(row) + b"\n" for row in (ROW, ROW | change))
    with pytest.raises(AskError):
        taken(got, rows)
    assert gc.isenabled()


def taken(got: Rows, rows: bytes) -> list[Stream]:
    got.take(rows)
    return got.streams()


def test_row_without_a_field_has_none_of_it() -> None:
    """VictoriaLogs leaves out what is empty: a blank line, a line without a node."""
    rows = [{name: value for name, value in ROW.items() if name != left_out} for left_out in ("_msg", "host")]
    got = Rows(Labels(job="job", node="host"))
    got.take(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    assert [(stream.node, stream.texts) for stream in got.streams()] == [("n1", [b""]), (None, [b"m"])]


def test_lines_of_one_nanosecond_are_in_the_collectors_order() -> None:
    """Where it numbers them, whatever the order in which they came, and however large the numbers are."""
    for numbers in (("3", "1", "2"), (str(2**70), "1", str(2**65))):
        got = Rows(Labels(job="job", sequence="n"))
        got.take(b"".join(orjson.dumps(ROW | {"n": n, "_msg": n}) + b"\n" for n in numbers))
        assert got.streams()[0].texts == [text.encode() for text in sorted(numbers, key=int)]


def page(*values: Any, labels: Any = None) -> _Page:
    result = [{"stream": {"job": "7"} if labels is None else labels, "values": list(values)}]
    return _Page({"status": "success", "data": {"resultType": "streams", "result": result}})


def test_lines_with_and_without_metadata_are_of_one_page() -> None:
    """What Loki makes up of a line makes no stream; metadata of its own tells lines apart."""
    got = LokiPages(Labels(job="job", node="host"))
    got.take(
        page(
            ["1", "a"],
            ["2", "b", {"structuredMetadata": {"detected_level": "info"}}],
            ["3", "c", {"structuredMetadata": {"host": "n1"}}],
            ["4", "d", {}],
        ),
        4,
    )
    found = {(stream.job, stream.node): stream.lines for stream in got.streams}
    assert found["7", None] == [(1, b"a", 0), (2, b"b", 0)]
    assert [(ns, text) for ns, text, _ in found["7", "n1"]] == [(3, b"c")]


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["x", "a"], None),
        (["1"], None),
        (["1", 5], None),
        (["1", None], None),
        (5, None),
        (["1", "a", {"structuredMetadata": {"host": ["n1"]}}], None),
        (["1", "a", {"structuredMetadata": "n1"}], None),
        (["1", "a", ["n1"]], None),
        (["1", "a"], {"job": 7}),
        (["1", "a"], ["job"]),
    ],
)
def test_page_of_no_documented_shape_is_garbled(value: Any, labels: Any) -> None:
    """Whatever a server answers ends as a reason, never as a failure of ours."""
    with pytest.raises(AskError):
        LokiPages(Labels(job="job", node="host")).take(page(["0", "good"], value, labels=labels), 9)


def test_garbage_is_collected_again_whatever_happens_inside() -> None:
    """Also after an error; and it stays off where it was off."""
    seen = []
    with contextlib.suppress(KeyError), uncollected():
        seen.append(gc.isenabled())
        raise KeyError
    assert (seen, gc.isenabled()) == ([False], True)
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


LABELS = Labels(job="job", node="host")


def as_written(
    number: int, *, time: str = TIMES[1], text: str = "", host: str = "n1", between: bytes = b'","_msg":'
) -> bytes:
    """A line in the server's own order of fields."""
    stream = orjson.dumps(f'{{host="{host}",job="7"}}')
    said = orjson.dumps(text or f"line {number}")
    return b'{"_time":"%b%b%b,"_stream":%b,"job":"7","host":"%b"}\n' % (
        time.encode(),
        between,
        said,
        stream,
        host.encode(),
    )


WRITTEN = [
    *(as_written(number, time=time, host=f"n{number % 2}") for number, time in enumerate(TIMES)),
    as_written(6, text='a "quote", a \\ and\na newline'),
    as_written(7, text="größer \x00 \u2028"),
    as_written(8, text="1.50"),
    as_written(9, text='","_stream":"{host=\\"n9\\"}","job":"9"}'),
    as_written(10, text='","_msg":"other'),
    as_written(11, time=TIMES[2], host="n1").replace(b"line 11", b""),
    as_written(12, host="").replace(b',"host":""', b""),
]


def test_rows_as_the_server_writes_them_are_those_of_any_order_of_fields() -> None:
    """Cut apart or read one by one: the same lines of the same streams, whatever texts hold."""
    plain, read = Rows(LABELS), Rows(LABELS)
    assert plain._take_plain(b"".join(WRITTEN))
    read._take_rows([orjson.loads(line) for line in WRITTEN])
    streams = plain.streams()
    assert streams == read.streams()
    assert plain.size == read.size
    assert sum(len(stream.texts) for stream in streams) == len(WRITTEN)


@pytest.mark.parametrize(
    "line",
    [
        as_written(1).rstrip(b"\n"),
        as_written(1, between=b'","_log":'),
        as_written(1, between=b'","level":"i","_msg":'),
        as_written(1, time="2026-11-30T01:00:00.5+01:00"),
        as_written(1, time="2026-11-30T01:61:00Z"),
        as_written(1).replace(b"line 1", b"line\t1"),
        as_written(1).replace(b"line 1", b"line \xff"),
        as_written(1).replace(b"line 1", b'a" and "b'),
        as_written(1).replace(b"line 1", b"line \\x"),
        as_written(1).replace(b'"job":"7"', b'"job":7'),
        as_written(1).replace(b'"job":"7"', b'"_msg":"7"'),
        as_written(1).replace(b'"_stream"', b'"stream"'),
        as_written(1).replace(b"\n", b"\r") + as_written(2),
        as_written(1).replace(b"}\n", b"\n"),
        as_written(1).replace(b"}\n", b"}{}\n"),
        b"\n",
        b"the server's time is over\n",
    ],
)
def test_rows_of_any_other_form_are_left_to_who_reads_them_one_by_one(line: bytes) -> None:
    """Alone and after good ones, and nothing of such a piece is taken."""
    for piece in (line, WRITTEN[0] + WRITTEN[1] + line):
        rows = Rows(LABELS)
        assert not rows._take_plain(piece)
        assert rows.streams() == []


def test_an_answer_of_empty_lines_gives_nothing() -> None:
    """Also beside one that has rows: it is no reason to refuse them."""
    rows = Rows(Labels())
    for piece in (b"\n", b"\n\n\n"):
        rows.take(piece)
        assert rows.streams() == []


def test_a_proof_is_read_wherever_it_stands() -> None:
    """Rows whose proof comes before their stream are taken as rows, and those without are refused."""
    labels = Labels(job="job", proof=("by", "us"))
    row = b'{"_time":"2026-11-30T00:00:00.123456789Z","_msg":"x","by":"us","_stream":"{}","job":"7"}\n'
    rows = Rows(labels)
    rows.take(row)
    assert [stream.texts for stream in rows.streams() if stream.job == "7"] == [[b"x"]]
    for bad in (row.replace(b'"us"', b'"them"'), row.replace(b'"by":"us",', b"")):
        with pytest.raises(AskError, match="does not keep"):
            Rows(labels).take(bad)
