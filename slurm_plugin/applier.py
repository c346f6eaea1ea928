"""Runs `apply.py` as its own process group and ends it before Slurm's requeue delay can have passed."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from slurm_plugin import apply
from slurm_plugin.guard import Reason, Status

LIMIT_SECONDS_MAX = 4.0
_SCRIPT = str(Path(apply.__file__).resolve())
_KEPT = ("PATH", "SLURM_CONF", "LANG", "TZ", "LD_LIBRARY_PATH")


def limit_seconds(requeue_delay_seconds: float) -> float:
    """How long looking and acting may take together: well below the requeue delay."""
    return min(LIMIT_SECONDS_MAX, 0.6 * requeue_delay_seconds)


class Apply(Protocol):
    """`withdrawn` is set when the advice is taken back: what has not begun by then does not happen."""

    async def __call__(self, request: apply.Request, withdrawn: asyncio.Event) -> apply.Result: ...


async def apply_in_process(request: apply.Request, withdrawn: asyncio.Event) -> apply.Result:
    """Never raises for what happens to the process: a death or a garbled answer means "look again"."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        _SCRIPT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={key: os.environ[key] for key in _KEPT if key in os.environ},
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - asked for above
    telling = asyncio.create_task(_tell(process.stdin, apply.encode(request), withdrawn))
    try:
        async with asyncio.timeout(request.limit_seconds):
            out, err = await asyncio.gather(_all_of(process.stdout), _all_of(process.stderr))
    except TimeoutError:
        return _look_again(f"ended after {request.limit_seconds:g} s, before Slurm's requeue delay could pass")
    finally:
        telling.cancel()
        process.stdin.close()
        _end_group(process.pid)
        await process.wait()
    try:
        return apply.decode_result(out)
    except (ValueError, KeyError, TypeError):
        said = err.decode("utf-8", "replace").strip().splitlines()
        return _look_again(f"the applying process gave no result: {said[-1][:300] if said else 'nothing said'}")


async def _tell(stdin: asyncio.StreamWriter, request: bytes, withdrawn: asyncio.Event) -> None:
    """The request, and one line more when it is taken back. A process that has ended by then hears nothing."""
    with suppress(ConnectionError):
        stdin.write(request + b"\n")
        await stdin.drain()
        await withdrawn.wait()
        stdin.write(b"withdrawn\n")
        await stdin.drain()


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None  # noqa: S101 - asked for at the start of the process
    return await stream.read()


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _look_again(detail: str) -> apply.Result:
    return apply.Result(status=Status.PENDING, reason=Reason.SCHEDULER_UNAVAILABLE, detail=detail)
