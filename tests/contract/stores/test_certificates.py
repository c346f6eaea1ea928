"""A store behind mutual TLS: both sides show certificates, and ours is loaded again when it was renewed."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.stores.front import Front
from tests.contract.stores.world import LogBatch, Unavailable, UnavailableReason, World, ask

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


class Authority:
    """Signs certificates for a minute's use."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._openssl(
            "req", "-x509", *self._key(name), "-subj", f"/CN={name}", "-days", "2", "-out", str(self.path("crt", name))
        )

    def path(self, kind: str, name: str) -> Path:
        return self.folder / f"{self.name}-{name}.{kind}"

    @property
    def certificate(self) -> Path:
        return self.path("crt", self.name)

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        request, certificate = self.path("csr", name), self.path("crt", name)
        self._openssl("req", *self._key(name), "-subj", f"/CN={name}", "-out", str(request))
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost\n")
        self._openssl(
            *("x509", "-req", "-in", str(request), "-out", str(certificate), "-days", "2", "-CAcreateserial"),
            *("-CA", str(self.certificate), "-CAkey", str(self.path("key", self.name)), "-extfile", str(extensions)),
        )
        return certificate, self.path("key", name)

    def _key(self, name: str) -> tuple[str, ...]:
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(self.path("key", name))

    @staticmethod
    def _openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("certificates")
    return Authority(folder, "ours"), Authority(folder, "others")


@pytest.fixture
async def secured(stored: World, authorities: tuple[Authority, Authority]) -> AsyncIterator[World]:
    """The world's store behind a front that asks for a certificate of our authority."""
    ours, _ = authorities
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.issue("server"))
    context.load_verify_locations(ours.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    assert stored.front is not None
    plain = stored.front
    stored.front = Front(plain.behind, tls=context)
    await stored.front.start()
    yield stored
    for source in stored.sources:
        await source.close()
    stored.sources.clear()
    await stored.front.stop()
    stored.front = plain


async def test_both_sides_show_certificates(secured: World, authorities: tuple[Authority, Authority]) -> None:
    """With a certificate of the right authority lines are read; a server that we do not trust is not asked."""
    ours, others = authorities
    certificate, key = ours.issue("client")
    await secured.write("x")
    source = secured.make(ca_file=ours.certificate, certificate_file=certificate, key_file=key)
    assert isinstance(await ask(source, secured.request()), LogBatch)
    source = secured.make(ca_file=others.certificate, certificate_file=certificate, key_file=key)
    answer = await ask(source, secured.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.REFUSED
    assert "certificate" in answer.detail.lower()


async def test_a_renewed_certificate_is_used_at_once(
    secured: World, authorities: tuple[Authority, Authority], tmp_path: Path
) -> None:
    """One that the server does not take is absence; when the files are replaced the next question uses them."""
    ours, others = authorities
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"

    def install(authority: Authority) -> None:
        for kind, path in zip(authority.issue("client"), (certificate, key), strict=True):
            shutil.copy(kind, path)

    install(others)
    await secured.write("x")
    source = secured.make(ca_file=ours.certificate, certificate_file=certificate, key_file=key)
    assert isinstance(await ask(source, secured.request()), Unavailable)
    install(ours)
    await asyncio.sleep(0.11)  # the breaker's pause
    assert isinstance(await ask(source, secured.request()), LogBatch)
    key.unlink()
    answer = await ask(source, secured.request('{"v":1,"store":{"r":1,"s":1,"w":1,"a":true}}'))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.PERMISSION
    assert str(key) in answer.detail
