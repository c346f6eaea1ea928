"""What a site installs beside the units: cron, container, snippet, runbook; each fits the programs it is about."""

import ast
import json
import re
import shutil
import subprocess
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

from advisor.config import load as load_service
from advisor.core.policy import Policy
from slurm_plugin.config import decode as decode_agent
from slurm_plugin.install import conf_text
from watchdog.monitor import arithmetic
from watchdog.monitor import load as load_watchdog

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
EXPOSURE_MAX = 2.0
# It reads /dev/kmsg and writes a file that only root may have written: root, without any right of root's.
EXPOSURE_MAX_OF_ROOT = {"recovery-advisor-kmsg": 2.3}
LOUD = {"warning", "error", "critical", "exception"}


def test_the_watchdogs_arithmetic_is_about_the_shipped_policy_and_adds_up_with_slurms_defaults() -> None:
    """Numbers that are written down twice agree."""
    config = load_watchdog(DEPLOY / "watchdog.toml")
    policy, service = Policy(), load_service(DEPLOY / "advisor.toml", {}).config
    agent = decode_agent(tomllib.loads((DEPLOY / "agent.toml").read_text(encoding="utf-8")), {})
    assert config.arithmetic_decision_deadline_seconds == policy.decision_deadline_seconds
    assert config.arithmetic_settle_seconds >= max(policy.settle_seconds.values())
    assert config.arithmetic_tick_seconds == service.tick.interval_seconds
    assert config.arithmetic_agent_poll_seconds == agent.poll_seconds
    assert arithmetic(config, requeue_delay_seconds=121, kill_wait_seconds=30) == []


def test_cron_runs_what_the_unit_runs_once_and_never_twice_at_a_time() -> None:
    """The same program, user and configuration, each minute, ended before the next one begins."""
    lines = (DEPLOY / "cron.d" / "recovery-advisor-watchdog").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line and not line.startswith("#") and "=" not in line.split(" ")[0])
    *times, user, command = line.split(" ", 6)
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    unit.read(DEPLOY / "systemd" / "recovery-advisor-watchdog.service", encoding="utf-8")
    assert times == ["*"] * 5
    assert user == unit["Service"]["User"]
    limit = re.match(r"timeout -k (\d+) (\d+) ", command)
    assert limit is not None
    assert int(limit[1]) + int(limit[2]) < 60
    assert f"{unit['Service']['ExecStart']} --once" in command
    assert "%" not in command  # cron would end the line there


def test_the_snippet_names_what_install_hooks_would_write() -> None:
    """And nothing that keeps slurmctld from starting where it is pasted alone."""
    text = (DEPLOY / "slurm.conf.snippet").read_text(encoding="utf-8")
    (hook,) = conf_text.settings(text, "EpilogSlurmctld")
    assert hook.value == "/etc/slurm/recovery-advisor/epilog_slurmctld"
    assert conf_text.settings(text, "JobSubmitPlugins") == []
    assert [item.value for item in conf_text.settings(text, "MinJobAge")] == ["300"]
    assert [item.value for item in conf_text.settings(text, "AuthInfo")] == ["cred_expire=30"]


def test_the_container_runs_the_service_as_its_own_user() -> None:
    """Every instruction is one, what is copied is there, and the build sees nothing else."""
    text = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in found} <= known
    last = dict(found[max(at for at, (word, _) in enumerate(found) if word == "FROM") :])
    assert last["USER"] == "950:950"  # by number: what runs it can tell that it is not root
    assert "--uid 950 --gid 950" in last["RUN"]
    assert json.loads(last["ENTRYPOINT"]) == ["advisor"]
    assert json.loads(last["CMD"])[0] == "serve"
    copied = [rest.split(" ")[0] for word, rest in found if word == "COPY" and not rest.startswith("--from")]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    ignore = (DEPLOY / "container" / "Containerfile.containerignore").read_text(encoding="utf-8").split()
    assert ignore[0] == "*"
    assert [line for line in ignore if line.startswith("!") and not (ROOT / line[1:]).exists()] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert set(wheel["wheel"]["packages"]) <= {line[1:] for line in ignore}


def test_sysusers_makes_the_user_of_the_unit() -> None:
    """One line of its format."""
    lines = (DEPLOY / "sysusers.d" / "recovery-advisor.conf").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if not line.startswith("#"))
    assert re.fullmatch(r'u advisor - "[^"]+" /var/lib/recovery-advisor', line)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this host")
@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.stem)
def test_units_are_as_closed_as_systemd_can_tell(path: Path) -> None:
    """By its own measure, 0 (closed) to 10 (open)."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    level = re.search(r"Overall exposure level for \S+ ([0-9.]+)", done.stdout)
    if level is None:
        pytest.skip(f"this systemd-analyze cannot judge a file: {done.stderr.strip()[:80]}")
    assert float(level[1]) <= EXPOSURE_MAX_OF_ROOT.get(path.stem, EXPOSURE_MAX)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck on this host")
def test_shell_scripts_have_nothing_to_complain_of() -> None:
    """Those that a site runs."""
    scripts = [str(DEPLOY / name) for name in ("probe.sh", "debian-packages")]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def loud_events() -> set[str]:
    """Names of the events that service, agent and connectors log at warning or above."""
    found: set[str] = set()
    for package in ("advisor", "slurm_plugin", "connectors"):
        for path in (ROOT / package).rglob("*.py"):
            if "demo" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                    continue
                if node.func.attr in LOUD and isinstance(node.func.value, ast.Name) and "log" in node.func.value.id:
                    names = [item for item in ast.walk(node.args[0]) if isinstance(item, ast.Constant)]
                    found |= {item.value for item in names if isinstance(item.value, str)}
    return found


def test_the_runbook_knows_every_loud_event() -> None:
    """Whoever is woken by one finds what it means and what to do: docs/runbook.md."""
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    events = loud_events()
    assert len(events) > 20
    assert sorted(event for event in events if f"`{event}`" not in runbook) == []
