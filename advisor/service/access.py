"""Who may call what: one table for gRPC and HTTP alike. What is not in it nobody may call.

An entry names a method of the contract ("AuditService/GetDecision") or a path that exists in HTTP only
("GET /metrics"), and the least role that may. What JSON routes and pages show comes through methods of the contract,
see `advisor.service.calls`, so that they need no entries of their own.
"""

from collections.abc import Callable, Mapping
from typing import Any

from advisor.service.callers import Caller, Proof, Role
from advisor.service.errors import ForbiddenError, UnauthenticatedError
from advisor.v1 import common_pb2

ANYBODY_KNOWN = Role.USER | Role.VIEWER | Role.AGENT | Role.OPERATOR | Role.ADMIN

NEEDED: Mapping[str, Role] = {
    "AgentService/Register": Role.AGENT,
    "AgentService/Heartbeat": Role.AGENT,
    "AgentService/ReportObservations": Role.AGENT,
    "AgentService/WatchAdvice": Role.AGENT,
    "AgentService/ReportReconciliation": Role.AGENT,
    "AgentService/ReportMilestones": Role.AGENT,
    "AgentService/ReportNodeReconciliation": Role.AGENT,
    # A user sees these of his own jobs, see `advisor.service.withholding`.
    "AuditService/GetDecision": Role.USER,
    "AuditService/ListDecisions": Role.USER,
    "AuditService/GetIncident": Role.USER,
    "AuditService/ListIncidents": Role.USER,
    "AuditService/GetAttempt": Role.USER,
    "AuditService/ListAttempts": Role.USER,
    "AuditService/ListSignals": Role.USER,
    "AuditService/ListActions": Role.USER,
    "AuditService/GetJobTimeline": Role.USER,
    # Whole inputs hold the lines of logs, as they were, and what other jobs left on the nodes.
    "AuditService/GetDecisionInputs": Role.OPERATOR,
    "AuditService/GetNode": Role.VIEWER,
    "AuditService/ListNodes": Role.VIEWER,
    "AuditService/ListLemons": Role.VIEWER,
    "AuditService/GetNodeHistory": Role.VIEWER,
    # Who did what, from which address.
    "AuditService/ListAudit": Role.OPERATOR,
    "OperatorService/GetStatus": Role.USER,
    "OperatorService/ListModes": Role.VIEWER,
    "OperatorService/ListPauses": Role.VIEWER,
    "OperatorService/ListIsolations": Role.VIEWER,
    "OperatorService/Pause": Role.OPERATOR,
    "OperatorService/Resume": Role.OPERATOR,
    "OperatorService/Reinstate": Role.OPERATOR,
    "OperatorService/ReportProbe": Role.OPERATOR,
    "OperatorService/ResetBreaker": Role.OPERATOR,
    "ReportService/GetShadowReport": Role.VIEWER,
    "ReportService/RecordShadow": Role.OPERATOR,
    "ReportService/GetReliability": Role.VIEWER,
    "OperatorService/Veto": Role.OPERATOR,
    "OperatorService/Withdraw": Role.OPERATOR,
    "OperatorService/Override": Role.OPERATOR,
    "OperatorService/Exclude": Role.OPERATOR,
    "OperatorService/Spare": Role.OPERATOR,
    "OperatorService/ResetBudget": Role.OPERATOR,
    "OperatorService/LiftOrder": Role.OPERATOR,
    "OperatorService/IsolateNode": Role.OPERATOR,
    "OperatorService/CorrectVerdict": Role.OPERATOR,
    "OperatorService/ListCorrections": Role.OPERATOR,
    "OperatorService/ListOrders": Role.VIEWER,
    "OperatorService/SetMode": Role.OPERATOR,
    "OperatorService/UnsetMode": Role.ADMIN,  # what held before may be wider
    "Health/Check": ANYBODY_KNOWN,
    "Health/Watch": ANYBODY_KNOWN,
    "Health/List": ANYBODY_KNOWN,
    "ServerReflection/ServerReflectionInfo": ANYBODY_KNOWN,
    "GET /metrics": Role.VIEWER,
}


def _of_setting(request: Any) -> Role:
    """Where the advisor may act by itself is an admin's to say; that it may not, an operator's."""
    return Role.OPERATOR if request.setting.mode == common_pb2.MODE_MONITOR else Role.ADMIN


# Methods of which some requests need more than the method does.
NEEDED_BY_REQUEST: Mapping[str, Callable[[Any], Role]] = {"OperatorService/SetMode": _of_setting}

# In plain words, for whoever only typed a command.
_DOING = {
    "AgentService": "act as the agent",
    "AuditService": "see that",
    "OperatorService": "do that",
    "ReportService": "do that",
}
# Which setting gives a role on the Unix socket.
_SETTING_OF_ROLE = {
    Role.AGENT: "service.agent_users",
    Role.USER: "service.own_jobs",
    Role.VIEWER: "service.viewer_users",
    Role.OPERATOR: "service.operator_users",
    Role.ADMIN: "service.admin_users",
}


def may(caller: Caller, what: str, request: Any = None) -> bool:
    """Whether this caller has a role for it, and for this request if one is given."""
    return bool(_needed(what, request) & caller.roles)


def require(caller: Caller, what: str, request: Any = None) -> None:
    """Raises `UnauthenticatedError` when nobody is known, `ForbiddenError` when he has no role for it."""
    if may(caller, what, request):
        return
    if caller.proof is Proof.NOTHING:
        raise UnauthenticatedError("nobody is known by this call: show a token or a client certificate")
    raise ForbiddenError(_refusal(caller, what, _needed(what, request)))


def _needed(what: str, request: Any) -> Role:
    more = NEEDED_BY_REQUEST.get(what) if request is not None else None
    return more(request) if more is not None else NEEDED.get(what, Role.NONE)


def _refusal(caller: Caller, what: str, needed: Role) -> str:
    service = what.partition("/")[0]
    doing = f"{_DOING.get(service, 'ask for that')} ({what})"
    if needed is Role.NONE:
        return f"nobody may call {what} here"
    names = " or ".join(str(role.name).lower() for role in needed)
    if caller.proof is Proof.KERNEL:
        settings = " or ".join(_SETTING_OF_ROLE[role] for role in needed)
        whoever = f"whoever runs the advisor gives it: {settings} in its configuration"
        return f"user {caller.name} may not {doing}: that needs the role {names}; {whoever}"
    return f"{caller.name} ({caller.origin}) may not {doing}: that needs the role {names}"
