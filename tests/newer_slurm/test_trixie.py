"""The tests of the Slurm tier, and the demo, on the Slurm of a later Debian (24.11.5 in trixie, with Python 3.13).

Only in `make test-long`. `NEWER_SUITES="trixie forky"` adds later ones (26.05.5, Python 3.14).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.newer_slurm.debian import debian, inside, run

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(3000)]
SUITES = os.environ.get("NEWER_SUITES", "trixie").split()
# Release by suite, at least; what is read from each is in tests/unit/slurm_plugin/golden.
RELEASES = {"trixie": (24, 11), "forky": (26, 5), "sid": (26, 5)}
# test_history.py has a test of its own below.
FILES = (
    "test_agent_identity.py",
    "test_agent_kinds.py",
    "test_agent_preempted.py",
    "test_agent_trouble.py",
    "test_before_end.py",
    "test_hooks.py",
    "test_model_conformance.py",
    "test_nodes.py",
    "test_operators.py",
    "test_readme_path.py::test_following_the_readme_leads_to_a_recovered_job",  # the wheel depends on no Slurm
    "test_scenarios_kinds.py",
    "test_scenarios_people.py",
    "test_scenarios_recovery.py",
    "test_scenarios_restraint.py",
    "test_scheduler_reader.py",
    "test_shapes.py",
)


@pytest.fixture(scope="module", params=SUITES)
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with debian(request.param) as made:
        yield made


def _pytest(folder: Path, *arguments: str) -> str:
    done = run(folder, inside("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments))
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def _version(folder: Path, package: str) -> str:
    return run(folder, ["dpkg-query", "-W", "-f", "${Version}", package]).stdout


def test_it_is_the_release_that_is_meant(folder: Path) -> None:
    """A suite whose Slurm is older than this file says would show nothing."""
    major, minor = (int(part) for part in _version(folder, "slurmctld").split(".")[:2])
    assert (major, minor) >= RELEASES[folder.name.partition("-")[0]]


@pytest.mark.parametrize("file", FILES)
def test_the_slurm_tier(folder: Path, file: str) -> None:
    """Agent, hooks, conformance, scenarios, history: the same expectations as on 22.05."""
    assert " passed" in _pytest(folder, f"tests/slurm/{file}")


def test_accounting(folder: Path) -> None:
    """What slurmdbd remembers, where Debian's slurmdbd starts at all."""
    slurmdbd, library = _version(folder, "slurmdbd"), _version(folder, "libmariadb3")
    newer = run(folder, ["dpkg", "--compare-versions", library, "ge", "1:11.8.9"]).returncode == 0
    if newer and slurmdbd.startswith("24.11.5"):
        pytest.skip(f"slurmdbd {slurmdbd} does not start with libmariadb3 {library}: error 5027 (docs/slurm.md)")
    assert " passed" in _pytest(folder, "tests/slurm/test_history.py")


def test_the_demo(folder: Path) -> None:
    """A real job fails on a bad node and is recovered, as `make demo` shows it."""
    done = run(folder, ["/project/.venv/bin/python", "-m", "advisor", "demo"], seconds=300)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
