"""`connect()` and what it gives: the audit API for programs and notebooks, in values instead of messages."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from advisor.client.channels import remote_channel, unix_channel
from advisor.client.connection import CALL_SECONDS, Client
from advisor.client.errors import ClientError
from advisor.client.listing import FetchPage, Listing
from advisor.client.replicas import Place, ReplicaChannel
from advisor.client.values import (
    Action,
    Attempt,
    AuditRecord,
    Decision,
    Event,
    Incident,
    Node,
    Signal,
    Timeline,
)
from advisor.v1 import audit_pb2, common_pb2

SOCKET = Path("/run/recovery-advisor/advisor.sock")
PATIENCE_SECONDS = 10.0

Moment = datetime | timedelta
Value = TypeVar("Value")


class Filters(TypedDict, total=False):
    """What a list can be narrowed to; left out means all. `since`, `until`: an aware time, or how long ago."""

    cluster: str
    job_id: str
    job_key: str
    array_job_id: str
    array_task: int
    user: str
    account: str
    partition: str
    node: str
    category: str
    action: str  # restart, stop, none
    reason: str
    mode: str  # monitor, autonomous
    status: str  # verified, withheld, superseded, ...
    since: Moment
    until: Moment


def connect(
    target: str | Path | Sequence[str | Path] = SOCKET,
    *,
    token_file: str | Path | None = None,
    ca_file: str | Path | None = None,
    certificate: tuple[str | Path, str | Path] | None = None,
    seconds: float = CALL_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> "Advisor":
    """The service's Unix socket on this host, or `"host:port"` over TLS with a token or a certificate.

    Several targets are replicas over one database: whichever answers is asked, and another one when it is lost.
    `seconds`: for one answer. `patience_seconds`: reads are tried again for so long while the service is away.
    Raises `ClientError` when nobody can be there.
    """
    targets = [target] if isinstance(target, str | Path) else list(target)
    if not targets:
        raise ClientError("no target was given")

    def place(one: str | Path) -> Place:
        if not (isinstance(one, str) and "/" not in one and ":" in one):
            return str(one), lambda: unix_channel(Path(one))
        if token_file is None and certificate is None:
            raise ClientError(f"{one}: from afar a token_file or a certificate tells who you are")
        return one, lambda: remote_channel(
            one,
            token_file=_path(token_file),
            ca_file=_path(ca_file),
            certificate=(Path(certificate[0]), Path(certificate[1])) if certificate is not None else None,
        )

    places = [place(one) for one in targets]
    channel = ReplicaChannel(places) if len(places) > 1 else places[0][1]()
    client = Client(
        Path(targets[0]), seconds=seconds, channel=channel, where=places[0][0], patience_seconds=patience_seconds
    )
    return Advisor(client)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


class Advisor:
    """One connection. `with connect() as advisor: ...`; `client` is what speaks the contract's messages."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    # lists, newest first

    def decisions(self, *, limit: int | None = None, **wanted: Unpack[Filters]) -> Listing[Decision]:
        fetch = self._list(audit_pb2.ListDecisionsRequest(filter=_filter(wanted)), "ListDecisions", "decisions")
        return Listing(fetch, Decision.of, audit_pb2.Decision, limit=limit)

    def incidents(self, *, limit: int | None = None, **wanted: Unpack[Filters]) -> Listing[Incident]:
        fetch = self._list(audit_pb2.ListIncidentsRequest(filter=_filter(wanted)), "ListIncidents", "incidents")
        return Listing(fetch, Incident.of, audit_pb2.Incident, limit=limit)

    def attempts(self, *, limit: int | None = None, **wanted: Unpack[Filters]) -> Listing[Attempt]:
        fetch = self._list(audit_pb2.ListAttemptsRequest(filter=_filter(wanted)), "ListAttempts", "attempts")
        return Listing(fetch, Attempt.of, audit_pb2.Attempt, limit=limit)

    def signals(
        self, *, rule: str = "", trust: str = "", role: str = "", limit: int | None = None, **wanted: Unpack[Filters]
    ) -> Listing[Signal]:
        request = audit_pb2.ListSignalsRequest(filter=_filter(wanted), rule=rule, trust=trust, role=role)
        return Listing(self._list(request, "ListSignals", "signals"), Signal.of, audit_pb2.Signal, limit=limit)

    def actions(self, *, limit: int | None = None, **wanted: Unpack[Filters]) -> Listing[Action]:
        """What came of advice; `status` and `reason` are those of what came of it."""
        fetch = self._list(audit_pb2.ListActionsRequest(filter=_filter(wanted)), "ListActions", "actions")
        return Listing(fetch, Action.of, audit_pb2.ActionTaken, limit=limit)

    def nodes(self, *, limit: int | None = None, **wanted: Unpack[Filters]) -> Listing[Node]:
        """Those with a history, newest implication first."""
        fetch = self._list(audit_pb2.ListNodesRequest(filter=_filter(wanted)), "ListNodes", "nodes")
        return Listing(fetch, Node.of, audit_pb2.Node, limit=limit)

    def audit(
        self,
        *,
        cluster: str = "",
        who: str = "",
        what: str = "",
        subject: str = "",
        since: Moment | None = None,
        until: Moment | None = None,
        everything: bool = False,
        limit: int | None = None,
    ) -> Listing[AuditRecord]:
        """Who did what. `everything`: also what the advisor and its agents do by themselves."""
        request = audit_pb2.ListAuditRequest(
            cluster=cluster,
            who=who,
            what=what,
            subject=subject,
            since=_stamp("since", since),
            until=_stamp("until", until),
            everything=everything,
        )
        return Listing(self._list(request, "ListAudit", "records"), AuditRecord.of, audit_pb2.AuditRecord, limit=limit)

    def node_history(
        self,
        cluster: str,
        name: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: int | None = None,
    ) -> Listing[Event]:
        request = audit_pb2.GetNodeHistoryRequest(
            cluster=cluster, name=name, since=_stamp("since", since), until=_stamp("until", until)
        )
        return Listing(self._list(request, "GetNodeHistory", "events"), Event.of, audit_pb2.Event, limit=limit)

    # one thing

    def decision(self, decision_id: str) -> Decision:
        """With its full evidence. The beginning of an id is enough."""
        return Decision.of(self.client.decision(decision_id))

    def incident(self, incident_id: str) -> Incident:
        request = audit_pb2.GetIncidentRequest(incident_id=incident_id)
        return Incident.of(self.client.read(self.client.audit.GetIncident, request))

    def timeline(self, job_id: str = "", *, cluster: str = "", job_key: str = "", attempts_max: int = 0) -> Timeline:
        """Everything about one job. The cluster may be left out where there is only one."""
        chosen = "" if job_key else self.client.cluster_or_only(cluster)
        request = audit_pb2.GetJobTimelineRequest(
            cluster=chosen, job_id=job_id, job_key=job_key, attempts_max=attempts_max
        )
        found = self.client.read(self.client.audit.GetJobTimeline, request)
        return Timeline(
            attempts=tuple(map(Attempt.of, found.attempts)),
            events=tuple(map(Event.of, found.events)),
            truncated=found.truncated,
        )

    def _list(self, request: Any, method: str, field: str) -> FetchPage:
        call: Callable[..., Any] = getattr(self.client.audit, method)

        def fetch(cursor: str, size: int) -> tuple[list[Message], str]:
            request.page.page_size = size
            request.page.cursor = cursor
            answer = self.client.read(call, request)
            return list(getattr(answer, field)), answer.next_cursor

        return fetch


def _filter(wanted: Filters) -> audit_pb2.Filter:
    """Raises `ClientError` with the field that cannot be used."""
    values: dict[str, Any] = dict(wanted)
    unknown = sorted(set(values) - set(Filters.__annotations__))
    if unknown:
        raise ClientError(f"{unknown[0]}: there is no such filter; there are: {', '.join(Filters.__annotations__)}")
    for name in ("since", "until"):
        values[name] = _stamp(name, values.get(name))
    for name, kind, prefix in (
        ("action", common_pb2.Action, "ACTION_"),
        ("mode", common_pb2.Mode, "MODE_"),
        ("status", common_pb2.ReconciliationStatus, "RECONCILIATION_STATUS_"),
    ):
        if values.get(name):
            values[name] = _number(name, kind, prefix, str(values[name]))
    try:
        return audit_pb2.Filter(**{name: value for name, value in values.items() if value is not None and value != ""})
    except (TypeError, ValueError) as error:
        raise ClientError(f"filter: {error}") from None


def _number(name: str, kind: Any, prefix: str, word: str) -> int:
    known = {item.removeprefix(prefix).lower(): number for item, number in kind.items() if number}
    if word not in known:
        raise ClientError(f"{name}: {word!r} is not one of {', '.join(known)}")
    return int(known[word])


def _stamp(name: str, when: Moment | None) -> Timestamp | None:
    """A duration is so long ago."""
    if when is None:
        return None
    stamp = Timestamp()
    if isinstance(when, timedelta):
        stamp.GetCurrentTime()
        stamp.FromDatetime(stamp.ToDatetime(UTC) - when)
        return stamp
    if when.tzinfo is None:
        raise ClientError(f"{name}: {when} has no time zone: datetime(..., tzinfo=UTC)")
    stamp.FromDatetime(when)
    return stamp
