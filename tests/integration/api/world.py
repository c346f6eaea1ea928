"""The API as `app` composes it, over a store, with real connections; a request says who makes it."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from advisor.board import Board
from advisor.clock import SystemClock
from advisor.core.people import ShadowRules
from advisor.core.words import Mode
from advisor.reporting import Reporting
from advisor.service.audit_servicer import AuditServicer
from advisor.service.callers import NOBODY, Caller, Proof, Role, granted
from advisor.service.calls import Calls
from advisor.service.http.api import routes
from advisor.service.http.application import compose
from advisor.service.http.serving import HttpServer
from advisor.service.operator_servicer import OperatorServicer, OperatorServices
from advisor.service.report_servicer import ReportServicer, ReportServices
from advisor.store.records import AuditFilter, Page, Reconciliation, ReconciliationReason, ReconciliationStatus
from advisor.store.store import Store
from tests.integration.store.worlds import at, decision, record, running, signal

SECRET = "my-key-is-hunter2"
BODY_BYTES_MAX = 64 * 1024
CALLERS = {
    "root": Caller(name="root", roles=granted(Role.ADMIN)),
    "olga": Caller(name="olga", roles=granted(Role.OPERATOR), proof=Proof.TOKEN),
    "vera": Caller(name="vera", roles=granted(Role.VIEWER), proof=Proof.TOKEN),
    "ada": Caller(name="ada", roles=Role.USER),
    "bob": Caller(name="bob", roles=Role.USER),
}


async def _by_header(request: HTTPConnection) -> Caller:
    return CALLERS.get(request.headers.get("x-test-caller", ""), NOBODY)


def calls_of(store: Store) -> Calls:
    clock = SystemClock()
    board = Board(store, clock)
    audit = AuditServicer(store=store, clock=clock, evidence_max=50, suspect_score=1.0)
    operator = OperatorServices(
        store=store,
        board=board,
        clock=clock,
        version="1",
        started_at=datetime(2026, 11, 1, tzinfo=UTC),
        default_mode=Mode.MONITOR,
        sources=tuple,
    )
    reporting = Reporting(store, ShadowRules(window_seconds=3600.0, tool_reasons=()))
    report = ReportServices(store=store, reporting=reporting, clock=clock)
    return Calls(
        {
            "AuditService": lambda _caller: audit,
            "OperatorService": lambda caller: OperatorServicer(operator, caller),
            "ReportService": lambda caller: ReportServicer(report, caller),
        }
    )


def app_of(store: Store) -> ASGIApp:
    return compose([routes(calls_of(store))], identify=_by_header, body_bytes_max=BODY_BYTES_MAX)


@asynccontextmanager
async def served(store: Store) -> AsyncIterator[str]:
    """The address where it listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app_of(store), listener, connections_max=64)
    await server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.stop()
        listener.close()


async def decided(store: Store, number: int, *, user: str = "ada", text: str = "NVRM: Xid 79") -> str:
    """One job with an incident whose evidence, root cause and explanation hold `text`. Its decision's id."""
    key = await running(store, job_id=str(number), submitted_at=at(number), user=user)
    made = decision()
    told = replace(
        made,
        explanation=text,
        incident=replace(made.incident, detected_at=at(1000 + number), signals=(signal(f"s{number}", text=text),)),
        attribution=replace(made.attribution, root_cause=text, evidence=(f"s{number}",)),
    )
    analysis = f'{{"schema":"advisor.analysis/1","attribution":{{"root_cause":"{text}"}}}}'
    committed = await store.commit_decision(
        record(key, created_at=at(1000 + number), decision=told, analysis_json=analysis)
    )
    outcome = Reconciliation(
        status=ReconciliationStatus.WITHHELD,
        reason=ReconciliationReason.MONITOR_MODE,
        at=at(1001 + number),
        detail=text,
    )
    await store.record_reconciliation(committed.decision_id, outcome, who="agent@ctl")
    return committed.decision_id


async def two_users(store: Store) -> tuple[str, str]:
    """A job of ada whose log holds `SECRET`, and one of bob. Their decisions' ids."""
    hers = await decided(store, 1, user="ada", text=SECRET)
    his = await decided(store, 2, user="bob", text="plain")
    assert len((await store.audit.decisions(AuditFilter(), Page())).rows) == 2
    return hers, his
