"""What is shipped: data files, executable bits and nothing that would collide in site-packages."""

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"advisor", "connectors", "slurm_plugin", "watchdog"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_only_our_packages_are_at_the_top(wheel: zipfile.ZipFile) -> None:
    """A top-level `migrations` or `tests` would overwrite other distributions' files."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_file_of_a_package_is_shipped(wheel: zipfile.ZipFile, package: str) -> None:
    """Rules, tables, hooks and stubs come along, not only Python files."""
    files = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = set(wheel.namelist())
    assert [path for path in files if str(path.relative_to(ROOT)) not in names] == []


def test_migrations_are_shipped_inside_the_store(wheel: zipfile.ZipFile) -> None:
    """The service migrates its database from the wheel as from a checkout."""
    names = set(wheel.namelist())
    versions = [path for path in (ROOT / "migrations" / "versions").glob("*.py") if path.name != "__init__.py"]
    assert versions
    for path in versions:
        assert f"advisor/store/migrations/versions/{path.name}" in names


def test_the_hook_stays_executable(wheel: zipfile.ZipFile) -> None:
    """slurmctld runs the hook itself: without its x bit it is silently off."""
    mode = wheel.getinfo("slurm_plugin/hooks/epilog_slurmctld").external_attr >> 16
    assert mode & stat.S_IXOTH


def test_the_licence_and_the_three_programs_are_declared(wheel: zipfile.ZipFile) -> None:
    """`advisor`, `advisor-agent` and `advisor-watchdog` exist after installation."""
    (entry_points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    text = wheel.read(entry_points).decode()
    for program in ("advisor =", "advisor-agent =", "advisor-watchdog ="):
        assert program in text
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
