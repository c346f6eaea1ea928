"""TLS: our certificate, read again when it changes, and who a client's certificate stands for."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.x509.oid import NameOID

from advisor.service.callers import Caller, Proof, Role, granted

log = structlog.get_logger(__name__)


class TlsError(Exception):
    """The files cannot be used; one sentence that says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """`client_ca`: whose client certificates are believed, None for nobody's."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_required: bool = False

    def build(self, alpn: Sequence[str]) -> ssl.SSLContext:
        """Raises `TlsError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(list(alpn))
        try:
            mode = self.key.stat().st_mode
        except OSError as error:
            raise TlsError(f"{self.key} cannot be read: {error.strerror}") from None
        if mode & 0o007:
            raise TlsError(f"{self.key} is open to all users: chmod o= it")
        try:
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise TlsError(f"{self.certificate} and {self.key} cannot be used: {_reason(error)}") from None
        if self.client_ca is None:
            return context
        context.verify_mode = ssl.CERT_REQUIRED if self.client_required else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cafile=self.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(f"{self.client_ca} cannot be used: {_reason(error)}") from None
        return context

    def seen(self) -> tuple[tuple[int, ...], ...]:
        """Changes when a file does; a missing file is not an error here."""
        return tuple(_seen(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return getattr(error, "strerror", None) or "not a certificate and its key, in PEM and without a password"


def _seen(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class ServerTls:
    """A context that listeners keep, whose handshakes use the newest files. Connections go on when files change."""

    def __init__(self, files: TlsFiles, alpn: Sequence[str]) -> None:
        """Raises `TlsError`."""
        self._files = files
        self._alpn = tuple(alpn)
        self._seen = files.seen()
        self._newest = files.build(self._alpn)
        self.context = files.build(self._alpn)
        self.context.sni_callback = self._choose

    def _choose(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, with a server name or without one."""
        handshake.context = self._newest

    def refresh(self) -> None:
        """Read files that changed. What cannot be used is told, and the old stays in use."""
        seen = self._files.seen()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._newest = self._files.build(self._alpn)
        except TlsError as error:
            log.error("certificate_unusable", problem=str(error))  # noqa: TRY400 -- the sentence says it all
            return
        log.info("certificate_read", file=str(self._files.certificate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who a certificate stands for: `subject` as configured, `user` "" for the certificate's own name."""

    subject: str
    role: Role
    user: str = ""


class Certificates:
    """Client certificates that TLS has verified → callers."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self._holders = tuple(holders)

    def find(self, der: bytes, peer: str) -> Caller:
        """A certificate that nobody is configured for has a name and no role."""
        certificate = x509.load_der_x509_certificate(der)
        names = names_of(certificate)
        subject = certificate.subject.rfc4514_string()
        roles, user = Role.NONE, ""
        for holder in self._holders:
            if holder.subject in names:
                roles |= holder.role
                user = user or holder.user or holder.subject.partition(":" if ":" in holder.subject else "=")[2]
        known = user or subject or "a certificate without a subject"
        shown = subject or next(iter(sorted(names)), "")
        return Caller(
            name=known[:200], roles=granted(roles), proof=Proof.CERTIFICATE, credential=shown[:300], peer=peer
        )


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """All that a certificate says of its holder, as the configuration spells it."""
    names = {f"SUBJECT:{certificate.subject.rfc4514_string()}"}
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(common) == 1:
        names.add(f"CN={common[0].value!s}")
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset(names)
    names |= {f"DNS:{name}" for name in alternatives.get_values_for_type(x509.DNSName)}
    names |= {f"URI:{name}" for name in alternatives.get_values_for_type(x509.UniformResourceIdentifier)}
    names |= {f"EMAIL:{name}" for name in alternatives.get_values_for_type(x509.RFC822Name)}
    return frozenset(names)
