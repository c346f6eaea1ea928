"""How a server is reached and who we are there: address, tenant headers, credentials and certificates from files.

Secrets are never configured in place but by file, and a file is read again whenever it changes: tokens are rotated
while a service runs. Nothing here ever prints one.
"""

import base64
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECRET_BYTES_MAX = 64 * 1024
SECRET_TOLD_BY = 12  # characters


class AccessError(Exception):
    """A file of credentials that cannot be used; the message names the file and never its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`headers`: tenant and the like. One of `user` (with `password_file`) and `token_file` at most.

    `certificate_file` and `key_file`: ours, for servers that ask for one. `ca_file`: whom we trust; None: the system's.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    timeout_seconds: float = 30.0
    connect_seconds: float = 3.0


Stamp = tuple[int, int, int]


@dataclass(slots=True)
class _Kept:
    stamp: Stamp
    text: str


class Credentials:
    """What a request must carry now. Reads a file when it is new, not at every request."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._kept: dict[Path, _Kept] = {}

    def headers(self) -> dict[str, str]:
        """Raises `AccessError`."""
        access, found = self._access, dict(self._access.headers)
        if access.token_file is not None:
            token = self._secret(access.token_file)
            if not token.isascii():  # a header cannot carry it, and the client's complaint would show it
                raise AccessError(f"{access.token_file}: a token is ASCII text")
            found["Authorization"] = f"Bearer {token}"
        elif access.password_file is not None:
            pair = f"{access.user}:{self._secret(access.password_file)}".encode()
            found["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return found

    def without_secrets(self, text: str) -> str:
        """What a server says, which may be what it was told."""
        for kept in self._kept.values():
            pair = base64.b64encode(f"{self._access.user}:{kept.text}".encode()).decode()
            for secret in (kept.text, pair):
                # Its beginning tells it: the end may be cut off.
                text = re.sub(re.escape(secret[:SECRET_TOLD_BY]) + r"\S*", "(hidden)", text)
        return text

    def tls_stamps(self) -> tuple[Stamp, ...]:
        """Changes when a certificate was renewed. Raises `AccessError`."""
        return tuple(_stamp(path) for path in self._tls_files())

    def tls(self) -> ssl.SSLContext | None:
        """None for plain HTTP. Raises `AccessError`."""
        access = self._access
        if not access.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file is not None else None)
            if access.certificate_file is not None:
                context.load_cert_chain(access.certificate_file, access.key_file)
        except (OSError, ValueError) as error:
            names = ", ".join(str(path) for path in self._tls_files())
            raise AccessError(f"certificates cannot be loaded ({names}): {error}") from error
        return context

    def _tls_files(self) -> Sequence[Path]:
        access = self._access
        return [path for path in (access.ca_file, access.certificate_file, access.key_file) if path is not None]

    def _secret(self, path: Path) -> str:
        stamp = _stamp(path)
        kept = self._kept.get(path)
        if kept is None or kept.stamp != stamp:
            kept = _Kept(stamp, _read(path))
            self._kept[path] = kept
        return kept.text


def secret_of(path: Path) -> str:
    """What a file of credentials holds now. Raises `AccessError`."""
    return _read(path)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(SECRET_BYTES_MAX + 1).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"{path}: cannot be read: {type(error).__name__}") from error
    if not text or len(text) > SECRET_BYTES_MAX or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise AccessError(f"{path}: one line of text is expected, of at most {SECRET_BYTES_MAX} bytes")
    return text
