"""The demo as a command: what somebody at a terminal sees when they stop it, or may not start it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from advisor.demo.namespace import Runtime
from advisor.demo.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def test_ctrl_c_in_the_middle_is_no_failure(tmp_path: Path) -> None:
    """Exit 130, one line that says so, and no complaint that the demo went wrong."""
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        # A session of its own: a terminal's Ctrl-C goes to the whole foreground group, and to nobody else.
        demo = subprocess.Popen(
            [sys.executable, "-m", "advisor", "demo"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for("the job", lambda: "A training job starts" in printed.read_text(), seconds=60)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(timeout=30) == 130, printed.read_text()
    finally:
        demo.kill()
        demo.wait()
    lines = printed.read_text().splitlines()
    assert lines[-1] == "interrupted; everything removed"
    assert not any("did not end as it should" in line or "Traceback" in line for line in lines)


def test_an_ordinary_user_is_told_what_to_type() -> None:
    """One line, and nothing of it is an escape sequence spelled out."""
    code = (
        "import os\nfrom advisor.commands import demo\nfrom advisor.commands.output import CommandError, complain\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "try:\n    demo.demo(keep=False)\nexcept CommandError as error:\n    complain(str(error))\n"
    )
    # Imported first, then another user: a checkout under a private home could not be imported by him.
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [
        "advisor: a real Slurm with several users needs root: run `sudo make demo`",
    ]


def test_our_commands_are_there_by_name_for_everybody(runtime: Runtime) -> None:
    """The shell of `make demo KEEP=1` finds `advisor`; so does an ordinary user of the demo."""
    assert f'PATH="{runtime.root}/bin:$PATH"' in (runtime.root / "enter").read_text()
    done = subprocess.run(
        [runtime.root / "bin" / "advisor", "--version"],
        cwd="/",
        user="alice",
        group="alice",
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("advisor "), done.stderr
