"""Small real servers for the contract of notifiers: HTTP and SMTP, each told how to behave."""

import asyncio
import email
import email.policy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from enum import StrEnum
from pathlib import Path
from typing import Any

from advisor.clock import SystemClock
from advisor.ports import Notice, NoticeItem, Notifier
from connectors.notify.mail import Mail
from connectors.notify.webhook import Webhook

DECIDED = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


class Behaviour(StrEnum):
    TAKE = "take"
    REFUSE = "refuse"  # a lasting no
    LATER = "later"  # a no for now
    FAIL = "fail"  # an error of the server's own, after the message was read
    CUT = "cut"  # the connection ends after the message was read, without an answer
    HANG = "hang"  # no answer at all


@dataclass
class Received:
    """`key`: by which a receiver knows a message again."""

    key: str
    text: str
    raw: Any


@dataclass
class Receiver:
    """One server. `received`: what it took or may have taken."""

    behaviour: Behaviour = Behaviour.TAKE
    received: list[Received] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # first lines of requests, SMTP commands
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0


def item(**changes: Any) -> NoticeItem:
    values: dict[str, Any] = {
        "decision_id": "0199b2f0-0000-7000-8000-000000000001",
        "incident": "0199b2f0-0000-7000-8000-00000000000a-0",
        "update": 0,
        "cluster": "alps",
        "job_id": "4711",
        "attempt": 0,
        "user": "ada",
        "partition": "gpu",
        "category": "gpu_hardware",
        "action": "restart",
        "reason": "nodes_implicated",
        "mode": "autonomous",
        "nodes": ("node2",),
        "root_cause": "GPU 3 of node2 fell off the bus",
        "explanation": "node2's GPU is gone",
        "decided_at": DECIDED,
        "link": "https://advisor.example.com/decisions/1",
    }
    return NoticeItem(**(values | changes))


def notice(*items: NoticeItem, key: str = "6f0d4a52-8f0b-5d0e-9d3c-1b6a2c7e41aa", repeat: bool = False) -> Notice:
    return Notice(key=key, items=items or (item(),), repeat=repeat)


@asynccontextmanager
async def http_receiver(receiver: Receiver) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *rest = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            receiver.seen.append(first)
            receiver.headers.append(headers)
            await answer(first, headers, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(first: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        value = json.loads(body) if body else {}
        behaviour, extra = receiver.behaviour, ""
        if first.startswith("POST") and not value.get("text"):
            status = "400 Bad Request"  # as Slack answers a message without text
        elif first.startswith("OPTIONS"):
            status = "405 Method Not Allowed"
        else:
            status = "200 OK"
        match behaviour:
            case Behaviour.REFUSE:
                status = "403 Forbidden"
            case Behaviour.LATER:
                status, extra = "429 Too Many Requests", "Retry-After: 17\r\n"
            case Behaviour.FAIL:
                status = "500 Internal Server Error"
            case Behaviour.HANG:
                await asyncio.sleep(60)
            case _:
                pass
        if value.get("text") and behaviour not in {Behaviour.REFUSE, Behaviour.LATER}:
            receiver.received.append(Received(headers.get("idempotency-key", ""), value["text"], value))
        if behaviour is not Behaviour.CUT:
            writer.write(f"HTTP/1.1 {status}\r\n{extra}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()


@asynccontextmanager
async def smtp_receiver(receiver: Receiver) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())

        try:
            say("220 receiver")
            while line := (await reader.readline()).decode().strip():
                receiver.seen.append(line)
                behaviour, command = receiver.behaviour, line.upper().split(":")[0].split(" ")[0]
                if behaviour is Behaviour.HANG:
                    await asyncio.sleep(60)
                match command:
                    case "RCPT" if behaviour is Behaviour.REFUSE:
                        say("550 no such user")
                    case "MAIL" if behaviour is Behaviour.LATER:
                        say("421 try again later")
                    case "DATA":
                        say("354 go on")
                        data = await reader.readuntil(b"\r\n.\r\n")
                        taken = email.message_from_bytes(data[:-5], policy=email.policy.default)
                        assert isinstance(taken, EmailMessage)
                        key = str(taken["Message-ID"]).strip("<>").partition("@")[0]
                        receiver.received.append(Received(key, taken.get_content(), taken))
                        if behaviour is Behaviour.CUT:
                            return
                        say("451 disk full" if behaviour is Behaviour.FAIL else "250 taken")
                    case "QUIT":
                        say("221 bye")
                        return
                    case _:
                        say("250 fine")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()


def webhook(receiver: Receiver, folder: Path, *, slack: bool, **changes: Any) -> Notifier:
    address = folder / "url"
    address.write_text(f"http://127.0.0.1:{receiver.port}/hook/s3cret\n")
    return Webhook(
        "channel", url_file=address, clock=SystemClock(), slack=slack, **({"timeout_seconds": 5.0} | changes)
    )


def mail(receiver: Receiver, folder: Path, **changes: Any) -> Notifier:
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": receiver.port,
        "sender": "advisor@example.com",
        "recipients": ("ops@example.com", "oncall@example.com"),
        "clock": SystemClock(),
        "tls": "none",
        "timeout_seconds": 5.0,
    }
    return Mail("channel", **(values | changes))


@dataclass(frozen=True)
class Kind:
    serve: Callable[[Receiver], Any]
    make: Callable[..., Notifier]


KINDS = {
    "slack": Kind(http_receiver, lambda r, f, **o: webhook(r, f, slack=True, **o)),
    "webhook": Kind(http_receiver, lambda r, f, **o: webhook(r, f, slack=False, **o)),
    "email": Kind(smtp_receiver, mail),
}
