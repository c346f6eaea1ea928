"""The agent's configuration and command line: strict, complete in its complaints, and shipped samples that load."""

import json
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from slurm_plugin import cli
from slurm_plugin.config import AgentConfig, ConfigError, decode, load
from slurm_plugin.reach import Reach

ROOT = Path(__file__).parents[3]
HOOK = ROOT / "slurm_plugin" / "hooks" / "epilog_slurmctld"


def test_the_shipped_configuration_shows_the_defaults() -> None:
    """deploy/agent.toml."""
    shipped = load(ROOT / "deploy" / "agent.toml", {})
    assert shipped == decode({"cluster": "mycluster"}, {})
    assert shipped.mode == "observe"


def test_all_problems_are_told_together() -> None:
    """Unknown keys, wrong types, missing ones, each with its key path."""
    tree = {
        "mode": "kill",
        "socket": "relative.sock",
        "hook_socket": "/" + "x" * 200,
        "poll_seconds": 0,
        "scope": {"users": "alice", "everybody": True},
        "caps": 5,
    }
    with pytest.raises(ConfigError) as caught:
        decode(tree, {"RECOVERY_AGENT_CAPS__EXCLUSIONS_PER_JOB": "many", "RECOVERY_AGENT_NOPE": "1"})
    keys = sorted({problem.partition(":")[0] for problem in caught.value.problems})
    assert keys == [
        "caps",
        "caps.exclusions_per_job",
        "cluster",
        "hook_socket",
        "mode",
        "nope",
        "poll_seconds",
        "scope.everybody",
        "scope.users",
        "socket",
    ]


def test_environment_overrides_the_file() -> None:
    """Every key, lists as TOML."""
    environment = {
        "RECOVERY_AGENT_MODE": "act",
        "RECOVERY_AGENT_SLURM__BIN": "/opt/slurm/bin",
        "RECOVERY_AGENT_SCOPE__USERS": '["alice"]',
        "RECOVERY_AGENT_POLL_SECONDS": "2",
        "UNRELATED": "x",
    }
    found = decode({"cluster": "c", "mode": "observe"}, environment)
    assert (found.mode, found.slurm.bin, found.scope.users, found.poll_seconds) == (
        "act",
        "/opt/slurm/bin",
        ("alice",),
        2.0,
    )


def test_a_broken_file_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2."""
    broken = tmp_path / "a.toml"
    broken.write_text("cluster = ")
    assert cli.main(["check", "--config", str(broken)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert cli.main(["run", "--config", str(tmp_path / "none.toml")]) == 2


def run_hook(hook: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([hook], env=environment, capture_output=True, timeout=20, check=False)


def fill(path: Path) -> None:
    """Send until the listener's queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        for _ in range(100_000):
            try:
                sender.sendto(b"x", str(path))
            except BlockingIOError:
                return
    raise AssertionError("the queue never filled")


def test_the_hook_sends_chosen_keys_and_never_fails() -> None:
    """With a listener, without one, and with a full queue; Slurm's job must not wait for us."""
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "hook"
        hook.write_bytes(HOOK.read_bytes())
        hook.chmod(0o755)
        path = Path(folder) / "s"
        hook.with_name("hook.socket").write_text(f"{path}\n")
        environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_COMMENT": "secret", "SLURM_JOB_NODELIST": "n" * 9000}
        assert run_hook(hook, environment).returncode == 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(path))
            done = run_hook(hook, environment)
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
            assert json.loads(listener.recv(65536)) == {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n" * 4096}
            fill(path)
            assert run_hook(hook, environment).returncode == 0


def test_defaults_are_bounded() -> None:
    """What an operator gets who writes nothing but the cluster's name."""
    found = decode({"cluster": "c"}, {})
    assert isinstance(found, AgentConfig)
    assert (found.caps.exclusions_per_job, found.caps.requeues_per_minute, found.caps.lease_seconds_max) == (
        8,
        30,
        600.0,
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"server": "advisor.example:8443"}, "server: give token_file"),
        ({"server": "https://advisor:8443", "token_file": "/t"}, "server: give host:port"),
        ({"token_file": "/t"}, "token_file: has no meaning without server"),
        ({"server": "a:1", "certificate_file": "/c"}, "key_file: certificate_file and key_file go together"),
    ],
)
def test_an_advisor_far_away_needs_what_it_knows_the_agent_by(given: dict[str, object], problem: str) -> None:
    """A server without credentials, or credentials without a server, are refused with the key."""
    with pytest.raises(ConfigError) as caught:
        decode({"cluster": "c"} | given, {})
    assert any(text.startswith(problem) for text in caught.value.problems)


def test_without_a_server_the_socket_on_this_host_is_used() -> None:
    """The socket is the default; a server over TLS takes its place."""
    assert decode({"cluster": "c", "socket": "/run/a.sock"}, {}).reach == Reach(target="unix:/run/a.sock")
    far = decode({"cluster": "c", "token_file": "/t"}, {"RECOVERY_AGENT_SERVER": "a.example:8443"}).reach
    assert (far.target, far.secured, far.token_file) == ("a.example:8443", True, "/t")


def test_a_problem_names_its_file_and_the_key_that_was_meant(tmp_path: Path) -> None:
    """Or the variable that it came from. Where nothing is near, the file that shows all keys; never the whole list."""
    file = tmp_path / "agent.toml"
    file.write_text(
        'cluster = "a"\nmode = "acting"\nrequeues_per_minute = 3\n[caps]\nexclusion_per_job = 3\nzzz = 1\n[cap]\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(file, {"RECOVERY_AGENT_POLL_SECONDS": "true", "RECOVERY_AGENT_MOD": "act"})
    assert set(caught.value.problems) == {
        f"mode: choose one of 'observe', 'act' ({file})",
        f"requeues_per_minute: no such key; did you mean caps.requeues_per_minute? ({file})",
        f"caps.exclusion_per_job: no such key; did you mean caps.exclusions_per_job? ({file})",
        f"caps.zzz: no such key; deploy/agent.toml shows all that there are ({file})",
        f"cap: no such key; did you mean [caps]? ({file})",
        "poll_seconds: give seconds from 0.05 to 86400 (environment variable RECOVERY_AGENT_POLL_SECONDS)",
        "mod: no such key; did you mean mode? (environment variable RECOVERY_AGENT_MOD)",
    }
