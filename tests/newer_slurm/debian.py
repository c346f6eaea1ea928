"""A later Debian in a folder, with its own Slurm, Python and an environment of our locked versions in it.

Made once by `mmdebstrap` (a minute) and kept under /var/tmp for the next run, while what it is made of is the same.
This tree is copied in for every run, so that other people's edits do not reach a test that runs.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path("/var/tmp/recovery-advisor-debian")
PACKAGES = (
    *("ca-certificates", "git", "make", "python3", "python3-venv", "procps", "iproute2", "util-linux", "mount"),
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "slurmdbd", "mariadb-server"),
)
CODE = ("advisor", "connectors", "slurm_plugin", "watchdog", "migrations", "proto", "tests", "benchmarks", "deploy")
FILES = ("pyproject.toml", "Makefile", "README.md", "LICENSE", "CHANGELOG.md")
TESTS_NEED = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis")
MAKE_SECONDS, RUN_SECONDS = 1200, 1800
_SOURCE = re.compile(r"^(?:URIs:|deb(?: \[[^\]]*\])?)\s+(\S+)", re.MULTILINE)


class CannotMakeError(Exception):
    """The folder cannot be made here; the text says what is missing."""


@contextmanager
def debian(suite: str) -> Iterator[Path]:
    """The folder, with this tree under /project. One user at a time: others wait."""
    if os.geteuid() != 0:
        raise CannotMakeError("a Debian in a folder needs root")
    if shutil.which("mmdebstrap") is None:
        raise CannotMakeError("mmdebstrap is not installed. Run: make test-long, or apt-get install mmdebstrap")
    CACHE.mkdir(exist_ok=True)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = "\n".join(re.findall(r"^([A-Za-z0-9._-]+==\S+)", lock, re.MULTILINE))
    name = hashlib.sha256("\n".join((*PACKAGES, pins)).encode()).hexdigest()[:12]
    folder = CACHE / f"{suite}-{name}"
    with (CACHE / f"{suite}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / ".ready").exists():
            _make(suite, folder, pins)
        _copy_code(folder)
        yield folder


def run(folder: Path, argv: Sequence[str], *, seconds: float = RUN_SECONDS) -> "subprocess.CompletedProcess[str]":
    """A command in there, ended with all it started."""
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    command += [sys.executable, "-P", str(Path(__file__).with_name("enter.py")), str(folder), "--", *argv]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=seconds, cwd="/"
    )


def inside(*argv: str) -> list[str]:
    """argv with the environment's Python in the demo's namespace, as `make test` runs things."""
    return ["/project/.venv/bin/python", "-m", "advisor.demo.namespace", "--", "/project/.venv/bin/python", *argv]


def _make(suite: str, folder: Path, pins: str) -> None:
    for old in CACHE.glob(f"{suite}-*"):
        shutil.rmtree(old, ignore_errors=True)
    _must(
        *("mmdebstrap", "--quiet", "--variant=apt", "--mode=root", '--aptopt=APT::Install-Recommends "false"'),
        '--aptopt=Acquire::Check-Valid-Until "false"',  # a mirror that stands still is good enough for a test
        f"--include={','.join(PACKAGES)}",
        *(suite, str(folder), _mirror()),
    )
    (folder / "etc" / "resolv.conf").unlink(missing_ok=True)
    shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
    for name in ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf"):
        if (Path("/") / name).exists():
            shutil.copy(Path("/") / name, folder / name)
    (folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
    (folder / "project").mkdir()
    _copy_code(folder)
    (folder / "project" / "constraints.txt").write_text(pins + "\n", encoding="ascii")
    for argv in (
        ["python3", "-m", "venv", "/project/.venv"],
        [
            *("/project/.venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--constraint=/project/constraints.txt", "/project[server]", *TESTS_NEED),
        ],
        ["/project/.venv/bin/pip", "uninstall", "--quiet", "--yes", "recovery-advisor"],
    ):
        done = run(folder, argv, seconds=MAKE_SECONDS)
        if done.returncode != 0:
            raise CannotMakeError(f"{' '.join(argv[:3])}: {done.stderr[-1500:]}")
    (folder / ".ready").touch()


def _must(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, check=False, timeout=MAKE_SECONDS, cwd="/")
    if done.returncode != 0:
        raise CannotMakeError(f"{argv[0]}: {done.stderr.decode(errors='replace')[-1500:]}")


def _mirror() -> str:
    """Where this machine gets its Debian from."""
    for path in (*Path("/etc/apt/sources.list.d").glob("*"), Path("/etc/apt/sources.list")):
        if path.is_file():
            for url in _SOURCE.findall(path.read_text(encoding="utf-8")):
                if url.rstrip("/").endswith("/debian"):
                    return str(url)
    raise CannotMakeError("no Debian mirror in this machine's apt sources")


def _copy_code(folder: Path) -> None:
    project = folder / "project"
    for name in CODE:
        shutil.rmtree(project / name, ignore_errors=True)
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "results"))
    for name in FILES:
        shutil.copy(ROOT / name, project / name)
