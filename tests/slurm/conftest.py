"""One real Slurm, and our three programs on it, for all tests of this tier.

Missing parts fail loudly: `-m "not slurm"` leaves the tier out.
"""

import shutil
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Programs are started beside gRPC's threads; its fork handlers would only warn about that. Read at grpc's import.
from advisor.client import Client
from advisor.demo.cluster import SLURM_USER, Cluster, Shape
from advisor.demo.namespace import Runtime, require
from advisor.demo.training import KernelLogWriter
from advisor.demo.world import World, running_cluster, running_world
from tests.slurm.scripted import Bench

# Short where a person would wait longer, so that a scenario takes seconds. What is decided does not depend on them.
POLICY = {
    "hang_seconds": 8.0,
    "hang_startup_seconds": 60.0,
    "trusted_fatal_grace_seconds": 8.0,
}
_WORDS_LINES = 40
_VIEWS = {
    "jobs": ("squeue", "-a", "-r", "-t", "all", "-o", "%A %T %r from=%V begin=%S on=%N without=%x"),
    "nodes": ("sinfo", "-a", "-N", "-o", "%N %T %E"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knife:
    """Kills processes at the very moment between a requeue that Slurm accepted and whatever comes next.

    The agent's `scontrol` is a script that runs the real one and then, once, does what `file` says.
    """

    file: Path

    @property
    def cancel(self) -> "Knife":
        """The same behind a cancel that Slurm accepted: of `scancel`."""
        return Knife(file=self.file.with_name("knife-cancel"))

    def arm(self, *pids: int) -> None:
        self.file.write_text(" ".join(map(str, pids)), encoding="ascii")
        shutil.chown(self.file, SLURM_USER, SLURM_USER)

    @property
    def used(self) -> bool:
        return not self.file.exists()

    def wait_at(self, when: str, verb: str) -> None:
        """The next `scontrol VERB` of the agent stops before it is run, or after it was accepted, until `go`."""
        for name in ("reached", "go"):
            (self.file.parent / name).unlink(missing_ok=True)
        self._point(when, verb).touch()

    @property
    def reached(self) -> bool:
        return (self.file.parent / "reached").exists()

    def go(self) -> None:
        (self.file.parent / "go").touch()

    def forget(self) -> None:
        for point in self.file.parent.glob("at-*"):
            point.unlink()

    def _point(self, when: str, verb: str) -> Path:
        return self.file.parent / f"at-{when}-{verb}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed scenario shows what our programs and Slurm's controller said last, and the jobs and nodes by now."""
    report = yield
    given = getattr(item, "funcargs", {})
    world, bench = given.get("world"), given.get("bench")
    cluster = bench.cluster if isinstance(bench, Bench) else given.get("cluster")
    if not report.failed or not isinstance(cluster, Cluster):
        return report
    programs = bench.agents if isinstance(bench, Bench) else world.stack.programs if isinstance(world, World) else ()
    for program in programs:
        report.sections.append((program.name, program.last_words(_WORDS_LINES)))
    lines = cluster.controller_log.read_text(encoding="utf-8", errors="replace").splitlines()
    report.sections.append(("slurmctld", "\n".join(lines[-_WORDS_LINES:])))
    for what, argv in _VIEWS.items():
        report.sections.append((what, cluster.command(*argv).stdout))
    return report


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return require()


@pytest.fixture(scope="session")
def knife(runtime: Runtime) -> Knife:
    folder = runtime.root / "tools"
    folder.mkdir()
    shutil.chown(folder, SLURM_USER, SLURM_USER)
    for name in ("squeue", "sinfo", "scancel", "scontrol", "sacct", "sbatch"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    file = folder / "knife"
    script = folder / "scontrol"
    script.unlink()
    script.write_text(
        "#!/bin/sh\n"
        "point() {\n"
        f"  [ -e {folder}/at-$1 ] || return 0\n"
        f"  /bin/mv {folder}/at-$1 {folder}/reached\n"
        f"  i=0; while [ ! -e {folder}/go ] && [ $i -lt 300 ]; do /bin/sleep 0.01; i=$((i + 1)); done\n"
        "}\n"
        'point "before-$1"\n'
        '/usr/bin/scontrol "$@"\n'
        "code=$?\n"
        '[ $code != 0 ] || point "after-$1"\n'
        f'case " $* " in *" requeue "*) if [ $code = 0 ] && [ -f {file} ]; then\n'
        f"  pids=$(/bin/cat {file}); /bin/rm -f {file}; kill -9 $pids $PPID\n"
        "fi;; esac\n"
        "exit $code\n",
        encoding="ascii",
    )
    script.chmod(0o755)
    made = Knife(file=file)
    script = folder / "scancel"
    script.unlink()
    script.write_text(
        "#!/bin/sh\n"
        '/usr/bin/scancel "$@"\n'
        "code=$?\n"
        f"if [ $code = 0 ] && [ -f {made.cancel.file} ]; then\n"
        f"  pids=$(/bin/cat {made.cancel.file}); /bin/rm -f {made.cancel.file}; kill -9 $pids $PPID\n"
        "fi\n"
        "exit $code\n",
        encoding="ascii",
    )
    script.chmod(0o755)
    return made


@pytest.fixture(scope="session")
def bare() -> Iterator[tuple[Cluster, KernelLogWriter]]:
    # Six nodes: a three-node job, its exclusions and another user's job fit side by side.
    # Exit codes that no other scenario uses.
    with running_cluster(Shape(nodes=6, extra=("RequeueExit=111", "RequeueExitHold=112"))) as parts:
        yield parts


@pytest.fixture(scope="session")
def cluster(bare: tuple[Cluster, KernelLogWriter]) -> Cluster:
    return bare[0]


@pytest.fixture(scope="session")
def kernel(bare: tuple[Cluster, KernelLogWriter]) -> KernelLogWriter:
    return bare[1]


@pytest.fixture(scope="session")
def worlds() -> list[World]:
    """The session's world, once a test has asked for it."""
    return []


@pytest.fixture(scope="session")
def everything(cluster: Cluster, kernel: KernelLogWriter, knife: Knife, worlds: list[World]) -> Iterator[World]:
    with running_world(cluster, kernel, policy=POLICY, slurm_bin=knife.file.parent) as world:
        worlds.append(world)
        yield world


@pytest.fixture(autouse=True)
def _cluster_of_its_own(request: pytest.FixtureRequest, worlds: list[World]) -> None:
    """The world's agent and watchdog look after every job that bears our mark: not beside a test's own agents."""
    if "cluster" in request.fixturenames and "everything" not in request.fixturenames:
        for world in worlds:
            world.leave()


@pytest.fixture
def world(everything: World) -> World:
    """The session's world, brought back to rest."""
    everything.reset()
    everything.stack.set_mode("autonomous", cluster="demo")
    return everything


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    with Client(world.stack.socket) as client:
        yield client
