"""The shipped units under a real systemd: they start as they are, are as closed as they say, and do not stay hung.

Run as a program, this file becomes pid 1's first step: it lays a throw-away layer over this host's files and starts
systemd in namespaces of its own. systemd then runs it once more, to follow the README and docs/upgrade.md; the test
reads what it says.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = Path("/opt/recovery-advisor-code")
READER = "recovery-advisor-logreader"
UNITS = (READER, "recovery-advisor", "recovery-advisor-agent", "recovery-advisor-watchdog")
USERS = {READER: "root", "recovery-advisor": "advisor"}
SYSTEMD = Path("/lib/systemd/systemd")
WATCHDOG_SECONDS = 8
ALIVE = Path("/run/recovery-advisor-watchdog/alive.json")
CRON = Path("/etc/cron.d/recovery-advisor-watchdog")


@pytest.mark.long
@pytest.mark.skipif(not SYSTEMD.exists(), reason="no systemd on this host")
def test_the_shipped_units_run_closed_and_do_not_stay_hung() -> None:
    """Active with their own users and a filter on system calls; stopped by SIGSTOP or killed, each is started again."""
    with tempfile.TemporaryDirectory(prefix="units-") as name:
        folder = Path(name)
        command = ["unshare", *("--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child")]
        with (folder / "log").open("wb") as log:
            outer = subprocess.Popen(
                [*command, sys.executable, "-P", __file__, "enter", name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + 150
            while not any((folder / end).exists() for end in ("done", "failed")) and outer.poll() is None:
                assert time.monotonic() < deadline, (folder / "said").read_text()
                time.sleep(0.5)
        finally:
            outer.kill()
            outer.wait()
        said = (folder / "said").read_text() if (folder / "said").exists() else "nothing was said"
        assert (folder / "done").exists(), f"{said}\n{(folder / 'log').read_text(errors='replace')}"
        found = json.loads((folder / "done").read_text())
    print(json.dumps(found, indent=1))
    for unit in UNITS:
        seen = found[unit]
        assert seen["user"] == USERS.get(unit, "slurm")
        rights = "00000000000000c0" if unit == READER else "0000000000000000"  # CAP_SETUID and CAP_SETGID
        assert (seen["NoNewPrivs"], seen["Seccomp"], seen["CapBnd"]) == ("1", "2", rights)
        assert seen["restarts"] == 2
        assert seen["frozen_seconds"] < 4 * WATCHDOG_SECONDS
    assert found[READER]["handed"] == "private"
    assert found["alive"] == ["observe", "644", "slurm"]
    assert found["upgrade"] == {"there": "as shipped, by the new folder", "back": "as before, by the folder of before"}


def enter(folder: Path) -> None:
    """pid 1 of the namespaces: mounts, then systemd in our place."""
    layer = folder / "layer"
    layer.mkdir()
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "tmpfs", layer)
    root = layer / "root"
    for path in ("upper", "work", "root"):
        (layer / path).mkdir()
    run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work", root)
    for kind, path in (
        ("proc", "proc"),
        ("sysfs", "sys"),
        ("cgroup2", "sys/fs/cgroup"),
        ("tmpfs", "run"),
        ("tmpfs", "tmp"),
    ):
        run("mount", "-t", kind, kind, root / path)
    run("mount", "--rbind", "/dev", root / "dev")
    for source, target in ((ROOT, CODE), (folder, Path("/mnt"))):
        (root / target.relative_to("/")).mkdir(exist_ok=True)
        run("mount", "--bind", source, root / target.relative_to("/"))
    for wants in (root / "etc/systemd/system").glob("*.wants"):
        shutil.rmtree(wants)
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (root / "etc/systemd/system/follow.service").write_text(
        "[Service]\nType=oneshot\nStandardOutput=file:/mnt/said\nStandardError=inherit\n"
        f"ExecStart={CODE}/.venv/bin/python -P {CODE}/tests/slurm/test_units.py follow /mnt\n"
    )
    old = root / "old"
    old.mkdir()
    os.chdir(root)
    run("pivot_root", ".", "old")
    run("umount", "-l", "/old")
    arguments = [str(SYSTEMD), "--log-target=console", "--show-status=false", "systemd.unit=follow.service"]
    os.execve(SYSTEMD, arguments, {"container": "other", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def follow(folder: Path) -> None:
    """What the README says, with stand-ins for `pip install`; then what may go wrong."""
    shutil.rmtree("/opt/recovery-advisor", ignore_errors=True)
    shutil.rmtree("/etc/recovery-advisor", ignore_errors=True)
    programs = Path("/opt/recovery-advisor/bin")
    programs.mkdir(parents=True)
    for name, module in (("advisor", "advisor"), ("advisor-agent", "slurm_plugin")):
        text = f'#!/bin/sh\nPYTHONPATH={CODE} exec {CODE}/.venv/bin/python -P -m {module} "$@"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to("/usr/bin/python3")
    Path("/usr/lib/python3/dist-packages/recovery-advisor-code.pth").write_text(
        f"{CODE}\n"
    )  # as installed, also for -I
    shutil.copytree(CODE / "watchdog", programs.parent / "standalone" / "watchdog")
    Path("/etc/recovery-advisor").mkdir()
    for name in ("advisor.toml", "agent.toml", "watchdog.toml"):
        shutil.copy(CODE / "deploy" / name, "/etc/recovery-advisor")
    # No Slurm is needed here, and none answers: at once, since a look may take longer than these few seconds otherwise.
    tools = Path("/opt/no-slurm")
    tools.mkdir()
    for name in ("squeue", "sinfo", "scontrol"):
        (tools / name).symlink_to("/bin/false")
    for name in ("agent.toml", "watchdog.toml"):
        file = Path("/etc/recovery-advisor", name)
        text = file.read_text()
        assert '\nbin = ""' in text
        file.write_text(text.replace('\nbin = ""', f'\nbin = "{tools}"'))
    Path("/etc/sysusers.d").mkdir(exist_ok=True)
    shutil.copy(CODE / "deploy/sysusers.d/recovery-advisor.conf", "/etc/sysusers.d")
    run("systemd-sysusers")
    for unit in UNITS:
        shutil.copy(CODE / "deploy/systemd" / f"{unit}.service", "/etc/systemd/system")
        Path(f"/run/systemd/system/{unit}.service.d").mkdir(parents=True)
        Path(f"/run/systemd/system/{unit}.service.d/fast.conf").write_text(
            f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\n"
        )
    run("systemctl", "daemon-reload")
    found: dict[str, dict[str, object]] = {}
    for unit in UNITS:
        print("start", unit, flush=True)
        run("systemctl", "start", unit)
        pid = int(shown(unit, "MainPID"))
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        found[unit] = {key: status[key] for key in ("NoNewPrivs", "Seccomp", "CapBnd")}
        found[unit]["user"] = Path(f"/proc/{pid}").owner()
    found[READER]["handed"] = handed()
    wait("the watchdog's file", ALIVE.exists)
    found["alive"] = [json.loads(ALIVE.read_text())["mode"], f"{ALIVE.stat().st_mode & 0o777:o}", ALIVE.owner()]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for unit in UNITS:
            before = int(shown(unit, "NRestarts"))
            began = time.monotonic()
            pid = int(shown(unit, "MainPID"))
            assert pid > 1, unit
            os.kill(pid, number)
            wait(f"{unit} started again", lambda unit=unit, before=before: int(shown(unit, "NRestarts")) > before)
            if number is signal.SIGSTOP:
                found[unit]["frozen_seconds"] = round(time.monotonic() - began, 1)
            wait(f"{unit} active", lambda unit=unit: shown(unit, "ActiveState") == "active")
            print(unit, number.name, "started again", flush=True)
    for unit in UNITS:
        found[unit]["restarts"] = int(shown(unit, "NRestarts"))
    found["upgrade"] = {"there": upgraded(), "back": put_back()}
    (folder / "done.new").write_text(json.dumps(found))
    (folder / "done.new").rename(folder / "done")


def blocks(kind: str) -> list[str]:
    """The commands of docs/upgrade.md that are marked so, in order."""
    text = (CODE / "docs" / "upgrade.md").read_text(encoding="utf-8")
    return re.findall(rf"^```sh {kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def typed(*kinds: str) -> str:
    """These blocks, each in a shell of its own, with the names that the page gives at its beginning."""
    said = ""
    (names,) = blocks("names")
    for text in (text for kind in kinds for text in blocks(kind)):
        print(text, flush=True)
        done = subprocess.run(
            ["/bin/sh", "-e"],
            input=names + text,
            cwd=CODE,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        print(done.stdout, flush=True)
        assert done.returncode == 0, f"exit {done.returncode}"
        said += done.stdout
    return said


def upgraded() -> str:
    """From units, cron and programs that differ from what is shipped; copying the folder stands in for pip."""
    for file in sorted(map(unit_file, UNITS)):
        file.write_text(file.read_text() + "# of the release before\n")
    CRON.write_text("# of the release before\n")
    release = subprocess.run(
        ["/bin/sh", "-c", blocks("names")[0] + "echo $release"], check=True, capture_output=True, text=True
    ).stdout.strip()
    shutil.copytree("/opt/recovery-advisor", f"/opt/recovery-advisor-{release}", symlinks=True)
    before = {unit: shown(unit, "MainPID") for unit in UNITS}
    typed("keep", "switch")
    Path("/opt/recovery-advisor.new").symlink_to(f"recovery-advisor-{release}")  # the connection broke there: once more
    said = typed("keep", "switch", "units", "restart")
    typed("keep")
    assert said.count("\n-# of the release before") == len(UNITS) + 1, "each difference is shown"
    assert all(unit_file(unit).read_bytes() == shipped(unit).read_bytes() for unit in UNITS)
    assert CRON.read_bytes() == (CODE / "deploy/cron.d" / CRON.name).read_bytes()
    assert Path("/opt/recovery-advisor").readlink() == Path(f"recovery-advisor-{release}")
    for unit in UNITS:
        assert (shown(unit, "ActiveState"), shown(unit, "MainPID") != before[unit]) == ("active", True), unit
    return "as shipped, by the new folder"


def put_back() -> str:
    config = sorted(path.name for path in Path("/etc/recovery-advisor").iterdir())
    there = Path("/opt/recovery-advisor").readlink()
    # Pasted into a new shell, which knows no names.
    pasted = "".join(line for line in "".join(blocks("back")).splitlines(True) if not line.startswith("systemctl"))
    subprocess.run(["/bin/bash", "--norc", "-i"], input=pasted, cwd=CODE, text=True, check=False)
    assert Path("/opt/recovery-advisor").readlink() == there
    assert sorted(path.name for path in Path("/etc/recovery-advisor").iterdir()) == config
    typed("back")
    assert sorted(path.name for path in Path("/etc/recovery-advisor").iterdir()) == config
    for path in (*map(unit_file, UNITS), CRON):
        assert path.read_text().endswith("# of the release before\n"), path
    assert Path("/opt/recovery-advisor").readlink() == Path("recovery-advisor-first")
    assert [shown(unit, "ActiveState") for unit in UNITS] == ["active"] * len(UNITS)
    return "as before, by the folder of before"


def unit_file(unit: str) -> Path:
    return Path("/etc/systemd/system", f"{unit}.service")


def shipped(unit: str) -> Path:
    return CODE / "deploy/systemd" / f"{unit}.service"


def handed() -> str:
    """What the service's account gets of a file that is another user's alone."""
    home = Path("/srv/alice")
    home.mkdir(parents=True)
    (home / "log").write_text("private")
    for path, mode in ((home / "log", 0o600), (home, 0o700)):
        os.chown(path, 54_321, 54_321)
        path.chmod(mode)
    script = (
        "import os; from connectors.logs.root_reader import RootReader\n"
        f"(got,) = RootReader('/run/{READER}/logreader.sock').ask(54321, 'job', ['{home}/log'])\n"
        "print(os.read(got, 100).decode() if isinstance(got, int) else got, end='')"
    )
    words = ["setpriv", "--reuid=advisor", "--regid=advisor", "--clear-groups", f"{CODE}/.venv/bin/python", "-P", "-c"]
    done = subprocess.run(
        [*words, script], env={"PYTHONPATH": str(CODE)}, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def run(*argv: object) -> None:
    subprocess.run([str(word) for word in argv], check=True)


def shown(unit: str, key: str) -> str:
    return subprocess.run(
        ["systemctl", "show", "-P", key, unit], check=True, capture_output=True, text=True
    ).stdout.strip()


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.1)


if __name__ == "__main__":
    try:
        {"enter": enter, "follow": follow}[sys.argv[1]](Path(sys.argv[2]))
    except BaseException:
        Path(sys.argv[2], "failed").touch()
        raise
