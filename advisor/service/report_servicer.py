# ruff: noqa: N802 - gRPC methods have the names of the contract.
"""Shadow evidence and reliability figures. Who may only see his own jobs gets figures of these."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import grpc

from advisor.core.people import Did, Said
from advisor.core.reliability import Window
from advisor.core.words import AttemptState
from advisor.ports import Clock
from advisor.reporting import GROUPINGS, Reporting
from advisor.service import reports, wire
from advisor.service.callers import Caller
from advisor.service.errors import BadRequestError, NotFoundError
from advisor.service.node_operations import why_of
from advisor.store.records import AttemptKey, AttemptRow, AuditFilter, Page
from advisor.store.reliability_queries import ReliabilityWanted
from advisor.store.shadow_queries import ShadowWanted
from advisor.store.store import Store
from advisor.v1 import report_pb2, report_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

DAYS_DEFAULT = 30
DAYS_MAX = 400
CASES_DEFAULT, CASES_MAX = 200, 1000
GROUPS_DEFAULT, GROUPS_MAX = 20, 250
RECORDABLE = (Did.REQUEUED, Did.RESUBMITTED, Did.CANCELLED, Did.NOTHING, Did.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportServices:
    """`link`: address of a decision, `{decision}` for its id; "" where no dashboard has an address."""

    store: Store
    reporting: Reporting
    clock: Clock
    link: str = ""


class ReportServicer(report_pb2_grpc.ReportServiceServicer):
    def __init__(self, services: ReportServices, caller: Caller) -> None:
        self._services = services
        self._caller = caller

    async def GetShadowReport(
        self, request: report_pb2.GetShadowReportRequest, context: Context
    ) -> report_pb2.ShadowReport:
        now = self._services.clock.now()
        window = _window(request, now)
        cases_max = _count(request.cases_max, "cases_max", CASES_DEFAULT, CASES_MAX)
        wanted = ShadowWanted(
            since=window.since,
            until=window.until,
            cluster=_name(request, "cluster"),
            partition=_name(request, "partition"),
            user=self._user(request),
            job_id=_name(request, "job_id"),
            category=wire.category_of(request.category, "category"),
        )
        found = await self._services.reporting.shadow(wanted, now)
        rules = self._services.reporting.rules
        return reports.shadow_message(found, window, rules=rules, cases_max=cases_max, link=self._services.link)

    async def RecordShadow(self, request: report_pb2.RecordShadowRequest, context: Context) -> report_pb2.ShadowRecord:
        if request.did not in RECORDABLE:
            raise BadRequestError(f"did: {request.did[:64]!r} is not one of {', '.join(RECORDABLE)}")
        now = self._services.clock.now()
        row = await self._attempt(request)
        said = Said(
            did=Did(request.did),
            did_at=min(wire.moment_of(request, "did_at", "request") or now, now),
            who=self._caller.name,
            why=why_of(request.why, "why"),
            nodes=wire.node_names(request.nodes, "nodes"),
        )
        key = AttemptKey(job_key=row.attempt.job_key, number=row.attempt.number)
        record_id = await self._services.store.record_shadow(key, said, origin=self._caller.origin, now=now)
        return report_pb2.ShadowRecord(
            record_id=record_id,
            attempt=wire.ref_message(row.attempt),
            did=said.did,
            did_at=wire.stamp(said.did_at),
            nodes=said.nodes,
            who=said.who,
            why=said.why,
        )

    async def _attempt(self, request: report_pb2.RecordShadowRequest) -> AttemptRow:
        """The attempt that is meant; without a number the newest that failed, else the one that lives."""
        if not request.job_key and not request.job_id:
            raise BadRequestError("give job_key, or job_id with its cluster")
        chosen = AuditFilter(
            cluster=_name(request, "cluster"), job_id=_name(request, "job_id"), job_key=_name(request, "job_key")
        )
        listing = await self._services.store.audit.attempts(chosen, Page(size=250))
        rows = [row for row in listing.rows if not request.HasField("attempt") or row.attempt.number == request.attempt]
        named = f"job {request.job_id or request.job_key}"
        if not rows:
            raise NotFoundError(
                f"there is no attempt {request.attempt} of {named}"
                if request.HasField("attempt")
                else f"nothing is known of {named}"
            )
        if len({row.attempt.cluster for row in rows}) > 1:
            raise BadRequestError(f"{named} is known on several clusters: give cluster")
        newest = rows[0].attempt.job_key  # ids are reused: the job that had it last
        of_job = [row for row in rows if row.attempt.job_key == newest]
        failed = [row for row in of_job if row.state.ended and row.state is not AttemptState.COMPLETED]
        found = max(failed or of_job, key=lambda row: row.attempt.number)
        if found.state is AttemptState.COMPLETED:
            raise BadRequestError(
                f"attempt: attempt {found.attempt.number} of {named} completed, so there was nothing to do about it"
            )
        return found

    async def GetReliability(
        self, request: report_pb2.GetReliabilityRequest, context: Context
    ) -> report_pb2.ReliabilityReport:
        if request.by not in ("", *GROUPINGS):
            raise BadRequestError(f"by: {request.by[:64]!r} is not one of {', '.join(GROUPINGS)}")
        now = self._services.clock.now()
        window = _window(request, now)
        wanted = ReliabilityWanted(
            window=window,
            cluster=_name(request, "cluster"),
            partition=_name(request, "partition"),
            user=self._user(request),
            job_id=_name(request, "job_id"),
        )
        groups_max = _count(request.groups_max, "groups_max", GROUPS_DEFAULT, GROUPS_MAX)
        found = await self._services.reporting.reliability(wanted, by=request.by, groups_max=groups_max, now=now)
        return reports.reliability_message(found, window, nodes=self._caller.sees_all_jobs)

    def _user(self, request: report_pb2.GetShadowReportRequest | report_pb2.GetReliabilityRequest) -> str:
        """Whose jobs: his own where the caller may see no others."""
        asked = _name(request, "user")
        if self._caller.sees_all_jobs:
            return asked
        if asked not in {"", self._caller.name}:
            raise NotFoundError(f"there are no jobs of {asked!r} that {self._caller.name} may see")
        return self._caller.name


def _window(request: report_pb2.GetShadowReportRequest | report_pb2.GetReliabilityRequest, now: datetime) -> Window:
    until = min(wire.moment_of(request, "until", "request") or now, now)
    since = wire.moment_of(request, "since", "request") or until - timedelta(days=DAYS_DEFAULT)
    if not since < until:
        raise BadRequestError("since: must lie before until, and in the past")
    if until - since > timedelta(days=DAYS_MAX):
        raise BadRequestError(f"since: more than {DAYS_MAX} days before until")
    return Window(since=since, until=until)


def _name(request: Any, field: str) -> str:
    return wire.text_of(getattr(request, field), field, most=wire.NAME_MAX)


def _count(given: int, field: str, default: int, most: int) -> int:
    if given > most:
        raise BadRequestError(f"{field}: {given}, at most {most}")
    return given or default
