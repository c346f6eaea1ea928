"""Files that the advisor's own user may not read: the answer says what to do about it."""

import asyncio
import json
import os
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from advisor.core.model import Unavailable
from advisor.ports import LogRequest
from connectors.logs.files import JobFileLogs
from tests.contract.world import StandingClock

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(mkdtemp(prefix="ra-permission-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    rmtree(path)


def as_nobody(work: Callable[[], list[str]]) -> list[str]:
    """The JSON result of `work`, run by a child process that has become an ordinary user."""
    inside, outside = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(outside, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(outside)
    with os.fdopen(inside, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    result: list[str] = json.loads(answer)
    return result


def read(path: Path) -> list[str]:
    """Reason and detail, or "read" and the bytes."""
    request = LogRequest(
        key="job/0",
        job_id="7",
        attempt=0,
        user="tester",
        user_id=0,
        paths=(str(path),),
        nodes=(),
        started_at=datetime(2020, 1, 1, tzinfo=UTC),
        ended_at=None,
        cursor="",
        bytes_max=1000,
    )
    answer = asyncio.run(JobFileLogs(clock=StandingClock()).read([request]))["job/0"]
    if isinstance(answer, Unavailable):
        return [answer.reason.value, answer.detail]
    return ["read", b"".join(c.data for c in answer.chunks).decode()]


def test_unreadable_file_tells_the_command(folder: Path) -> None:
    """A file without a read right for us is `permission`, with the ACL command for it and for files to come."""
    log = folder / "it's.log"
    log.write_bytes(b"x\n")
    log.chmod(0o600)
    reason, detail = as_nobody(lambda: read(log))
    assert reason == "permission"
    assert f"setfacl -m u:nobody:r '{folder}/it'\"'\"'s.log'" in detail
    assert f"setfacl -d -m u:nobody:rX {folder}" in detail


def test_folder_that_may_not_be_entered_tells_which(folder: Path) -> None:
    """Of a deep path the folder that bars the way is named, the outermost one first."""
    deep = folder / "home" / "runs"
    deep.mkdir(parents=True)
    (deep / "log").write_bytes(b"x\n")
    deep.chmod(0o700)
    (folder / "home").chmod(0o700)
    reason, detail = as_nobody(lambda: read(deep / "log"))
    assert reason == "permission"
    assert f"`setfacl -m u:nobody:x {folder}/home`" in detail


def test_group_or_other_right_is_enough(folder: Path) -> None:
    """An ordinary user reads what the file's mode lets them read."""
    log = folder / "log"
    log.write_bytes(b"x\n")
    log.chmod(0o644)
    assert as_nobody(lambda: read(log)) == ["read", "x\n"]


def test_folder_that_may_be_entered_and_not_listed(folder: Path) -> None:
    """Reading a file needs no right to list its folder."""
    closed = folder / "runs"
    closed.mkdir()
    (closed / "log").write_bytes(b"x\n")
    (closed / "log").chmod(0o644)
    closed.chmod(0o711)
    assert as_nobody(lambda: read(closed / "log")) == ["read", "x\n"]


# As the kernel keeps an ACL: version, then tag, permissions and id of each entry, least significant byte first.
USER_OBJ, USER, GROUP_OBJ, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20


def acl(mask: int, advisor: int) -> bytes:
    nobody, everybody = NOBODY, 0xFFFFFFFF
    entries = [(USER_OBJ, 6, everybody), (USER, advisor, nobody), (GROUP_OBJ, 0, everybody)]
    entries += [(MASK, mask, everybody), (OTHER, 0, everybody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_acl(path: Path, value: bytes, kind: str = "access") -> None:
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", value)
    except OSError:
        pytest.skip("no ACLs on the file system of /tmp")


def test_acl_for_us_is_enough(folder: Path) -> None:
    """`setfacl -m u:advisor:r` on a private file, `u:advisor:x` on its private folder."""
    runs = folder / "runs"
    runs.mkdir(mode=0o700)
    log = runs / "log"
    log.write_bytes(b"x\n")
    log.chmod(0o600)
    assert as_nobody(lambda: read(log))[0] == "permission"
    set_acl(log, acl(mask=4, advisor=4))
    set_acl(runs, acl(mask=1, advisor=1))
    assert as_nobody(lambda: read(log)) == ["read", "x\n"]


def test_default_acl_reaches_files_to_come_and_chmod_undoes_it(folder: Path) -> None:
    """As documented: created with Slurm's mode they can be read; `chmod go=` sets the mask, and then they cannot."""
    runs = folder / "runs"
    runs.mkdir(mode=0o700)
    set_acl(runs, acl(mask=5, advisor=5))
    set_acl(runs, acl(mask=7, advisor=5), kind="default")
    log = runs / "log"
    os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o664))
    log.write_bytes(b"x\n")
    assert as_nobody(lambda: read(log)) == ["read", "x\n"]
    log.chmod(0o600)
    assert as_nobody(lambda: read(log))[0] == "permission"
