"""Who the embedded Postgres runs as. It refuses root, and its files belong to one user for good."""

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.store.errors import NoServerUser

# Tried in this order when we are root, the data folder is root's and nothing is configured. Not `nobody`: files of
# many services end up with that owner.
_USUAL_USERS = ("advisor", "postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUser:
    """`switch`: we are root and change to this user; otherwise it is ourselves."""

    name: str
    uid: int
    gid: int
    switch: bool

    @property
    def switch_uid(self) -> int | None:
        """For subprocess: None leaves it as it is."""
        return self.uid if self.switch else None

    @property
    def switch_gid(self) -> int | None:
        return self.gid if self.switch else None

    @property
    def switch_groups(self) -> list[int] | None:
        return [] if self.switch else None


def choose_server_user(data_folder: Path, configured: str | None) -> ServerUser:
    """The user to run Postgres as.

    Not root: ourselves. Root: the owner of the data folder if that is not root, else the configured user, else the
    first that exists of `advisor` and `postgres`. Raises `NoServerUser`.
    """
    euid = os.geteuid()
    if euid != 0:
        own = _by_uid(euid, "the user that runs the advisor")
        if configured and configured != own.pw_name:
            raise NoServerUser(
                f"Postgres is to run as {configured!r}, but the advisor runs as {own.pw_name!r} and only root can "
                f"change the user: drop the setting, or start the advisor as root or as {configured!r}"
            )
        return _server_user(own, switch=False)
    owner = _folder_owner((data_folder / "postgres" / "data", data_folder))
    if owner is not None:
        return _server_user(_by_uid(owner, f"the owner of {data_folder}"), switch=True)
    if configured:
        return _server_user(_by_name(configured), switch=True)
    for name in _USUAL_USERS:
        try:
            return _server_user(pwd.getpwnam(name), switch=True)
        except KeyError:
            continue
    raise NoServerUser(
        "the advisor runs as root and Postgres refuses to: create a user for it (useradd --system advisor), name an "
        "existing one in the configuration, give the data folder to one, or start the advisor as an ordinary user"
    )


def blocking_folder(path: Path, user: ServerUser) -> Path | None:
    """The outermost folder on the way to `path` whose mode keeps `user` out; None if none does (ACLs not looked at)."""
    groups = set(os.getgrouplist(user.name, user.gid)) if not user.switch else {user.gid}
    for folder in [*reversed(path.parents), path]:
        try:
            status = folder.stat()
        except FileNotFoundError:
            return None
        if status.st_uid == user.uid:
            bit = 0o100
        elif status.st_gid in groups:
            bit = 0o010
        else:
            bit = 0o001
        if not status.st_mode & bit:
            return folder
    return None


def _folder_owner(folders: Sequence[Path]) -> int | None:
    for folder in folders:
        try:
            uid = folder.lstat().st_uid
        except FileNotFoundError:
            continue
        if uid != 0:
            return uid
    return None


def _by_uid(uid: int, who: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        # initdb looks the name up and peer authentication compares names: a bare number will not do.
        raise NoServerUser(
            f"{who} has uid {uid}, which has no passwd entry, and Postgres needs a name: add one, or use a real user"
        ) from None


def _by_name(name: str) -> pwd.struct_passwd:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise NoServerUser(
            f"Postgres is to run as {name!r}, and no such user exists: create it (useradd --system {name})"
        ) from None
    if entry.pw_uid == 0:
        raise NoServerUser(f"Postgres is to run as {name!r}, which is root, and it refuses to: name another user")
    return entry


def _server_user(entry: pwd.struct_passwd, *, switch: bool) -> ServerUser:
    return ServerUser(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, switch=switch)
