"""Files of log rules: opened as logs are, read whole, bounded."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import RulesRequest
from connectors.logs.rules_files import JobRulesFiles


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rules-") as name:
        yield Path(name)


def read(path: str, *, user_id: int | None = None) -> bytes | Unavailable:
    async def once() -> bytes | Unavailable:
        source = JobRulesFiles(clock=SystemClock(), lookup_uid=lambda user: None)
        uid = os.geteuid() if user_id is None else user_id
        request = RulesRequest(key="k", user="ada", user_id=uid, path=path, bytes_max=100)
        answers = await source.read([request])
        await source.close()
        return answers["k"]

    return asyncio.run(once())


def test_a_users_own_file_is_read_whole(folder: Path) -> None:
    """Up to the bound, the bound included."""
    path = folder / "rules.json"
    path.write_bytes(b"[" + b" " * 98 + b"]")
    assert read(str(path)) == path.read_bytes()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("larger", UnavailableReason.LIMIT),
        ("fifo", UnavailableReason.NOT_REGULAR),
        ("folder", UnavailableReason.NOT_REGULAR),
        ("missing", UnavailableReason.MISSING),
        ("relative", UnavailableReason.REFUSED),
        ("dots", UnavailableReason.REFUSED),
        ("foreign", UnavailableReason.PERMISSION),
        ("device", UnavailableReason.NOT_REGULAR),
    ],
)
def test_everything_else_is_refused_with_its_reason(folder: Path, how: str, reason: UnavailableReason) -> None:
    """No FIFO, device, foreign or endless file is ever read, and nothing waits for one."""
    path = folder / "rules.json"
    if how in {"larger", "foreign"}:
        path.write_bytes(b" " * 101)
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "device":
        path.symlink_to("/dev/zero")
    text = {"relative": "rules.json", "dots": f"{folder}/../x"}.get(how, str(path))
    answer = read(text, user_id=os.geteuid() + 1 if how == "foreign" else None)
    assert isinstance(answer, Unavailable)
    assert answer.reason is reason
