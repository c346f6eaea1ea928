"""From frozen values to pages: Jinja2 with escaping on, and the files that pages need.

Every text is escaped. What others wrote goes through the filters `line` and `text` besides, which show control
characters and direction overrides instead of passing them on.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any
from urllib.parse import quote, unquote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from advisor.ports import Clock
from advisor.service.dashboard.views.shown import (
    ago_text,
    line_html,
    number_text,
    percent_text,
    sentence,
    span_text,
    text_html,
    time_html,
)
from advisor.service.http.browsers import FIELD, csrf_token

PACKAGE = "advisor.service.dashboard"
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "theme"
NOTICE_COOKIE = "notice"
FILES = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}
KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MenuItem:
    name: str
    href: str
    text: str
    key: str  # after g
    needs: str  # the method of the contract that it shows


MENU = (
    MenuItem(name="now", href="/", text="Now", key="n", needs="OperatorService/GetStatus"),
    MenuItem(name="incidents", href="/incidents", text="Incidents", key="i", needs="AuditService/ListIncidents"),
    MenuItem(name="decisions", href="/decisions", text="Decisions", key="d", needs="AuditService/ListDecisions"),
    MenuItem(name="jobs", href="/jobs", text="Jobs", key="j", needs="AuditService/ListAttempts"),
    MenuItem(name="nodes", href="/nodes", text="Nodes", key="m", needs="AuditService/ListNodes"),
    MenuItem(name="shadow", href="/shadow", text="Shadow", key="s", needs="ReportService/GetShadowReport"),
    MenuItem(
        name="reliability", href="/reliability", text="Reliability", key="r", needs="ReportService/GetReliability"
    ),
    MenuItem(name="audit", href="/audit", text="Audit", key="a", needs="AuditService/ListAudit"),
    MenuItem(name="controls", href="/controls", text="Controls", key="c", needs="OperatorService/ListModes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What came of something that was just done."""

    text: str
    tone: str = "good"


class Renderer:
    """Pages from templates, and their files by content: a file that changed has another address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._environment = _environment()
        folder = resources.files(PACKAGE) / "static"
        self._files = {name: (folder / name).read_bytes() for name in FILES}
        self._versions = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in self._files.items()}

    def page(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        every: int = 0,
        values: Mapping[str, Any],
    ) -> HTMLResponse:
        """`every`: after how many seconds a script asks again, 0 for never."""
        notice = read_notice(request)
        defaults: dict[str, Any] = {
            "now": self._clock.now(),
            "theme": theme_of(request),
            "menu": MENU,
            "page": "",
            "here": here(request),
            "every": every,
            "mode": None,
            "paused": None,
            "notices": [notice] if notice is not None else [],
            "who": "",
            "can_operate": False,
            "csrf_field": _csrf_field(request),
            "asset": self._asset,
        }
        body = self._environment.get_template(template).render({**defaults, **values})
        answer = HTMLResponse(body, status_code=status)
        if notice is not None:
            answer.delete_cookie(NOTICE_COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    def file(self, name: str) -> Response | None:
        """One of our own files; it may be kept for ever, since its address has its version."""
        data = self._files.get(name)
        if data is None:
            return None
        return Response(data, media_type=FILES[name], headers={"Cache-Control": KEPT})

    def _asset(self, name: str) -> str:
        return f"/static/{name}?v={self._versions[name]}"


def theme_of(request: Request) -> str:
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else "auto"


def here(request: Request) -> str:
    """This page's own path with its query, as a link on it may say."""
    query = request.url.query
    return f"{quote(request.url.path)}?{query}" if query else quote(request.url.path)


def read_notice(request: Request) -> Notice | None:
    text = request.cookies.get(NOTICE_COOKIE, "")
    tone, mark, told = text.partition("|")
    return Notice(text=unquote(told), tone="warn" if tone == "warn" else "good") if mark else None


def leave_notice(answer: Response, notice: Notice) -> None:
    """For the page that comes after a redirect."""
    text = f"{notice.tone}|{quote(notice.text[:900])}"
    answer.set_cookie(NOTICE_COOKIE, text, max_age=60, path="/", httponly=True, samesite="strict")


def _csrf_field(request: Request) -> Markup:
    """The hidden field that every form carries; none where the request failed before it was known whose it is."""
    if not hasattr(request.state, "csrf_key") or not hasattr(request.state, "caller"):
        return Markup()
    return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, csrf_token(request))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Callable[..., Any]] = {
        "line": line_html,
        "text": text_html,
        "number": number_text,
        "percent": percent_text,
        "span": span_text,
        "cap": _capital,
        "time": _time,
        "clock": _clock,
        "ago": _ago,
    }
    environment.filters.update(filters)
    return environment


def _capital(text: str) -> str:
    """Text that is safe already stays so."""
    done = sentence(str(text))
    return Markup(done) if isinstance(text, Markup) else done  # noqa: S704 -- it was escaped, only its case changed


def _now(context: Context) -> datetime:
    now: datetime = context["now"]
    return now


@pass_context
def _time(context: Context, moment: datetime | None, *, relative: bool = True) -> Markup:
    return time_html(moment, _now(context), relative=relative)


@pass_context
def _clock(context: Context, moment: datetime | None, *, fine: bool = False) -> Markup:
    return time_html(moment, _now(context), relative=False, fine=fine)


@pass_context
def _ago(context: Context, moment: datetime | None) -> Markup:
    if moment is None:
        return Markup()
    machine = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    return Markup('<span class="ago" data-ago="{}">{}</span>').format(machine, escape(ago_text(moment, _now(context))))
