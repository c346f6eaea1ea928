"""Grafana Loki as a `LogStore`: range queries only, paged so that nothing is lost and nothing loops.

What was measured on real servers and shapes this module:

* A page holds the first `limit` lines by time over all streams, grouped by stream. Its last nanosecond may be cut, so
  a full page counts up to that one only, and the next begins with it. Where a page holds nothing but one nanosecond,
  this is read stream by stream and then by what its lines end with, until no page is full.
* Structured metadata and labels that Loki makes up (`detected_level`) split streams; asked for apart from the labels
  (`categorize-labels`) they do not.
* Errors are text. What the server limits (lines per page) is told by its refusal, and kept to from then on.
* Range ends are exclusive; times must be nanoseconds, for milliseconds are taken and answered with nothing.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import orjson

from advisor.core.line_filter import LineFilter
from advisor.core.words import UnavailableReason
from connectors.logs.decoding import uncollected
from connectors.logs.store import NS, Answer, Ask, Labels, Seen, Stream, proved, stream_name
from connectors.web.server import AskError, Server

PAGE_LINES = 5_000
PAGES_MAX = 40  # of one question
SERIES_MAX = 400  # of one metric query; 500 is the server's own bound
WINDOWS = 3  # of the past, asked at once
WINDOW_SHARE = 0.8  # of a page that a window is to fill
SPAN_NS_FIRST = 60 * NS
SPAN_NS_MAX = 3_600 * NS
PARTS_MAX = 60  # questions that the lines of one nanosecond may take
MADE_UP_LEVEL = "detected_level"
MADE_UP = frozenset({MADE_UP_LEVEL, "service_name"})
_HEADERS = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
_ENTRIES = re.compile(r"max_entries_limit\w* ?\(?\d* ?>? ?(\d+)\)")
_SELECTOR = re.compile(r"\{[^{}]*\}")


class Loki:
    """`selector`: of the streams with jobs' output, in braces. `chosen`: the lines that are sent; None: all."""

    def __init__(self, server: Server, *, selector: str, labels: Labels, chosen: LineFilter | None) -> None:
        if not _SELECTOR.fullmatch(selector.strip()):
            raise ValueError(f'selector {selector!r}: expected {{label="value", ...}}')
        self._server = server
        self._selector = selector.strip()
        self._labels = labels
        self._chosen = chosen
        self.filters = chosen is not None
        self._page_lines = PAGE_LINES
        self._span_ns = SPAN_NS_FIRST  # of a window of the past that holds about a page

    async def lines(self, ask: Ask) -> Answer:
        try:
            return await self._lines(ask)
        except AskError as error:
            if error.status != 400 or "parse error" not in error.detail or self._chosen is None or ask.whole:
                raise
        # Before version 3 a line filter had one text only: then every line is sent.
        self._chosen, self.filters = None, False
        return await self._lines(ask)

    async def _lines(self, ask: Ask) -> Answer:
        query = self._query(ask.jobs, whole=ask.whole)
        got = _Gathered(self._labels)
        if ask.urgent:
            return got.answer(await self._range(query, ask.start_ns, ask.end_ns, got, ask))
        # The past, in windows that hold about a page: a range that ends soon costs the server half of one that does
        # not, and several at once take less time than one after the other.
        edges = [min(ask.end_ns, ask.start_ns + n * self._span_ns) for n in range(WINDOWS + 1)]
        windows = [(start_ns, end_ns) for start_ns, end_ns in pairwise(edges) if start_ns < end_ns]
        pages = await _all(self._page(query, *window, urgent=False) for window in windows)
        share = WINDOW_SHARE * self._page_lines * len(windows) / max(1, sum(len(page.times) for page in pages))
        self._span_ns = int(min(SPAN_NS_MAX, max(1, self._span_ns * min(4.0, share))))
        for (start_ns, end_ns), page in zip(windows, pages, strict=True):
            reached_ns = await self._range(query, start_ns, end_ns, got, ask, page)
            if reached_ns < end_ns or got.size >= ask.bytes_max:
                return got.answer(reached_ns)
        return got.answer(edges[-1])

    async def _range(
        self, query: str, start_ns: int, end_ns: int, got: "_Gathered", ask: Ask, page: "_Page | None" = None
    ) -> int:
        """A stretch of time page by page, as far as an answer may hold; up to where. `page`: its first, if known."""
        for _ in range(PAGES_MAX):
            page = page or await self._page(query, start_ns, end_ns, urgent=ask.urgent)
            if len(page.times) < self._page_lines:
                got.take(page, end_ns)
                return end_ns
            last_ns = max(page.times)
            if min(page.times) < last_ns:
                got.take(page, last_ns)
                start_ns = last_ns
            else:
                await self._one_moment(query, last_ns, got)
                start_ns = last_ns + 1
            if got.size >= ask.bytes_max:
                break
            page = None
        return start_ns

    async def counts(self, jobs: Sequence[str], start_ns: int, end_ns: int) -> Mapping[str, int]:
        seconds = max(1, -(-(end_ns - start_ns) // NS))
        label = self._labels.subject
        found = {}
        for at in range(0, max(1, len(jobs)), SERIES_MAX):
            some = self._query(jobs[at : at + SERIES_MAX], whole=True)
            for item in await self._instant(f"sum by ({label}) (count_over_time({some}[{seconds}s]))", end_ns):
                try:
                    job, count = item["metric"].get(label, ""), int(float(item["value"][1]))
                except (AttributeError, TypeError, ValueError, OverflowError) as error:
                    raise AskError(UnavailableReason.GARBLED, f"a count that is none: {str(error)[:100]}") from error
                if job and count:
                    found[job] = count
        return found

    async def anything(self, start_ns: int, end_ns: int) -> bool:
        query = self._query((), whole=True)
        return bool((await self._page(query, start_ns, end_ns, backward=True, limit=1)).times)

    async def look(self, start_ns: int, end_ns: int) -> Seen:
        form = {"match[]": self._selector, "start": str(start_ns), "end": str(end_ns)}
        series = [item for item in (await self._json("/loki/api/v1/series", form)).get("data") or () if item]
        page = await self._page(self._query((), whole=True), start_ns, end_ns, backward=True)
        got = _Gathered(self._labels)
        got.take(page, end_ns)
        label, node = self._labels.job, self._labels.node
        jobs = {item[label] for item in series if label in item} | {stream.job for stream in got.streams}
        counted = [(stream, len(stream.times)) for stream in got.streams]
        nodes = {item[node] for item in series if node in item} | {s.node for s in got.streams if s.node}
        notes = []
        if label and series and not any(label in item for item in series) and self._labels.indexed:
            notes.append(f"no stream has the label {label!r}: name the one with the job's id in job_label")
        return Seen(
            streams=len(series),
            lines=len(page.times),
            jobs=len(jobs - {""}),
            nodes=len(nodes),
            newest_ns=max(page.times, default=None),
            of_job=sum(count for stream, count in counted if stream.job),
            of_node=sum(count for stream, count in counted if stream.node),
            page_lines=self._page_lines,
            notes=tuple(notes),
        )

    async def close(self) -> None:
        await self._server.close()

    # Queries

    def _query(self, jobs: Sequence[str], *, whole: bool) -> str:
        label, escaped = self._labels.job, [re.escape(job) for job in jobs]
        matcher = f"{label}={_quoted(jobs[0])}" if len(jobs) == 1 else f"{label}=~{_quoted('|'.join(escaped))}"
        if not jobs:
            query = self._selector
        elif self._labels.indexed:
            inside = self._selector[1:-1].strip().rstrip(",")
            query = f"{{{inside}{', ' if inside else ''}{matcher}}}"
        else:
            query = f"{self._selector} | {matcher}"
        if self._labels.proof is not None:
            name, value = self._labels.proof
            query = f"{query} | {name}={_quoted(value)}"
        if whole or self._chosen is None:
            return query
        if self._chosen.patterns:
            return f"{query} |~ {_quoted(self._chosen.pattern)}"
        return f"{query} |= {' or '.join(map(_quoted, self._chosen.texts))}"

    async def _page(
        self, query: str, start_ns: int, end_ns: int, *, backward: bool = False, limit: int = 0, urgent: bool = True
    ) -> "_Page":
        while True:
            lines = limit or self._page_lines
            form = {
                "query": query,
                "start": str(start_ns),
                "end": str(end_ns),
                "limit": str(lines),
                "direction": "backward" if backward else "forward",
            }
            try:
                data = await self._server.fetch("/loki/api/v1/query_range", form, headers=_HEADERS, urgent=urgent)
                with uncollected():
                    return _Page(_decoded(data))
            except AskError as error:
                allowed = _ENTRIES.search(error.detail) if error.status == 400 else None
                if allowed is None or int(allowed[1]) >= lines or not int(allowed[1]):
                    raise
                self._page_lines = limit = int(allowed[1])

    async def _one_moment(self, query: str, ns: int, got: "_Gathered") -> None:
        """All lines of one nanosecond that fills a page by itself: read in parts that do not. Where even the smallest
        part is full what is missing cannot be counted (no range of a metric query is that short), but it is said.
        """
        page = await self._page(query, ns, ns + 1)
        got.take_once(page, ns + 1)
        sets = page.label_sets()
        parts = [_narrowed(query, dict(labels)) for labels in sorted(sets)] if len(sets) > 1 else _divided(query)
        if len(sets) > 1:
            # Streams that did not get onto the page are in none of these.
            parts.append(_without(query, [dict(labels) for labels in sorted(sets)]))
        full = 0
        for number, part in enumerate(parts):
            if number >= PARTS_MAX:
                full += len(parts) - number
                break
            page = await self._page(part, ns, ns + 1)
            got.take_once(page, ns + 1)
            if len(page.times) >= self._page_lines:
                parts.extend(_divided(part))  # read by this very loop
        if full:
            got.gaps.append(
                f"one nanosecond ({ns}) has more lines than could be read: {full} parts of them were left out"
            )

    async def _instant(self, query: str, at_ns: int) -> list[dict[str, Any]]:
        body = await self._json("/loki/api/v1/query", {"query": query, "time": str(at_ns)})
        try:
            result = body["data"]["result"]
            _expect(body["data"]["resultType"], "vector")
            return [item for item in result if item["value"][1] is not None and item["metric"] is not None]
        except (KeyError, TypeError, IndexError) as error:
            raise AskError(UnavailableReason.GARBLED, f"an answer without {error}") from error

    async def _json(self, path: str, form: Mapping[str, str]) -> dict[str, Any]:
        return _decoded(await self._server.fetch(path, form, headers=_HEADERS))


def _decoded(data: bytes) -> dict[str, Any]:
    """Raises `AskError` for what is no answer."""
    try:
        body = orjson.loads(data)
    except ValueError as error:
        text = f"an answer of {len(data)} bytes that is no JSON: {error}"
        raise AskError(UnavailableReason.GARBLED, text, broken=True) from error
    if not isinstance(body, dict) or body.get("status") != "success":
        raise AskError(UnavailableReason.GARBLED, "an answer without success and without an error")
    return body


class _Page:
    """One answer of `query_range`: a column each for times, texts and metadata, which is empty where no line has any.
    `parts`: labels of a stream, and where its lines begin and end.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        try:
            data = body["data"]
            _expect(data["resultType"], "streams")
            self.parts: list[tuple[dict[str, str], int, int]] = []
            rows: list[Sequence[Any]] = []
            for item in data["result"]:
                labels, first = item["stream"], len(rows)
                _expect_texts(labels)
                rows += item["values"]
                self.parts.append((labels, first, len(rows)))
            if len(set(map(len, rows))) > 1:
                rows = [(row[0], row[1], row[2] if len(row) > 2 else {}) for row in rows]
            times, texts, *more = zip(*rows, strict=True) if rows else ((), ())
            self.times = list(map(int, times))
            self.texts = list(map(str.encode, texts))
            self.metadata: Sequence[Mapping[str, Any]] = more[0] if more and any(more[0]) else ()
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise AskError(UnavailableReason.GARBLED, f"an answer without {str(error)[:100]}") from error

    def label_sets(self) -> set[tuple[tuple[str, str], ...]]:
        return {
            tuple(sorted((key, value) for key, value in labels.items() if key not in MADE_UP))
            for labels, _, _ in self.parts
        }


class _Gathered:
    """Pages put together: streams of jobs."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._by_key: dict[tuple[str, str], Stream] = {}
        self._plain: dict[tuple[tuple[str, str], ...], Stream] = {}  # by labels, of lines without metadata of their own
        self._once: set[tuple[str, str, int, bytes, int]] = set()
        self.gaps: list[str] = []
        self.size = 0

    @property
    def streams(self) -> list[Stream]:
        return list(self._by_key.values())

    def answer(self, until_ns: int) -> Answer:
        # Pages are in order, parts of one nanosecond are not.
        streams = [stream.in_order() for stream in self.streams]
        return Answer(streams=streams, until_ns=until_ns, gaps=tuple(self.gaps))

    def take(self, page: _Page, before_ns: int) -> None:
        metadata = page.metadata
        uniform = not metadata or metadata.count(metadata[0]) == len(metadata)  # as a rule: a level, made up by Loki
        own = _own(metadata[0]) if metadata else {}
        for labels, low, high in page.parts:
            times = page.times[low:high]
            if not times or max(times) >= before_ns:
                places = [at for at in range(low, high) if page.times[at] < before_ns]
                self._put(page, labels, places)
            elif uniform:
                self._stream(labels, own).add(times, page.texts[low:high], [_mark(own)] * len(times))
            else:
                self._put(page, labels, range(low, high))
        self.size += sum(map(len, page.texts)) + len(page.texts)

    def _put(self, page: _Page, labels: Mapping[str, str], places: Iterable[int]) -> None:
        for own, alike in groupby(places, lambda at: page.metadata[at] if page.metadata else {}):
            chosen, known = list(alike), _own(own)
            times, texts = [page.times[at] for at in chosen], [page.texts[at] for at in chosen]
            self._stream(labels, known).add(times, texts, [_mark(known)] * len(chosen))

    def take_once(self, page: _Page, before_ns: int) -> None:
        """Lines that several pages may hold."""
        for labels, low, high in page.parts:
            for at in range(low, high):
                ns, text, own = page.times[at], page.texts[at], _own(page.metadata[at] if page.metadata else {})
                stream, mark = self._stream(labels, own), _mark(own)
                key = (stream.job, stream.name, ns, text, mark)
                if ns < before_ns and key not in self._once:
                    self._once.add(key)
                    stream.add((ns,), (text,), (mark,))
                    self.size += len(text) + 1

    def _stream(self, labels: Mapping[str, str], metadata: Mapping[str, str]) -> Stream:
        if metadata.keys() - MADE_UP:
            return self._named(labels, metadata)
        key = tuple(labels.items())
        known = self._plain.get(key)
        if known is None:
            known = self._plain[key] = self._named(labels, metadata)
        return known

    def _named(self, labels: Mapping[str, str], metadata: Mapping[str, str]) -> Stream:
        chosen = self._labels
        if chosen.proof is not None:
            proved(labels.get(chosen.proof[0], metadata.get(chosen.proof[0], "")), chosen.proof)
        named = {key: value for key, value in labels.items() if key not in MADE_UP}
        for key in (chosen.node, chosen.rank):
            if key and key in metadata:
                named[key] = metadata[key]
        job = labels.get(chosen.job) or metadata.get(chosen.job, "")
        name = stream_name(named, chosen)
        known = self._by_key.get((job, name))
        if known is None:
            known = Stream(job=job, name=name, node=named.get(chosen.node) or None)
            self._by_key[job, name] = known
        return known


def _own(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """What a line has besides the labels of its stream. Raises `AskError`."""
    try:
        own: Mapping[str, str] = metadata.get("structuredMetadata") or {}
        _expect_texts(own)
    except (AttributeError, TypeError) as error:
        raise AskError(UnavailableReason.GARBLED, f"metadata without {str(error)[:100]}") from error
    return own


def _expect_texts(labels: Mapping[str, str]) -> None:
    if not all(type(value) is str for value in labels.values()):
        raise TypeError("labels that are text")


async def _all(questions: Iterable[Coroutine[Any, Any, _Page]]) -> list[_Page]:
    """All answers, or the first failure once all have ended. Raises `AskError`."""
    found = await asyncio.gather(*questions, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in found if isinstance(answer, _Page)]


def _expect(found: object, kind: str) -> None:
    if found != kind:
        raise KeyError(kind)


def _mark(metadata: Mapping[str, str]) -> int:
    """Lines that differ in their metadata only are different lines."""
    kept = sorted((key, value) for key, value in metadata.items() if key not in MADE_UP)
    return zlib.crc32(json.dumps(kept).encode()) if kept else 0


def _narrowed(query: str, labels: Mapping[str, str]) -> str:
    """The query for one stream only."""
    _, rest = _parts_of(query)
    return "{" + ", ".join(f"{key}={_quoted(value)}" for key, value in sorted(labels.items())) + "}" + rest


def _without(query: str, sets: Sequence[Mapping[str, str]]) -> str:
    """The query without these streams, as far as one label tells them from others."""
    inside, rest = _parts_of(query)
    telling = max(sets[0], key=lambda key: (len({labels.get(key) for labels in sets}), key))
    values = "|".join(re.escape(value) for value in sorted({labels.get(telling, "") for labels in sets}))
    return f"{{{inside}, {telling}!~{_quoted(values)}}}{rest}"


def _parts_of(query: str) -> tuple[str, str]:
    """What stands in the selector's braces, and what comes after them."""
    found = re.match(r"\{((?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*)\}", query)
    return (found[1], query[found.end() :]) if found is not None else ("", "")


def _divided(query: str) -> list[str]:
    """The same lines in several queries, by a character near their ends: the one before those already looked at."""
    before = query.count('$"')
    found = [rf"(?s)[{group}].{{{before}}}$" for group in ("02468", "13579", "a-zA-Z")]
    return [f"{query} |~ {_quoted(text)}" for text in [*found, rf"(?s)(?:^|[^0-9a-zA-Z]).{{{before}}}$"]]


def _quoted(text: str) -> str:
    """A string of LogQL. Control characters and what is not ASCII are escaped as Go does."""
    out = []
    for char in text:
        if char in '"\\':
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            out.append(f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else f"\\u{ord(char):04x}")
    return f'"{"".join(out)}"'
