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
from functools import lru_cache
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
PIECE_BYTES = 512 * 1024  # the server sends a few lines at a time: taken together they cost half as much
ROW_BYTES = 64  # that a row takes besides its text: empty lines are not free
_SCALE = 10 ** np.arange(8, -1, -1, dtype=np.int64)  # of the digits of a second
_CLOCK = np.array([600, 60, 10, 1], np.int64) * NS  # of those of minutes and seconds
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_DECIMAL = re.compile(rb"-?\d{1,20}\.\d{1,20}")
# What stands between the parts of a row, in the order in which they are asked for. No text can hold it: a quote in a
# text has a backslash before it.
_BEFORE_TIME, _BEFORE_TEXT, _BEFORE_REST = b'{"_time":"', b'","_msg":"', b'","_stream":"'
_FIRST, _SECOND = (np.frombuffer(text, np.uint8) for text in (_BEFORE_TIME, _BEFORE_TEXT))
_HEAD_BYTES = len(_BEFORE_TIME) + 31 + len(_BEFORE_TEXT)
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
        self._rests = _Rests(self._streams)
        self._times: list[Moments] = []
        self._texts: list[bytes] = []
        self._places: list[int] = []
        self._marks: list[int] = []
        self.size = 0

    def take(self, piece: bytes) -> None:
        """Column by column: a loop over rows costs several times as much. Raises `AskError` for what is no documented
        shape.
        """
        with uncollected():
            if not self._take_plain(piece) and (rows := rows_of(piece)):
                self._take_rows(rows)

    def _take_plain(self, piece: bytes) -> bool:
        """Rows as the server writes them, cut apart without an object for each. False, and nothing taken, for all that
        is not exactly so: whether it is of a documented shape is told by who reads rows.
        """
        table = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(table < ord(" "))
        # The last line has an end, nothing else is below a blank, and all is UTF-8: so each text is what JSON takes.
        if self._labels.sequence or piece[-1:] != b"\n" or (table[ends] != ord("\n")).any():
            return False
        begins = np.append(0, ends[:-1] + 1)
        if (np.diff(begins, append=len(piece)) < _HEAD_BYTES).any():
            return False
        heads = np.lib.stride_tricks.sliding_window_view(table, _HEAD_BYTES)[begins]
        try:
            if not piece.isascii():
                piece.decode()
            timed = _moments_in(heads[:, len(_BEFORE_TIME) :])
            if timed is None:
                return False
            times, sizes = timed
            places, rests = self._rests_of(piece, ends.tolist())
            firsts, lasts = begins + sizes + (len(_BEFORE_TIME) + len(_BEFORE_TEXT)), ends - rests
            between = table[firsts[:, None] - np.arange(len(_BEFORE_TEXT), 0, -1)]
            if (heads[:, : len(_BEFORE_TIME)] != _FIRST).any() or (between != _SECOND).any() or (firsts > lasts).any():
                return False
            texts = [piece[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
            joined = b"\n".join(texts)
            if b"\\" in joined or b'"' in joined:
                texts = [_unescaped(text) if b"\\" in text or b'"' in text else text for text in texts]
        except (KeyError, ValueError, AttributeError, TypeError, OverflowError):
            return False
        self._add(times, texts, places, [0] * len(texts))
        return True

    def _rests_of(self, piece: bytes, ends: Sequence[int]) -> tuple[list[int], NDArray[np.int64]]:
        """The stream of each line, and how much of it comes after its text. Raises what `_Rests` does."""
        found: list[tuple[int, int, int]] = []  # from which line on, stream, bytes
        rest = b"\n"
        for at, end in enumerate(ends):
            if not piece.endswith(rest, 0, end):
                rest = piece[piece.rindex(_BEFORE_REST, 0, end) : end]
                found.append((at, self._rests[rest], len(rest)))
        firsts, places, sizes = np.array(found, np.int64).T
        lines = np.diff(firsts, append=len(ends))
        return np.repeat(places, lines).tolist(), np.repeat(sizes, lines)

    def _take_rows(self, rows: Sequence[Mapping[str, str]]) -> None:
        labels, proof = self._labels, self._labels.proof
        try:
            times = moments(_column(rows, "_time"))
            texts = list(map(str.encode, _column(rows, "_msg")))
            places = list(map(self._streams.__getitem__, self._keys(rows)))
            marks = [0] * len(texts)
            if labels.sequence:
                marks = [int(text) if text.isdigit() else 0 for text in _column(rows, labels.sequence)]
            if proof is not None:
                for value in set(_column(rows, proof[0])):
                    proved(value, proof)
        except (KeyError, ValueError, AttributeError, TypeError, OverflowError) as error:
            raise AskError(UnavailableReason.GARBLED, f"a line without a usable {error}") from error
        self._add(times, texts, places, marks)

    def _add(self, times: Moments, texts: list[bytes], places: list[int], marks: list[int]) -> None:
        for at in [at for at, text in enumerate(texts) if text[-1:] == b"0"]:
            texts[at] = _number(texts[at])
        self._times.append(times)
        self._texts += texts
        self._places += places
        self._marks += marks
        self.size += sum(map(len, texts)) + len(texts) * ROW_BYTES

    def _keys(self, rows: Sequence[Mapping[str, str]]) -> Iterable[tuple[str, ...]]:
        try:
            return list(map(self._key, rows))
        except KeyError:
            return zip(*(_column(rows, name) for name in self._streams.names), strict=True)

    def middle_ns(self) -> int:
        times = np.concatenate(self._times)
        return int(np.partition(times, len(times) // 2)[len(times) // 2])

    def streams(self) -> list[Stream]:
        """To be asked for once, when all rows have been taken."""
        if not self._texts:
            return []
        times, places = np.concatenate(self._times), np.array(self._places, np.int32)
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
        self.labels = labels
        self._by_name: dict[tuple[str, str], int] = {}
        named = dict.fromkeys(name for name in (labels.job, labels.node, labels.rank) if name)
        self.names = "_stream", *(named or ("_stream",))  # two at least, so that a key is a tuple
        self.found: list[Stream] = []

    def __missing__(self, key: tuple[str, ...]) -> int:
        if not all(type(value) is str for value in key):
            raise TypeError("label that is text")
        job, name, node = _named(self.labels, self.names, key)
        number = self[key] = self._by_name.setdefault((job, name), len(self.found))
        if number == len(self.found):
            self.found.append(Stream(job=job, name=name, node=node))
        return number


@lru_cache(maxsize=4_096)  # the same streams are in one answer after the other
def _named(chosen: Labels, names: tuple[str, ...], key: tuple[str, ...]) -> tuple[str, str, str | None]:
    """Job, name and node of a stream by what its rows have under `names`."""
    values = dict(zip(names, key, strict=True))
    named = {name: _unquoted(value) for name, value in _PAIR.findall(values["_stream"])}
    named.update({name: value for name in (chosen.node, chosen.rank) if name and (value := values[name])})
    return values.get(chosen.job, ""), stream_name(named, chosen), named.get(chosen.node) or None


class _Rests(dict[bytes, int]):
    """Numbers of streams by what rows have after their text, which neighbouring ones share. Raises `ValueError`,
    `KeyError`, `AttributeError` and `TypeError` for what is none.
    """

    def __init__(self, streams: _Streams) -> None:
        super().__init__()
        self._streams = streams

    def __missing__(self, rest: bytes) -> int:
        row = orjson.loads(b"{" + rest.removeprefix(b'",'))
        proof = self._streams.labels.proof
        # Whether a line whose proof does not stand here has none is told by who reads rows.
        if "_time" in row or "_msg" in row or (proof is not None and row.get(proof[0]) != proof[1]):
            raise KeyError("_stream")
        place = self[rest] = self._streams[tuple(row.get(name, "") for name in self._streams.names)]
        return place


def _unescaped(text: bytes) -> bytes:
    """Raises `ValueError` for what is no string of JSON."""
    value: str = orjson.loads(b'"' + text + b'"')
    return value.encode()


def moments(times: Sequence[str]) -> Moments:
    """`parse_time` of each, all at once. Raises `ValueError`, `TypeError` and `OverflowError`."""
    try:
        table = np.array(times, "S31").view(np.uint8).reshape(len(times), 31)
        known = _moments_in(table)
    except ValueError:  # of other characters, or no texts at all
        known = None
    if known is None or (np.count_nonzero(table, axis=1) != known[1]).any():
        return np.array([parse_time(text) for text in times], np.int64)
    return known[0]


def _moments_in(table: NDArray[np.uint8]) -> tuple[Moments, NDArray[np.int64]] | None:
    """Of times that begin rows of characters (31 at least), and how long each is; None if one is of another form.
    Raises `ValueError` for an hour that there is not, `OverflowError` for one that no store keeps.
    """
    # Up to nine digits after the point, then Z; or no point at all.
    digits = table[:, 20:30] - 48
    others = digits > 9
    count = np.where(table[:, 19] == ord("."), others.argmax(axis=1), -1)
    clock = table[:, [14, 15, 17, 18]] - 48
    if not (
        np.all((count != 0) & (table[np.arange(len(table)), 20 + count] == ord("Z")))
        and np.all(table[:, [13, 16]] == ord(":"))
        and np.all(clock <= [5, 9, 5, 9])
    ):
        return None
    # Neighbouring lines share their hour.
    starts = np.flatnonzero(np.append(True, (table[1:, :13] != table[:-1, :13]).any(axis=1)))
    hours = [parse_time(f"{table[at, :13].tobytes().decode('ascii')}:00:00Z") for at in starts.tolist()]
    whole = np.repeat(np.array(hours, np.int64), np.diff(np.append(starts, len(table))))
    fraction = np.where(np.arange(9) < count[:, None], digits[:, :9], 0)
    return whole + clock.astype(np.int64) @ _CLOCK + fraction.astype(np.int64) @ _SCALE, 21 + count


def _number(text: bytes) -> bytes:
    """A line that is nothing but a decimal number, without zeros at its end."""
    return text.rstrip(b"0").rstrip(b".") if text[-1:] == b"0" and _DECIMAL.fullmatch(text) is not None else text


async def whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces of whole lines. Raises `AskError` when the last line has no end: the answer is not all of it."""
    got, size = [b""], 0
    async for piece in pieces:
        got.append(piece)
        size += len(piece)
        if size < PIECE_BYTES:
            continue
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join((*got[:-1], memoryview(piece)[:cut]))
            got, size = [piece[cut:]], len(piece) - cut
            continue
        got = [b"".join(got)]
        cut = got[0].rfind(b"\n") + 1
        if cut:
            yield got[0][:cut]
            got, size = [got[0][cut:]], size - cut
        elif size > LINE_BYTES_MAX:
            raise AskError(UnavailableReason.GARBLED, f"a line of more than {LINE_BYTES_MAX} bytes", broken=True)
    rest = b"".join(got)
    cut = rest.rfind(b"\n") + 1
    if cut:
        yield rest[:cut]
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
