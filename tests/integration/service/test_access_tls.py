"""Callers from afar, with real TLS: certificates, tokens and an issuer's bearer tokens, over gRPC and HTTP alike."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import jwt
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from advisor.clock import SystemClock
from advisor.config import ConfigError
from advisor.service import tokens
from advisor.service.access import require
from advisor.service.callers import Caller, Role
from advisor.service.calls import Calls
from advisor.service.errors import UnauthenticatedError
from advisor.service.http.application import caller_of
from advisor.service.server import Guard
from advisor.service_config import LimitsSection, ListenSection, ServiceSection
from advisor.serving import Front
from advisor.v1 import agent_pb2, agent_pb2_grpc, operator_pb2, operator_pb2_grpc
from slurm_plugin.reach import Reach
from tests.integration.service.pki import Authority, Issuer, issuer_of

BIG_BYTES = 8 * 1024 * 1024
MANY = LimitsSection(unknown=1000, user=1000, viewer=1000, operator=1000, agent=1000)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tls-") as name:
        yield Path(name)


class Operator(operator_pb2_grpc.OperatorServiceServicer):
    """Answers with who asked and from where."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def ListModes(self, request: object, context: object) -> operator_pb2.ListModesResponse:  # noqa: N802
        setting = operator_pb2.ModeSetting(set_by=self._caller.name, why=self._caller.origin)
        return operator_pb2.ListModesResponse(settings=[setting])


class Agent(agent_pb2_grpc.AgentServiceServicer):
    """Takes heartbeats, and streams without end."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def Heartbeat(self, request: object, context: object) -> agent_pb2.HeartbeatResponse:  # noqa: N802
        return agent_pb2.HeartbeatResponse(incarnation=f"{self._caller.name}: {self._caller.origin}")

    async def WatchAdvice(self, request: object, context: object) -> AsyncIterator[agent_pb2.WatchAdviceResponse]:  # noqa: N802
        while True:
            yield agent_pb2.WatchAdviceResponse(ticks=1)
            await asyncio.sleep(0.01)


def _routes() -> list[BaseRoute]:
    async def who(request: Request) -> Response:
        caller = caller_of(request)
        require(caller, "OperatorService/ListModes")
        return JSONResponse({"name": caller.name, "origin": caller.origin})

    async def big(_request: Request) -> Response:
        return Response(b"x" * BIG_BYTES)

    return [Route("/who", who), Route("/big", big)]


@dataclass(slots=True, kw_only=True)
class Site:
    """A service that listens with TLS, and what its clients need."""

    folder: Path
    authority: Authority
    grpc_port: int = 0
    http_port: int = 0

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens"

    def token(self, role: str, user: str = "alice", name: str = "laptop") -> str:
        return tokens.add(self.tokens, name=name, role=role, user=user, expires=None)

    def context(self, client: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.file)
        if client:
            context.load_cert_chain(self.folder / f"{client}.crt", self.folder / f"{client}.key")
        return context

    async def http_get(self, token: str = "", client: str = "", path: str = "/who") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(verify=self.context(client), trust_env=False) as session:
            return await session.get(f"https://localhost:{self.http_port}{path}", headers=headers)

    @asynccontextmanager
    async def channel(self, client: str = "") -> AsyncIterator[grpc.aio.Channel]:
        own = [(self.folder / f"{client}.{end}").read_bytes() for end in ("key", "crt")] if client else [None, None]
        credentials = grpc.ssl_channel_credentials(self.authority.file.read_bytes(), *own)
        async with grpc.aio.secure_channel(f"localhost:{self.grpc_port}", credentials) as channel:
            yield channel

    async def grpc_who(self, token: str = "", client: str = "") -> tuple[str, str]:
        """(name, origin), or (status, text) of the refusal."""
        metadata = [("authorization", f"Bearer {token}")] if token else []
        async with self.channel(client) as channel:
            call = operator_pb2_grpc.OperatorServiceStub(channel).ListModes(
                operator_pb2.ListModesRequest(), metadata=metadata, timeout=10
            )
            try:
                setting = (await call).settings[0]
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details() or ""
        return setting.set_by, setting.why


@asynccontextmanager
async def site_of(folder: Path, *, limits: LimitsSection = MANY, **listen: Any) -> AsyncIterator[Site]:
    authority = Authority(folder)
    certificate, key = authority.issue("server")
    site = Site(folder=folder, authority=authority)
    site.tokens.touch(0o600)
    given: dict[str, Any] = {
        "grpc": "127.0.0.1:0",
        "http": "localhost:0",
        "certificate_file": str(certificate),
        "key_file": str(key),
        "tokens_file": str(site.tokens),
    }
    section = ServiceSection(
        socket=str(folder / "s.sock"),  # type: ignore[arg-type]  # as it stands in the file
        data_dir=str(folder),  # type: ignore[arg-type]  # likewise
        listen=ListenSection.model_validate(given | listen),
        limits=limits,
    )
    front = Front(section, SystemClock())
    try:
        front.reserve()
        listening = await front.open(Calls({"OperatorService": Operator, "AgentService": Agent}), [_routes()])
        assert listening.grpc is not None
        assert listening.http is not None
        site.grpc_port, site.http_port = listening.grpc[1], listening.http[1]
        yield site
    finally:
        await front.close()
        front.release()


async def test_a_token_is_somebody_over_grpc_and_http_alike(folder: Path) -> None:
    """The token's user is the caller, its name and the address are in the origin, and its role is what counts."""
    async with site_of(folder) as site:
        viewer, agent = site.token("viewer"), site.token("agent", name="robot")
        assert await site.grpc_who(viewer) == ("alice", "token laptop from 127.0.0.1")
        answer = await site.http_get(viewer)
        assert answer.json() == {"name": "alice", "origin": "token laptop from 127.0.0.1"}
        assert "max-age" in answer.headers["Strict-Transport-Security"]
        assert (await site.grpc_who(agent))[0] == "PERMISSION_DENIED"
        assert (await site.http_get(agent)).status_code == 403


async def test_who_shows_nothing_or_something_wrong_is_nobody(folder: Path) -> None:
    """Without a credential, or with one that is not known, there is no answer but what to show."""
    async with site_of(folder) as site:
        for wrong in ("", "advt_guess", "a.b.c", "x" * 9000):
            code, text = await site.grpc_who(wrong)
            assert code == "UNAUTHENTICATED"
            assert "token" in text
            assert "guess" not in text
            answer = await site.http_get(wrong)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert (await site.http_get(path="/nowhere")).status_code == 404


async def test_a_token_that_is_taken_back_is_no_longer_good(folder: Path) -> None:
    """The file is read again when it changes: one token goes, another stays; a file open to others lets none in."""
    async with site_of(folder) as site:
        first, second = site.token("operator"), site.token("operator", user="bob", name="second")
        assert (await site.grpc_who(first))[0] == "alice"
        tokens.revoke(site.tokens, "laptop")
        assert (await site.grpc_who(first))[0] == "UNAUTHENTICATED"
        assert (await site.grpc_who(second))[0] == "bob"
        site.tokens.chmod(0o666)
        assert (await site.grpc_who(second))[0] == "UNAUTHENTICATED"
        site.tokens.chmod(0o600)
        assert (await site.grpc_who(second))[0] == "bob"


async def test_a_client_certificate_is_who_the_configuration_says(folder: Path) -> None:
    """By its name or an alternative name it has the configured role; one that is not configured has none."""
    listen = {
        "client_ca_file": str(folder / "ca.pem"),
        "certificates": [
            {"subject": "CN=ops", "role": "operator", "user": "oscar"},
            {"subject": "URI:spiffe://site/agent", "role": "agent"},
        ],
    }
    async with site_of(folder, **listen) as site:
        site.authority.issue("ops")
        site.authority.issue("stranger")
        site.authority.issue("host1", uri="spiffe://site/agent")
        Authority(folder, "other").issue("ops", to="forged")
        assert await site.grpc_who(client="ops") == ("oscar", "certificate CN=ops from 127.0.0.1")
        assert (await site.http_get(client="ops")).json()["name"] == "oscar"
        code, text = await site.grpc_who(client="stranger")
        assert code == "PERMISSION_DENIED"
        assert "CN=stranger" in text
        async with site.channel("host1") as channel:
            beat = await agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(agent_pb2.HeartbeatRequest())
        assert beat.incarnation.startswith("//site/agent: ") or beat.incarnation.startswith("spiffe://site/agent: ")
        assert (await site.grpc_who(client="forged"))[0] == "UNAVAILABLE"
        # A token that is shown counts instead of the certificate.
        assert (await site.grpc_who(site.token("viewer"), client="ops"))[0] == "alice"


async def test_where_certificates_are_required_a_token_alone_does_not_connect(folder: Path) -> None:
    """With `required` the handshake fails without one."""
    async with site_of(folder, client_ca_file=str(folder / "ca.pem"), client_certificates="required") as site:
        site.authority.issue("any")
        token = site.token("operator")
        assert (await site.grpc_who(token))[0] == "UNAVAILABLE"
        assert (await site.grpc_who(token, client="any"))[0] == "alice"


async def test_a_new_certificate_is_used_and_open_streams_go_on(folder: Path) -> None:
    """New connections meet the new certificate, also of another authority, while a stream that is open goes on."""
    async with site_of(folder) as site:
        token = site.token("agent")
        async with site.channel() as channel:
            stream = agent_pb2_grpc.AgentServiceStub(channel).WatchAdvice(
                agent_pb2.WatchAdviceRequest(), metadata=[("authorization", f"Bearer {token}")]
            )
            assert await stream.read()
            site.authority = Authority(folder, "next")
            site.authority.issue("server")
            async with asyncio.timeout(20):
                while True:  # looked at every few seconds
                    with contextlib.suppress(httpx.ConnectError):
                        if (await site.http_get(path="/nowhere")).status_code == 404:
                            break
                    await asyncio.sleep(0.2)
            assert await stream.read()
            stream.cancel()


@asynccontextmanager
async def oidc_site(folder: Path, limits: LimitsSection = MANY) -> AsyncIterator[tuple[Site, Issuer]]:
    async with issuer_of(Authority(folder, "idp")) as issuer:
        oidc = {
            "issuer": issuer.url,
            "audience": "advisor",
            "ca_file": str(folder / "idp.pem"),
            "roles": [{"value": "advisor-operators", "role": "operator"}, {"value": "all", "role": "user"}],
        }
        async with site_of(folder, limits=limits, oidc=oidc) as site:
            yield site, issuer


async def test_an_issuers_token_gives_the_roles_of_its_claims(folder: Path) -> None:
    """User and roles come from the claims; a value that is not mapped gives nothing."""
    async with oidc_site(folder) as (site, issuer):
        assert await site.grpc_who(issuer.token()) == ("alice", "oidc 0815 from 127.0.0.1")
        assert (await site.http_get(issuer.token())).json()["name"] == "alice"
        assert (await site.grpc_who(issuer.token(groups="advisor-operators")))[0] == "alice"
        assert (await site.grpc_who(issuer.token(groups=["all"])))[0] == "PERMISSION_DENIED"
        assert (await site.grpc_who(issuer.token(groups=["somebody", 5, None])))[0] == "PERMISSION_DENIED"
        assert (await site.grpc_who(issuer.token(groups={"advisor-operators": 1})))[0] == "PERMISSION_DENIED"
        assert issuer.asked == 2  # the discovery document and the keys, once


async def test_tokens_that_must_not_be_believed_are_not(folder: Path) -> None:
    """Expired, early, for others, of others, incomplete, unsigned, wrongly signed: each is refused, and says why."""
    now = SystemClock().now()
    async with oidc_site(folder) as (site, issuer):
        forger = Issuer(url=issuer.url)
        forger.rotate("first")
        wrong = {
            "expired": issuer.token(exp=now - timedelta(minutes=1)),
            "not good yet": issuer.token(nbf=now + timedelta(minutes=5)),
            "another audience": issuer.token(aud="other"),
            "another issuer": issuer.token(iss="https://evil.example"),
            "missing": issuer.token(exp=None),
            "signature is wrong": forger.token(),
            "not one of RS256": jwt.encode({"iss": issuer.url}, None, algorithm="none", headers={"kid": "first"}),
            "not one of RS256, ES256": confused(issuer),
            "name of an account": issuer.token(preferred_username="eve; rm"),
            "does not name": issuer.token(headers={"kid": "unheard-of"}),
        }
        for why, token in wrong.items():
            code, text = await site.grpc_who(token)
            assert code == "UNAUTHENTICATED", why
            assert why in text
            assert (await site.http_get(token)).status_code == 401
        within = issuer.token(exp=now - timedelta(seconds=10))
        assert (await site.grpc_who(within))[0] == "alice"  # within the leeway


def confused(issuer: Issuer) -> str:
    """An HMAC whose secret is the issuer's public key: good for whoever lets the token choose the algorithm."""
    key = issuer.keys["first"].public_key()
    public = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    until = int((SystemClock().now() + timedelta(minutes=5)).timestamp())
    claims = {"iss": issuer.url, "aud": "advisor", "exp": until, "preferred_username": "eve", "groups": ["all"]}
    signed = part({"alg": "HS256", "typ": "JWT", "kid": "first"}) + b"." + part(claims)
    mac = base64.urlsafe_b64encode(hmac.new(public, signed, hashlib.sha256).digest()).rstrip(b"=")
    return (signed + b"." + mac).decode()


async def test_a_new_key_of_the_issuer_is_fetched_and_inventions_are_not_asked_for_again(folder: Path) -> None:
    """A key id that is not known makes one look at the issuer, and then none for a while."""
    async with oidc_site(folder) as (site, issuer):
        issuer.rotate("second")
        assert (await site.grpc_who(issuer.token()))[0] == "alice"
        asked = issuer.asked
        for number in range(5):
            assert (await site.grpc_who(issuer.token(headers={"kid": f"k{number}"})))[0] == "UNAUTHENTICATED"
        assert issuer.asked == asked


async def test_an_agent_far_away_is_known_by_its_token_or_its_certificate(folder: Path) -> None:
    """The agent's own way to the advisor: the token file is read for each call, and a certificate needs no token."""
    listen = {"client_ca_file": str(folder / "ca.pem"), "certificates": [{"subject": "CN=ctl", "role": "agent"}]}
    async with site_of(folder, **listen) as site:
        file = folder / "agent-token"
        file.write_text(site.token("agent", user="slurm", name="first") + "\n")
        target, ca = f"localhost:{site.grpc_port}", str(site.authority.file)
        beat = agent_pb2.HeartbeatRequest()
        by_token = Reach(target=target, secured=True, ca_file=ca, token_file=str(file))
        async with by_token.channel(()) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            assert (await stub.Heartbeat(beat)).incarnation == "slurm: token first from 127.0.0.1"
            tokens.revoke(site.tokens, "first")
            with pytest.raises(grpc.aio.AioRpcError, match="not known"):
                await stub.Heartbeat(beat)
            file.write_text(site.token("agent", user="slurm", name="next"))
            assert (await stub.Heartbeat(beat)).incarnation == "slurm: token next from 127.0.0.1"
        certificate, key = site.authority.issue("ctl")
        by_certificate = Reach(
            target=target, secured=True, ca_file=ca, certificate_file=str(certificate), key_file=str(key)
        )
        async with by_certificate.channel(()) as channel:
            answer = await agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(beat)
        assert answer.incarnation == "ctl: certificate CN=ctl from 127.0.0.1"


async def test_wrong_credentials_are_slowed_down_and_good_ones_are_not(folder: Path) -> None:
    """After some guesses an address must wait, over gRPC and HTTP, and is told how long; good callers go on."""
    limits = LimitsSection(unknown=0.5, operator=1000, burst_seconds=4)
    async with site_of(folder, limits=limits) as site:
        good = site.token("operator")
        assert [(await site.http_get("advt_guess")).status_code for _ in range(4)] == [401, 401, 429, 429]
        answer = await site.http_get("advt_guess")
        assert int(answer.headers["Retry-After"]) >= 1
        code, _ = await site.grpc_who("advt_guess")
        assert code == "RESOURCE_EXHAUSTED"
        assert (await site.http_get(good)).status_code == 200
        assert (await site.grpc_who(good))[0] == "alice"


async def test_a_callers_own_calls_are_limited_by_his_role(folder: Path) -> None:
    """A viewer's burst is used up, and a second viewer has one of his own."""
    async with site_of(folder, limits=LimitsSection(viewer=0.5, burst_seconds=4)) as site:
        first, second = site.token("viewer"), site.token("viewer", user="bob", name="second")
        codes = [(await site.http_get(first)).status_code for _ in range(3)]
        assert codes == [200, 200, 429]
        assert (await site.http_get(second)).status_code == 200


async def test_a_long_answer_arrives_whole_when_the_connection_ends_with_it(folder: Path) -> None:
    """What the server has said before it closes is sent to the end."""
    async with site_of(folder) as site, httpx.AsyncClient(verify=site.context(), trust_env=False) as session:
        answer = await session.get(f"https://localhost:{site.http_port}/big", headers={"Connection": "close"})
    assert len(answer.content) == BIG_BYTES


async def test_a_stream_ends_when_its_caller_is_no_longer_known() -> None:
    """While advice is watched the caller is asked for again: taking a token back ends what it opened."""
    good = True

    async def identify(_context: object) -> Caller:
        if not good:
            raise UnauthenticatedError("the token is not known")
        return Caller(name="slurm", roles=Role.AGENT)

    guard = Guard(Calls({"AgentService": Agent}), identify, None, None, caller_seconds=0.05)
    server = grpc.aio.server(interceptors=[guard])
    agent_pb2_grpc.add_AgentServiceServicer_to_server(agent_pb2_grpc.AgentServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(20):
            stream = agent_pb2_grpc.AgentServiceStub(channel).WatchAdvice(agent_pb2.WatchAdviceRequest())
            assert await stream.read()
            good = False
            with pytest.raises(grpc.aio.AioRpcError, match="not known"):
                await _to_the_end(stream)
    finally:
        await server.stop(None)


async def _to_the_end(stream: "grpc.aio.UnaryStreamCall[Any, Any]") -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_one_address_cannot_take_all_connections(folder: Path) -> None:
    """Connections of one address are bounded before TLS begins, and the Unix socket is served all the while."""
    async with site_of(folder) as site:
        held = [await asyncio.open_connection("127.0.0.1", site.http_port) for _ in range(40)]
        ended = 0
        for reader, _ in held:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    ended += await reader.read(1) == b""
        assert ended == 40 - 32
        for _, writer in held:
            writer.close()


async def test_without_tls_files_that_can_be_used_nothing_is_listened_on(folder: Path) -> None:
    """A key that is open to all, or no certificate at all, keeps the service from starting, with the file's name."""
    authority = Authority(folder)
    _, key = authority.issue("server")
    for change, word in ((lambda: key.chmod(0o644), "chmod"), (lambda: key.write_text("nonsense"), "cannot be used")):
        key.chmod(0o600)
        change()
        given = {"certificate_file": str(folder / "server.crt"), "key_file": str(key)}
        listen = ListenSection.model_validate({"http": "127.0.0.1:0", "tokens_file": "/t"} | given)
        front = Front(_section(folder, listen), SystemClock())
        try:
            front.reserve()
            with pytest.raises(ConfigError, match=word):
                await front.open(Calls({}), [])
        finally:
            await front.close()
            front.release()


def _section(folder: Path, listen: ListenSection) -> ServiceSection:
    return ServiceSection.model_validate({"socket": str(folder / "s.sock"), "data_dir": str(folder)}).model_copy(
        update={"listen": listen}
    )


async def test_no_secret_is_ever_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run with every kind of credential, good and bad, leaves none of them in any log line."""
    said: list[str] = []

    def keep(_logger: object, _name: str, event: Any) -> Any:
        said.append(repr(event))
        raise structlog.DropEvent

    caplog.set_level(logging.DEBUG)
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[keep])
    try:
        secrets = await _use_every_credential(folder)
    finally:
        structlog.configure(processors=before)
    assert said
    # Libraries inside the service speak too; httpx is also this test's own client, which names what it asks for.
    said += [item.getMessage() for item in caplog.records if not item.name.startswith(("httpx", "httpcore"))]
    for secret in secrets:
        assert not any(secret in line for line in said)


async def _use_every_credential(folder: Path) -> Sequence[str]:
    async with oidc_site(folder) as (site, issuer):
        token = site.token("operator")
        bad = issuer.token(aud="other")
        given = [token, issuer.token(), bad, "advt_a-guess-that-is-wrong", "Zm9v.YmFy.YmF6", "hunter2-hunter2"]
        for secret in given:
            await site.grpc_who(secret)
            await site.http_get(secret)
            await site.http_get(path=f"/who?token={secret}")
        with site.tokens.open("a") as file:
            file.write(f"{token} is not a line of the file\n")
        await site.http_get(token)
        return [*given, token.removeprefix(tokens.PREFIX), bad.split(".")[2], tokens.digest_of(token)]
