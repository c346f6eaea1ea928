"""`[service]`: who may talk to us, where we listen, and by what callers from afar are known.

Without any of it the service listens on Unix sockets only, where the kernel says who calls.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from advisor.config_values import AbsolutePath, AccountName, AccountNames, OptionalPath, Section, as_tuple

SUN_PATH_BYTES = 107
# The gate puts its inner sockets, "<socket>.d/inner.sock", beside the public one.
SOCKET_BYTES_MAX = SUN_PATH_BYTES - len(".d/4294967295.sock")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

RoleName = Literal["user", "viewer", "agent", "operator", "admin"]
Address = Annotated[str, Field(pattern=r"^(([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5})?$")]
# What of a certificate names somebody: its whole subject as RFC 4514, or one alternative name.
Subject = Annotated[str, Field(pattern=r"^(CN=|DNS:|URI:|EMAIL:|SUBJECT:)[^\x00-\x1f]{1,500}$")]
ClaimName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:/.-]{1,200}$")]
Https = Annotated[str, Field(pattern=r"^(https://[^\s?#]+)?$", max_length=2_000)]


class CertificateSection(Section):
    """Who a client's certificate stands for: `subject` is CN=…, DNS:…, URI:…, EMAIL:… or SUBJECT:…"""

    subject: Subject
    role: RoleName
    user: AccountName | Literal[""] = ""


class ClaimSection(Section):
    """A value of the roles claim, and the role that it gives."""

    value: Annotated[str, Field(min_length=1, max_length=500)]
    role: RoleName


class OidcSection(Section):
    """An issuer of bearer tokens. `jwks_url`: empty is what the issuer's own discovery document says."""

    issuer: Https = ""
    audience: Annotated[str, Field(max_length=500)] = ""
    jwks_url: Https = ""
    ca_file: OptionalPath = None
    algorithms: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ("RS256", "ES256")
    user_claim: ClaimName = "preferred_username"
    roles_claim: ClaimName = "groups"
    roles: Annotated[tuple[ClaimSection, ...], BeforeValidator(as_tuple)] = ()
    leeway_seconds: float = Field(default=30.0, ge=0, le=300, allow_inf_nan=False)
    keys_seconds: float = Field(default=300.0, ge=10, le=86_400, allow_inf_nan=False)


class ListenSection(Section):
    """TCP, with TLS and authentication or not at all. `grpc`, `http`: host:port, empty for neither."""

    grpc: Address = ""
    http: Address = ""
    certificate_file: OptionalPath = None
    key_file: OptionalPath = None
    client_ca_file: OptionalPath = None
    client_certificates: Literal["accepted", "required"] = "accepted"
    tokens_file: OptionalPath = None
    certificates: Annotated[tuple[CertificateSection, ...], BeforeValidator(as_tuple)] = ()
    oidc: OidcSection = Field(default_factory=OidcSection)


class LimitsSection(Section):
    """Calls per second of one caller, by the greatest of his roles. `burst_seconds`: what may be saved up."""

    unknown: float = Field(default=2.0, gt=0, le=100_000, allow_inf_nan=False)
    user: float = Field(default=10.0, gt=0, le=100_000, allow_inf_nan=False)
    viewer: float = Field(default=25.0, gt=0, le=100_000, allow_inf_nan=False)
    operator: float = Field(default=50.0, gt=0, le=100_000, allow_inf_nan=False)
    agent: float = Field(default=500.0, gt=0, le=100_000, allow_inf_nan=False)
    burst_seconds: float = Field(default=4.0, ge=1, le=60, allow_inf_nan=False)


def _own_folder(system: str, variable: str, fallback: str, systemd: str) -> Path:
    """Root and systemd services use the system's folders, an ordinary user his own."""
    given = os.environ.get(systemd, "").split(":")[0]
    if given.startswith("/"):
        return Path(given)
    if os.geteuid() == 0:
        return Path(system)
    base = os.environ.get(variable, "")
    return (Path(base) if base.startswith("/") else Path.home() / fallback) / "recovery-advisor"


def default_data_dir() -> Path:
    return _own_folder("/var/lib/recovery-advisor", "XDG_STATE_HOME", ".local/state", "STATE_DIRECTORY")


def default_socket() -> Path:
    if os.geteuid() != 0 and not os.environ.get("RUNTIME_DIRECTORY") and not os.environ.get("XDG_RUNTIME_DIR"):
        return default_data_dir() / "run" / "advisor.sock"
    folder = _own_folder("/run/recovery-advisor", "XDG_RUNTIME_DIR", ".local/state", "RUNTIME_DIRECTORY")
    return folder / "advisor.sock"


class ServiceSection(Section):
    """Who may talk to us, and where."""

    socket: AbsolutePath = Field(default_factory=default_socket)
    http_socket: OptionalPath = None
    data_dir: AbsolutePath = Field(default_factory=default_data_dir)
    agent_users: AccountNames = ("slurm",)
    viewer_users: AccountNames = ()
    operator_users: AccountNames = ("root",)
    admin_users: AccountNames = ("root",)
    own_jobs: bool = True
    connections_max: int = Field(default=128, ge=4, le=10_000)
    message_bytes_max: int = Field(default=16 * 1024 * 1024, ge=65_536, le=256 * 1024 * 1024)
    observations_max: int = Field(default=20_000, ge=1, le=200_000)
    http_body_bytes_max: int = Field(default=1024 * 1024, ge=4096, le=64 * 1024 * 1024)
    keepalive_seconds: float = Field(default=0.5, ge=0.05, le=1.0)
    listen: ListenSection = Field(default_factory=ListenSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)

    @property
    def http_path(self) -> Path:
        """Where HTTP is served: as configured, otherwise beside the socket of gRPC."""
        return self.http_socket or self.socket.with_name(f"{self.socket.stem}-http{self.socket.suffix or '.sock'}")


def problems_of(section: ServiceSection) -> Iterator[tuple[str, str]]:
    """Keys below `service` that do not go with each other, and what is wrong."""
    if len(os.fsencode(section.socket)) > SOCKET_BYTES_MAX:
        yield "socket", f"longer than {SOCKET_BYTES_MAX} bytes: no Unix socket can have that name"
    if section.http_socket is not None and len(os.fsencode(section.http_socket)) > SUN_PATH_BYTES:
        yield "http_socket", f"longer than {SUN_PATH_BYTES} bytes: no Unix socket can have that name"
    if section.http_path == section.socket:
        yield "http_socket", "is the socket of gRPC: HTTP needs one of its own"
    for key, message in _listen_problems(section.listen):
        yield f"listen.{key}", message


def _listen_problems(listen: ListenSection) -> Iterator[tuple[str, str]]:
    places = [key for key in ("grpc", "http") if getattr(listen, key)]
    for key in places:
        if not 0 < int(getattr(listen, key).rpartition(":")[2]) <= 65535:
            yield key, "a port is from 1 to 65535"
    if len(places) == 2 and listen.grpc == listen.http:
        yield "http", "is the address of gRPC: HTTP needs a port of its own"
    if (listen.certificate_file is None) != (listen.key_file is None):
        yield "key_file", "certificate_file and key_file go together"
    known_by = listen.client_ca_file is not None or listen.tokens_file is not None or listen.oidc.issuer != ""
    for key in places:
        # Also on 127.0.0.1: whoever has an account on the host could connect there, and nothing would tell who.
        if listen.certificate_file is None:
            yield key, "is not listened on without TLS, on no address: give certificate_file and key_file"
        if not known_by:
            text = "give tokens_file, client_ca_file or oidc.issuer"
            yield key, f"is not listened on without knowing who calls, on no address: {text}"
    if listen.client_ca_file is None and listen.client_certificates == "required":
        yield "client_certificates", "needs client_ca_file: which authority is believed"
    if listen.client_ca_file is None and listen.certificates:
        yield "certificates", "needs client_ca_file: which authority is believed"
    if listen.client_ca_file is not None and not listen.certificates and listen.client_certificates == "accepted":
        yield "client_ca_file", "has no effect without certificates, which say who has which role"
    subjects = [item.subject for item in listen.certificates]
    for subject in sorted({item for item in subjects if subjects.count(item) > 1}):
        yield "certificates", f"{subject} is named more than once: list one role for it, the greatest"
    for key, message in _oidc_problems(listen.oidc):
        yield f"oidc.{key}", message


def _oidc_problems(oidc: OidcSection) -> Iterator[tuple[str, str]]:
    if not oidc.issuer:
        for key in ("audience", "jwks_url", "roles"):
            if getattr(oidc, key):
                yield key, "has no meaning without issuer"
        return
    if not oidc.audience:
        yield "audience", "must be given: a token for somebody else is not one for us"
    if not oidc.roles:
        yield "roles", "must name a value of the claim for at least one role: nobody could do anything"
    if not oidc.algorithms:
        yield "algorithms", "name one or more"
    for name in oidc.algorithms:
        if name not in ALGORITHMS:
            # HS256 would take the public key for a shared secret, and "none" takes anything.
            yield "algorithms", f"{name!r} is not one of {', '.join(ALGORITHMS)}"
    for key in ("issuer", "jwks_url"):
        if re.search(r"@", urlsplit(getattr(oidc, key)).netloc):
            yield key, "may not hold a user or a password"
