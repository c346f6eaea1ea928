"""The service where its unit hides all of /proc but processes; tests/slurm/test_units.py, a long one, asks systemd."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.service.world import short_folder

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "deploy" / "systemd" / "recovery-advisor.service"
AS_IN_THE_UNIT = 'mount --make-rprivate / && mount -t proc -o subset=pid proc /proc && exec "$@"'
SERVED = """
import asyncio, sys
from pathlib import Path
from advisor.app import Service
from tests.integration.service.world import configuration, own_sources

async def main():
    async with Service(configuration(Path(sys.argv[1])), make_sources=own_sources) as running:
        while not running.board.pulse.ticks:
            await asyncio.sleep(0.05)
        print("ticks")

assert not Path("/proc/sys").exists()
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_the_service_starts_and_ticks_where_only_processes_are_seen_of_proc() -> None:
    """Settings, devices and figures of the kernel are not there for it, and nothing of it asks for them."""
    assert "ProcSubset=pid\n" in UNIT.read_text(encoding="utf-8")
    with short_folder() as folder:
        done = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", AS_IN_THE_UNIT, "sh"),
                *(sys.executable, "-c", SERVED, str(folder)),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, "ticks" in done.stdout.splitlines()) == (0, True), done.stdout + done.stderr
