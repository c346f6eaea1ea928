"""Log lines that are JSON: who wrote them, when, and the text that they wrap.

Structured loggers (python-json-logger, structlog, loguru), Docker's json-file, torchelastic's error files. Only members
by their usual names count, at the top or inside the usual containers: what stands in a message is text, whatever it
looks like. A record that was cut in its middle is read as far as its structure holds. Everything is bounded.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from advisor.core.lines import clean, decode
from advisor.core.places import RANK_MAX, Place

LINES_MAX = 200  # of text per record, the last ones: the exception stands at the end
_TOKENS_MAX = 2_000
_DEPTH_MAX = 8

_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d{1,20}(?:\.\d{1,20})?(?![\w.]))|(?P<word>true|false|null)'
    r"|(?P<sign>[{}\[\],:]))"
)
_CONTAINERS = frozenset({"extra", "record", "fields", "context", "labels", "attributes", "exception", "error"})
_ERROR_FILE = frozenset({"message", "extrainfo"})  # {"message": {"message": …, "extraInfo": {"py_callstack": …}}}
_TEXTS = frozenset(
    {"message", "msg", "log", "text", "event", "error", "exception", "exc_info", "exc_text", "stack", "stack_info"}
    | {"stack_trace", "stacktrace", "traceback", "py_callstack", "error_message", "@message", "body"}
)
_RANKS = ("global_rank", "rank", "rank_id")
_LOCALS = ("local_rank",)
_NODES = ("hostname", "node_name", "nodename", "node", "host")
_NODE_RANKS = ("node_rank", "group_rank")
_GPUS = ("gpu", "gpu_id", "gpu_index", "device", "cuda_device")
_TIMES = ("timestamp", "@timestamp", "time", "asctime", "ts", "datetime", "realtime_timestamp")
_NAMES = frozenset({*_RANKS, *_LOCALS, *_NODES, *_NODE_RANKS, *_GPUS, *_TIMES, "port"})
_FRAMES = frozenset({"exc_type", "exc_value", "filename", "lineno", "name"})  # structlog's dict_tracebacks
_HOST = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One JSON line. `lines`: its message and traceback, unescaped; `told`: its members that say who and when."""

    lines: tuple[bytes, ...] = ()
    told: Mapping[str, str] = field(default_factory=dict)

    @property
    def time(self) -> str:
        """The record's own time as text, "" where it has none."""
        return next((self.told[name] for name in _TIMES if name in self.told), "")

    def place(self, outer: Place, inner: Place | None = None) -> Place:
        """Who wrote it: by its own members, else by a prefix in its text (`inner`), else by what stood before it."""
        inner = inner or outer
        rank = self._number(_RANKS)
        local = self._number(_LOCALS)
        replica = self._number(_NODE_RANKS)
        gpu = self._gpu()
        return replace(
            inner,
            rank=rank if rank is not None else inner.rank if inner.rank is not None else outer.rank,
            local=local if local is not None else inner.local if inner.local is not None else outer.local,
            replica=replica if replica is not None else inner.replica,
            task=inner.task if inner.task is not None else outer.task,
            node=self._node() or inner.node or outer.node,
            gpu=gpu if gpu is not None else inner.gpu,
        )

    def _number(self, names: tuple[str, ...]) -> int | None:
        for name in names:
            value = self.told.get(name, "")
            if re.fullmatch(r"\d{1,7}", value, re.ASCII) and int(value) < RANK_MAX:
                return int(value)
        return None

    def _gpu(self) -> int | None:
        for name in _GPUS:
            found = re.fullmatch(r"(?:cuda:)?(\d{1,2})", self.told.get(name, ""), re.ASCII)
            if found is not None:
                return int(found[1])
        return None

    def _node(self) -> str | None:
        """A host beside a port is where something connects to, not where it runs."""
        for name in _NODES:
            value = self.told.get(name, "")
            if _HOST.fullmatch(value) and not (name == "host" and "port" in self.told):
                return value.partition(".")[0]
        return None


def record_of(text: str) -> Record | None:
    """The record that a line is, behind its prefixes; None where it is none."""
    if not text.startswith("{"):
        return None
    told: dict[str, str] = {}
    texts: list[str] = []
    frames: list[str] = []
    frame: dict[str, str] = {}
    for path, name, value in _members(text):
        # journald writes "_HOSTNAME", ECS "error.stack_trace".
        *outer, key = name.lower().lstrip("_").split(".")
        inside = [part.lower() for part in (*path, *outer) if part]
        if inside == ["host"] and key == "name":
            inside, key = [], "hostname"
        if key in _NAMES and all(part in _CONTAINERS for part in inside):
            told.setdefault(key, value)
        if key in _FRAMES and inside[:1] == ["exception"]:
            frame[key] = value
            if key == "name":
                frames.append(f'  File "{frame.get("filename", "?")}", line {frame.get("lineno", "0")}, in {value}')
        elif key in _TEXTS and all(part in _CONTAINERS or part in _ERROR_FILE for part in inside):
            texts = _with(texts, value)
    if frames:
        texts.append("\n".join(("Traceback (most recent call last):", *frames)))
        texts.append(f"{frame.get('exc_type', 'Exception')}: {frame.get('exc_value', '')}")
    if not told and not texts:
        return None
    return Record(lines=tuple(_lines(texts)), told=told)


def _with(texts: list[str], value: str) -> list[str]:
    """loguru writes its message twice: alone, and formatted with the traceback."""
    if not value.strip() or any(value.strip() in other for other in texts):
        return texts
    return [*(other for other in texts if other.strip() not in value), value]


def _lines(texts: list[str]) -> list[bytes]:
    whole = clean("\n".join(texts).encode("utf-8", "replace"))
    return [decode(line).encode() for line in whole.rstrip(b"\n").split(b"\n")[-LINES_MAX:]]


def _members(text: str) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Containers, name and value of each member, in order, until the text ends or is no JSON any more. Lists have no
    name of their own."""
    stack: list[str] = []
    key = ""
    position = 0
    for _ in range(_TOKENS_MAX):
        found = _TOKEN.match(text, position)
        if found is None:
            return
        position = found.end()
        sign = found["sign"]
        if sign is None:
            value = _text(found["text"]) if found["text"] else found["number"] or ""
            if not key and found["text"] and text[position : position + 2].lstrip()[:1] == ":":
                key = value
            elif key:
                yield tuple(stack[1:]), key, value
                key = ""
        elif sign in "{[":
            stack.append(key)
            key = ""
            if len(stack) > _DEPTH_MAX:
                return
        elif sign in "}]":
            stack.pop()
            key = ""
            if not stack:
                return
        elif sign == ",":
            key = ""


def _text(token: str) -> str:
    try:
        value = json.loads(token, strict=False)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
