"""The client's own sparing of what it has: rules and policies come over the wire once; and whom it waits for."""

import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from advisor.client.channels import unix_channel
from advisor.client.connection import Client
from advisor.client.errors import NoReplica, Unreachable
from advisor.client.replicas import ReplicaChannel
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


@pytest.fixture
def frozen() -> Iterator[Path]:
    """A process that is stopped: its host accepts the connection, and nobody says anything."""
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/s")
        listening.listen()
        yield Path(folder) / "s"


def test_a_frozen_advisor_is_told_within_seconds(frozen: Path) -> None:
    """Long before the time that an answer may take is over."""
    began = time.monotonic()
    with Client(frozen, seconds=60.0, hello_seconds=0.2) as client, pytest.raises(Unreachable, match="no sign of life"):
        client.status()
    assert time.monotonic() - began < 20.0


def test_the_next_address_is_tried_when_one_is_silent(server: tuple[Inputs, Client], frozen: Path) -> None:
    """Whatever stands first, whoever lives answers."""
    alive = server[1]._where
    places = [(name, partial(unix_channel, Path(name))) for name in (str(frozen), alive)]
    with Client(Path(), channel=ReplicaChannel(places, seconds=0.2), seconds=60.0) as client:
        assert client.decision_inputs("r1").policy == b"policy"


def test_of_every_address_is_said_what_became_of_it(frozen: Path) -> None:
    """One is gone, one is dead, one is frozen: the error names each, and none is waited for twice."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(frozen.with_name("dead")))  # nobody listens
    names = [str(frozen.with_name(name)) for name in ("gone", "dead")]
    places = [(name, partial(unix_channel, Path(name))) for name in (*names, str(frozen))]
    began = time.monotonic()
    client = Client(Path(), channel=ReplicaChannel(places, seconds=0.2), seconds=60.0)
    with client, pytest.raises(NoReplica) as caught:
        client.status()
    said = str(caught.value)
    assert f"nothing listens on {names[0]}" in said
    assert f"{names[1]}: " in said
    assert "refused" in said
    assert f"{frozen}: silent for 0.2 s" in said
    assert time.monotonic() - began < 20.0
