"""Everything that listens: gRPC and HTTP, on Unix sockets always, over TLS where that is configured."""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from grpc_health.v1 import health
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from advisor.cancelling import cancel
from advisor.config import ConfigError, Problem
from advisor.ports import Clock
from advisor.service.authentication import Authentication
from advisor.service.callers import Accounts, Caller, Callers, Proof, Role
from advisor.service.calls import Calls
from advisor.service.certificates import Certificates, Holder, ServerTls, TlsError, TlsFiles
from advisor.service.gate import Gate
from advisor.service.http.answers import ErrorPage
from advisor.service.http.application import compose
from advisor.service.http.identity import Identify, by_account, by_door
from advisor.service.http.serving import HttpServer
from advisor.service.limits import RateLimits
from advisor.service.oidc import Oidc, OidcTerms
from advisor.service.owned_socket import OwnedSocket
from advisor.service.relaying import Peers
from advisor.service.server import GrpcServing
from advisor.service.tls_door import TlsDoor
from advisor.service.tokens import ROLES, Tokens
from advisor.service_config import LimitsSection, ListenSection, OidcSection, ServiceSection

CERTIFICATES_SECONDS = 1.0  # between looks at our certificate's files
EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - addresses that say of no host which it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Addresses and ports that TLS is listened on, None for neither."""

    grpc: tuple[str, int] | None = None
    http: tuple[str, int] | None = None


def address_of(section: ServiceSection, host: str) -> str:
    """Where this service is asked, for people: its socket, and gRPC's address, by the host's name where it is all."""
    name, _, port = section.listen.grpc.rpartition(":")
    told = [str(section.socket)]
    if port:
        told.append(f"{host if name in EVERYWHERE else name}:{port}")
    return ", ".join(told)


class Front:
    """`reserve`, `open`, `close`, `release`. Closed and released it leaves nothing behind."""

    def __init__(self, section: ServiceSection, clock: Clock) -> None:
        self._section = section
        self._clock = clock
        self._callers = Callers(_accounts(section), clock)
        self._limits = _limits(section.limits, clock)
        self._gate = Gate(section.socket, callers=self._callers, connections_max=section.connections_max)
        self._http_socket = OwnedSocket(section.http_path)
        self._stack = AsyncExitStack()

    @property
    def place(self) -> str:
        """What only one living process at a time can say: which lock it holds."""
        return self._gate.place

    def reserve(self) -> None:
        """Take the locks of the sockets, so that a second service is refused. Raises `SocketTakenError`."""
        self._gate.reserve()
        self._http_socket.reserve()

    async def open(
        self, calls: Calls, routes: Iterable[Sequence[BaseRoute]], error_page: ErrorPage | None = None
    ) -> Listening:
        """Listen, with the contract's methods over gRPC and these routes over HTTP.

        Raises `ConfigError` for files that cannot be used, `ServiceError` for addresses that cannot be listened on.
        """
        section, stack, parts = self._section, self._stack, list(routes)
        listen = section.listen
        authentication = self._authentication(listen) if listen.grpc or listen.http else None
        grpc = GrpcServing(
            calls=calls,
            health=health.aio.HealthServicer(),
            message_bytes_max=section.message_bytes_max,
            limits=self._limits,
            authentication=authentication,
        )

        def application(identify: Identify) -> ASGIApp:
            return compose(
                parts,
                identify=identify,
                body_bytes_max=section.http_body_bytes_max,
                limits=self._limits,
                error_page=error_page,
            )

        await grpc.set_serving()
        await self._callers.prepare()
        stack.push_async_callback(self._gate.close)
        await self._gate.open(grpc.start_inner)
        stack.callback(self._http_socket.remove)
        await self._serve_http(application(by_account(self._callers)), self._http_socket)
        if authentication is None:
            return Listening()
        listening = Listening()
        if listen.grpc:
            listening = replace(listening, grpc=await self._open_grpc(grpc, authentication))
        if listen.http:
            peers = Peers()
            app = application(by_door(peers, authentication))
            listening = replace(listening, http=await self._open_http(app, peers, authentication))
        return listening

    async def _serve_http(self, app: ASGIApp, own: OwnedSocket) -> None:
        server = HttpServer(
            app, own.bind(), connections_max=self._section.connections_max, is_staff=self._callers.is_staff
        )
        self._stack.push_async_callback(server.stop)
        await server.start()

    async def _open_grpc(self, grpc: GrpcServing, authentication: Authentication) -> tuple[str, int]:
        """Known by a certificate: the server that agents on this host use. Not known yet: one that reads no message."""
        inner, outer, peers = self._gate.inner("inner.sock"), self._gate.inner("outer.sock"), self._gate.peers
        server = await grpc.start_outer(outer, peers)
        self._stack.push_async_callback(server.stop, 1.0)

        def to(caller: Caller) -> Path:
            return outer if caller.proof is Proof.NOTHING else inner

        return await self._open_door(self._section.listen.grpc, ("h2",), authentication, to, peers)

    async def _open_http(self, app: ASGIApp, peers: Peers, authentication: Authentication) -> tuple[str, int]:
        own = OwnedSocket(self._gate.inner("http.sock"))
        self._stack.callback(own.release)
        self._stack.callback(own.remove)
        await self._serve_http(app, own)
        return await self._open_door(
            self._section.listen.http, ("http/1.1",), authentication, lambda _caller: own.path, peers
        )

    async def _open_door(
        self,
        address: str,
        alpn: Sequence[str],
        authentication: Authentication,
        to: Callable[[Caller], Path],
        peers: Peers,
    ) -> tuple[str, int]:
        listen = self._section.listen
        if listen.certificate_file is None or listen.key_file is None:
            raise _problem("certificate_file", "must be given to listen on an address")
        files = TlsFiles(
            certificate=listen.certificate_file,
            key=listen.key_file,
            client_ca=listen.client_ca_file,
            client_required=listen.client_certificates == "required",
        )
        try:
            tls = ServerTls(files, alpn)
        except TlsError as error:
            raise _problem("certificate_file", str(error)) from None
        refreshing = asyncio.create_task(self._refresh(tls))
        self._stack.push_async_callback(cancel, refreshing)
        door = TlsDoor(
            address,
            tls=tls,
            who=authentication.connected,
            to=to,
            peers=peers,
            connections_max=self._section.connections_max,
        )
        self._stack.push_async_callback(door.close)
        return await door.open()

    async def _refresh(self, tls: ServerTls) -> None:
        while True:
            await self._clock.sleep(CERTIFICATES_SECONDS)
            tls.refresh()

    def _authentication(self, listen: ListenSection) -> Authentication:
        holders = [Holder(subject=item.subject, role=ROLES[item.role], user=item.user) for item in listen.certificates]
        tokens = Tokens(listen.tokens_file, self._clock) if listen.tokens_file is not None else None
        oidc = None
        if listen.oidc.issuer:
            oidc = _oidc(listen.oidc, self._clock)
            self._stack.push_async_callback(oidc.close)
        return Authentication(limits=self._limits, certificates=Certificates(holders), tokens=tokens, oidc=oidc)

    async def close(self) -> None:
        """Refuse new connections, let calls end, remove the sockets."""
        await self._stack.aclose()

    def release(self) -> None:
        """Let another service have the sockets."""
        self._http_socket.release()
        self._gate.release()


def _problem(key: str, message: str) -> ConfigError:
    return ConfigError((Problem(key=f"service.listen.{key}", message=message, origin="file"),))


def _accounts(section: ServiceSection) -> Accounts:
    return Accounts(
        agents=section.agent_users,
        viewers=section.viewer_users,
        operators=section.operator_users,
        admins=section.admin_users,
        own_jobs=section.own_jobs,
    )


def _limits(section: LimitsSection, clock: Clock) -> RateLimits:
    per_second = {
        Role.NONE: section.unknown,
        Role.USER: section.user,
        Role.VIEWER: section.viewer,
        Role.OPERATOR: section.operator,
        Role.AGENT: section.agent,
    }
    return RateLimits(per_second, burst_seconds=section.burst_seconds, clock=clock)


def _oidc(section: OidcSection, clock: Clock) -> Oidc:
    roles: dict[str, Role] = {}
    for item in section.roles:
        roles[item.value] = roles.get(item.value, Role.NONE) | ROLES[item.role]
    terms = OidcTerms(
        issuer=section.issuer,
        audience=section.audience,
        jwks_url=section.jwks_url,
        algorithms=section.algorithms,
        user_claim=section.user_claim,
        roles_claim=section.roles_claim,
        roles=roles,
        leeway_seconds=section.leeway_seconds,
        keys_seconds=section.keys_seconds,
    )
    verify: ssl.SSLContext | bool = True
    if section.ca_file is not None:
        try:
            verify = ssl.create_default_context(cafile=section.ca_file)
        except (OSError, ValueError):
            raise _problem("oidc.ca_file", f"{section.ca_file} holds no certificate in PEM") from None
    return Oidc(terms, httpx.AsyncClient(verify=verify, follow_redirects=False, trust_env=False), clock)
