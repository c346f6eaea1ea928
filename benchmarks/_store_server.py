"""A log store that has a million generated lines, in a process of its own: for the benchmark.

    python -m benchmarks._store_server loki|victorialogs LINES FIRST_NS STEP_NS

It prints its port, answers range queries as the real ones do, and takes single lines by POST /bench/push. Rows of
VictoriaLogs have their parts ready and are put together as they are sent: the real one sends a million a second. Loki's
pages are made for each question, which takes the real one three times as long. Figures are about our side only.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator

import orjson

from connectors.logs.victorialogs import format_time, parse_time
from tests.contract.stores.front import Asked, Told, serve_until_alone

STREAMS = 256
PIECE = 160  # lines sent at once: about as much as the real one does
ROW = b'{"_time":"%b","_stream":"{host=\\"node%d\\",job_id=\\"1\\",rank=\\"r%d\\"}","_msg":"%b","job_id":"1",'
ROW += b'"host":"node%d","rank":"r%d"}\n'
TEXT = "INFO trainer.py:{} rank {} forward-backward took {} ms, optimizer {} ms, data loader {} ms; queue depth {}; "
TEXT += "allreduce bucket {} of 96 launched on stream 7 with 25165824 elements, dtype bfloat16, lr 1.2e-4, seed 1234567"


def text_of(number: int) -> str:
    return TEXT.format(number, number % STREAMS, number % 997, number % 89, number % 31, number % 7, number % 96)


class Generated:
    """`number` of a line is its place in time."""

    def __init__(self, kind: str, lines: int, first_ns: int, step_ns: int) -> None:
        self.kind = kind
        self.lines = lines
        self.first_ns = first_ns
        self.step_ns = step_ns
        self.pushed: list[tuple[int, str]] = []
        made = range(lines if kind == "victorialogs" else 0)
        self.parts = [(format_time(first_ns + n * step_ns).encode(), text_of(n).encode()) for n in made]

    def span(self, start_ns: int, end_ns: int) -> range:
        low = max(0, -(-(start_ns - self.first_ns) // self.step_ns))
        high = min(self.lines, max(0, -(-(end_ns - self.first_ns) // self.step_ns)))
        return range(low, max(low, high))

    async def __call__(self, asked: Asked) -> Told:
        if asked.path == "/bench/push":
            ns, text = asked.raw.decode().split(" ", 1)
            self.pushed.append((int(ns), text))
            return Told(body=b"{}")
        return self._loki(asked) if self.kind == "loki" else self._victorialogs(asked)

    def _loki(self, asked: Asked) -> Told:
        form = asked.form
        if asked.path == "/loki/api/v1/query":
            value = [{"metric": {"job_id": "1"}, "value": [0, "1"]}]
            return Told(body=orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": value}}))
        start, end, limit = int(form["start"]), int(form["end"]), int(form["limit"])
        streams: dict[str, list[tuple[str, str, dict[str, dict[str, str]]]]] = {}
        rows = self.span(start, end)[:limit]
        for number in rows:
            line = (
                str(self.first_ns + number * self.step_ns),
                text_of(number),
                {"structuredMetadata": {"detected_level": "info"}},
            )
            streams.setdefault(f"r{number % STREAMS}", []).append(line)
        for ns, text in self.pushed:
            if start <= ns < end and len(rows) < limit:
                streams.setdefault("r0", []).append((str(ns), text, {}))
        result = [
            {"stream": {"job_id": "1", "host": f"node{rank}", "rank": rank}, "values": values}
            for rank, values in streams.items()
        ]
        return Told(body=orjson.dumps({"status": "success", "data": {"resultType": "streams", "result": result}}))

    def _victorialogs(self, asked: Asked) -> Told:
        query = asked.form["query"]
        found = re.match(r"_time:\[([^,]+), ([^)]+)\)", query)
        assert found is not None
        start, end = parse_time(found[1]), parse_time(found[2])
        if "| stats" in query:
            return Told(body=b'{"job_id":"1","n":"1"}\n', kind="application/stream+json")
        return Told(body=self._rows(start, end), kind="application/stream+json")

    async def _rows(self, start: int, end: int) -> AsyncIterator[bytes]:
        rows = self.span(start, end)
        for at in range(0, len(rows), PIECE):
            made = []
            for number in rows[at : at + PIECE]:
                rank, (time, text) = number % STREAMS, self.parts[number]
                made.append(ROW % (time, rank, rank, text, rank, rank))
            yield b"".join(made)
        yield b"".join(self._row(ns, 0, text) for ns, text in self.pushed if start <= ns < end)

    @staticmethod
    def _row(ns: int, rank: int, text: str) -> bytes:
        row = {
            "_time": format_time(ns),
            "_stream": f'{{host="node{rank}",job_id="1",rank="r{rank}"}}',
            "_msg": text,
            "job_id": "1",
            "host": f"node{rank}",
            "rank": f"r{rank}",
        }
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


async def main() -> None:
    kind, lines, first_ns, step_ns = sys.argv[1], *map(int, sys.argv[2:5])
    await serve_until_alone(Generated(kind, lines, first_ns, step_ns))


if __name__ == "__main__":
    asyncio.run(main())
