"""One ASGI application from everybody's routes: errors answered alike, bodies bounded, callers known."""

import secrets
from collections.abc import Iterable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from advisor.service.callers import Caller
from advisor.service.http.answers import AnswerErrors, ErrorPage, http_error
from advisor.service.http.bodies import BoundBodies
from advisor.service.http.browsers import OwnPagesOnly
from advisor.service.http.headers import SecureHeaders
from advisor.service.http.identity import FindCaller, Identify
from advisor.service.limits import RateLimits


def compose(
    routes: Iterable[Sequence[BaseRoute]],
    *,
    identify: Identify,
    body_bytes_max: int,
    limits: RateLimits | None = None,
    error_page: ErrorPage | None = None,
) -> ASGIApp:
    """`identify` tells who makes a request; `error_page` draws an error for people, who asked for HTML."""
    application = Starlette(
        routes=[route for part in routes for route in part],
        middleware=[
            Middleware(SecureHeaders),
            Middleware(AnswerErrors, error_page=error_page),
            Middleware(BoundBodies, bytes_max=body_bytes_max),
            Middleware(FindCaller, identify=identify, limits=limits),
            Middleware(OwnPagesOnly, csrf_key=secrets.token_bytes(32)),
        ],
        exception_handlers={HTTPException: http_error(error_page)},
    )
    application.router.redirect_slashes = False
    return application


def caller_of(request: Request) -> Caller:
    """Who makes this request."""
    caller = request.state.caller
    assert isinstance(caller, Caller)  # noqa: S101 -- FindCaller is in front of every route
    return caller
