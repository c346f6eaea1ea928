"""A whole service that is asked from afar by people with different roles, kindly and otherwise.

One world for all of it: a job of this account failed with text in its log that is nobody else's business.
"""

import asyncio
import getpass
import random
import socket
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
import structlog
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from advisor.client import Unreachable, connect
from advisor.config import Config
from advisor.service import tokens
from advisor.service.access import NEEDED
from advisor.service.callers import Role
from advisor.service.server import CONTRACT
from advisor.service.withholding import WITHHELD
from advisor.v1 import agent_pb2, audit_pb2, audit_pb2_grpc, common_pb2, operator_pb2, operator_pb2_grpc, report_pb2
from tests.integration.service.pki import Authority
from tests.integration.service.world import CLUSTER, World, configuration, short_folder, world_of

pytestmark = [pytest.mark.postgres, pytest.mark.asyncio(loop_scope="module")]

# What stands in the job's log and in the kernel's, and in every sentence made of them.
SECRETS = ("Watchdog caught", "fallen off the bus", "SeqNum=7", "hunter2")
MESSAGE_BYTES_MAX = 262_144
ROUNDS = 2  # twelve found no more
LISTEN = """
[service.listen]
grpc = "127.0.0.1:{grpc}"
http = "127.0.0.1:{http}"
certificate_file = "{folder}/server.crt"
key_file = "{folder}/server.key"
tokens_file = "{folder}/tokens"
[service.limits]
unknown = 10000
user = 10000
viewer = 10000
operator = 10000
agent = 10000
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def far_world() -> AsyncIterator[tuple[World, "Far"]]:
    """One service for all tests of this module: it is asked, and hardly changed."""
    with short_folder() as folder:
        async with _far_world(folder) as found:
            yield found


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in held]
    for item in held:
        item.close()
    return ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """Reaches the service from afar as one of the people."""

    folder: Path
    grpc_port: int
    http_port: int
    shown: dict[str, str]  # who → token

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        credentials = grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{self.grpc_port}", credentials) as channel:
            yield channel

    def metadata(self, who: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.shown[who]}"),)

    @asynccontextmanager
    async def browser(self, who: str) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {self.shown[who]}"}
        async with httpx.AsyncClient(
            base_url=f"https://localhost:{self.http_port}",
            headers=headers,
            verify=ssl.create_default_context(cafile=self.folder / "ca.pem"),
            trust_env=False,
            timeout=30,
        ) as client:
            yield client


@asynccontextmanager
async def _far_world(folder: Path) -> AsyncIterator[tuple[World, Far]]:
    Authority(folder).issue("server")
    people = {
        "owner": ("user", getpass.getuser()),
        "stranger": ("user", "eve"),
        "viewer": ("viewer", "eve"),
        "operator": ("operator", "oscar"),
        "agent": ("agent", "slurm"),
    }
    file = folder / "tokens"
    shown = {
        who: tokens.add(file, name=f"{who}-token", role=role, user=user, expires=None)
        for who, (role, user) in people.items()
    }
    ports = _free_ports(2)
    listen = LISTEN.format(grpc=ports[0], http=ports[1], folder=folder)
    config = _bounded(configuration(folder, listen))
    async with world_of(folder, config) as world:
        yield world, Far(folder=folder, grpc_port=ports[0], http_port=ports[1], shown=shown)


def _bounded(config: Config) -> Config:
    return config.model_copy(
        update={"service": config.service.model_copy(update={"message_bytes_max": MESSAGE_BYTES_MAX})}
    )


async def _decided(world: World) -> audit_pb2.Decision:
    """The decision about the job that failed; it fails when somebody asks for the first time."""
    if not await world.decisions():
        await world.fail_on_node2()
        await world.advice_where(lambda found: any(_is_restart(advice) for advice in found))
    return next(item for item in await world.decisions() if _is_restart(item.advice))


def _is_restart(advice: common_pb2.Advice) -> bool:
    return advice.action == common_pb2.ACTION_RESTART and list(advice.exclude_nodes) == ["node2"]


def _tells(answer: object) -> list[str]:
    text = str(answer)
    return [secret for secret in SECRETS if secret in text]


async def test_a_certificate_or_an_address_that_does_not_fit_is_said_plainly(far_world: tuple[World, Far]) -> None:
    """Not that the service may be down: it answers, and what was given to the command is wrong."""
    _, far = far_world
    with short_folder() as elsewhere:
        Authority(elsewhere).issue("server")

        def asked(address: str, authority: Path) -> str:
            token = elsewhere / "token"
            token.write_text(far.shown["viewer"])
            with (
                connect(address, token_file=token, ca_file=authority, patience_seconds=0) as advisor,
                pytest.raises(Unreachable) as caught,
            ):
                list(advisor.decisions())
            return str(caught.value)

        others = await asyncio.to_thread(asked, f"localhost:{far.grpc_port}", elsewhere / "ca.pem")
        assert "name who did with --ca-file" in others
        pages = await asyncio.to_thread(asked, f"localhost:{far.http_port}", far.folder / "ca.pem")
        assert "does not speak gRPC" in pages


async def test_each_sees_what_is_his_over_grpc_json_and_pages(far_world: tuple[World, Far]) -> None:
    """Owner and operator read the log's text, a viewer what was decided, a stranger nothing of other people's jobs."""
    world, far = far_world
    async with far.channel() as channel:
        decision = await _decided(world)
        number, job_key = decision.advice.advice_id, decision.advice.attempt.job_key
        audit, operator = audit_pb2_grpc.AuditServiceStub(channel), operator_pb2_grpc.OperatorServiceStub(channel)
        asked: dict[str, tuple[Any, Message]] = {
            "decision": (audit.GetDecision, audit_pb2.GetDecisionRequest(decision_id=number)),
            "decisions": (audit.ListDecisions, audit_pb2.ListDecisionsRequest()),
            "incident": (audit.GetIncident, audit_pb2.GetIncidentRequest(incident_id=decision.incident_id)),
            "its beginning": (audit.GetIncident, audit_pb2.GetIncidentRequest(incident_id=decision.incident_id[:8])),
            "incidents": (audit.ListIncidents, audit_pb2.ListIncidentsRequest()),
            "signals": (audit.ListSignals, audit_pb2.ListSignalsRequest()),
            "timeline": (audit.GetJobTimeline, audit_pb2.GetJobTimelineRequest(job_key=job_key)),
            "actions": (audit.ListActions, audit_pb2.ListActionsRequest()),
            "attempts": (audit.ListAttempts, audit_pb2.ListAttemptsRequest()),
        }
        for what, (method, request) in asked.items():
            got = {who: await method(request, metadata=far.metadata(who)) for who in ("owner", "viewer", "operator")}
            assert _tells(got["owner"]) == _tells(got["operator"]), what
            assert _tells(got["viewer"]) == [], what
            assert decision.advice.attempt.job_id in str(got["viewer"]) or what == "actions", what
            if what in {"decision", "decisions", "incident", "incidents", "signals"}:
                assert _tells(got["owner"]), what
            await _shows_nothing(method, request, far.metadata("stranger"))
        for method, request in (
            (audit.GetNodeHistory, audit_pb2.GetNodeHistoryRequest(cluster=CLUSTER, name="node2")),
            (operator.ListIsolations, operator_pb2.ListIsolationsRequest()),
            (operator.GetStatus, operator_pb2.GetStatusRequest()),
        ):
            assert _tells(await method(request, metadata=far.metadata("viewer"))) == []
        await _over_http(far, number, decision.incident_id, job_key)


async def _shows_nothing(method: Any, request: Message, metadata: Any) -> None:
    """An empty list, or none such: the same as for what does not exist."""
    answer, refused = None, ""
    try:
        answer = await method(request, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        refused = f"{error.code().name} {error.details()}"
    if answer is None:
        assert not hasattr(request, "filter"), "a list is empty, not refused"
        assert refused == "NOT_FOUND there is no such thing among the jobs of eve"
    else:
        assert [field.name for field, _ in answer.ListFields()] == []


async def _over_http(far: Far, decision: str, incident: str, job_key: str) -> None:
    pages = ["/", "/decisions", f"/decisions/{decision}", "/incidents", f"/incidents/{incident}", "/jobs"]
    pages += [f"/jobs/{job_key}", "/nodes", f"/nodes/{CLUSTER}/node2", "/api/v1/decisions", "/api/v1/incidents"]
    pages += [f"/api/v1/decisions/{decision}", "/api/v1/signals", "/api/v1/export/decisions"]
    told = 0
    async with far.browser("viewer") as viewer, far.browser("stranger") as stranger, far.browser("operator") as oscar:
        for page in pages:
            seen = await viewer.get(page)
            assert seen.status_code == 200, (page, seen.text[:300])
            assert _tells(seen.text) == [], page
            nothing = await stranger.get(page)
            assert nothing.status_code in {200, 403, 404}, (page, nothing.text[:300])
            assert _tells(nothing.text) == [], page
            assert "node2" not in nothing.text or "node2" in page, page
            told += bool(_tells((await oscar.get(page)).text))
    assert told >= 4


async def test_nobody_sees_nothing_but_that_we_are_there(far_world: tuple[World, Far]) -> None:
    """Without a credential every page and every path of the API says what to show, whatever is asked of it."""
    world, far = far_world
    number = (await _decided(world)).advice.advice_id
    trusted = ssl.create_default_context(cafile=far.folder / "ca.pem")
    at = f"https://localhost:{far.http_port}"
    async with httpx.AsyncClient(base_url=at, verify=trusted, trust_env=False, timeout=30) as client:
        assert (await client.get("/healthz")).status_code == 200
        described = (await client.get("/openapi.json")).json()["paths"]
        gets = [
            "/",
            "/decisions",
            f"/decisions/{number}",
            "/nodes",
            "/jobs",
            "/audit",
            "/controls",
            "/shadow",
            "/metrics",
        ]
        gets += [path for path, verbs in described.items() if "get" in verbs and "{" not in path]
        for path in gets:
            answer = await client.get(path)
            assert answer.status_code in {400, 401}, (path, answer.text[:200])
            assert "node2" not in answer.text
        for path in (path for path, verbs in described.items() if "post" in verbs):
            answer = await client.post(path.replace("{", "").replace("}", ""), json={})
            assert answer.status_code in {400, 401}, (path, answer.text[:200])


async def test_what_an_operator_does_from_afar_is_audited_with_where_and_by_what(far_world: tuple[World, Far]) -> None:
    """The audit row names the account, the token and the address."""
    world, far = far_world
    async with far.channel() as channel:
        operator = operator_pb2_grpc.OperatorServiceStub(channel)
        request = operator_pb2.PauseRequest(why="maintenance")
        request.until.GetCurrentTime()
        request.until.seconds += 600
        await operator.Pause(request, metadata=far.metadata("operator"))
        with pytest.raises(grpc.aio.AioRpcError, match="needs the role operator"):
            await operator.Pause(request, metadata=far.metadata("viewer"))
        found = await world.audit.ListAudit(audit_pb2.ListAuditRequest(what="paused"))
        assert [(item.who, item.origin) for item in found.records] == [("oscar", "token operator-token from 127.0.0.1")]


async def test_a_command_asks_an_advisor_on_another_host(far_world: tuple[World, Far]) -> None:
    """`--server` with a token shows what the token's user may see, and says what is wrong with it."""
    world, far = far_world
    number = (await _decided(world)).advice.advice_id
    file = far.folder / "my-token"
    where = (
        "--server",
        f"localhost:{far.grpc_port}",
        "--token-file",
        str(file),
        "--ca-file",
        str(far.folder / "ca.pem"),
    )
    for who, code, words in (
        ("viewer", 0, (number, "gpu_hardware", WITHHELD)),
        ("stranger", 1, ("no such thing among the jobs of eve",)),
        ("agent", 1, ("needs the role",)),
    ):
        file.write_text(far.shown[who])
        line = ("-m", "advisor", "decisions", "show", number, "--format", "json", *where)
        command = await asyncio.create_subprocess_exec(sys.executable, *line, stdout=PIPE, stderr=PIPE)
        said = b"".join(await command.communicate()).decode()
        assert command.returncode == code, said
        assert [word for word in words if word not in said] == []
        assert _tells(said) == []


FILES = (agent_pb2, audit_pb2, operator_pb2, report_pb2)
METHODS = [
    (service.name, method)
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
NASTY = ("", "\x00", "eve' OR 1=1 --", "%s%n", "../../etc/passwd", "\u202e", "x" * 5000, "17", CLUSTER, "node2", "*")
OURS = frozenset({"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 250, 251)


def _filled(kind: Descriptor, chance: random.Random, known: Sequence[str], depth: int = 0) -> Message:
    """A message that gRPC takes and that nobody would send."""
    message: Any = GetMessageClass(kind)()
    for field in kind.fields:
        if chance.random() < 0.3:
            continue
        count = chance.choice((1, 1, 3)) if field.is_repeated else 1
        for _ in range(count):
            _put(message, field, chance, known, depth)
    return message


def _put(message: Any, field: FieldDescriptor, chance: random.Random, known: Sequence[str], depth: int) -> None:
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry or depth > 2:
            return
        inner = _filled(field.message_type, chance, known, depth + 1)
        if field.is_repeated:
            getattr(message, field.name).append(inner)
        else:
            getattr(message, field.name).CopyFrom(inner)
        return
    value = _value(field, chance, known)
    try:
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    except (ValueError, TypeError):
        return  # what even protobuf does not take


def _value(field: FieldDescriptor, chance: random.Random, known: Sequence[str]) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(20)
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice((*NASTY, *known))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
        return chance.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
    return chance.choice(NUMBERS)


def _sent(kind: Descriptor, chance: random.Random, known: Sequence[str]) -> Iterator[bytes]:
    """Bytes for one method: strange messages, pieces of them, noise, and more than is taken."""
    for _ in range(ROUNDS):
        data = _filled(kind, chance, known).SerializeToString()
        yield data
        yield data[: chance.randrange(len(data) + 1)]
        spoiled = bytearray(data)
        for _ in range(3 if spoiled else 0):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        yield bytes(spoiled)
        yield chance.randbytes(chance.randrange(40))
    yield b""
    yield b"\x0a\xff\xff\xff\xff\x0f"  # a string of four gigabytes that is not there
    yield b"\x0a\x02\xff\xfe"  # not UTF-8
    yield b"\x0b" * 200  # groups within groups
    yield b"\x0a" + b"\x80" * 20
    yield b"\x0a" * (MESSAGE_BYTES_MAX + 1)


async def test_malformed_and_oversized_messages_break_nothing_and_tell_nothing(far_world: tuple[World, Far]) -> None:
    """Whatever bytes are sent to whatever method by whomever: no error of ours, and no text of another user's job."""
    failed: list[str] = []

    def watch(_logger: object, _name: str, event: Any) -> Any:
        if event.get("event") == "call_failed":
            failed.append(f"{event.get('method')}: {event.get('exc_info')!r}")
        return event

    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[watch, *processors])
    try:
        world, far = far_world
        async with far.channel() as channel:
            decision = await _decided(world)
            advice = decision.advice
            known = (
                advice.advice_id,
                advice.advice_id[:8],
                decision.incident_id,
                advice.attempt.job_key,
                world.session,
            )
            codes = await _fuzz(channel, far, known)
            assert await world.decisions()  # it is well
    finally:
        structlog.configure(processors=processors)
    assert failed == []
    assert codes["OK"] > 100
    assert codes["INVALID_ARGUMENT"] > 100
    assert codes["RESOURCE_EXHAUSTED"] >= len(METHODS) - 1  # too large a message


async def _fuzz(channel: grpc.aio.Channel, far: Far, known: Sequence[str]) -> dict[str, int]:
    codes: dict[str, int] = {}
    wrong: list[str] = []
    chance = random.Random(6)
    for service, method in METHODS:
        needed = NEEDED[f"{service}/{method.name}"]
        trusted = "agent" if needed & Role.AGENT else "operator"
        for who, role in ((trusted, needed), ("viewer", Role.USER | Role.VIEWER), ("stranger", Role.USER)):
            sent = list(_sent(method.input_type, chance, known))
            # Who may not call it is refused whatever he sends; too large a message is refused to all alike.
            sent = sent if who == trusted else sent[:-1] if role & needed else sent[-3:-1]
            answers = await asyncio.gather(*(_raw(channel, service, method, data, far.metadata(who)) for data in sent))
            for data, (code, answer) in zip(sent, answers, strict=True):
                codes[code] = codes.get(code, 0) + 1
                told = who != trusted and any(secret.encode() in answer for secret in SECRETS)
                others = who == "stranger" and service != "OperatorService" and b"node2" in answer
                if code in OURS or told or others:
                    wrong.append(f"{method.name} of {who}: {code} for {data!r}")
    assert wrong == []
    return codes


async def _raw(
    channel: grpc.aio.Channel, service: str, method: MethodDescriptor, data: bytes, metadata: Any
) -> tuple[str, bytes]:
    path = f"/{CONTRACT[service][0]}/{method.name}"
    try:
        if method.server_streaming:
            stream: Any = channel.unary_stream(path)(data, metadata=metadata, timeout=20)
            first = await stream.read()
            stream.cancel()
            return "OK", first if isinstance(first, bytes) else b""
        call: Any = channel.unary_unary(path)(data, metadata=metadata, timeout=20)
        return "OK", await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, (error.details() or "").encode()
