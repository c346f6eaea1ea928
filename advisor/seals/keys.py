"""Keys that sign seals: Ed25519, in PEM files.

`FILE` holds the private key (mode 0600), `FILE.pub` the public one, and after a change of keys `FILE.endorsement` the
former key's signature of the new one, so that who trusts the former public key trusts what comes after it.

Errors::

    Exception
    └── SealKeyError   a key or its file cannot be used; the text is one line that says why
"""

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from advisor.seals.documents import NewKey

_SEAL = b"advisor seal 1\0"
_KEY = b"advisor seal key 1\0"
_FILE_BYTES_MAX = 16_384


class SealKeyError(Exception):
    """A key or its file cannot be used."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    raw: bytes

    @property
    def fingerprint(self) -> str:
        """The first 128 bits of its SHA-256: how seals and people name it."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    def signed(self, document: bytes, signature: bytes) -> bool:
        return self._verified(_SEAL + document, signature)

    def endorsed(self, other: "PublicKey", endorsement: bytes) -> bool:
        return self._verified(_KEY + other.raw, endorsement)

    def _verified(self, message: bytes, signature: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class SealKey:
    """A private key, and what the former key says of it."""

    def __init__(self, private: Ed25519PrivateKey, *, endorsed_by: str = "", endorsement: str = "") -> None:
        self._private = private
        raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.public = PublicKey(raw)
        self.notice = NewKey(public=raw.hex(), endorsed_by=endorsed_by, endorsement=endorsement)

    @classmethod
    def new(cls, former: "SealKey | None" = None) -> "SealKey":
        private = Ed25519PrivateKey.generate()
        if former is None:
            return cls(private)
        public = cls(private).public
        return cls(private, endorsed_by=former.public.fingerprint, endorsement=former.endorse(public).hex())

    def sign(self, document: bytes) -> bytes:
        return self._private.sign(_SEAL + document)

    def endorse(self, other: PublicKey) -> bytes:
        return self._private.sign(_KEY + other.raw)

    def write(self, path: Path) -> None:
        """`path`, `path`.pub and, when a former key vouches for it, `path`.endorsement. Nothing is overwritten."""
        private = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _create(path, private, 0o600)
        public = self._private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        _create(_beside(path, ".pub"), public, 0o644)
        if self.notice.endorsement:
            said = {"endorsed_by": self.notice.endorsed_by, "endorsement": self.notice.endorsement}
            _create(_beside(path, ".endorsement"), json.dumps(said).encode() + b"\n", 0o644)


def load_key(path: Path) -> SealKey:
    """Raises `SealKeyError`, also when others than its owner can read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise SealKeyError(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SealKeyError(f"{path} can be read by others than its owner: chmod 600 it, or make another key")
    try:
        private = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SealKeyError(f"{path} holds no private key in PEM: make one with `advisor audit key new`") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise SealKeyError(f"{path} holds a key of another kind than Ed25519")
    endorsed_by, endorsement = _load_endorsement(_beside(path, ".endorsement"))
    return SealKey(private, endorsed_by=endorsed_by, endorsement=endorsement)


def load_public_key(path: Path) -> PublicKey:
    """Raises `SealKeyError`."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise SealKeyError(f"{path} cannot be read: {error.strerror}") from None
    try:
        public = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise SealKeyError(f"{path} holds no public key in PEM (a key's .pub file)") from None
    if not isinstance(public, Ed25519PublicKey):
        raise SealKeyError(f"{path} holds a key of another kind than Ed25519")
    return PublicKey(public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))


def announced(notice: NewKey) -> PublicKey | None:
    """The key of a seal's notice, None when it cannot be one."""
    try:
        raw = bytes.fromhex(notice.public)
    except ValueError:
        return None
    return PublicKey(raw) if len(raw) == 32 else None


def _load_endorsement(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(_FILE_BYTES_MAX))
        return str(said["endorsed_by"]), str(said["endorsement"])
    except FileNotFoundError:
        return "", ""
    except OSError as error:
        raise SealKeyError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise SealKeyError(f"{path} is not what `advisor audit key new --replaces` writes") from None


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _create(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise SealKeyError(f"{path} cannot be made: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
