"""A certificate authority of the tests' own, and an OpenID Connect issuer that signs with real keys."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from advisor.clock import SystemClock


def _now() -> Any:
    return SystemClock().now()


class Authority:
    """Signs certificates; its own is `folder/ca.pem`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")])
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file = folder / f"{name}.pem"
        signed = certificate.sign(self._key, hashes.SHA256())
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_now() - timedelta(hours=1))
            .not_valid_after(_now() + timedelta(days=1))
        )

    def issue(self, name: str, *, uri: str = "", to: str = "") -> tuple[Path, Path]:
        """Certificate and key of CN=`name`, good for this host; files named by `to`, else by the name."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ip_address("127.0.0.1")),
        ]
        if uri:
            alternatives.append(x509.UniformResourceIdentifier(uri))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate, private = self._folder / f"{to or name}.crt", self._folder / f"{to or name}.key"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        private.chmod(0o600)
        return certificate, private


@dataclass(slots=True)
class Issuer:
    """Serves its discovery document and its keys over TLS; `keys` may be changed while it runs."""

    url: str = ""
    keys: dict[str, Any] = field(default_factory=dict)
    asked: int = 0

    def rotate(self, name: str) -> None:
        self.keys = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048)}

    def token(self, *, headers: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Signed with the only key; claims override good ones, None leaves one out."""
        name = next(iter(self.keys))
        good = {
            "iss": self.url,
            "aud": "advisor",
            "sub": "0815",
            "exp": _now() + timedelta(minutes=5),
            "preferred_username": "alice",
            "groups": ["advisor-operators"],
        }
        given = {name: value for name, value in (good | claims).items() if value is not None}
        return jwt.encode(given, self.keys[name], algorithm="RS256", headers={"kid": name} | dict(headers or {}))

    def jwks(self) -> dict[str, Any]:
        return {"keys": [_jwk(name, key) for name, key in self.keys.items()]}


def _jwk(name: str, key: Any) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": name, "n": _number(numbers.n), "e": _number(numbers.e)}


def _number(value: int) -> str:
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@asynccontextmanager
async def issuer_of(authority: Authority) -> AsyncIterator[Issuer]:
    """An issuer that answers on a port of this host."""
    issuer = Issuer()
    issuer.rotate("first")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        issuer.asked += 1
        discovery = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
        body = json.dumps(discovery if "openid-configuration" in head else issuer.jwks()).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("issuer"))
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    issuer.url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        server.close()
        await server.wait_closed()
