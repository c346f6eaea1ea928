"""What operators do from pages: plain forms, each one call of the contract, then back to the page it was on.

Who may do what, and the audit, are the contract's own (`advisor.service.access`); a reason is required by the form and
refused by the call when it is empty. Nothing is changed by a GET.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from urllib.parse import quote, unquote, urlsplit

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from advisor.core.words import Action
from advisor.service.dashboard.pages import Dashboard
from advisor.service.dashboard.reads import Reads
from advisor.service.dashboard.rendering import THEME_COOKIE, THEMES, Notice, leave_notice
from advisor.service.dashboard.views.shown import plural, words
from advisor.service.errors import BadRequestError, CallError, ForbiddenError, NotFoundError, UnauthenticatedError
from advisor.service.http.application import caller_of
from advisor.service.http.browsers import check_csrf
from advisor.v1 import common_pb2, operator_pb2, report_pb2

PAUSE_MINUTES_MAX = 31 * 24 * 60
FIELD_MAX = 2000
THEME_KEPT_SECONDS = 31_536_000

Form = Mapping[str, str]
Verb = Callable[[Reads, Form, datetime], Awaitable[str]]


class Verbs:
    """`POST /do/{verb}`, and the theme."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/do/{verb}", self.do, methods=["POST"]),
            Route("/theme", self.theme, methods=["POST"]),
        ]

    async def do(self, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=40)
        check_csrf(request, form)
        given = _texts(form)
        verb = VERBS.get(request.path_params["verb"])
        if verb is None:
            raise NotFoundError("there is no such verb")
        reads = Reads(self._dashboard.calls, caller_of(request))
        answer = RedirectResponse(back_path(given), status_code=303)
        try:
            leave_notice(answer, Notice(text=await verb(reads, given, self._dashboard.clock.now())))
        except (ForbiddenError, UnauthenticatedError):
            raise
        except CallError as error:
            leave_notice(answer, Notice(text=f"Not done: {error}", tone="warn"))
        return answer

    async def theme(self, request: Request) -> Response:
        """Light, dark or as the system says; a cookie that the script may set as well."""
        form = await request.form(max_files=0, max_fields=10)
        check_csrf(request, form)
        given = _texts(form)
        theme = given.get("theme", "")
        answer = RedirectResponse(back_path(given), status_code=303)
        if theme in THEMES:
            secure = request.url.scheme == "https"
            answer.set_cookie(THEME_COOKIE, theme, max_age=THEME_KEPT_SECONDS, samesite="strict", secure=secure)
        return answer


def _texts(form: FormData) -> Form:
    given: dict[str, str] = {}
    for name, value in form.multi_items():
        if not isinstance(value, str) or len(value) > FIELD_MAX:
            raise BadRequestError(f"{name[:64]}: longer than {FIELD_MAX} characters")
        given[name] = value.strip()
    return given


def back_path(given: Form) -> str:
    """The page that the form was on: a path of ours and nothing else, whatever was sent."""
    parts = urlsplit(given.get("back", ""))
    path = "/" + unquote(parts.path).lstrip("/\\")
    if parts.scheme or parts.netloc or not path.isprintable():
        return "/"
    return quote(path) + (
        f"?{parts.query}" if parts.query.isascii() and parts.query.isprintable() and parts.query else ""
    )


async def _pause(reads: Reads, form: Form, now: datetime) -> str:
    minutes = form.get("minutes", "")
    if not minutes.isascii() or not minutes.isdigit() or not 0 < int(minutes[:9]) <= PAUSE_MINUTES_MAX:
        raise BadRequestError("choose for how long")
    until = Timestamp()
    until.FromDatetime(now + timedelta(minutes=int(minutes)))
    request = operator_pb2.PauseRequest(cluster=form.get("cluster") or None, until=until, why=form.get("why", ""))
    made = await reads.ask("OperatorService/Pause", request, operator_pb2.PauseInForce)
    return _told(f"Paused {made.cluster or 'everywhere'}.", made.notes)


async def _resume(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.ResumeRequest(cluster=form.get("cluster") or None, why=form.get("why", ""))
    ended = await reads.ask("OperatorService/Resume", request, operator_pb2.PauseInForce)
    return f"Resumed {ended.cluster or 'everywhere'}."


async def _monitor(reads: Reads, form: Form, _now: datetime) -> str:
    setting = operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, why=form.get("why", ""))
    request = operator_pb2.SetModeRequest(setting=setting)
    made = await reads.ask("OperatorService/SetMode", request, operator_pb2.ModeSetting)
    return f"Monitor mode everywhere: {plural(len(made.no_longer_autonomous), 'autonomous setting')} removed."


async def _reset_breaker(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.ResetBreakerRequest(cluster=form.get("cluster", ""), why=form.get("why", ""))
    reset = await reads.ask("OperatorService/ResetBreaker", request, operator_pb2.Breaker)
    return f"The breaker of {reset.cluster} is reset."


async def _reinstate(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.ReinstateRequest(
        cluster=form.get("cluster", ""), node=form.get("node", ""), why=form.get("why", "")
    )
    ended = await reads.ask("OperatorService/Reinstate", request, operator_pb2.NodeIsolation)
    return f"The isolation of {ended.node} has ended: the agent undoes our drain."


async def _isolate(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.IsolateNodeRequest(
        cluster=form.get("cluster", ""), node=form.get("node", ""), why=form.get("why", ""), force="force" in form
    )
    made = await reads.ask("OperatorService/IsolateNode", request, operator_pb2.NodeIsolation)
    return f"Isolation of {made.node} is recorded; it is wanted until the agent says that the node is drained."


async def _veto(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.VetoRequest(target=_target(form), why=form.get("why", ""))
    return _ordered(await reads.ask("OperatorService/Veto", request, operator_pb2.OrderAnswer))


async def _withdraw(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.WithdrawRequest(target=_target(form), why=form.get("why", ""))
    return _ordered(await reads.ask("OperatorService/Withdraw", request, operator_pb2.OrderAnswer))


async def _override(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.OverrideRequest(
        target=_target(form), action=_action(form, needed=True), confirm="confirm" in form, why=form.get("why", "")
    )
    return _ordered(await reads.ask("OperatorService/Override", request, operator_pb2.OrderAnswer))


async def _exclude(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.ExcludeRequest(target=_target(form), node=form.get("node", ""), why=form.get("why", ""))
    return _ordered(await reads.ask("OperatorService/Exclude", request, operator_pb2.OrderAnswer))


async def _spare(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.SpareRequest(target=_target(form), node=form.get("node", ""), why=form.get("why", ""))
    return _ordered(await reads.ask("OperatorService/Spare", request, operator_pb2.OrderAnswer))


async def _reset_budget(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.ResetBudgetRequest(target=_target(form), ceiling="ceiling" in form, why=form.get("why", ""))
    return _ordered(await reads.ask("OperatorService/ResetBudget", request, operator_pb2.OrderAnswer))


async def _lift(reads: Reads, form: Form, _now: datetime) -> str:
    request = operator_pb2.LiftOrderRequest(order_id=form.get("order", ""), why=form.get("why", ""))
    return _ordered(await reads.ask("OperatorService/LiftOrder", request, operator_pb2.OrderAnswer))


async def _correct(reads: Reads, form: Form, _now: datetime) -> str:
    """What is left as it was says nothing; "none" as the node's name says that no node was to blame."""
    request = operator_pb2.CorrectVerdictRequest(
        decision_id=form.get("decision", ""),
        category=form.get("category") or None,
        action=_action(form, needed=False),
        why=form.get("why", ""),
    )
    names = form.get("nodes", "").replace(",", " ").split()
    if names:
        request.nodes.SetInParent()
        request.nodes.names.extend(() if [name.lower() for name in names] == ["none"] else names)
    await reads.ask("OperatorService/CorrectVerdict", request, operator_pb2.Correction)
    return "The correction is kept: the shadow report counts it, and the case can be tested against."


async def _probe(reads: Reads, form: Form, _now: datetime) -> str:
    passed = form.get("passed", "")
    if passed not in {"yes", "no"}:
        raise BadRequestError("say whether the node passed")
    request = operator_pb2.ReportProbeRequest(
        cluster=form.get("cluster", ""), node=form.get("node", ""), passed=passed == "yes", why=form.get("why", "")
    )
    row = await reads.ask("OperatorService/ReportProbe", request, operator_pb2.NodeIsolation)
    return f"{row.node} passed: it is reinstated." if row.probe_passed else f"{row.node} failed: its time begins anew."


async def _record_shadow(reads: Reads, form: Form, _now: datetime) -> str:
    attempt = form.get("attempt", "")
    if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
        raise BadRequestError("attempt: not a number")
    request = report_pb2.RecordShadowRequest(
        job_key=form.get("job_key", ""),
        attempt=int(attempt),
        did=form.get("did", ""),
        nodes=form.get("nodes", "").replace(",", " ").split(),
        why=form.get("why", ""),
    )
    made = await reads.ask("ReportService/RecordShadow", request, report_pb2.ShadowRecord)
    return f"Recorded: {words(made.did)}. The shadow report counts it instead of what Slurm shows."


VERBS: Mapping[str, Verb] = {
    "pause": _pause,
    "resume": _resume,
    "monitor": _monitor,
    "reset-breaker": _reset_breaker,
    "reinstate": _reinstate,
    "isolate": _isolate,
    "veto": _veto,
    "withdraw": _withdraw,
    "override": _override,
    "exclude": _exclude,
    "spare": _spare,
    "reset-budget": _reset_budget,
    "lift": _lift,
    "correct": _correct,
    "probe": _probe,
    "record-shadow": _record_shadow,
}


def _target(form: Form) -> operator_pb2.JobTarget:
    """The attempt of a decision, or a job's newest one."""
    if form.get("decision"):
        return operator_pb2.JobTarget(decision_id=form["decision"])
    return operator_pb2.JobTarget(cluster=form.get("cluster", ""), job_id=form.get("job", ""))


def _action(form: Form, *, needed: bool) -> "common_pb2.Action.ValueType":
    given = form.get("action", "")
    if not given and not needed:
        return common_pb2.ACTION_UNSPECIFIED
    if given not in list(Action):
        raise BadRequestError("choose an action")
    return common_pb2.Action.Value(f"ACTION_{given.upper()}")


def _ordered(answer: operator_pb2.OrderAnswer) -> str:
    return _told(answer.says or f"{words(answer.order.kind)} is recorded.", answer.notes)


def _told(first: str, notes: Iterable[str]) -> str:
    return " ".join([first, *(f"Note: {note}." for note in notes)])
