"""The client's own sparing of what it has: rules and policies come over the wire once."""

import tempfile
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from advisor.client.connection import Client
from advisor.v1 import audit_pb2, audit_pb2_grpc

RULES = {"r1": b"rules of old", "r2": b"rules"}


class Inputs(audit_pb2_grpc.AuditServiceServicer):
    """A decision's rules are those whose hash is its id; what the caller holds is left out, as the service does."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.names = True

    def GetDecisionInputs(  # noqa: N802
        self, request: audit_pb2.GetDecisionInputsRequest, context: Any
    ) -> audit_pb2.DecisionInputs:
        rules = b"" if request.decision_id in request.held else RULES[request.decision_id]
        policy = b"" if "p" in request.held else b"policy"
        self.sent += [rules, policy]
        names = {"rules_hash": request.decision_id, "policy_hash": "p"} if self.names else {}
        return audit_pb2.DecisionInputs(rules=rules, policy=policy, inputs=b"facts", **names)


@pytest.fixture
def server() -> Iterator[tuple[Inputs, Client]]:
    with tempfile.TemporaryDirectory(prefix="held-") as folder:
        servicer, serving = Inputs(), grpc.server(futures.ThreadPoolExecutor(max_workers=1))
        audit_pb2_grpc.add_AuditServiceServicer_to_server(servicer, serving)
        serving.add_insecure_port(f"unix:{folder}/s")
        serving.start()
        with Client(Path(folder) / "s") as client:
            yield servicer, client
        serving.stop(0).wait()


def test_rules_and_policies_are_fetched_once(server: tuple[Inputs, Client]) -> None:
    """Every answer is whole for whoever asked, whichever rules it is about."""
    servicer, client = server
    for name in ("r1", "r1", "r2", "r1"):
        found = client.decision_inputs(name)
        assert (found.rules, found.policy, found.inputs) == (RULES[name], b"policy", b"facts")
    assert servicer.sent == [RULES["r1"], b"policy", b"", b"", RULES["r2"], b"", b"", b""]


def test_an_advisor_that_names_no_hashes_is_asked_for_everything(server: tuple[Inputs, Client]) -> None:
    """One of an earlier version sends all of it each time."""
    servicer, client = server
    servicer.names = False
    assert [client.decision_inputs("r1").rules for _ in range(2)] == [RULES["r1"]] * 2
    assert servicer.sent == [RULES["r1"], b"policy"] * 2
