"""The Python SDK: `connect()` for notebooks and programs, `Client` for those that speak the contract's messages.

from datetime import timedelta
from advisor.client import connect

with connect() as advisor:
    for decision in advisor.decisions(user="ada", since=timedelta(days=7)):
        print(decision.at, decision.action, decision.reason)
    frame = advisor.attempts(partition="h100").to_pandas()
"""

from advisor.client.connection import CALL_SECONDS, Client
from advisor.client.errors import BadRequest, ClientError, NotFound, Refused, Unreachable
from advisor.client.listing import Listing
from advisor.client.sdk import Advisor, Filters, connect
from advisor.client.values import (
    Action,
    Attempt,
    AuditRecord,
    Decision,
    Event,
    Evidence,
    Incident,
    Node,
    Signal,
    Timeline,
)
from advisor.client.words import action_name, milestone_name, mode_name, reason_name, state_name, status_name

__all__ = [
    "CALL_SECONDS",
    "Action",
    "Advisor",
    "Attempt",
    "AuditRecord",
    "BadRequest",
    "Client",
    "ClientError",
    "Decision",
    "Event",
    "Evidence",
    "Filters",
    "Incident",
    "Listing",
    "Node",
    "NotFound",
    "Refused",
    "Signal",
    "Timeline",
    "Unreachable",
    "action_name",
    "connect",
    "milestone_name",
    "mode_name",
    "reason_name",
    "state_name",
    "status_name",
]
