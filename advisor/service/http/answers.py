"""Errors as answers: the same failures as over gRPC, as JSON, or as a page for people."""

from collections.abc import Awaitable, Callable

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.service.errors import FailureKind, failure_of
from advisor.service.http.problems import problem

log = structlog.get_logger(__name__)

ErrorPage = Callable[[Request, int, str], Response]

STATUS_OF = {
    FailureKind.BAD_REQUEST: 400,
    FailureKind.UNAUTHENTICATED: 401,
    FailureKind.FORBIDDEN: 403,
    FailureKind.NOT_FOUND: 404,
    FailureKind.TOO_LATE: 409,
    FailureKind.TOO_OFTEN: 429,
    FailureKind.OURS: 500,
    FailureKind.NOT_SERVED: 501,
    FailureKind.STORE_ABSENT: 503,
}
_CODE_OF = {status: kind.value for kind, status in STATUS_OF.items()} | {
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
}


class BodyTooLargeError(HTTPException):
    def __init__(self, most: int) -> None:
        super().__init__(413, f"the body is larger than {most} bytes")


class BodyTooSlowError(HTTPException):
    def __init__(self) -> None:
        super().__init__(408, "the body did not come in time", {"Connection": "close"})


class AnswerErrors:
    """Turns what an endpoint raises into an answer. Once an answer has begun it can only be broken off."""

    def __init__(self, app: ASGIApp, *, error_page: ErrorPage | None) -> None:
        self._app = app
        self._error_page = error_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_seen(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        request = Request(scope, receive)
        try:
            await self._app(scope, receive, send_seen)
        except ClientDisconnect:
            return
        except HTTPException as error:  # raised in front of the router
            if begun:
                raise
            given = dict(error.headers or {})
            answer = error_answer(request, error.status_code, error.detail, self._error_page, given)
            await answer(scope, receive, send)
        except Exception as error:  # the boundary of the process: becomes an answer
            failure = failure_of(error)
            if failure.kind is FailureKind.OURS:
                log.exception("call_failed", method=f"{request.method} {request.url.path}", user=_who(request))
            if begun:
                raise
            headers = {} if failure.retry_seconds is None else {"Retry-After": f"{max(failure.retry_seconds, 1):.0f}"}
            if failure.kind is FailureKind.UNAUTHENTICATED:
                headers["WWW-Authenticate"] = "Bearer"
            answer = error_answer(request, STATUS_OF[failure.kind], failure.text, self._error_page, headers)
            await answer(scope, receive, send)


def http_error(error_page: ErrorPage | None) -> Callable[[Request, Exception], Awaitable[Response]]:
    """No such path, a method that a path does not have, and what Starlette itself refuses."""

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 -- registered for this class only
        return error_answer(request, error.status_code, error.detail, error_page, dict(error.headers or {}))

    return answer


def error_answer(
    request: Request, status: int, text: str, page: ErrorPage | None, headers: dict[str, str] | None = None
) -> Response:
    """Problem details, or a page if there is one and the client would rather have HTML: browsers say so."""
    if page is not None and "text/html" in request.headers.get("accept", ""):
        response = page(request, status, text)
        response.headers.update(headers or {})
        return response
    return problem(status, _CODE_OF.get(status, "refused"), text, headers)


def _who(request: Request) -> str:
    caller = getattr(request.state, "caller", None)
    return getattr(caller, "name", "")
