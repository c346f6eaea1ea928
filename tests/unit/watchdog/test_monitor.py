"""The watchdog as a whole, on a scripted Slurm and as the process that cron or systemd starts."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm
from watchdog.monitor import RELEASES_PER_LOOK_MAX, Config, Watchdog, arithmetic, decode, load
from watchdog.slurm import Slurm, SlurmError, expand

MAIN = Path(__file__).parents[3] / "watchdog" / "__main__.py"


def fragment(**changes: object) -> str:
    value: dict[str, object] = {"v": 1, "job": "k", "attempt": 0, "generation": 1, "deadline": None}
    return json.dumps({"advisor": value | {"nodes": ["node2"], "start": None, "found": None} | changes})


def waiting(**changes: object) -> FakeJob:
    """A requeued job that our exclusion of node2 keeps from starting."""
    values: dict[str, object] = {
        "state": "PENDING",
        "restarts": 1,
        "submit": 1000,
        "eligible": 1006,
        "end": None,
        "nodes": "",
        "reason": "Resources",
        "nodes_wanted": 3,
        "excluded": "node[2,4]",
        "admin_comment": fragment(),
    }
    return FakeJob(**(values | changes))  # type: ignore[arg-type]


def watchdog(
    world: FakeSlurm,
    folder: Path,
    *,
    once: bool = False,
    pause: Callable[[float], None] = time.sleep,
    **changes: object,
) -> Watchdog:
    config = replace(Config(tick_file=str(folder / "tick.json"), mode="act"), **changes)  # type: ignore[arg-type]

    def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
        out = world(argv, environment, seconds)
        return out.returncode, out.stdout, out.stderr

    slurm = Slurm(conf="", bin_dir="", timeout_seconds=5, run=run)
    return Watchdog(config, slurm, once=once, wall=lambda: world.now, pause=pause)


def test_a_shortage_is_believed_when_seen_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A restart of slurmctld makes nodes look away for a moment."""
    world = FakeSlurm()
    job = world.add(waiting())
    dog = watchdog(world, tmp_path)
    dog.look()
    assert world.verbs == []
    dog.look()
    assert job.excluded == "node4"
    assert "job 17: exclusion of node2 given back: only 2 of 3 nodes fit" in capsys.readouterr().err
    dog.look()
    assert len(world.verbs) == 1


def test_a_shortage_that_passes_changes_nothing(tmp_path: Path) -> None:
    """Two looks in a row, not two in all."""
    world = FakeSlurm()
    job = world.add(waiting(nodes_wanted=2))
    dog = watchdog(world, tmp_path)
    for state in ("down", "idle", "down", "idle"):
        world.nodes["node3"] = state
        dog.look()
    assert (world.verbs, job.excluded) == ([], "node[2,4]")


def test_one_run_by_cron_looks_twice_where_it_must(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no earlier look to compare with, and a node that is away for a moment is no reason."""
    for comes_back in (True, False):
        world = FakeSlurm()
        job = world.add(waiting(nodes_wanted=2))
        world.nodes["node3"] = "down"
        pauses: list[float] = []

        def pause(
            seconds: float, world: FakeSlurm = world, pauses: list[float] = pauses, back: bool = comes_back
        ) -> None:
            pauses.append(seconds)
            world.nodes["node3"] = "idle" if back else "down"

        assert watchdog(world, tmp_path, once=True, pause=pause).look()
        assert pauses == [2.0]
        assert job.excluded == ("node[2,4]" if comes_back else "node4")
    assert capsys.readouterr().err.count("given back") == 1


def test_one_run_by_cron_with_nothing_to_do_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cron mails what is printed, each minute; and it waits for nothing."""
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    (tmp_path / "tick.json").write_text(json.dumps({"v": 1, "boot_monotonic": boot, "tick_age": 1}))
    world = FakeSlurm()
    world.add(waiting(nodes_wanted=1))
    assert watchdog(world, tmp_path, once=True, pause=lambda seconds: pytest.fail("paused")).look()
    assert capsys.readouterr().err == ""


def test_observe_mode_only_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says it once, not at every look."""
    world = FakeSlurm()
    world.add(waiting(reason="BadConstraints"))
    dog = watchdog(world, tmp_path, mode="observe")
    dog.look()
    dog.look()
    assert world.verbs == []
    assert capsys.readouterr().err.count("would act") == 1


def test_what_a_person_changed_in_between_is_respected(tmp_path: Path) -> None:
    """The job is looked at again just before the update."""
    world = FakeSlurm()
    job = world.add(waiting(reason="BadConstraints"))

    def edit(argv: Sequence[str]) -> None:
        if "-j" in argv:
            job.excluded = "node4"

    world.before = edit
    assert watchdog(world, tmp_path).look()
    assert world.verbs == []


def test_a_death_is_said_once_however_long_it_lasts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The age of the last tick changes with every look; the journal is for people."""
    dog = watchdog(FakeSlurm(), tmp_path)
    for age in (40, 41, 42):
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        (tmp_path / "tick.json").write_text(json.dumps({"v": 1, "boot_monotonic": boot, "tick_age": age}))
        dog.look()
    assert capsys.readouterr().err.count("DEAD") == 1


def test_slurm_that_does_not_answer_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And is looked at again."""
    world = FakeSlurm()
    world.add(waiting(reason="BadConstraints"))

    def silent(argv: Sequence[str]) -> None:
        raise SlurmError("squeue gave no answer in 5 s")

    world.before = silent
    dog = watchdog(world, tmp_path)
    dog.start()
    assert not dog.look()
    assert not dog.look()
    world.before = lambda argv: None
    assert dog.look()
    assert capsys.readouterr().err.count("does not answer") == 1
    assert len(world.verbs) == 1


@pytest.mark.parametrize("silent", ["--json", "sinfo"])
def test_what_the_mark_alone_tells_needs_no_other_listing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], silent: str
) -> None:
    """A lease and an impossible job are released also where Slurm does not tell in time which nodes fit."""
    world = FakeSlurm()
    impossible = world.add(waiting(reason="BadConstraints"))
    leased = world.add(
        waiting(job_id="18", eligible=9000, admin_comment=fragment(start=9000, found=1006, nodes=[])),
    )

    def slow(argv: Sequence[str]) -> None:
        if silent in " ".join(argv):
            raise SlurmError("squeue gave no answer in 5 s")

    world.before = slow
    dog = watchdog(world, tmp_path)
    assert not dog.look()  # what is not known is said, and is a failure of --once
    dog.look()
    assert (impossible.excluded, leased.eligible) == ("node4", 1201)
    assert capsys.readouterr().err.count("which nodes fit is not known") == 1


def test_jobs_that_need_nothing_do_not_hide_one_that_does(tmp_path: Path) -> None:
    """The bound is on releases. Slurm lists a job with BadConstraints last, for its priority is 0."""
    world = FakeSlurm()
    for number in range(RELEASES_PER_LOOK_MAX):
        world.add(waiting(job_id=str(100 + number), nodes_wanted=1))
    impossible = world.add(waiting(job_id="999", reason="BadConstraints", priority=0))
    watchdog(world, tmp_path).look()
    assert impossible.excluded == "node4"


def test_a_bound_on_releases_bites_visibly_and_the_rest_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is forgotten."""
    world = FakeSlurm()
    for number in range(RELEASES_PER_LOOK_MAX + 1):
        world.add(waiting(job_id=str(100 + number), reason="BadConstraints"))
    dog = watchdog(world, tmp_path)
    dog.look()
    assert len(world.verbs) == RELEASES_PER_LOOK_MAX
    dog.look()
    assert len(world.verbs) == RELEASES_PER_LOOK_MAX + 1
    assert capsys.readouterr().err.count("the rest comes next") == 1


def test_a_refused_update_is_said_and_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without rights there is nothing to be done but to say so."""
    world = FakeSlurm()
    world.add(waiting(reason="BadConstraints"))
    world.refuse["update"] = "Access/permission denied for job 17"
    dog = watchdog(world, tmp_path)
    assert not dog.look()
    assert not dog.look()
    assert capsys.readouterr().err.count("Slurm refused") == 1
    world.refuse.clear()
    assert dog.look()


def test_arithmetic() -> None:
    """The deadline must leave room for everything before it; what does not add up is said."""
    config = Config(tick_file="/t")
    assert arithmetic(config, requeue_delay_seconds=121, kill_wait_seconds=30) == []
    assert len(arithmetic(config, requeue_delay_seconds=121, kill_wait_seconds=70)) == 1
    short = replace(config, dead_after_seconds=10.0, poll_seconds=10.0)
    assert len(arithmetic(short, requeue_delay_seconds=1, kill_wait_seconds=30)) == 3


def test_configuration_is_strict_and_all_problems_are_told() -> None:
    """With the key path of each."""
    with pytest.raises(ValueError, match="x: no such key") as caught:
        decode({"mode": "kill", "poll_seconds": True, "slurm": {"bin": "bin"}, "x": 1})
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["x", "mode", "poll_seconds", "slurm.bin"]


def test_a_problem_names_its_file_and_the_key_that_was_meant(tmp_path: Path) -> None:
    """Where nothing is near, the file that shows all keys; never the whole list."""
    file = tmp_path / "watchdog.toml"
    file.write_text('mod = "act"\nzzz = 1\n[arithmetic]\nsettle_second = 3\n')
    with pytest.raises(ValueError, match="no such key") as caught:
        load(file)
    assert str(caught.value).splitlines() == [
        f"mod: no such key; did you mean mode? ({file})",
        f"zzz: no such key; deploy/watchdog.toml shows all that there are ({file})",
        f"arithmetic.settle_second: no such key; did you mean arithmetic.settle_seconds? ({file})",
    ]


def test_the_shipped_configuration_loads() -> None:
    """deploy/watchdog.toml, and with the defaults it shows."""
    shipped = load(MAIN.parents[1] / "deploy" / "watchdog.toml")
    assert shipped == Config()


def test_hostlists() -> None:
    """Its own reader, as bounded as the agent's."""
    assert expand("n[1-3],x[08-09]y,z") == ("n1", "n2", "n3", "x08y", "x09y", "z")
    assert expand("(null)") == ()
    with pytest.raises(SlurmError):
        expand("n[1-999999999]")


def program(folder: Path) -> list[str]:
    """The watchdog's command line, beside a Slurm that has nothing to tell."""
    for name, text in (("squeue", ""), ("sinfo", ""), ("scontrol", "echo SLURM_VERSION = 22.05.8")):
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)
    config = folder / "w.toml"
    config.write_text(
        f'tick_file = "{folder}/tick"\nalive_file = "{folder}/alive.json"\npoll_seconds = 0.1\n'
        f'mode = "act"\n[slurm]\nbin = "{folder}"\n'
    )
    return ["/usr/bin/python3", "-I", "-S", str(MAIN), "--config", str(config)]


def test_runs_without_site_packages_and_stops_cleanly(tmp_path: Path) -> None:
    """`python3 -IS`: nothing that is installed, or broken, in an environment can stop it."""
    command = program(tmp_path)
    once = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=30, check=False)
    assert (once.returncode, once.stderr.count("advisor DEAD")) == (0, 1)
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert "started" in running.stderr.readline()
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=20)
    assert (running.returncode, err.count("stopped")) == (0, 1)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("journal", [True, False])
def test_each_line_of_a_log_of_ones_own_has_its_time(tmp_path: Path, journal: bool) -> None:
    """The journal keeps it by itself; a file does not, whatever the environment was where the watchdog was started."""
    log = tmp_path / "watchdog.log"
    with log.open("wb") as file:
        stream = os.fstat(file.fileno() if journal else 0)
        environment = {"JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}", "PATH": "/usr/bin:/bin"}
        running = subprocess.Popen(program(tmp_path), stderr=file, env=environment)
        deadline = time.monotonic() + 20
        while log.read_text().count("\n") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    lines = log.read_text().splitlines()
    when = "" if journal else r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
    assert [line for line in lines if not re.match(rf"{when}watchdog: \w", line)] == []
    assert ["started" in lines[0], "DEAD" in lines[1], "stopped" in lines[-1]] == [True, True, True]


def test_systemd_is_told_that_it_lives(tmp_path: Path) -> None:
    """Ready at once, alive at every question to Slurm, stopping at the end."""
    path = f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(20)
        running = subprocess.Popen(
            program(tmp_path),
            stderr=subprocess.DEVNULL,
            env={"NOTIFY_SOCKET": path, "PATH": "/usr/bin:/bin"},
        )
        assert systemd.recv(100) == b"READY=1"
        assert {systemd.recv(100) for _ in range(5)} == {b"WATCHDOG=1"}
        running.send_signal(signal.SIGTERM)
        said = [systemd.recv(100)]
        while said[-1] != b"STOPPING=1":
            said.append(systemd.recv(100))
        assert running.wait(timeout=20) == 0


def test_a_file_tells_that_it_lives_and_in_which_mode(tmp_path: Path) -> None:
    """From its start on, again at every look; then that it has stopped. One run by cron is not there to be seen."""
    command, file = program(tmp_path), tmp_path / "alive.json"
    subprocess.run([*command, "--once"], capture_output=True, timeout=30, check=True)
    subprocess.run([*command, "--check"], capture_output=True, timeout=30, check=True)
    assert not file.exists()
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, umask=0o077)
    try:
        first = _told(file, lambda told: True)
        assert (first["v"], first["mode"], first["pid"], first["within"]) == (1, "act", running.pid, 15.0)
        assert file.stat().st_mode & 0o777 == 0o644, "doctor may be run by another user"
        later = _told(file, lambda told: told["boot_monotonic"] != first["boot_monotonic"])
        assert 0.9 < later["boot_monotonic"] - first["boot_monotonic"] < 15
        assert time.clock_gettime(time.CLOCK_BOOTTIME) - later["boot_monotonic"] < 15
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=20) == 0
    assert json.loads(file.read_bytes())["within"] == 0
    assert [path.name for path in tmp_path.iterdir() if "alive" in path.name] == ["alive.json"]


def _told(file: Path, wanted: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if file.exists():
            told: dict[str, float] = json.loads(file.read_bytes())  # whole at any moment
            if wanted(told):
                return told
        time.sleep(0.01)
    raise AssertionError(file.read_text() if file.exists() else "nothing was written")


def test_it_watches_although_it_cannot_tell_that_it_lives(tmp_path: Path) -> None:
    """Said once, with what follows from it; a link in the file's place leads nowhere."""
    command = program(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "alive.json.new").symlink_to(victim)
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 0
    assert "advisor DEAD" in err
    assert err.count(f"cannot write {tmp_path}/alive.json") == 1
    assert victim.read_text() == "kept"


@pytest.mark.parametrize(("kill_wait", "code", "says"), [(30, 0, "leaves room"), (70, 1, "BAD  the decision deadline")])
def test_check_says_whether_it_adds_up_here(tmp_path: Path, kill_wait: int, code: int, says: str) -> None:
    """With Slurm's own numbers; without an answer of Slurm's it is not well either."""
    tool = tmp_path / "scontrol"
    tool.write_text(f"#!/bin/sh\necho 'SLURM_VERSION = 22.05.8'\necho 'KillWait = {kill_wait} sec'\n")
    tool.chmod(0o755)
    config = tmp_path / "w.toml"
    config.write_text(f'[slurm]\nbin = "{tmp_path}"\n')
    command = ["/usr/bin/python3", "-I", "-S", str(MAIN), "--config", str(config), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, says in done.stdout) == (code, True)
    tool.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "Slurm does not answer" in done.stdout) == (1, True)


def test_unusable_configuration_is_exit_2(tmp_path: Path) -> None:
    """One clear line per problem."""
    command = ["/usr/bin/python3", "-I", "-S", str(MAIN), "--config", str(tmp_path / "none.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
