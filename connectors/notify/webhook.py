"""Notices by HTTP: as Slack's incoming webhooks take them (Mattermost, Rocket.Chat and others do, too), or as our JSON.

The address of an incoming webhook is a secret, so it is read from a file, again for each notice. A redirect is not
followed: it could carry the secret elsewhere.

Our JSON is `{"schema":"advisor.notification/1","key":…,"repeat":…,"text":…,"decisions":[{…}]}`, each decision with the
fields of `advisor.ports.NoticeItem`. `Idempotency-Key` is the notice's key: a receiver that remembers it takes each
notice once, whatever broke off on the way. Slack has nothing like it; a repeat says so.
"""

import asyncio
import dataclasses
import json
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import Clock, Notice, NoticeItem, Undelivered
from connectors.notify import wording
from connectors.web.access import Access, AccessError, Credentials, secret_of

SCHEMA = "advisor.notification/1"
TEXT_BYTES_MAX = 8_000
WAIT_SECONDS_MAX = 3_600.0
_OF_SERVER = frozenset({408, 425, 429})
_REASONS = {
    401: UnavailableReason.PERMISSION,
    403: UnavailableReason.PERMISSION,
    404: UnavailableReason.NOT_CONFIGURED,
    410: UnavailableReason.NOT_CONFIGURED,
    429: UnavailableReason.LIMIT,
}


class Webhook:
    """Implements `Notifier`. `slack`: as an incoming webhook; else our JSON, with a token if there is one."""

    def __init__(
        self,
        name: str,
        *,
        url_file: Path,
        clock: Clock,
        slack: bool,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.name = name
        self._url_file, self._clock, self._slack = url_file, clock, slack
        self._token_file, self._ca_file, self._seconds = token_file, ca_file, timeout_seconds

    async def send(self, notice: Notice) -> Undelivered | None:
        body = slack_body(notice) if self._slack else own_body(notice)
        return await self._ask("POST", body, {"Idempotency-Key": notice.key})

    async def check(self) -> Unavailable | None:
        """Slack answers 400 to a message without text; any other server is only asked what it takes."""
        if self._slack:
            answer = await self._ask("POST", b"{}", {}, fine=frozenset({400}))
        else:
            answer = await self._ask("OPTIONS", b"", {}, fine=frozenset({400, 404, 405, 415, 501}))
        return answer.unavailable if answer is not None else None

    async def close(self) -> None:
        """Each notice has a connection of its own: they are few."""

    async def _ask(
        self, method: str, body: bytes, headers: dict[str, str], fine: frozenset[int] = frozenset()
    ) -> Undelivered | None:
        try:
            url = secret_of(self._url_file)
            if not url.startswith(("https://", "http://")):
                return self._failed(UnavailableReason.NOT_CONFIGURED, f"{self._url_file}: holds no http address")
            access = Access(url=url, token_file=self._token_file, ca_file=self._ca_file)
            credentials = Credentials(access)
            context = credentials.tls()
            sent = {"Content-Type": "application/json", "User-Agent": "recovery-advisor", **headers}
            async with (
                asyncio.timeout(self._seconds),
                httpx.AsyncClient(
                    verify=context if context is not None else False,
                    timeout=self._seconds,
                    follow_redirects=False,
                    trust_env=False,
                ) as client,
                client.stream(method, url, content=body, headers=sent | credentials.headers()) as response,
            ):
                return self._judged(response, fine)
        except AccessError as error:
            return self._failed(UnavailableReason.PERMISSION, str(error))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return self._failed(UnavailableReason.REFUSED, f"cannot connect: {_kind(error)}")
        except (httpx.TimeoutException, TimeoutError):
            return self._failed(UnavailableReason.TIMEOUT, f"no answer within {self._seconds:g} s", uncertain=True)
        except httpx.HTTPError as error:
            return self._failed(UnavailableReason.GARBLED, f"the answer broke off: {_kind(error)}", uncertain=True)
        except httpx.InvalidURL:
            return self._failed(UnavailableReason.NOT_CONFIGURED, f"{self._url_file}: holds no usable address")

    def _judged(self, response: httpx.Response, fine: frozenset[int]) -> Undelivered | None:
        status = response.status_code
        if 200 <= status < 300 or status in fine:
            return None
        reason = _REASONS.get(status, UnavailableReason.REFUSED)
        # 5xx: many a server fails after it has done what it was asked.
        uncertain = status >= 500 and status != 503
        wait = (
            _retry_after(response.headers.get("Retry-After", ""), self._clock) if status in _OF_SERVER | {503} else 0.0
        )
        return self._failed(reason, f"the server answers {status}", uncertain=uncertain, wait=wait)

    def _failed(
        self, reason: UnavailableReason, detail: str, *, uncertain: bool = False, wait: float = 0.0
    ) -> Undelivered:
        """No text of `httpx` or the server: both may hold the address, which is the secret."""
        absent = Unavailable(source=self.name, reason=reason, detail=detail)
        return Undelivered(unavailable=absent, uncertain=uncertain, wait_seconds=wait)


def slack_body(notice: Notice) -> bytes:
    """Plain text: `&`, `<` and `>` are all of Slack's markup that could link or mention; others read Markdown."""
    text = "\n".join(_escaped(line) for line in wording.lines(notice))
    while len(text.encode()) > TEXT_BYTES_MAX:
        text = text[: len(text) * 9 // 10] + "…"
    return json.dumps({"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}).encode()


def _escaped(line: str) -> str:
    for char, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(char, name)
    return line.replace("](", "]\u200b(")  # no link of Markdown with another text than its address


def own_body(notice: Notice) -> bytes:
    """JSON escapes what is in its strings; the receiver has to do so where it shows them."""
    items = [_plain(item) for item in notice.items]
    text = "\n".join(wording.lines(notice))
    return json.dumps(
        {"schema": SCHEMA, "key": notice.key, "repeat": notice.repeat, "text": text, "decisions": items}
    ).encode()


def _plain(item: NoticeItem) -> dict[str, object]:
    found = dataclasses.asdict(item)
    return found | {"decided_at": item.decided_at.astimezone(UTC).isoformat(), "nodes": list(item.nodes)}


def _retry_after(text: str, clock: Clock) -> float:
    """Seconds, or a date."""
    try:
        wait = float(text) if text.strip().isdigit() else (parsedate_to_datetime(text) - clock.now()).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return min(max(wait, 0.0), WAIT_SECONDS_MAX)


def _kind(error: Exception) -> str:
    cause = error.__cause__ or error.__context__ or error
    return type(cause).__name__
