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
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import orjson

from advisor.core.line_filter import LineFilter, escaped
from advisor.core.lines import cap, decode
from advisor.core.words import UnavailableReason
from connectors.logs.store import NS, Answer, Ask, Labels, Line, Seen, Stream, proved, stream_name
from connectors.web.server import AskError, Server

QUERY = "/select/logsql/query"
HALVINGS_MAX = 40  # from an hour to a nanosecond
SPAN_NS_FIRST = 60 * NS
SPAN_NS_MAX = 3_600 * NS
LINE_BYTES_MAX = 8 * 1024 * 1024
PIECE_BYTES = 256 * 1024
ROW_BYTES = 64  # that a row takes besides its text: empty lines are not free
_NOBODY = "\0"  # no field is called that
_SCALE = tuple(10 ** (9 - digits) for digits in range(10))  # by how many digits of a second there are
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_DECIMAL = re.compile(rb"-?\d{1,20}\.\d{1,20}")
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
    """Rows put together: streams of jobs, without exact repeats."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        names = ("_time", "_msg", "_stream", labels.job, labels.node, labels.rank)
        self._names = tuple(name or _NOBODY for name in names)
        self._by_key: dict[tuple[str, str, str, str], list[Line]] = {}
        self._by_name: dict[tuple[str, str], Stream] = {}
        self._rows: dict[int, list[Line]] = {}  # by stream; the mark is the sequence
        self._numbers: dict[int, Stream] = {}
        self.size = 0

    def take(self, piece: bytes) -> None:
        """Column by column: a loop over rows costs twice as much. Raises `AskError` for what is no documented shape."""
        rows, labels = rows_of(piece), self._labels
        if not rows:
            return
        try:
            times, texts, *keys = (_column(rows, name) for name in self._names)
            moments = _moments(times)
            data = [text.encode("utf-8", "replace") for text in texts]
            numbers = [int(text) if text.isdigit() else 0 for text in _column(rows, labels.sequence or _NOBODY)]
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise AskError(UnavailableReason.GARBLED, f"a line without a usable {error}") from error
        if labels.proof is not None:
            for value in set(_column(rows, labels.proof[0])):
                proved(value, labels.proof)
        if "0\n" in "\n".join((*texts, "")):
            data = [_number(text) for text in data]
        items = list(zip(moments, data, numbers, strict=True))
        places = list(zip(*keys, strict=True))
        first = 0
        for last, key in enumerate(places[1:], 1):
            if key != places[first]:
                self._rows_of(places[first]).extend(items[first:last])
                first = last
        self._rows_of(places[first]).extend(items[first:])
        self.size += sum(map(len, data)) + len(data) * ROW_BYTES

    def _rows_of(self, key: tuple[str, str, str, str]) -> list[Line]:
        rows = self._by_key.get(key)
        if rows is None:
            rows = self._by_key[key] = self._rows[id(self._stream(key))]
        return rows

    def _stream(self, key: tuple[str, str, str, str]) -> Stream:
        chosen = self._labels
        named = {name: _unquoted(value) for name, value in _PAIR.findall(key[0])}
        fields = ((chosen.node, key[2]), (chosen.rank, key[3]))
        named.update({label: value for label, value in fields if label and value})
        name = stream_name(named, chosen)
        known = self._by_name.get((key[1], name))
        if known is None:
            known = Stream(job=key[1], name=name, node=named.get(chosen.node) or None)
            self._by_name[key[1], name] = known
            self._rows[id(known)] = []
        return known

    def middle_ns(self) -> int:
        times = sorted(row[0] for rows in self._rows.values() for row in rows)
        return times[len(times) // 2] if times else 0

    def streams(self) -> list[Stream]:
        for stream in self._by_name.values():
            rows = self._rows[id(stream)]
            rows.sort(key=itemgetter(0, 2) if self._labels.sequence else itemgetter(0))
            alike = len({row[0] for row in rows}) < len(rows)
            stream.lines = list(dict.fromkeys(rows)) if alike else rows
        return list(self._by_name.values())


def _column(rows: Sequence[Mapping[str, str]], name: str) -> list[str]:
    """What every row has under a name; where one has nothing, "" (but a row without a time is none)."""
    if name == _NOBODY:
        return [""] * len(rows)
    try:
        return [row[name] for row in rows]
    except KeyError:
        if name == "_time":
            raise
        return [row.get(name, "") for row in rows]


def _moments(times: Sequence[str]) -> list[int]:
    """`parse_time` of each. Raises `ValueError`."""
    try:
        return [_seconds[text[:19]] + int(text[20:-1]) * _SCALE[len(text) - 21] for text in times]
    except (KeyError, ValueError, IndexError):
        return [parse_time(text) for text in times]  # a second that is new, or one without digits


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
    if len(text) >= 20 and text[-1] == "Z":
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
