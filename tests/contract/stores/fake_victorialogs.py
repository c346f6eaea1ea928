"""A small server that answers as VictoriaLogs was seen to, with every trap that was met."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import re2

from connectors.logs.victorialogs import format_time, parse_time
from tests.contract.stores.front import Asked, Told

_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = rf"(?:{_STRING}|[\w.]+)"
Row = dict[str, str]


class FakeVictoriaLogs:
    """`shown`: tells of a row's arrival whether it is visible yet. Rows are kept as they come, repeats too."""

    def __init__(self, *, shown: Callable[[int], bool] = lambda _: True) -> None:
        self.rows: dict[str, list[tuple[int, Row]]] = {}
        self.shown = shown
        self.arrivals = 0
        self._random = random.Random(7)

    def push(self, rows: Sequence[Mapping[str, Any]], stream_fields: Sequence[str], tenant: str = "0:0") -> None:
        held = self.rows.setdefault(tenant, [])
        for row in rows:
            flat = {name: value for name, value in row.items() if value not in (None, "")}
            inside = ",".join(f"{name}={json.dumps(flat[name])}" for name in sorted(stream_fields) if name in flat)
            stream = f"{{{inside}}}"
            flat["_stream"] = stream
            flat["_stream_id"] = f"{hash(stream) & (2**64 - 1):032x}"
            held.append((self.arrivals, flat))
        self.arrivals += 1

    async def __call__(self, asked: Asked) -> Told:
        await asyncio.sleep(0)
        if asked.path != "/select/logsql/query":
            return _text(400, f'unsupported path requested: "{asked.path}"')
        tenant = []
        for header in ("accountid", "projectid"):
            value = asked.headers.get(header, "0")
            if not value.isdigit():
                return _text(400, f"cannot parse {header} from {value!r}")
            tenant.append(value)
        try:
            rows = self._found(asked.form["query"], self.rows.get(":".join(tenant), []))
        except ValueError as error:
            return _text(400, f"cannot parse query [{asked.form['query'][:200]}]: {error}")
        return Told(body=self._stream(rows), kind="application/stream+json")

    async def _stream(self, rows: Sequence[Row]) -> AsyncIterator[bytes]:
        """Pieces of the server's size, not the lines'."""
        buffer = b""
        for row in rows:
            buffer += json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
            if len(buffer) > 65_000:
                yield buffer[:65_000]
                buffer = buffer[65_000:]
        yield buffer

    def _found(self, query: str, held: Sequence[tuple[int, Row]]) -> list[Row]:
        head, *pipes = _split(query)
        rows = [row for arrival, row in held if self.shown(arrival)]
        tests = _filters(head)
        rows = [row for row in rows if all(test(row) for test in tests)]
        self._random.shuffle(rows)
        for pipe in pipes:
            rows = _piped(pipe.strip(), rows)
        return rows


def _split(query: str) -> list[str]:
    parts, at = [""], 0
    for token in re.findall(rf"{_STRING}|.", query, re.DOTALL):
        if token == "|":
            parts.append("")
        else:
            parts[-1] += token
        at += len(token)
    return parts


def _filters(text: str) -> list[Callable[[Row], bool]]:
    tests: list[Callable[[Row], bool]] = []
    rest = text.strip()
    while rest:
        if found := re.match(r"_time:\[([^,]+), ([^\])]+)\)", rest):
            low, high = parse_time(found[1]), parse_time(found[2])
            tests.append(lambda row, low=low, high=high: low <= parse_time(row["_time"]) < high)
        elif found := re.match(r"\(\*\)", rest):
            pass
        elif found := re.match(rf"\(\{{((?:[^{{}}\"]|{_STRING})*)\}}\)", rest):
            pairs = [(name, json.loads(value)) for name, value in re.findall(rf"([\w.]+)=({_STRING})", found[1])]
            tests.append(lambda row, pairs=pairs: all(row.get(name, "") == value for name, value in pairs))
        elif found := re.match(rf"({_NAME}):=({_STRING})", rest):
            name, value = _name(found[1]), json.loads(found[2])
            tests.append(lambda row, name=name, value=value: row.get(name, "") == value)
        elif found := re.match(rf"({_NAME}):in\(([^)]*)\)", rest):
            name, values = _name(found[1]), {json.loads(value) for value in re.findall(_STRING, found[2])}
            tests.append(lambda row, name=name, values=values: row.get(name, "") in values)
        elif found := re.match(rf"\(((?: ?(?:or )?_msg:~{_STRING})+)\)", rest):
            patterns = [re2.compile(json.loads(value)) for value in re.findall(_STRING, found[1])]
            tests.append(lambda row, patterns=patterns: any(p.search(row.get("_msg", "")) for p in patterns))
        else:
            raise ValueError(f"unexpected token {rest[:30]!r}")
        rest = rest[found.end() :].strip()
    return tests


def _piped(pipe: str, rows: list[Row]) -> list[Row]:
    if pipe.startswith("fields "):
        names = [_name(part.strip()) for part in pipe[7:].split(",")]
        return [{name: row[name] for name in names if name in row} for row in rows]
    if found := re.fullmatch(r"limit (\d+)", pipe):
        return rows[: int(found[1])]
    if found := re.fullmatch(rf"stats by \(({_NAME})\) count\(\) n", pipe):
        counts: dict[str, int] = {}
        for row in rows:
            value = row.get(_name(found[1]), "")
            counts[value] = counts.get(value, 0) + 1
        return [{_name(found[1]): value, "n": str(count)} for value, count in counts.items()]
    if pipe.startswith("stats "):
        out: Row = {}
        form = rf"(count|count_uniq|max)\(({_NAME})?\)(?: if \(({_NAME}):\*\))? (\w+)"
        for name, of, only, into in re.findall(form, pipe):
            some = [row for row in rows if not only or row.get(_name(only))]
            values = [row[_name(of)] for row in some if of and _name(of) in row]
            out[into] = str(len(some)) if name == "count" else str(len(set(values)))
            if name == "max":
                out[into] = max(values, key=parse_time, default="")
        return [out]
    raise ValueError(f"unexpected pipe {pipe[:30]!r}")


def _name(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def time_text(ns: int) -> str:
    """As the server writes it: without zeros at the end."""
    text = format_time(ns)[:-1].rstrip("0").rstrip(".")
    return f"{text}Z"


def _text(status: int, text: str) -> Told:
    return Told(status=status, body=text.encode() + b"\n", kind="text/plain; charset=utf-8")
