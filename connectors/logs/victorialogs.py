"""VictoriaLogs as a `LogStore`: half-open windows of time, read to their clean end or not at all.

What was measured on real servers and shapes this module:

* Times are bounded by the filter `_time:[A, B)`, exact to the nanosecond. The arguments `start` and `end` are not.
* Without a sort the order is random, also between two identical questions; with a sort the server holds everything in
  memory. So a window comes as it comes, and is put in order here. Lines of one nanosecond have no order at all, unless
  the collector numbers them (`sequence`).
* 200 comes first. When the server's time is over the body breaks off, in the middle of a line or with a sentence of
  its own: nothing of such a window counts, and a shorter one is asked for.
* Lines show up to five seconds after they were taken, and a collector that sends twice is believed twice: exact
  repeats are told once.
* Blocks whose lines are all numbers are kept as numbers: "1.50" is told as "1.5" or as "1.50", depending on when one
  asks. Such lines are given without zeros at their end, always.
* `limit` gives the newest lines, whatever one would expect; too much is met by halving the window instead.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from advisor.core.line_filter import LineFilter, escaped
from advisor.core.lines import cap, decode
from advisor.core.words import UnavailableReason
from connectors.logs.decoding import uncollected
from connectors.logs.store import NS, Answer, Ask, Labels, Seen, Stream, proved, stream_name
from connectors.web.server import AskError, Server

QUERY = "/select/logsql/query"
HALVINGS_MAX = 40  # from an hour to a nanosecond
SPAN_NS_FIRST = 60 * NS
SPAN_NS_MAX = 3_600 * NS
LINE_BYTES_MAX = 8 * 1024 * 1024
PIECE_BYTES = 256 * 1024
ROW_BYTES = 64  # that a row takes besides its text: empty lines are not free
_SCALE = 10 ** np.arange(8, -1, -1, dtype=np.int64)  # of the digits of a second
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_DECIMAL = re.compile(rb"-?\d{1,20}\.\d{1,20}")
Moments = NDArray[np.int64]  # nanoseconds
_PAIR = re.compile(r'([^\s={},"]+)="((?:[^"\\]|\\.)*)"')


class TooMuchError(Exception):
    """A window holds more than may be read at once; `middle_ns` halves what came."""

    def __init__(self, middle_ns: int) -> None:
        super().__init__(middle_ns)
        self.middle_ns = middle_ns


class VictoriaLogs:
    """`selector`: a LogsQL filter for jobs' output, `{app="slurm"}` say; "" or "*" for all of the tenant.

    `chosen`: the lines that are sent; None: all.
    """

    def __init__(self, server: Server, *, selector: str, labels: Labels, chosen: LineFilter | None) -> None:
        self._server = server
        self._selector = selector.strip() or "*"
        if "|" in re.sub(r'"(?:[^"\\]|\\.)*"', "", self._selector):
            raise ValueError(f"selector {selector!r}: a filter is expected, without pipes")
        self._labels = labels
        self._span_ns = SPAN_NS_FIRST  # of questions about the past: grows and shrinks with what they give
        self._chosen = chosen
        self.filters = chosen is not None

    async def lines(self, ask: Ask) -> Answer:
        end_ns = ask.end_ns if ask.urgent else min(ask.end_ns, ask.start_ns + self._span_ns)
        for _ in range(HALVINGS_MAX):
            try:
                got = await self._window(ask, end_ns)
            except TooMuchError as error:
                if end_ns - ask.start_ns <= 1:
                    return await self._crowded(ask)
                end_ns = min(max(error.middle_ns, ask.start_ns + 1), end_ns - 1)
                continue
            if not ask.urgent:
                # The next window of the past is to hold about half of what may be held.
                share = ask.bytes_max / 2 / max(1, got.size)
                self._span_ns = min(SPAN_NS_MAX, max(1, int((end_ns - ask.start_ns) * min(4.0, share))))
            return Answer(streams=got.streams(), until_ns=end_ns)
        raise AskError(
            UnavailableReason.LIMIT, f"more than {ask.bytes_max} bytes however short the window", broken=True
        )

    async def counts(self, jobs: Sequence[str], start_ns: int, end_ns: int) -> Mapping[str, int]:
        label = self._labels.subject
        query = f"{self._where(jobs, start_ns, end_ns, whole=True)} | stats by ({_quoted(label)}) count() n"
        found = {}
        async for row in self._rows(query):
            job, count = row.get(label, ""), row.get("n", "0")
            if not isinstance(job, str) or not isinstance(count, str):
                raise AskError(UnavailableReason.GARBLED, "a count that is no text")
            if job and count.isdigit() and int(count):
                found[job] = int(count)
        return found

    async def anything(self, start_ns: int, end_ns: int) -> bool:
        query = f"{self._where((), start_ns, end_ns, whole=True)} | limit 1 | fields _time"
        return bool([row async for row in self._rows(query)])

    async def look(self, start_ns: int, end_ns: int) -> Seen:
        job, node = self._labels.job, self._labels.node
        counts = [
            f", count_uniq({_quoted(label)}) {name}s, count() if ({_quoted(label)}:*) of_{name}"
            for name, label in (("job", job), ("node", node))
            if label
        ]
        query = (
            f"{self._where((), start_ns, end_ns, whole=True)} | stats count() n, count_uniq(_stream_id) streams,"
            f" max(_time) newest{''.join(counts)}"
        )
        rows = [row async for row in self._rows(query)]
        row = rows[0] if rows else {}
        lines, jobs = (int(row.get(name) or 0) for name in ("n", "jobs"))
        notes = (
            [f"no line has the field {job!r}: name the one with the job's id in job_label"]
            if job and lines and not jobs
            else []
        )
        return Seen(
            streams=int(row.get("streams") or 0),
            lines=lines,
            jobs=jobs,
            nodes=int(row.get("nodes") or 0),
            newest_ns=parse_time(row["newest"]) if row.get("newest") else None,
            of_job=int(row.get("of_job") or 0),
            of_node=int(row.get("of_node") or 0),
            notes=tuple(notes),
        )

    async def close(self) -> None:
        await self._server.close()

    # Queries

    def _where(self, jobs: Sequence[str], start_ns: int, end_ns: int, *, whole: bool) -> str:
        label = _quoted(self._labels.job)
        chosen = f"{label}:={_quoted(jobs[0])}" if len(jobs) == 1 else f"{label}:in({','.join(map(_quoted, jobs))})"
        query = f"{_between(start_ns, end_ns)} ({self._selector}) {chosen if jobs else ''}".rstrip()
        if self._labels.proof is not None:
            name, value = self._labels.proof
            query = f"{query} {_quoted(name)}:={_quoted(value)}"
        if whole or self._chosen is None:
            return query
        # Each on its own: one pattern of them all takes ten times as long.
        patterns = [*map(escaped, self._chosen.texts), *self._chosen.patterns]
        return f"{query} ({' or '.join(f'_msg:~{_quoted(pattern)}' for pattern in patterns)})"

    async def _window(self, ask: Ask, end_ns: int) -> "_Gathered":
        """The lines before `end_ns`. Raises `TooMuchError` when they are more than may be held."""
        fields = ["_time", "_msg", "_stream", self._labels.job, self._labels.node, self._labels.rank]
        if self._labels.sequence:
            fields.append(self._labels.sequence)
        if self._labels.proof is not None:
            fields.append(self._labels.proof[0])
        names = ",".join(_quoted(name) for name in dict.fromkeys(fields) if name)
        query = f"{self._where(ask.jobs, ask.start_ns, end_ns, whole=ask.whole)} | fields {names}"
        got = _Gathered(self._labels)
        async with self._server.stream(QUERY, {"query": query}, urgent=ask.urgent) as pieces:
            async for piece in whole_lines(pieces):
                got.take(piece)
                if got.size > ask.bytes_max:
                    raise TooMuchError(got.middle_ns())
        return got

    async def _crowded(self, ask: Ask) -> Answer:
        """One nanosecond with more than may be held: what fits is given, and that there is more is said."""
        query = self._where(ask.jobs, ask.start_ns, ask.start_ns + 1, whole=ask.whole)
        got = _Gathered(self._labels)
        async with self._server.stream(QUERY, {"query": query}) as pieces:
            async for piece in whole_lines(pieces):
                got.take(piece)
                if got.size > ask.bytes_max:
                    break
        gap = f"one nanosecond ({ask.start_ns}) has more than {ask.bytes_max} bytes: the rest could not be read"
        return Answer(streams=got.streams(), until_ns=ask.start_ns + 1, gaps=(gap,))

    async def _rows(self, query: str) -> AsyncIterator[Mapping[str, str]]:
        async with self._server.stream(QUERY, {"query": query}) as pieces:
            async for piece in whole_lines(pieces):
                for row in rows_of(piece):
                    yield row


class _Gathered:
    """Rows put together: streams of jobs, without exact repeats. A column each for time, text, stream and mark."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._streams = _Streams(labels)
        self._key = itemgetter(*self._streams.names)
        self._times: list[str] = []
        self._texts: list[bytes] = []
        self._places: list[int] = []
        self._marks: list[int] = []
        self.size = 0

    def take(self, piece: bytes) -> None:
        """Column by column: a loop over rows costs several times as much. Raises `AskError` for what is no documented
        shape.
        """
        labels, proof = self._labels, self._labels.proof
        with uncollected():
            rows = rows_of(piece)
            try:
                times = _column(rows, "_time")
                data = list(map(str.encode, _column(rows, "_msg")))
                places = list(map(self._streams.__getitem__, self._keys(rows)))
                marks = [0] * len(data)
                if labels.sequence:
                    marks = [int(text) if text.isdigit() else 0 for text in _column(rows, labels.sequence)]
                if proof is not None:
                    for value in set(_column(rows, proof[0])):
                        proved(value, proof)
            except (KeyError, ValueError, AttributeError, TypeError, OverflowError) as error:
                raise AskError(UnavailableReason.GARBLED, f"a line without a usable {error}") from error
            del rows
        if b"0\n" in b"\n".join((*data, b"")):
            data = [_number(text) if text[-1:] == b"0" else text for text in data]
        self._times += times
        self._texts += data
        self._places += places
        self._marks += marks
        self.size += sum(map(len, data)) + len(data) * ROW_BYTES

    def _keys(self, rows: Sequence[Mapping[str, str]]) -> Iterable[tuple[str, ...]]:
        try:
            return list(map(self._key, rows))
        except KeyError:
            return zip(*(_column(rows, name) for name in self._streams.names), strict=True)

    def _moments(self) -> Moments:
        try:
            return moments(self._times)
        except (ValueError, TypeError, OverflowError) as error:
            raise AskError(UnavailableReason.GARBLED, f"a line without a usable {error}") from error

    def middle_ns(self) -> int:
        """Raises `AskError`."""
        times = self._moments()
        return int(np.partition(times, len(times) // 2)[len(times) // 2])

    def streams(self) -> list[Stream]:
        """To be asked for once, when all rows have been taken. Raises `AskError`."""
        if not self._texts:
            return []
        times, places = self._moments(), np.array(self._places, np.int32)
        marks = np.array(self._marks, object if max(self._marks) >= 2**63 else np.int64)
        # Lines of one nanosecond stay as they came, unless they are numbered.
        order = np.lexsort((marks, times, places))
        times, places, marks = times[order], places[order], marks[order]
        alike = (np.diff(times) == 0) & (np.diff(places) == 0)
        repeated = set(places[1:][alike].tolist())
        found = self._streams.found
        ends = np.searchsorted(places, np.arange(len(found) + 1)).tolist()
        columns = times.tolist(), [self._texts[at] for at in order.tolist()], marks.tolist()
        for stream, (low, high) in zip(found, pairwise(ends), strict=True):
            stream.add(*(column[low:high] for column in columns))
        return [stream.without_repeats() if at in repeated else stream for at, stream in enumerate(found)]


def _column(rows: Sequence[Mapping[str, str]], name: str) -> list[str]:
    """What every row has under a name; where one has nothing, "" (but a row without a time is none)."""
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        if name == "_time":
            raise
        return [row.get(name, "") for row in rows]


class _Streams(dict[tuple[str, ...], int]):
    """Numbers of streams by what rows have under `names`; what is new is one more. Raises `TypeError`.

    (Not part of who gathers: a cycle of the two would keep each answer until garbage is collected.)
    """

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels
        self._by_name: dict[tuple[str, str], int] = {}
        named = dict.fromkeys(name for name in (labels.job, labels.node, labels.rank) if name)
        self.names = "_stream", *(named or ("_stream",))  # two at least, so that a key is a tuple
        self.found: list[Stream] = []

    def __missing__(self, key: tuple[str, ...]) -> int:
        if not all(type(value) is str for value in key):
            raise TypeError("label that is text")
        chosen, values = self._labels, dict(zip(self.names, key, strict=True))
        named = {name: _unquoted(value) for name, value in _PAIR.findall(values["_stream"])}
        named.update({name: value for name in (chosen.node, chosen.rank) if name and (value := values[name])})
        job, name = values.get(chosen.job, ""), stream_name(named, chosen)
        number = self[key] = self._by_name.setdefault((job, name), len(self.found))
        if number == len(self.found):
            self.found.append(Stream(job=job, name=name, node=named.get(chosen.node) or None))
        return number


def moments(times: Sequence[str]) -> Moments:
    """`parse_time` of each, all at once. Raises `ValueError`, `TypeError` and `OverflowError`."""
    try:
        table = np.array(times, "S31").view(np.uint8).reshape(len(times), 31)
    except ValueError:  # of other characters, or no texts at all
        return np.array([parse_time(text) for text in times], np.int64)
    # Up to nine digits after the point, then Z and nothing; or no point at all.
    digits = table[:, 20:30] - 48
    leading = np.logical_and.accumulate(digits <= 9, axis=1)
    count = leading.sum(axis=1)
    size = (table != 0).sum(axis=1)
    rows = np.arange(len(times))
    fraction = (table[:, 19] == ord(".")) & (count < 10) & (table[rows, 20 + count] == ord("Z")) & (size == 21 + count)
    if not np.all(fraction & (count > 0) | (size == 20) & (table[:, 19] == ord("Z"))):
        return np.array([parse_time(text) for text in times], np.int64)
    # Neighbouring lines share their second.
    starts = np.flatnonzero(np.append(True, (table[1:, :19] != table[:-1, :19]).any(axis=1)))
    seconds = np.array([parse_time(times[at][:19] + "Z") for at in starts.tolist()], np.int64)
    whole = np.repeat(seconds, np.diff(np.append(starts, len(times))))
    return whole + np.where(leading[:, :9], digits[:, :9], 0).astype(np.int64) @ _SCALE


def _number(text: bytes) -> bytes:
    """A line that is nothing but a decimal number, without zeros at its end."""
    return text.rstrip(b"0").rstrip(b".") if text[-1:] == b"0" and _DECIMAL.fullmatch(text) is not None else text


async def whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces of whole lines. Raises `AskError` when the last line has no end: the answer is not all of it."""
    rest = bytearray()
    wanted = PIECE_BYTES  # the server sends a few lines at a time: taken together they cost half as much
    async for piece in pieces:
        rest += piece
        if len(rest) < wanted:
            continue
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield bytes(rest[:cut])
            del rest[:cut]
        elif len(rest) > LINE_BYTES_MAX:
            raise AskError(UnavailableReason.GARBLED, f"a line of more than {LINE_BYTES_MAX} bytes", broken=True)
        wanted = len(rest) + PIECE_BYTES
    cut = rest.rfind(b"\n") + 1
    if cut:
        yield bytes(rest[:cut])
    if len(rest) > cut:
        raise AskError(UnavailableReason.GARBLED, "the answer broke off in the middle of a line", broken=True)


def rows_of(piece: bytes) -> list[dict[str, Any]]:
    """One object per line. Raises `AskError` for text that is no object: the server's own word that it gave up."""
    try:
        # One call for all lines: the server writes none with a newline inside.
        rows = orjson.loads(b"[" + piece.strip(b"\n").replace(b"\n", b",") + b"]")
    except ValueError as error:
        said = cap(" ".join(decode(piece[-2_000:]).split()), 200)
        raise AskError(UnavailableReason.GARBLED, f"a line that is no JSON, near: {said}", broken=True) from error
    found: list[dict[str, Any]] = [row for row in rows if type(row) is dict]
    if len(found) != len(rows):
        raise AskError(UnavailableReason.GARBLED, "a line that is no object", broken=True)
    return found


_seconds: dict[str, int] = {}  # by text: neighbouring lines share their second


def parse_time(text: str) -> int:
    """Nanoseconds of RFC 3339 with up to nine digits of a second. Raises `ValueError`."""
    if len(text) >= 20 and text[-1] == "Z" and (len(text) == 20 or text[19] == "."):
        whole = _seconds.get(text[:19])
        if whole is not None:
            digits = text[20:-1]
            if not digits:
                return whole
            if digits.isdigit() and len(digits) <= 9:
                return whole + int(digits.ljust(9, "0"))
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"time: {text[:40]!r}")
    at = datetime.fromisoformat(found[1] + ("+00:00" if found[3] == "Z" else found[3])).astimezone(UTC)
    whole = int(at.timestamp()) * NS
    if found[3] == "Z":
        if len(_seconds) > 10_000:
            _seconds.clear()
        _seconds[found[1]] = whole
    return whole + int((found[2] or "0").ljust(9, "0"))


def format_time(ns: int) -> str:
    """RFC 3339 with all nine digits."""
    return f"{datetime.fromtimestamp(ns // NS, UTC):%Y-%m-%dT%H:%M:%S}.{ns % NS:09d}Z"


def _between(start_ns: int, end_ns: int) -> str:
    return f"_time:[{format_time(start_ns)}, {format_time(end_ns)})"


def _quoted(text: str) -> str:
    """A string of LogsQL, which escapes as Go does; JSON's escapes are among Go's."""
    return orjson.dumps(text).decode().replace("\x7f", "\\u007f")


def _unquoted(text: str) -> str:
    try:
        value = orjson.loads(f'"{text}"')
    except ValueError:
        return text
    return str(value)
