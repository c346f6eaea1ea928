"""Where kernel records go: a file per node on shared storage, Loki, VictoriaLogs.

Each delivers what waits in the spool and says how far. A file gets every line exactly once, also over a crash between
writing and remembering: before it writes it notes where the file ended, and afterwards looks what is there already.
A store may be sent the same lines again after an answer that got lost; they have the same time, text and number, so
that Loki keeps one and readers of VictoriaLogs know them.

Errors: `DeliveryError`; `retry` says whether the same lines may be tried again.
"""

import contextlib
import http.client
import json
import os
import ssl
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from slurm_plugin.kmsg.spool import Row, Spool

ROWS_MAX = 500
FILE_BYTES_MAX = 64 * 1024 * 1024
TIMEOUT_SECONDS = 10.0
SAID_CHARS_MAX = 300
PROGRAM = "advisor-kmsg"


class DeliveryError(Exception):
    """`retry`: the lines stay in the spool; else the receiver will never take them, and they are passed over."""

    def __init__(self, text: str, *, retry: bool = True) -> None:
        super().__init__(text)
        self.retry = retry


class Receiver(Protocol):
    name: str

    def deliver(self, spool: Spool) -> int:
        """Some of what waits; how many lines that were. Raises `DeliveryError`."""
        ...


def line_of(row: Row, node: str) -> str:
    """As syslog writes the kernel's lines, with both clocks."""
    at = datetime.fromtimestamp(row.ns // 1_000_000_000, UTC)
    head = f"{at:%Y-%m-%dT%H:%M:%S}.{row.ns % 1_000_000_000 // 1_000:06d}+00:00 {node}"
    if row.uptime_us is None:
        return f"{head} {PROGRAM}: {row.text}\n"
    return f"{head} kernel: [{row.uptime_us // 1_000_000:5d}.{row.uptime_us % 1_000_000:06d}] {row.text}\n"


class NodeFile:
    """`path`: the node's own file. Renamed to `NAME.1` when it is full; another's rotation is followed, too."""

    def __init__(self, path: Path, node: str, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self.name = f"file:{path}"
        self._path = path
        self._node = node
        self._bytes_max = bytes_max

    def deliver(self, spool: Spool) -> int:
        try:
            return self._deliver(spool)
        except OSError as error:
            raise DeliveryError(f"{self._path}: {error.strerror}") from error

    def _deliver(self, spool: Spool) -> int:
        begun = json.loads(spool.intent(self.name) or "null")
        rows = spool.waiting(self.name, ROWS_MAX)
        if not rows:
            return 0
        data = "".join(line_of(row, self._node) for row in rows).encode()
        if begun is None:
            self._rotate()
        descriptor = self._open()
        try:
            known = os.fstat(descriptor)
            if begun is None:
                spool.intend(self.name, json.dumps({"inode": known.st_ino, "size": known.st_size}))
            elif begun["inode"] == known.st_ino and known.st_size > begun["size"]:
                data = _not_there(os.pread(descriptor, len(data), begun["size"]), data)
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)  # or a network file system shows it half a minute later
        finally:
            os.close(descriptor)
        spool.delivered(self.name, rows[-1].id)
        return len(rows)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o640)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DeliveryError(f"{self._path}: no regular file")
        return descriptor

    def _rotate(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size > self._bytes_max:
                self._path.rename(f"{self._path}.1")


def _not_there(there: bytes, data: bytes) -> bytes:
    """What of `data` still is to be written where a write of it broke off after `there`."""
    if data.startswith(there):
        return data[len(there) :]
    return b"" if there.startswith(data) else data


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Files are read again at each delivery: what was renewed holds at once."""

    url: str
    headers: Mapping[str, str]
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None


class _Store:
    """What both stores have in common. `labels`: of the stream, the node's name and the transport among them."""

    def __init__(self, access: StoreAccess, labels: Mapping[str, str]) -> None:
        self.name = f"store:{access.url}"
        self._access = access
        self._labels = dict(labels)
        self._rows = ROWS_MAX

    def deliver(self, spool: Spool) -> int:
        rows = spool.waiting(self.name, self._rows)
        if not rows:
            return 0
        try:
            self._post(*self._body(rows))
        except DeliveryError as error:
            if not error.retry and len(rows) > 1:
                self._rows = max(1, len(rows) // 2)  # one of them is not taken: the others are
                return self.deliver(spool)
            if not error.retry:
                self._see_whether_any_is_taken(spool, rows[-1])
                spool.delivered(self.name, rows[-1].id)
            raise
        self._rows = min(ROWS_MAX, self._rows * 2)
        spool.delivered(self.name, rows[-1].id)
        return len(rows)

    def _see_whether_any_is_taken(self, spool: Spool, refused: Row) -> None:
        """A store that is set up wrong, or another server at its address, refuses every line: then none is passed over.
        Raises `DeliveryError` where the newest line is refused as well, or there is no other to tell by.
        """
        newest = spool.newest(self.name)
        if newest is None or newest.id == refused.id:
            raise DeliveryError(f"{self.name}: refuses a line, and no other waits to tell whether it takes any")
        try:
            self._post(*self._body([newest]))
        except DeliveryError as error:
            raise DeliveryError(f"{self.name}: takes no line: {error}") from error

    def _body(self, rows: Sequence[Row]) -> tuple[str, str, bytes]:
        raise NotImplementedError

    def _post(self, path: str, kind: str, body: bytes) -> None:
        access = self._access
        headers = {**access.headers, "Content-Type": kind, "User-Agent": PROGRAM}
        secret = ""
        try:
            if access.token_file is not None:
                secret = access.token_file.read_text("utf-8").strip()
                if not (secret.isascii() and secret.isprintable()):
                    raise DeliveryError(f"{access.token_file}: one line of ASCII text is expected")
                headers["Authorization"] = f"Bearer {secret}"
            url = access.url.rstrip("/") + path
            request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310  # as configured
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), _NoRedirects(), urllib.request.HTTPSHandler(context=_tls(access))
            )
            status, page, said = _answer(opener, request)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise DeliveryError(f"{self.name}: {type(error).__name__}: {error}") from error
        said = said.replace(secret, "(hidden)") if secret else said  # some proxies answer with what they were sent
        if page and status < 300:
            # Of a proxy that wants somebody to log in: the store has not seen the lines.
            raise DeliveryError(f"{self.name}: HTTP {status} with a page: {said}")
        if status >= 300:
            # 400, 413 and 422 are about these lines (too old, too long, too many), and so is Loki's 500 of its gRPC.
            never = not page and (status in {400, 413, 422} or (status == 500 and "ResourceExhausted" in said))
            raise DeliveryError(f"{self.name}: HTTP {status}: {said}", retry=not never)


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> tuple[int, bool, str]:
    """Status, whether it is a page for people, and what it says. Raises what `urllib` and `http.client` do."""
    try:
        answer = opener.open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        page = answer.headers.get_content_type() == "text/html"
        return answer.status, page, " ".join(answer.read(SAID_CHARS_MAX).decode("utf-8", "replace").split())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the token elsewhere."""

    def redirect_request(self, *_: object) -> None:
        return None


def _tls(access: StoreAccess) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file is not None else None)
    if access.certificate_file is not None:
        context.load_cert_chain(access.certificate_file, access.key_file)
    return context


class LokiStore(_Store):
    def _body(self, rows: Sequence[Row]) -> tuple[str, str, bytes]:
        values = [[str(row.ns), _text(row), _numbers(row)] for row in rows]
        body = {"streams": [{"stream": self._labels, "values": values}]}
        return "/loki/api/v1/push", "application/json", json.dumps(body).encode()


class VictoriaLogsStore(_Store):
    def _body(self, rows: Sequence[Row]) -> tuple[str, str, bytes]:
        fields = urllib.parse.quote(",".join(self._labels))
        lines = [
            json.dumps({"_time": _rfc3339(row.ns), "_msg": _text(row), **self._labels, **_numbers(row)}) for row in rows
        ]
        return f"/insert/jsonline?_stream_fields={fields}", "application/stream+json", "\n".join(lines).encode()


def _text(row: Row) -> str:
    return row.text if row.uptime_us is not None else f"{PROGRAM}: {row.text}"


def _numbers(row: Row) -> dict[str, str]:
    numbers = {"boot": row.boot}
    return numbers if row.sequence is None else {**numbers, "sequence": str(row.sequence)}


def _rfc3339(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%S}.{ns % 1_000_000_000:09d}Z"
