"""The pages: each asks what it shows, makes frozen values of the answers and renders them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from advisor.ports import Clock
from advisor.service.calls import Calls
from advisor.service.dashboard.filtering import CATEGORIES, PAGE_SIZE, Chosen, chosen
from advisor.service.dashboard.reads import Reads, together
from advisor.service.dashboard.rendering import MENU, Renderer
from advisor.service.dashboard.views.audit import audit_lines
from advisor.service.dashboard.views.decisions import decision_page, listed
from advisor.service.dashboard.views.incidents import incident_page, listed_incident
from advisor.service.dashboard.views.jobs import job_page, listed_attempt
from advisor.service.dashboard.views.nodes import map_page, node_page
from advisor.service.dashboard.views.now import mode_in_short, mode_lines, now_page, pause_lines
from advisor.service.dashboard.views.orders import correction_lines, order_lines
from advisor.service.dashboard.views.reliability import reliability_page
from advisor.service.dashboard.views.shadow import shadow_page
from advisor.service.dashboard.views.shown import Chip, clock_text, time_of
from advisor.service.errors import NotFoundError
from advisor.service.http.application import caller_of
from advisor.store.store import Store
from advisor.v1 import audit_pb2, report_pb2

CASES_SHOWN = 100
QUICK_SECONDS, CALM_SECONDS = 5, 15  # how often a script asks again
# What stops or lets go: whoever may do it sees the forms.
OPERATING = "OperatorService/Pause"

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """What the pages are made from."""

    calls: Calls
    store: Store
    clock: Clock
    renderer: Renderer
    suspect_score: float
    history_window_days: float


class Pages:
    """What is read. One method per page."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.now),
            Route("/incidents", self.incidents),
            Route("/incidents/{incident_id}", self.incident),
            Route("/decisions", self.decisions),
            Route("/decisions/{decision_id}", self.decision),
            Route("/jobs", self.jobs),
            Route("/jobs/{job_key}", self.job),
            Route("/nodes", self.nodes),
            Route("/nodes/{cluster}/{name}", self.node),
            Route("/shadow", self.shadow),
            Route("/reliability", self.reliability),
            Route("/audit", self.audit),
            Route("/controls", self.controls),
            Route("/help", self.help),
            Route("/static/{name}", self.file),
        ]

    async def now(self, request: Request) -> Response:
        reads = self._reads(request)
        status, incidents, decisions, modes, pauses, nodes = await together(
            reads.status(),
            reads.open_incidents(),
            reads.latest_decisions(),
            reads.modes(),
            reads.pauses(),
            reads.isolations(),
        )
        view = now_page(
            status=status,
            incidents=incidents,
            decisions=decisions,
            modes=modes,
            pauses=pauses,
            nodes=nodes,
            now=self._now(),
        )
        return await self._page(request, reads, "now.html", page="now", every=QUICK_SECONDS, view=view)

    async def incidents(self, request: Request) -> Response:
        reads = self._reads(request)
        wanted = self._chosen(request, "job", "user", "cluster", "partition", "node", "category", "open", "since")
        answer = await reads.incidents(wanted.filter, wanted.page, only_open=wanted.value("open") == "1")
        rows = [listed_incident(item) for item in answer.incidents]
        return await self._list(request, reads, "incidents", wanted, rows, answer.next_cursor)

    async def incident(self, request: Request) -> Response:
        reads = self._reads(request)
        incident = await reads.incident(request.path_params["incident_id"])
        job_key = incident.attempt.job_key
        attempts, decisions = await together(reads.attempts_of(job_key), reads.decisions_of(job_key))
        view = incident_page(incident, attempts, decisions, self._now())
        return await self._page(request, reads, "incident.html", page="incidents", every=QUICK_SECONDS, view=view)

    async def decisions(self, request: Request) -> Response:
        reads = self._reads(request)
        names = ("job", "user", "cluster", "partition", "node", "category", "action", "status", "since")
        wanted = self._chosen(request, *names)
        answer = await reads.decisions(wanted.filter, wanted.page)
        rows = [listed(item) for item in answer.decisions]
        return await self._list(request, reads, "decisions", wanted, rows, answer.next_cursor)

    async def decision(self, request: Request) -> Response:
        reads = self._reads(request)
        decision = await reads.decision(request.path_params["decision_id"])
        ref = decision.advice.attempt
        orders, corrections = await together(
            reads.orders(cluster=ref.cluster, job_id=ref.job_id), reads.corrections(decision.advice.advice_id)
        )
        return await self._page(
            request,
            reads,
            "decision.html",
            page="decisions",
            every=CALM_SECONDS,
            view=decision_page(decision),
            orders=order_lines(orders),
            corrections=correction_lines(corrections),
            categories=CATEGORIES,
        )

    async def jobs(self, request: Request) -> Response:
        reads = self._reads(request)
        wanted = self._chosen(request, "job", "user", "cluster", "partition", "node", "since")
        answer = await reads.attempts(wanted.filter, wanted.page)
        now = self._now()
        rows = [listed_attempt(item, now) for item in answer.attempts]
        return await self._list(request, reads, "jobs", wanted, rows, answer.next_cursor)

    async def job(self, request: Request) -> Response:
        reads = self._reads(request)
        job_key = request.path_params["job_key"]
        timeline, decisions = await together(reads.timeline(job_key), reads.decisions_of(job_key))
        view = job_page(timeline, decisions, self._now())
        orders = order_lines(await reads.orders(cluster=view.job.cluster, job_id=view.job.job_id))
        return await self._page(request, reads, "job.html", page="jobs", every=QUICK_SECONDS, view=view, orders=orders)

    async def nodes(self, request: Request) -> Response:
        reads = self._reads(request)
        reads.require("AuditService/ListNodes")
        wanted = self._chosen(request, "node", "cluster")
        found = await self._dashboard.store.audit.node_map(cluster=wanted.value("cluster"), now=self._now())
        view = map_page(
            found.nodes,
            capped=found.capped,
            chosen=wanted.value("cluster"),
            suspect_score=self._dashboard.suspect_score,
            query=wanted.value("node"),
        )
        return await self._page(
            request,
            reads,
            "nodes.html",
            page="nodes",
            every=CALM_SECONDS,
            view=view,
            window_days=self._dashboard.history_window_days,
            **_filters("/nodes", wanted),
        )

    async def node(self, request: Request) -> Response:
        reads = self._reads(request)
        cluster, name = request.path_params["cluster"], request.path_params["name"]
        cursor = request.query_params.get("cursor", "")
        node, history, isolations = await together(
            reads.node(cluster, name),
            reads.node_history(cluster, name, cursor),
            reads.isolations(cluster=cluster, node=name, ended=True),
        )
        path = request.url.path
        return await self._page(
            request,
            reads,
            "node.html",
            page="nodes",
            every=CALM_SECONDS,
            view=node_page(node, isolations.isolations, history.events),
            next_href=f"{path}?{urlencode({'cursor': history.next_cursor})}" if history.next_cursor else "",
            first_href=path if cursor else "",
        )

    async def shadow(self, request: Request) -> Response:
        reads = self._reads(request)
        wanted = self._chosen(request, "cluster", "partition", "user", "job", "category", "window")
        asked = report_pb2.GetShadowReportRequest(
            cluster=wanted.value("cluster"),
            partition=wanted.value("partition"),
            user=wanted.value("user"),
            job_id=wanted.value("job"),
            category=wanted.value("category"),
            since=_stamp(wanted.since),
            cases_max=CASES_SHOWN,
        )
        view = shadow_page(await reads.ask("ReportService/GetShadowReport", asked, report_pb2.ShadowReport))
        filters = _filters("/shadow", wanted)
        return await self._page(request, reads, "shadow.html", page="shadow", view=view, **filters)

    async def reliability(self, request: Request) -> Response:
        reads = self._reads(request)
        wanted = self._chosen(request, "cluster", "partition", "user", "job", "by", "window")
        asked = report_pb2.GetReliabilityRequest(
            cluster=wanted.value("cluster"),
            partition=wanted.value("partition"),
            user=wanted.value("user"),
            job_id=wanted.value("job"),
            by=wanted.value("by"),
            since=_stamp(wanted.since),
        )
        view = reliability_page(await reads.ask("ReportService/GetReliability", asked, report_pb2.ReliabilityReport))
        by, filters = wanted.value("by"), _filters("/reliability", wanted)
        return await self._page(request, reads, "reliability.html", page="reliability", view=view, by=by, **filters)

    async def audit(self, request: Request) -> Response:
        reads = self._reads(request)
        wanted = self._chosen(request, "who", "what", "subject", "cluster", "everything", "since")
        asked = audit_pb2.ListAuditRequest(
            cluster=wanted.value("cluster"),
            who=wanted.value("who"),
            what=wanted.value("what").replace(" ", "_").lower(),
            subject=wanted.value("subject"),
            since=_stamp(wanted.since),
            everything=wanted.value("everything") == "1",
            page=audit_pb2.Page(page_size=PAGE_SIZE, cursor=wanted.cursor),
        )
        answer = await reads.audit(asked)
        return await self._list(request, reads, "audit", wanted, audit_lines(answer.records), answer.next_cursor)

    async def controls(self, request: Request) -> Response:
        reads = self._reads(request)
        reads.require("OperatorService/ListModes")
        status, modes, pauses, nodes, orders = await together(
            reads.status(), reads.modes(), reads.pauses(), reads.isolations(), reads.orders()
        )
        return await self._page(
            request,
            reads,
            "controls.html",
            page="controls",
            modes=mode_lines(modes),
            pauses=pause_lines(pauses),
            breakers=[
                {"cluster": item.cluster, "tripped_at": time_of(item, "tripped_at"), "why": item.why}
                for item in nodes.tripped
            ],
            clusters=sorted({agent.cluster for agent in status.agents}),
            orders=order_lines(orders),
            may_set_mode=reads.may("OperatorService/SetMode"),
        )

    async def help(self, request: Request) -> Response:
        reads = self._reads(request)
        menu = [item for item in MENU if reads.may(item.needs)]
        values = {"page": "help", "menu": menu, "who": reads.caller.name, "can_operate": reads.may(OPERATING)}
        return self._dashboard.renderer.page(request, "help.html", values=values)

    async def file(self, request: Request) -> Response:
        found = self._dashboard.renderer.file(request.path_params["name"])
        if found is None:
            raise NotFoundError("there is no such file")
        return found

    async def _list(
        self, request: Request, reads: Reads, name: str, wanted: Chosen, rows: Any, next_cursor: str
    ) -> Response:
        path = f"/{name}"
        return await self._page(
            request,
            reads,
            f"{name}.html",
            page=name,
            every=0 if wanted.cursor else CALM_SECONDS,
            rows=rows,
            next_href=wanted.next_href(path, next_cursor),
            first_href=wanted.first_href(path),
            **_filters(path, wanted),
        )

    async def _page(self, request: Request, reads: Reads, template: str, *, every: int = 0, **values: Any) -> Response:
        """With what the head of every page says: the mode, a pause, and who looks."""
        modes, pauses = await together(reads.modes(), reads.pauses())
        now = self._now()
        head: Mapping[str, Any] = {
            "mode": mode_in_short(modes) if reads.may("OperatorService/ListModes") else None,
            "paused": _paused(pause_lines(pauses)[0].until, now) if pauses else None,
            "menu": [item for item in MENU if reads.may(item.needs)],
            "who": reads.caller.name,
            "can_operate": reads.may(OPERATING),
        }
        return self._dashboard.renderer.page(request, template, every=every, values={**head, **values})

    def _reads(self, request: Request) -> Reads:
        return Reads(self._dashboard.calls, caller_of(request))

    def _now(self) -> datetime:
        return self._dashboard.clock.now()

    def _chosen(self, request: Request, *names: str) -> Chosen:
        return chosen(request.query_params, names, self._now())


def _filters(path: str, wanted: Chosen) -> dict[str, Any]:
    return {"action": path, "fields": wanted.fields, "filtered": wanted.filtered}


def _paused(until: datetime | None, now: datetime) -> Chip:
    told = f"paused until {clock_text(until, now + timedelta())[:-3]}" if until is not None else "paused"
    return Chip(text=told, tone="warn")


def _stamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
