"""Static tokens: a file of their hashes, read again when it changes. A token itself is shown once and kept nowhere.

A line is `NAME ROLE USER EXPIRES HASH`; EXPIRES is a date or `never`, HASH is `sha256:` and 64 hexadecimal digits. The
token is 256 random bits, so a fast hash gives nothing away. A file that others could write to is not believed at all.
A file that root makes stays root's, and is readable by the group of the service's user: 0640.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path

import structlog

from advisor.ports import Clock
from advisor.service.callers import Caller, Proof, Role, granted
from advisor.service.errors import UnauthenticatedError

log = structlog.get_logger(__name__)

PREFIX = "advt_"
FILE_BYTES_MAX = 4 * 1024 * 1024
ROLES = {
    "user": Role.USER,
    "viewer": Role.VIEWER,
    "agent": Role.AGENT,
    "operator": Role.OPERATOR,
    "admin": Role.ADMIN,
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_HEAD = "# Tokens of the advisor: NAME ROLE USER EXPIRES HASH. Written by `advisor token`.\n"


class TokenFileError(Exception):
    """The file cannot be used; one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """One line. `expires`: the first day on which it is no longer good, None for never."""

    name: str
    role: str
    user: str
    expires: date | None
    digest: str

    def good_at(self, now: datetime) -> bool:
        return self.expires is None or now < datetime.combine(self.expires, time(), UTC)

    @property
    def line(self) -> str:
        expires = self.expires.isoformat() if self.expires is not None else "never"
        return f"{self.name} {self.role} {self.user} {expires} {self.digest}\n"


def parse(text: str) -> tuple[tuple[TokenEntry, ...], tuple[str, ...]]:
    """The entries, and one problem per line that is none. A problem never quotes the line."""
    entries, problems, names = [], [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        entry = _entry(line.split())
        if entry is None:
            problems.append(f"line {number} is not NAME ROLE USER EXPIRES HASH")
        elif entry.name in names:
            problems.append(f"line {number} has a name that an earlier line has")
        else:
            names.add(entry.name)
            entries.append(entry)
    return tuple(entries), tuple(problems)


def _entry(parts: list[str]) -> TokenEntry | None:
    if len(parts) != 5:
        return None
    name, role, user, expires, digest = parts
    if not (_NAME.fullmatch(name) and role in ROLES and _NAME.fullmatch(user) and _HASH.fullmatch(digest)):
        return None
    try:
        until = None if expires == "never" else date.fromisoformat(expires)
    except ValueError:
        return None
    return TokenEntry(name=name, role=role, user=user, expires=until, digest=digest)


def read(path: Path, *, service: pwd.struct_passwd | None = None) -> str:
    """The file's text. Raises `TokenFileError` if it cannot be read or could have been written by others.

    `service`: who the service runs as, where it is not ourselves.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
    if found.st_mode & 0o022:
        raise TokenFileError(f"{path} may be written by others: chmod go-w it")
    if found.st_uid not in {0, os.geteuid(), service.pw_uid if service is not None else 0}:
        raise TokenFileError(f"{path} belongs to another user: it must be root's or the service's own")
    if len(data) > FILE_BYTES_MAX:
        raise TokenFileError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace")


def digest_of(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Tokens:
    """Who a token stands for. A file that cannot be used lets nobody in: taking a token back must always work."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, ...] | None = None
        self._by_digest: dict[str, TokenEntry] = {}
        self._problem = ""

    def find(self, token: str, peer: str) -> Caller:
        """Raises `UnauthenticatedError`."""
        self._refresh()
        entry = self._by_digest.get(digest_of(token))
        if entry is None:
            raise UnauthenticatedError("the token is not known")
        if not entry.good_at(self._clock.now()):
            raise UnauthenticatedError(f"the token {entry.name} has expired")
        roles = granted(ROLES[entry.role])
        return Caller(name=entry.user, roles=roles, proof=Proof.TOKEN, credential=entry.name, peer=peer)

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
            seen: tuple[int, ...] = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid)
        except OSError:
            seen = ()
        if seen == self._seen:
            return
        self._seen = seen
        self._by_digest = {}
        try:
            entries, problems = parse(read(self._path))
        except TokenFileError as error:
            self._seen = None  # what is in the way (no file descriptor is left, say) may be gone at the next call
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("tokens_unusable", problem=self._problem)  # noqa: TRY400 -- the sentence says it all
            return
        self._problem = ""
        self._by_digest = {entry.digest: entry for entry in entries}
        for problem in problems:
            log.error("tokens_unusable", file=str(self._path), problem=problem)
        log.info("tokens_read", file=str(self._path), count=len(entries))


def add(
    path: Path,
    *,
    name: str,
    role: str,
    user: str,
    expires: date | None,
    service: pwd.struct_passwd | None = None,
) -> str:
    """A new token, its hash in the file. Returns the token, which is in no other place. Raises `TokenFileError`.

    `service`: who the service runs as. A new file that root makes is readable by his group.
    """
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(user):
        raise TokenFileError("name and user are letters, digits, and . _ @ - in between, at most 64")
    token = PREFIX + secrets.token_urlsafe(32)
    entry = TokenEntry(name=name, role=role, user=user, expires=expires, digest=digest_of(token))
    with _editing(path, service) as lines:
        if any(line.split()[:1] == [name] for line in lines):
            raise TokenFileError(f"there is a token named {name}: revoke it, or choose another name")
        lines.append(entry.line)
    return token


def revoke(path: Path, name: str, *, service: pwd.struct_passwd | None = None) -> None:
    """Take a token out of the file. Raises `TokenFileError` if there is none of that name."""
    with _editing(path, service) as lines:
        kept = [line for line in lines if line.split()[:1] != [name]]
        if len(kept) == len(lines):
            raise TokenFileError(f"there is no token named {name} in {path}")
        lines[:] = kept


@contextlib.contextmanager
def _editing(path: Path, service: pwd.struct_passwd | None) -> Iterator[list[str]]:
    """The file's lines; what is left of them is written, all or nothing, one writer at a time."""
    try:
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TokenFileError(f"{path.parent} cannot be written to: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = path.stat() if path.exists() else None
        lines = read(path, service=service).splitlines(keepends=True) if before is not None else [_HEAD]
        yield lines
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                if before is not None:
                    os.fchmod(file.fileno(), before.st_mode & 0o7777)
                    with contextlib.suppress(PermissionError):
                        os.fchown(file.fileno(), before.st_uid, before.st_gid)
                elif os.geteuid() == 0 and service is not None and service.pw_uid != 0:
                    os.fchown(file.fileno(), 0, service.pw_gid)
                    os.fchmod(file.fileno(), 0o640)
                file.writelines(line if line.endswith("\n") else f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    finally:
        os.close(lock)
