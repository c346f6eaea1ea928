"""Who the service runs as on this host, and what that account can read: commands that root runs are not it."""

import grp
import os
import pwd
import subprocess
from pathlib import Path

from advisor.commands.output import CommandError
from advisor.service_config import ServiceSection

_LOOK_SECONDS = 10.0


def account_of(service: ServiceSection) -> pwd.struct_passwd | None:
    """The owner of its socket, else of its data folder. None where neither is there: it has never run here."""
    for path in (service.socket, service.data_dir):
        try:
            return pwd.getpwuid(path.stat().st_uid)
        except (OSError, KeyError):
            continue
    return None


def user_named(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise CommandError(f"there is no user {name!r} on this host", code=2) from None


def kept_from(user: pwd.struct_passwd | None, path: Path) -> bool:
    """Whether `user` cannot open a file that is there: folders on the way and ACLs count. Only root can tell."""
    if user is None or user.pw_uid == 0 or os.geteuid() != 0 or not path.exists():
        return False
    looked = subprocess.run(
        ["test", "-r", str(path)],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
        timeout=_LOOK_SECONDS,
        check=False,
    )
    return looked.returncode != 0


def how_to_give(user: pwd.struct_passwd, path: Path) -> str:
    """What root does so that `user` can read a file."""
    try:
        group = grp.getgrgid(user.pw_gid).gr_name
    except KeyError:
        group = str(user.pw_gid)
    return f"chgrp {group} {path} && chmod g+r {path}; it must be able to pass the folders above, too"
