"""What a page of ours is protected from in a browser: forms that other sites' pages send in its user's name.

Every request that changes something must come from a page of ours (`Origin`, `Sec-Fetch-Site`), and a form must hold
the token that only our pages were given: `csrf_token(request)` into a hidden field `csrf`, `check_csrf(request, form)`
when it comes back.
"""

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.service.callers import Caller
from advisor.service.errors import ForbiddenError

FIELD = "csrf"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class OwnPagesOnly:
    """Refuses what another site's page sends. Programs send neither header and are let through."""

    def __init__(self, app: ASGIApp, *, csrf_key: bytes) -> None:
        self._app = app
        self._key = csrf_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            request.state.csrf_key = self._key
            if request.method not in _SAFE and not _is_own(request):
                raise ForbiddenError("this came from a page of another site")
        await self._app(scope, receive, send)


def _is_own(request: Request) -> bool:
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    return origin is None or (origin != "null" and urlsplit(origin).netloc == request.headers.get("host", ""))


def csrf_token(request: Request) -> str:
    """For forms that this caller is shown; good for him alone, until the service is started anew."""
    caller: Caller = request.state.caller
    said = "\0".join((str(caller.proof), caller.name, caller.credential, str(caller.uid)))
    return hmac.new(request.state.csrf_key, said.encode(), hashlib.sha256).hexdigest()


def check_csrf(request: Request, form: Mapping[str, object]) -> None:
    """Raises `ForbiddenError` unless the form is one that we showed this caller."""
    given = form.get(FIELD)
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), csrf_token(request).encode()):
        raise ForbiddenError("this form is not one of ours, or older than the running service: load the page again")
