"""`advisor-agent check`: a bad line states the problem, and what is wrong is found before `run` meets it."""

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from advisor.v1 import agent_pb2, agent_pb2_grpc
from slurm_plugin.check import Verdict, examine
from slurm_plugin.config import TICK_FILE, AgentConfig, decode
from slurm_plugin.squeue import Output, Slurm
from tests.unit.slurm_plugin.fake_slurm import FakeSlurm
from tests.unit.watchdog.test_monitor import program


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="chk-") as name:
        yield Path(name)


def configured(folder: Path, **changes: object) -> AgentConfig:
    tree = {
        "cluster": "c",
        "socket": f"{folder}/a.sock",
        "tick_file": f"{folder}/tick.json",
        "hook_socket": f"{folder}/hook.sock",
    }
    return decode(tree | changes, {})


def lines(
    config: AgentConfig,
    verdict: Verdict,
    *,
    settings: str = "ClusterName = c\n",
    watchdog: str = "",
    file: Path | None = None,
) -> list[str]:
    """What is said with this verdict, in a world where Slurm's configuration holds `settings` besides."""
    fake = FakeSlurm()

    def run(argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float) -> Output:
        out = fake(argv, environment, timeout_seconds)
        return replace(out, stdout=out.stdout + settings.encode()) if argv[0] == "scontrol" else out

    file = file or Path(config.tick_file).with_name("watchdog.toml")
    if watchdog:
        file.write_text(watchdog, encoding="utf-8")
    return [item.text for item in examine(config, Slurm(run=run), file) if item.verdict is verdict]


class Advisor(agent_pb2_grpc.AgentServiceServicer):
    """Refuses as told."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self._code, self._text = code, text

    def Heartbeat(  # noqa: N802 -- gRPC's name
        self, request: agent_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> agent_pb2.HeartbeatResponse:
        context.abort(self._code, self._text)
        raise AssertionError("abort raises")


@contextmanager
def advisor(folder: Path, code: grpc.StatusCode, text: str) -> Iterator[None]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    agent_pb2_grpc.add_AgentServiceServicer_to_server(
        Advisor(code, text),  # type: ignore[abstract]  # the other calls are not made
        server,
    )
    server.add_insecure_port(f"unix:{folder}/a.sock")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def test_an_advisor_that_knows_the_user_is_well(folder: Path) -> None:
    """A session that does not exist is refused only to whom agents may call; nothing else is wrong then."""
    with advisor(folder, grpc.StatusCode.NOT_FOUND, "session: not known"):
        assert lines(configured(folder), Verdict.BAD) == []


def test_how_long_an_action_may_take_is_told_with_what_bounds_it(folder: Path) -> None:
    """The next start of the job that it restarts, by Slurm's own delay."""
    said = "an action that takes longer than 3.6 s is ended: its job may start 6 s after its requeue"
    assert said in lines(configured(folder), Verdict.OK, settings="ClusterName = c\nAuthInfo = cred_expire=5\n")


def test_an_advisor_that_refuses_the_user_is_bad(folder: Path) -> None:
    """As root, say: what it says is what `run` would meet."""
    sentence = "user root may not call AgentService: add the user to service.agent_users"
    with advisor(folder, grpc.StatusCode.PERMISSION_DENIED, sentence):
        assert lines(configured(folder), Verdict.BAD) == [f"socket: {folder}/a.sock: {sentence}"]


def test_a_socket_that_others_could_put_there_is_warned_of(folder: Path) -> None:
    """Whoever may write into its folder may be the advisor for this agent."""

    def warned() -> list[str]:
        with advisor(folder, grpc.StatusCode.NOT_FOUND, "session: not known"):
            return [line for line in lines(configured(folder), Verdict.WARN) if line.startswith("socket: ")]

    assert warned() == []
    folder.chmod(0o1777)
    (line,) = warned()
    assert f"since {folder} is writable by them" in line


def test_problems_are_stated_as_problems(folder: Path) -> None:
    """No advisor, no folders, another cluster."""
    away = configured(folder, tick_file=f"{folder}/none/tick.json", cluster="mycluster")
    (folder / "none").mkdir()
    bad = lines(away, Verdict.BAD, settings="ClusterName = other\n")
    (folder / "none").rmdir()
    missing = lines(replace(away, hook_socket=f"{folder}/gone/h.sock"), Verdict.BAD)
    assert bad == [
        'cluster: configured as "mycluster", but Slurm\'s ClusterName is "other"',
        f"socket: {folder}/a.sock is not there: start the advisor, or correct socket= here or there",
    ]
    assert any(line.startswith(f"tick_file: there is no folder {folder}/none") for line in missing)
    assert any(line.startswith(f"hook_socket: there is no folder {folder}/gone") for line in missing)


@pytest.mark.parametrize(("mode", "warned"), [("observe", True), ("act", False)])
def test_an_agent_that_acts_without_a_watchdog_that_acts_is_warned_of(folder: Path, mode: str, warned: bool) -> None:
    """What the agent does must be given back by somebody when everything else is dead."""
    acting = configured(folder, mode="act")
    text = f'mode = "{mode}"\ntick_file = "{folder}/tick.json"\n'
    found = lines(acting, Verdict.WARN, watchdog=text)
    assert any(line.startswith('watchdog: its mode is "observe" while the agent acts') for line in found) is warned


def test_a_watchdog_that_reads_another_tick_file_is_bad(folder: Path) -> None:
    """It would take a living advisor for dead."""
    found = lines(configured(folder), Verdict.BAD, watchdog='tick_file = "/elsewhere/tick.json"\n')
    assert any("reads /elsewhere/tick.json" in line for line in found)
    default = replace(configured(folder), tick_file=TICK_FILE)
    assert not any("reads" in line for line in lines(default, Verdict.BAD, file=folder / "watchdog.toml", watchdog="#"))


def test_a_watchdog_that_lives_is_told_and_one_that_does_not_is_warned_of(folder: Path) -> None:
    """By what the running process leaves, not by its file: which says "act" all the same when nobody runs."""
    command = program(folder)
    text = f'mode = "act"\ntick_file = "{folder}/tick.json"\nalive_file = "{folder}/alive.json"\n'
    acting = configured(folder, mode="act")

    def said(verdict: Verdict, text: str = text) -> list[str]:
        return [line for line in lines(acting, verdict, watchdog=text) if line.startswith("watchdog: ")]

    (never,) = said(Verdict.WARN)
    assert f"no watchdog runs here: there is no {folder}/alive.json: start it" in never
    assert said(Verdict.OK) == []
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while said(Verdict.WARN) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert said(Verdict.WARN) == []
        (alive,) = said(Verdict.OK)
        assert re.match(r'watchdog: alive \d+\.\d s ago, in mode "act"', alive)
        # Configured since, and not started again.
        (other,) = said(Verdict.WARN, text.replace('"act"', '"observe"', 1))[-1:]
        assert 'runs in mode "act"' in other
        assert "restart it" in other
    finally:
        running.terminate()
        running.wait(20)
    (stopped,) = said(Verdict.WARN)
    assert re.match(r"watchdog: no watchdog has been alive for \d+ s", stopped)
    assert said(Verdict.OK) == []


def test_the_hook_is_looked_at_as_slurm_would_run_it(folder: Path) -> None:
    """Missing, not executable, or sending elsewhere."""
    hook = folder / "hook"
    settings = f"EpilogSlurmctld = {hook}\n"
    config = configured(folder)

    def about_hook() -> list[str]:
        return [line for line in lines(config, Verdict.BAD, settings=settings) if line.startswith("EpilogSlurmctld")]

    assert "there is no" in about_hook()[0]
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o644)
    assert "is not executable" in about_hook()[0]
    hook.chmod(0o755)
    assert about_hook() == []
    (folder / "hook.socket").write_text("/elsewhere.sock\n")
    sends = f"EpilogSlurmctld: {hook} sends to /elsewhere.sock, but hook_socket is {folder}/hook.sock"
    assert about_hook() == [f"{sends}: advisor slurm install-hooks --apply makes them agree"]
