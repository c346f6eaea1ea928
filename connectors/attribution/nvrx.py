"""NVIDIA Resiliency Extension's attribution service (`nvrx-attrsvc`) as an `OpinionSource`.

Its contract, as `services/attrsvc/README.md` of NVIDIA/nvidia-resiliency-ext tells it (August 2026): `POST /logs` names
a log that the service can read itself, `GET /logs?wait=false` tells `pending` or `in_flight` until the status is
`completed` or `failed`. All success is 200; errors are `{"error_code", "message"}`. `recommendation.action` is STOP,
RESTART, CONTINUE, UNKNOWN or TIMEOUT. What it says beside that depends on its back end: LogSage gives a list of items
with `primary_issues`, `attribution_text` and others, the Restart Agent one object with a `justification`. All of it is
text that a model wrote about text that a user wrote.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from advisor.core.lines import cap
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Clock, Opinion, OpinionRequest
from connectors.web.server import AskError, Server

POLL_SECONDS = 2.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
TEXTS_MAX = 16
TEXT_CHARS_MAX = 2_000
ACTIONS = frozenset({"STOP", "RESTART", "CONTINUE", "UNKNOWN", "TIMEOUT"})
_GOING_ON = frozenset({"pending", "in_flight"})
_ABOUT_THE_LOG = frozenset({400, 403, 404})
_REASONS = {403: UnavailableReason.PERMISSION, 404: UnavailableReason.MISSING, 400: UnavailableReason.REFUSED}
_ITEM_KEYS = ("primary_issues", "attribution_text", "auto_resume_explanation", "secondary_issues")
_ASSESSED_KEYS = ("root_cause", "summary", "explanation", "justification")
_RESULT_KEYS = ("justification", "error")


class NvrxAttribution:
    """`server` at the service's address."""

    trust = Trust.EXTERNAL

    def __init__(
        self, name: str, server: Server, *, clock: Clock, budget_seconds: float, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self.name = name
        self.server = server
        self.budget_seconds = budget_seconds
        self._clock = clock
        self._poll_seconds = poll_seconds

    async def ask(self, request: OpinionRequest) -> Opinion | Unavailable:
        body = {
            "log_path": request.path,
            "user": request.user,
            "job_id": request.job_id,
            "cycle_id": request.attempt,
            "analysis_intent": "terminal",
        }
        try:
            await self._json("POST", {}, orjson.dumps(body))
            while True:
                answer = await self._json("GET", {"log_path": request.path, "wait": "false"})
                status = answer.get("status")
                if not isinstance(status, str) or status not in _GOING_ON:
                    return self._opinion(answer)
                await self._clock.sleep(self._poll_seconds)
        except AskError as error:
            return Unavailable(source=self.name, reason=_REASONS.get(error.status, error.reason), detail=error.detail)

    async def check(self) -> Unavailable | None:
        try:
            await self.server.fetch("/healthz", {}, method="GET", bytes_max=ANSWER_BYTES_MAX)
        except AskError as error:
            return Unavailable(source=self.name, reason=error.reason, detail=error.detail)
        return None

    async def close(self) -> None:
        await self.server.close()

    async def _json(self, method: str, form: Mapping[str, str], body: bytes | None = None) -> dict[str, Any]:
        data = await self.server.fetch(
            "/logs", form, method=method, body=body, bytes_max=ANSWER_BYTES_MAX, answers=_ABOUT_THE_LOG
        )
        try:
            found = orjson.loads(data)
        except ValueError as error:
            raise AskError(UnavailableReason.GARBLED, f"an answer that is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise AskError(UnavailableReason.GARBLED, "an answer that is no object")
        return found

    def _opinion(self, answer: Mapping[str, Any]) -> Opinion | Unavailable:
        told, result = answer.get("recommendation"), answer.get("result")
        action = told.get("action") if isinstance(told, dict) else None
        if not isinstance(action, str) or action not in ACTIONS:
            text = f"no recommendation in an answer with the status {cap(str(answer.get('status')), 40)!r}"
            return Unavailable(source=self.name, reason=UnavailableReason.GARBLED, detail=text)
        texts = tuple(dict.fromkeys(_texts(told, result)))[:TEXTS_MAX]
        failed = answer.get("status") == "failed"
        if action == "TIMEOUT" or failed or (isinstance(result, dict) and result.get("state") == "timeout"):
            reason = UnavailableReason.REFUSED if failed else UnavailableReason.TIMEOUT
            text = f"it came to no result: {cap(texts[0], 200) if texts else action}"
            return Unavailable(source=self.name, reason=reason, detail=text)
        source = told.get("source") if isinstance(told, dict) else ""
        return Opinion(action=action, texts=texts, told_by=cap(source, 80) if isinstance(source, str) else "")


def _texts(told: object, result: object) -> Iterator[str]:
    """Everything that is said about the cause, most telling first, by the shapes of both back ends."""
    if isinstance(result, dict):
        items = result.get("result")
        for item in items if isinstance(items, list) else ():
            yield from _of(item, _ITEM_KEYS)
        yield from _of(result.get("root_cause_assessment"), _ASSESSED_KEYS)
        evidence = result.get("evidence")
        for quoted in evidence if isinstance(evidence, list) else ():
            yield from _of(quoted, ("quote",))
        yield from _of(result, _RESULT_KEYS)
    yield from _of(told, ("reason",))


def _of(item: object, keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys if isinstance(item, dict) else ():
        value = item.get(key) if isinstance(item, dict) else None
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text.strip():
                yield text.strip()[:TEXT_CHARS_MAX]
