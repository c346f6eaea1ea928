"""Why a folder of ours cannot be used: what it is, whose it is, and what to do. One line for whoever starts us."""

import errno
import os
import pwd
from pathlib import Path


def refusal(error: OSError, folder: Path, key: str) -> str:
    """What keeps us from working in `folder`, which `key` of the configuration names."""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else folder
    another = f"name another ({key})"
    there = next((above for above in (path, *path.parents) if os.path.lexists(above)), Path("/"))
    if error.errno in {errno.ENOTDIR, errno.EEXIST} and not there.is_dir():
        return f"{there} is not a folder: {another}"
    whose = _name_of(there.lstat().st_uid)
    if error.errno not in {errno.EACCES, errno.EPERM}:
        what = f"{path} cannot be made in {there}" if there != path else f"{path} cannot be used"
        return f"{what} (of {whose!r}): {error.strerror or error}. Mend that, or {another}"
    us = _name_of(os.geteuid())
    who = f"{us!r}, whom the advisor runs as,"
    if not there.is_relative_to(folder):
        return (
            f"{who} may not make {folder}: {there} belongs to {whose!r}. Make it for {us!r} "
            f"(install -d -o {us} {folder}), or {another}"
        )
    what = f"{who} may not write to {there}, which belongs to {whose!r}: run it as that user"
    if len(folder.parts) <= 2:  # /run, /tmp: everybody's, and not to be given away
        return f"{what}, or {another}"
    return f"{what}, or stop what runs there and give it away (chown -R {us}: {folder})"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
