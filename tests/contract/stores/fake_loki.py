"""A small server that answers as Grafana Loki was seen to, with every trap that was met. Not a copy: written from what
requests and responses looked like (see docs/sources.md).
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import re2

from tests.contract.stores.front import Asked, Told

ENTRIES_MAX = 500  # a tenth of the real default, so that tests need a tenth of the lines
ROTATION = 257
Labels = tuple[tuple[str, str], ...]
Row = tuple[int, str, Labels]  # nanosecond, line, structured metadata

_STRING = r'"(?:[^"\\]|\\.)*"'
_FILTER = rf"\|([~=]) ({_STRING}(?: or {_STRING})*)"
_QUERY = re.compile(
    rf"(?P<selector>\{{(?:[^{{}}\"]|{_STRING})*\}})"
    rf"(?P<labels>(?: \| \w+=~?{_STRING})*)"
    rf"(?P<lines>(?: \|[~=] {_STRING}(?: or {_STRING})*)*)"
)


class FakeLoki:
    """`tenants`: multi-tenant when given; then requests need one of the header's values."""

    def __init__(self, *, tenants: Sequence[str] = (), entries_max: int = ENTRIES_MAX) -> None:
        self.tenants = tuple(tenants)
        self.entries_max = entries_max
        self.streams: dict[str, dict[Labels, list[Row]]] = {}

    def push(
        self, labels: Mapping[str, str], rows: Sequence[tuple[int, str, Mapping[str, str]]], tenant: str = ""
    ) -> None:
        """Exact repeats are kept once; the same line with other metadata is another line."""
        stream = self.streams.setdefault(tenant, {}).setdefault(tuple(sorted(labels.items())), [])
        there = set(stream)
        for ns, line, metadata in rows:
            row = (ns, line, tuple(sorted(metadata.items())))
            if row not in there:
                there.add(row)
                stream.append(row)

    async def __call__(self, asked: Asked) -> Told:
        await asyncio.sleep(0)
        tenant = asked.headers.get("x-scope-orgid", "")
        if self.tenants and not tenant:
            return _text(401, "no org id")
        if "|" in tenant:
            return _text(500, "multiple org IDs present")
        held = self.streams.get(tenant if self.tenants else "", {})
        match asked.path:
            case "/loki/api/v1/query_range":
                return self._range(asked, held)
            case "/loki/api/v1/query":
                return self._instant(asked.form, held)
            case "/loki/api/v1/series":
                return self._series(asked.form, held)
            case _:
                return _text(404, "404 page not found")

    def _range(self, asked: Asked, held: Mapping[Labels, list[Row]]) -> Told:
        form = asked.form
        start, end, limit = int(form["start"]), int(form["end"]), int(form.get("limit", "100"))
        backward = form.get("direction", "backward") == "backward"
        if limit > self.entries_max:
            return _text(
                400,
                "max entries limit per query exceeded, limit > max_entries_limit_per_query"
                f" ({limit} > {self.entries_max})",
            )
        if limit < 1:
            return _text(400, "limit must be a positive value")
        if start > end:
            return _text(400, "end timestamp must not be before or equal to start time")
        query = _QUERY.fullmatch(form["query"])
        if query is None:
            return _text(400, f"parse error at line 1, col 1: syntax error: unexpected {form['query']!r:.80}")
        found = enumerate(_matching(query, held))
        rows = [(ns, at, labels, line, meta) for at, (labels, ns, line, meta) in found if start <= ns < end]
        rows.sort(key=lambda row: row[:2])
        rows = _rotated(rows)
        if backward:
            rows.reverse()
        apart = "categorize-labels" in asked.headers.get("x-loki-response-encoding-flags", "")
        result: dict[Labels, list[list[Any]]] = {}
        for ns, _, labels, line, meta in rows[:limit]:
            metadata = dict(meta) | {"detected_level": "unknown"}
            if apart:
                key, value = labels, [str(ns), line, {"structuredMetadata": metadata}]
            else:
                key, value = tuple(sorted((dict(labels) | metadata).items())), [str(ns), line]
            result.setdefault(key, []).append(value)
        data: dict[str, Any] = {
            "resultType": "streams",
            "result": [{"stream": dict(labels), "values": values} for labels, values in result.items()],
            "stats": {"summary": {"totalLinesProcessed": len(rows)}},
        }
        if apart:
            data["encodingFlags"] = ["categorize-labels"]
        return _json({"status": "success", "data": data})

    def _instant(self, form: Mapping[str, str], held: Mapping[Labels, list[Row]]) -> Told:
        at = int(form["time"])
        found = re.fullmatch(r"sum(?: by \((\w+)\) )?\(count_over_time\((.*)\[(\d+)(\w+)\]\)\)", form["query"])
        if found is None:
            return _text(400, "log queries are not supported as an instant query type")
        query = _QUERY.fullmatch(found[2])
        if query is None:
            return _text(400, f"parse error: {found[2]!r:.80}")
        if found[4] != "s":
            return _text(400, f'parse error: unknown unit "{found[4]}" in duration')
        length = int(found[3]) * 10**9
        counts: dict[str, int] = {}
        for labels, ns, _, meta in _matching(query, held):
            if at - length < ns <= at:
                key = (dict(labels) | dict(meta)).get(found[1] or "", "")
                counts[key] = counts.get(key, 0) + 1
        result = [
            {"metric": {found[1]: key} if found[1] else {}, "value": [at / 1e9, str(count)]}
            for key, count in counts.items()
        ]
        return _json({"status": "success", "data": {"resultType": "vector", "result": result, "stats": {}}})

    def _series(self, form: Mapping[str, str], held: Mapping[Labels, list[Row]]) -> Told:
        query = _QUERY.fullmatch(form["match[]"])
        assert query is not None
        data = [
            dict(labels)
            for labels, rows in held.items()
            if _selected(query["selector"], dict(labels))
            and any(int(form["start"]) <= r[0] < int(form["end"]) for r in rows)
        ]
        return _json({"status": "success", "data": data} if data else {"status": "success"})


def _matching(query: re.Match[str], held: Mapping[Labels, list[Row]]) -> Any:
    filters = [
        [
            re2.compile(json.loads(text) if sign == "~" else re2.escape(json.loads(text)))
            for text in re.findall(_STRING, one)
        ]
        for sign, one in re.findall(_FILTER, query["lines"])
    ]
    for labels, rows in held.items():
        if not _selected(query["selector"], dict(labels)):
            continue
        for ns, line, meta in rows:
            known = dict(labels) | dict(meta)
            if not all(_matches(known, name, sign, value) for name, sign, value in _matchers(query["labels"])):
                continue
            if all(any(pattern.search(line) for pattern in patterns) for patterns in filters):
                yield labels, ns, line, meta


def _matchers(text: str) -> list[tuple[str, str, str]]:
    return [(name, sign, json.loads(value)) for name, sign, value in re.findall(rf"(\w+)(=~?|!~)({_STRING})", text)]


def _selected(selector: str, labels: Mapping[str, str]) -> bool:
    return all(_matches(labels, name, sign, value) for name, sign, value in _matchers(selector))


def _matches(labels: Mapping[str, str], name: str, sign: str, value: str) -> bool:
    have = labels.get(name, "")
    if sign == "=":
        return have == value
    return (re.fullmatch(value, have) is not None) is (sign == "=~")


def _rotated(rows: list[Any]) -> list[Any]:
    """Thousands of lines of one nanosecond come in the order of blocks, not of arrival."""
    out: list[Any] = []
    at = 0
    while at < len(rows):
        end = at
        while end < len(rows) and rows[end][0] == rows[at][0]:
            end += 1
        group = rows[at:end]
        out.extend(group[ROTATION:] + group[:ROTATION] if len(group) > 400 else group)
        at = end
    return out


def _text(status: int, text: str) -> Told:
    return Told(status=status, body=text.encode() + b"\n", kind="text/plain; charset=utf-8")


def _json(body: Any) -> Told:
    return Told(body=json.dumps(body, separators=(",", ":")).encode())
