"""The forwarder on this host's real /dev/kmsg, up to a signal that counts as trusted."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from connectors.kernel.files import KernelFileLogs
from slurm_plugin.kmsg.forwarder import Device
from slurm_plugin.kmsg.receivers import NodeFile
from slurm_plugin.kmsg.records import Cap, parse
from slurm_plugin.kmsg.spool import Spool
from tests.contract.world import StandingClock, batch, kernel_harness, private_folder, text
from tests.unit.slurm_plugin.kmsg_device import kernel_log


def _real(*, all_of_them: bool = False) -> list[str]:
    """The kernel's own records that the device gives now. `all_of_them`: others', too."""
    found = []
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = parse(os.read(descriptor, 16_384))
            except BrokenPipeError:
                continue
            if record is not None and (all_of_them or record.of_kernel):
                found.append(record.text)
    except BlockingIOError:
        return found
    finally:
        os.close(descriptor)


def _readable() -> bool:
    try:
        return bool(_real())
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _readable(), reason="/dev/kmsg cannot be read here")


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as made:
        yield made


def started(folder: Path) -> subprocess.Popen[bytes]:
    """The program as the unit starts it, once it has told so. Its rate is high: a boot's records come at once."""
    command = [sys.executable, "-m", "slurm_plugin.kmsg", "--node", "node1", "--file", f"{folder}/%n.log"]
    process = subprocess.Popen(
        [*command, "--state", f"{folder}/state", "--records-per-second", "100000"], stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert b"forwarder_started" in process.stderr.readline()
    process.stderr.close()
    return process


def forwarded(folder: Path) -> list[str]:
    file = folder / "node1.log"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.partition("] ")[2] for line in lines if " kernel: [" in line]


def until_forwarded(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(forwarded(folder)) < count:
        assert time.monotonic() < deadline, f"{len(forwarded(folder))} records of {count}"
        time.sleep(0.02)


def test_killed_at_any_moment_it_forwards_each_real_record_once(folder: Path) -> None:
    """Killed while it reads and writes, again and again, it goes on where it was; SIGTERM ends it in order."""
    for _ in range(4):
        process = started(folder)  # and now it reads and writes
        process.kill()
        process.wait()
    before = _real()
    process = started(folder)
    try:
        until_forwarded(folder, len(before))
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert forwarded(folder)[: len(before)] == before


@pytest.mark.skipif(not os.access("/dev/kmsg", os.W_OK), reason="only root may write into /dev/kmsg")
def test_what_root_writes_into_the_real_device_is_no_word_of_the_kernels(folder: Path) -> None:
    """Even with the kernel's facility given: the device changes it."""
    mark = f"NVRM: Xid (PCI:0000:3b:00): 79 forged by a test {secrets.token_hex(4)}"
    Path("/dev/kmsg").write_bytes(f"<4>{mark}".encode())
    if mark not in _real(all_of_them=True):
        pytest.skip("this kernel drops what is written into /dev/kmsg")
    before = _real()
    assert mark not in before
    process = started(folder)
    try:
        until_forwarded(folder, len(before))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert mark not in (folder / "node1.log").read_text()


async def test_what_it_writes_the_kernel_source_trusts(folder: Path) -> None:
    """File and folder are as the source demands, the node is the file's, and each line has its wall time."""
    with kernel_log() as log:
        spool = Spool(folder / "spool.sqlite")
        file = NodeFile(folder / "node1.log", "node1")
        spool.register([file.name])
        device = Device(log.reading.fileno(), boot="b", spool=spool, cap=Cap(10, 10))
        device.turn(0)
        log.say("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", uptime_us=time.monotonic_ns() // 1_000)
        device.turn(0)
        file.deliver(spool)
    world = kernel_harness(folder)
    source = world.make()
    assert isinstance(source, KernelFileLogs)
    now = datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC)
    world.clock = StandingClock(now)
    answer = await batch(source, world.request(started_at=now - timedelta(minutes=1)))
    await source.close()
    line = text(answer).decode().splitlines()[-1]
    assert line.endswith("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    at = datetime.fromisoformat(line.split()[0])
    assert abs((at - now).total_seconds()) < 5
    assert [chunk.node for chunk in answer.chunks] == ["node1"]
