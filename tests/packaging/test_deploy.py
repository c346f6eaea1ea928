"""What a site installs: units that systemd accepts, defaults that run together, a README that leads to all of it."""

import re
import shutil
import subprocess
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

from advisor.config import load as load_service
from slurm_plugin.config import decode as decode_agent
from slurm_plugin.kmsg import __main__ as kmsg
from slurm_plugin.logreader import __main__ as logreader
from watchdog.monitor import Config as WatchdogConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPT_IN = '{"advisor": {"enabled": true}}'


def unit(name: str) -> ConfigParser:
    found = ConfigParser(interpolation=None, strict=False)  # SystemCallFilter= is given twice
    found.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    found.read(DEPLOY / "systemd" / name, encoding="utf-8")
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this host")
def test_systemd_has_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    """Unknown keys and wrong values are only warned of, so any word counts. The programs are not installed here."""
    copies = []
    for path in UNITS:
        copy = tmp_path / path.name
        copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE))
        copies.append(str(copy))
    assert len(copies) == 5
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *copies],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "recovery-advisor" in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_every_unit_is_hardened(path: Path) -> None:
    """None but the log reader and the kernel's forwarder need privileges, and none over files; none writes outside its
    own folders.
    """
    service = unit(path.name)["Service"]
    of_root = {"recovery-advisor-logreader": "CAP_SETUID CAP_SETGID", "recovery-advisor-kmsg": "CAP_SYSLOG"}
    assert service.get("User") in ({None} if path.stem in of_root else {"advisor", "slurm"})
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == of_root.get(path.stem, "")
    assert service["ProtectSystem"] == "strict"
    assert service["Restart"] == "always"


def test_the_shipped_service_configuration_is_the_default_one() -> None:
    """deploy/advisor.toml names folders that do not depend on who starts the service."""
    shipped = load_service(DEPLOY / "advisor.toml", {}).config
    tree = tomllib.loads((DEPLOY / "advisor.toml").read_text(encoding="utf-8"))
    given = tree.pop("service")
    plain = load_service(None, {}).config
    assert shipped.model_dump(exclude={"service"}) == plain.model_dump(exclude={"service"})
    assert shipped.service.agent_users == plain.service.agent_users
    assert shipped.service.operator_users == plain.service.operator_users
    assert set(given) == {"socket", "data_dir", "agent_users", "operator_users"}


def test_the_shipped_defaults_run_together() -> None:
    """Each program writes only where its unit lets it, and finds the others where they are."""
    service = load_service(DEPLOY / "advisor.toml", {}).config.service
    agent = decode_agent({"cluster": "c"}, {})
    service_unit = unit("recovery-advisor.service")["Service"]
    agent_unit = unit("recovery-advisor-agent.service")["Service"]
    assert agent.socket == str(service.socket)
    assert service.socket.parent == Path("/run") / service_unit["RuntimeDirectory"]
    assert service_unit["RuntimeDirectoryPreserve"] == "restart", "its lock says whose place it has (docs/replicas.md)"
    assert service.data_dir == Path("/var/lib") / service_unit["StateDirectory"]
    own = Path("/run") / agent_unit["RuntimeDirectory"]
    assert own != service.socket.parent
    assert {Path(agent.tick_file).parent, Path(agent.hook_socket).parent} == {own}
    assert WatchdogConfig().tick_file == agent.tick_file
    watchdog_unit = unit("recovery-advisor-watchdog.service")["Service"]
    assert Path(WatchdogConfig().alive_file).parent == Path("/run") / watchdog_unit["RuntimeDirectory"]
    assert f'SOCKET = "{agent.hook_socket}"' in (ROOT / "slurm_plugin" / "hooks" / "epilog_slurmctld").read_text()
    assert agent_unit["User"] in service.agent_users
    assert (agent.mode, WatchdogConfig().mode) == ("observe", "observe")


def test_service_and_log_reader_name_the_same_socket_and_user() -> None:
    """The key that docs/configuration.md shows, the reader's default, the unit's folder and the service's account."""
    reader = unit("recovery-advisor-logreader.service")["Service"]
    assert Path(logreader.SOCKET).parent == Path("/run") / reader["RuntimeDirectory"]
    assert logreader.SOCKET in (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    client = logreader.parser().parse_args(reader["ExecStart"].split()[4:]).client
    assert client == unit("recovery-advisor.service")["Service"]["User"]


def test_the_kernel_forwarder_writes_where_its_unit_lets_it() -> None:
    """The unit's own command line is one that the program takes, in folders that the unit makes."""
    service = unit("recovery-advisor-kmsg.service")["Service"]
    options = kmsg.parser().parse_args(service["ExecStart"].replace("%%", "%").split()[4:])
    kmsg.receivers_of(options, "node1")
    assert Path(options.file).parent == Path("/var/log") / service["LogsDirectory"]
    assert options.state == Path("/var/lib") / service["StateDirectory"]
    assert service["DeviceAllow"].split()[0] == kmsg.DEVICE


def test_the_readme_links_every_document_and_every_file_to_install() -> None:
    """Nobody has to list the folder to find what there is; and no link leads nowhere."""
    links = {link.rstrip("/") for link in re.findall(r"\]\(([^)#:]+)\)", README)}
    assert [link for link in sorted(links) if not (ROOT / link).exists()] == []
    files = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} | {"docs/decisions"}
    files |= {f"deploy/{path.name}" for path in DEPLOY.glob("*") if path.name not in {"debian-packages", "sysusers.d"}}
    assert sorted(files - links) == []


def test_there_is_one_spelling_of_the_opt_in() -> None:
    """Users copy it from wherever they see it first."""
    places = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(path for path in DEPLOY.rglob("*") if path.is_file()),
    ]
    found = {
        (path.name, text)
        for path in places
        for text in re.findall(r"--comment[ =]'([^']*)'", path.read_text(encoding="utf-8"))
        if '"enabled": false' not in text
    }
    assert ("README.md", OPT_IN) in found
    assert [text for _, text in found if not text.startswith(OPT_IN.removesuffix("}}"))] == []
