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
