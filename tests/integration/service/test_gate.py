"""The socket gate with real sockets and real gRPC: who gets in, what they may call, and what is left behind."""

import asyncio
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from advisor.clock import SystemClock
from advisor.demo.namespace import inside
from advisor.service.callers import Accounts, Caller, Callers, Role, granted
from advisor.service.calls import Calls
from advisor.service.errors import BadRequestError, SocketTakenError
from advisor.service.gate import Gate, Peers
from advisor.service.owned_socket import OwnedSocket
from advisor.service.server import GrpcServing
from advisor.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
)
from tests.integration.service.flood import accepted_together

PROJECT = Path(__file__).resolve().parents[3]
# Imports first, then another user: a checkout under a private home could not be imported by him.
STRANGER = """
import os, sys
import grpc
from advisor.v1 import agent_pb2, agent_pb2_grpc
os.setresuid(65534, 65534, 65534)
channel = grpc.insecure_channel(f"unix:{sys.argv[1]}")
try:
    agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(agent_pb2.HeartbeatRequest(cluster="c"), timeout=10)
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short (sun_path holds 107 bytes) and open to other users."""
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


class FixedCallers(Callers):
    """Everybody who connects has these roles."""

    def __init__(self, roles: Role) -> None:
        super().__init__(Accounts(), SystemClock())
        self._roles = roles

    async def find(self, uid: int) -> Caller:
        return Caller(uid=uid, name="somebody", roles=granted(self._roles))


class Agent(agent_pb2_grpc.AgentServiceServicer):
    """Answers with its caller's uid, streams without end, or fails as told by the cluster's name."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def Heartbeat(  # noqa: N802 -- gRPC's name
        self, request: agent_pb2.HeartbeatRequest, context: object
    ) -> agent_pb2.HeartbeatResponse:
        if request.cluster == "bad":
            raise BadRequestError("cluster: is bad")
        if request.cluster == "broken":
            raise KeyError("a secret detail")
        return agent_pb2.HeartbeatResponse(incarnation=f"{self._caller.uid} {self._caller.name}")

    async def WatchAdvice(  # noqa: N802 -- gRPC's name
        self, request: agent_pb2.WatchAdviceRequest, context: object
    ) -> AsyncIterator[agent_pb2.WatchAdviceResponse]:
        while True:
            yield agent_pb2.WatchAdviceResponse(ticks=1)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def gate_of(path: Path, callers: Callers, connections_max: int = 16) -> AsyncIterator[Gate]:
    serving = GrpcServing(
        calls=Calls({"AgentService": Agent}), health=health.aio.HealthServicer(), message_bytes_max=65_536
    )
    await serving.set_serving()
    gate = Gate(path, callers=callers, connections_max=connections_max)
    await gate.open(serving.start_inner)
    try:
        yield gate
    finally:
        await gate.close(0.2)
        gate.release()


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield channel


async def _status(call: "grpc.aio.UnaryUnaryCall[object, object]") -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_the_kernels_word_about_the_caller_reaches_the_servicer(folder: Path) -> None:
    """A call knows the uid and account that SO_PEERCRED names, whatever the message says."""
    callers = Callers(Accounts(agents=(_own_name(),)), SystemClock())
    async with gate_of(folder / "s", callers), connected(folder / "s") as channel:
        answer = await agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(agent_pb2.HeartbeatRequest(cluster="c"))
    assert answer.incarnation == f"{os.geteuid()} {_own_name()}"


def _own_name() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(
    ("roles", "agent", "audit", "operator"),
    [
        (
            Role.AGENT,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.PERMISSION_DENIED,
        ),
        (
            Role.OPERATOR,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.UNIMPLEMENTED,
        ),
        (
            Role.AGENT | Role.OPERATOR,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.UNIMPLEMENTED,
        ),
        (
            Role.NONE,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.PERMISSION_DENIED,
        ),
    ],
)
async def test_a_role_reaches_its_own_methods_only(
    folder: Path, roles: Role, agent: grpc.StatusCode, audit: grpc.StatusCode, operator: grpc.StatusCode
) -> None:
    """Agents report, operators look and change, others are refused in words (the rest answers as stand-in)."""
    async with gate_of(folder / "s", FixedCallers(roles)), connected(folder / "s") as channel:
        heartbeat = agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(agent_pb2.HeartbeatRequest(cluster="bad"))
        listing = audit_pb2_grpc.AuditServiceStub(channel).ListDecisions(audit_pb2.ListDecisionsRequest())
        modes = operator_pb2_grpc.OperatorServiceStub(channel).ListModes(operator_pb2.ListModesRequest())
        assert (await _status(heartbeat))[0] is agent
        assert (await _status(listing))[0] is audit
        code, text = await _status(modes)
        assert code is operator
        if code is grpc.StatusCode.PERMISSION_DENIED:
            assert "service.viewer_users" in text


async def test_a_stranger_cannot_watch_advice(folder: Path) -> None:
    """A refused stream ends with the reason instead of a first message."""
    async with gate_of(folder / "s", FixedCallers(Role.NONE)), connected(folder / "s") as channel:
        stream = agent_pb2_grpc.AgentServiceStub(channel).WatchAdvice(agent_pb2.WatchAdviceRequest(cluster="c"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_errors_become_statuses_and_ours_are_not_shown(folder: Path) -> None:
    """Bad input is explained; what breaks inside is not told to the caller."""
    async with gate_of(folder / "s", FixedCallers(Role.AGENT)), connected(folder / "s") as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        assert await _status(stub.Heartbeat(agent_pb2.HeartbeatRequest(cluster="bad"))) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "cluster: is bad",
        )
        code, text = await _status(stub.Heartbeat(agent_pb2.HeartbeatRequest(cluster="broken")))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in text


async def test_bytes_that_are_no_message_are_bad_input(folder: Path) -> None:
    """What protobuf cannot read is INVALID_ARGUMENT and names the method; too large a message is refused by size."""
    async with gate_of(folder / "s", FixedCallers(Role.AGENT)), connected(folder / "s") as channel:
        call = channel.unary_unary("/advisor.v1.AgentService/Heartbeat")
        code, text = await _status(call(b"\xff\xff\xff"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "AgentService/Heartbeat" in text
        code, _ = await _status(call(b"\n" + b"x" * 100_000))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_garbage_on_the_socket_hurts_nobody_else(folder: Path) -> None:
    """A connection that speaks no HTTP/2 is closed, and a proper client is served beside it."""
    async with gate_of(folder / "s", FixedCallers(Role.AGENT)):
        reader, writer = await asyncio.open_unix_connection(str(folder / "s"))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 50)
        async with connected(folder / "s") as channel:
            answer = await agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(agent_pb2.HeartbeatRequest(cluster="c"))
            assert answer.incarnation
        async with asyncio.timeout(5):
            while await reader.read(4096):
                pass
        writer.close()


async def test_connections_beyond_the_bound_are_closed(folder: Path) -> None:
    """The number of connections is bounded; one more is closed at once, and a freed place can be used."""
    async with gate_of(folder / "s", FixedCallers(Role.AGENT), connections_max=2):
        held = [await asyncio.open_unix_connection(str(folder / "s")) for _ in range(2)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while True:  # the first two are counted once the gate has accepted them
                reader, writer = await asyncio.open_unix_connection(str(folder / "s"))
                try:
                    async with asyncio.timeout(0.3):
                        assert await reader.read(1) == b""
                    break
                except TimeoutError:
                    held.append((reader, writer))
        writer.close()
        for _, open_writer in held:
            open_writer.close()


async def test_health_and_reflection_answer_any_role(folder: Path) -> None:
    """Standard tools work: the health service says SERVING and reflection lists our services."""
    async with gate_of(folder / "s", FixedCallers(Role.OPERATOR)), connected(folder / "s") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="advisor.v1.AgentService")
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        names = {service.name async for reply in stream for service in reply.list_services_response.service}
    assert {"advisor.v1.AgentService", "advisor.v1.AuditService", "advisor.v1.OperatorService"} <= names


async def test_a_flood_of_connections_leaves_the_event_loop_to_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of those that wait are accepted before a tick, or whoever else shares the loop, has its turn."""
    async with gate_of(folder / "s", FixedCallers(Role.USER)):
        assert await accepted_together(folder / "s", monkeypatch) <= 8


async def test_a_second_service_is_refused_and_the_first_stays(folder: Path) -> None:
    """Binding the same socket again fails with a sentence; the first server keeps answering."""
    async with gate_of(folder / "s", FixedCallers(Role.AGENT)):
        second = Gate(folder / "s", callers=FixedCallers(Role.AGENT), connections_max=4)
        with pytest.raises(SocketTakenError, match="served already"):
            second.reserve()
        async with connected(folder / "s") as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            assert (await stub.Heartbeat(agent_pb2.HeartbeatRequest(cluster="c"))).incarnation


async def test_what_a_killed_service_left_is_cleaned_up(folder: Path) -> None:
    """A socket and an inner folder without an owner do not keep the next service from starting."""
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(folder / "s"))
    stale.close()
    (folder / "s.d").mkdir()
    (folder / "s.d" / "0.1.sock").touch()
    async with gate_of(folder / "s", FixedCallers(Role.AGENT)), connected(folder / "s") as channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        assert (await stub.Heartbeat(agent_pb2.HeartbeatRequest(cluster="c"))).incarnation


async def test_a_file_in_the_way_is_never_removed(folder: Path) -> None:
    """Something that is not a socket belongs to somebody else."""
    (folder / "s").write_text("precious")
    gate = Gate(folder / "s", callers=FixedCallers(Role.AGENT), connections_max=4)
    with pytest.raises(SocketTakenError, match="not a socket"):
        await gate.open(_never)
    gate.release()
    assert (folder / "s").read_text() == "precious"


async def _never(path: Path, peers: Peers) -> grpc.aio.Server:
    raise AssertionError("nobody may get this far")


async def test_closing_leaves_nothing_and_ends_open_streams(folder: Path) -> None:
    """After close and release there is no socket, folder or lock, and a stream that was open has ended."""
    async with gate_of(folder / "s", FixedCallers(Role.AGENT)) as gate, connected(folder / "s") as channel:
        stream = agent_pb2_grpc.AgentServiceStub(channel).WatchAdvice(agent_pb2.WatchAdviceRequest(cluster="c"))
        await stream.read()
        assert (folder / "s").stat().st_mode & 0o777 == 0o666
        assert (folder / "s.d").stat().st_mode & 0o777 == 0o700
        await gate.close(0.1)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await _drained(stream)
    assert _left(folder) == []


def _left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def _drained(stream: "grpc.aio.UnaryStreamCall[object, object]") -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_real_stranger_is_refused_with_a_reason(folder: Path) -> None:
    """Another uid may connect and is told what to configure."""
    callers = Callers(Accounts(), SystemClock())
    async with gate_of(folder / "s", callers):
        # The checkout may lie under a private home; the test namespace shows it where everybody can reach it.
        runtime = inside()
        python, cwd = (runtime.python, runtime.code) if runtime else (Path(sys.executable), PROJECT)
        process = await asyncio.create_subprocess_exec(
            str(python), "-c", STRANGER, str(folder / "s"), stdout=subprocess.PIPE, cwd=cwd
        )
        out, _ = await process.communicate()
    assert out.decode().startswith("PERMISSION_DENIED")
    assert "service.agent_users" in out.decode()


def test_a_place_names_its_socket_whatever_the_lock(tmp_path: Path) -> None:
    """The last word is that of the process before at the same socket, and no other socket's."""
    places = []
    for name in ("a.sock", "a.sock", "b.sock"):
        owned = OwnedSocket(tmp_path / name)
        assert owned.place == ""
        owned.reserve()
        places.append(owned.place.split(" "))
        owned.release()
    assert {len(place) for place in places} == {4}
    first, again, other = (place[3] for place in places)
    assert first == again != other
    assert len({place[0] for place in places}) == 1


KILLED = """
import os, sys
from pathlib import Path
from advisor.service.owned_socket import OwnedSocket
owned = OwnedSocket(Path(sys.argv[1]), boot_id=Path("/nowhere"))
owned.reserve()
print(owned.place, flush=True)
os._exit(9)
"""


def test_a_place_is_told_also_where_the_unit_hides_the_kernels_settings(tmp_path: Path) -> None:
    """`ProcSubset=pid`: whoever comes after a killed one has its place, and after one that was stopped another."""
    path = tmp_path / "a.sock"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    heir = OwnedSocket(path, boot_id=tmp_path / "none")
    heir.reserve()
    assert (heir.place, len(heir.place.split(" "))) == (done.stdout.strip(), 4)
    heir.release()
    later = OwnedSocket(path, boot_id=tmp_path / "none")
    later.reserve()
    assert later.place.split(" ")[0] != done.stdout.split(" ")[0]
    later.release()
