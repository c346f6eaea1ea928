"""Error pages: what went wrong and what to do, in sentences. They ask nothing: the store may be what is gone."""

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from advisor.service.dashboard.rendering import Renderer, here

RETRY_SECONDS = 5
_HEADINGS: Mapping[int, str] = {
    400: "That cannot be asked",
    401: "Nobody is known by this call",
    403: "You may not see that",
    404: "There is no such page",
    405: "That cannot be done here",
    408: "It took too long to come",
    413: "That is too large",
    429: "Too many questions",
    500: "The advisor failed on this page",
    501: "That is not served here",
    503: "The database does not answer",
}
_STORE_GONE = (
    "The advisor runs, but its store does not answer: until it does nothing can be shown, and nothing is decided. "
    "Jobs do not wait for us: the scheduler goes on without advice. `advisor doctor` and the service's log say more."
)


def error_page(renderer: Renderer) -> Callable[[Request, int, str], Response]:
    """For `compose`: draws an error for people."""

    def draw(request: Request, status: int, text: str) -> Response:
        retry = status in {429, 500, 503}
        told = _STORE_GONE if status == 503 else f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
        return renderer.page(
            request,
            "error.html",
            status=status,
            every=RETRY_SECONDS if status == 503 else 0,
            values={
                "status": status,
                "heading": _HEADINGS.get(status, "That did not work"),
                "told": told,
                "retry": retry and request.method == "GET",
                "here": here(request),
                "live_retry": status == 503,
            },
        )

    return draw
