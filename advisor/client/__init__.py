"""The Python SDK: `connect()` for notebooks and programs, `Client` for those that speak the contract's messages.

from advisor.client import connect

with connect("/run/recovery-advisor/advisor.sock") as advisor:
    for decision in advisor.decisions(user="ada", since=timedelta(days=7)):
        print(decision.at, decision.action, decision.reason)
"""

from advisor.client.connection import CALL_SECONDS, Client, ClientError
from advisor.client.words import action_name, milestone_name, mode_name, reason_name, status_name

__all__ = [
    "CALL_SECONDS",
    "Client",
    "ClientError",
    "action_name",
    "milestone_name",
    "mode_name",
    "reason_name",
    "status_name",
]
