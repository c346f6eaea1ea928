"""`install-hooks` and `uninstall-hooks` on a site's files: shown first, kept, chained, the same twice, taken out."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slurm_plugin import cli
from slurm_plugin.config import decode
from slurm_plugin.install import carrying_out, command, plan
from slurm_plugin.squeue import Output, Slurm, SlurmError

CONF = "ClusterName=c\nEpilogSlurmctld=/site/epilog  # the site's\nJobSubmitPlugins=throttle\n"
SITE_LUA = (
    "function slurm_job_submit() return slurm.SUCCESS end\nfunction slurm_job_modify() end\nreturn slurm.SUCCESS\n"
)


@dataclass(slots=True, kw_only=True)
class Site:
    """A folder as /etc/slurm, and a slurmctld that answers with what it last read."""

    folder: Path
    epilog: str = ""
    reconfigured: int = 0
    silent: bool = False

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def wrapper(self) -> Path:
        return self.folder / "recovery-advisor" / "epilog_slurmctld"

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and ".before-recovery-advisor-" not in path.name
        }

    def answer(self, argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> Output:
        if self.silent:
            raise SlurmError("timeout", "scontrol gave no answer in 5 s")
        if argv[1:] == ("reconfigure",):
            self.reconfigured += 1
            self.epilog = next((line[16:] for line in self.conf.read_text().splitlines() if line[:1] == "E"), "")
            return Output(returncode=0, stdout=b"", stderr=b"")
        text = (
            f"SLURM_VERSION = 22.05.8\nSLURM_CONF = {self.conf}\nPluginDir = {self.folder.parent}/plugins\n"
            f"EpilogSlurmctld = {self.epilog or '(null)'}\n"
        )
        return Output(returncode=0, stdout=text.encode(), stderr=b"")

    def run(self, name: str, *options: str) -> int:
        config = decode({"cluster": "c", "hook_socket": f"{self.folder.parent}/h.sock"}, {})
        parser = cli.parser()
        return command.run(config, Slurm(run=self.answer), parser.parse_args([name, *options]))


@pytest.fixture
def site() -> Iterator[Site]:
    """In a folder that everybody may enter, as /etc is; pytest's own is not one."""
    with tempfile.TemporaryDirectory(prefix="site-") as name:
        Path(name).chmod(0o755)
        folder = Path(name, "slurm")
        folder.mkdir()
        Path(name, "plugins").mkdir()
        Path(name, "plugins", "job_submit_lua.so").touch()
        (folder / "slurm.conf").write_text(CONF)
        yield Site(folder=folder)


def test_a_dry_run_shows_everything_and_changes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """As diffs that name each file."""
    before = site.files()
    assert site.run("install-hooks", "--dry-run") == 0
    said = capsys.readouterr().out
    assert site.files() == before
    assert f"--- {site.conf}\n+++ {site.conf}\n" in said
    assert "+#was: EpilogSlurmctld=/site/epilog  # the site's\n" in said
    assert f"+EpilogSlurmctld={site.wrapper}  # the site's\n" in said
    assert "+JobSubmitPlugins=throttle,lua\n" in said
    assert f"+++ {site.folder}/job_submit.lua\n" in said
    assert "files that would be changed: 6; --apply does it" in said
    assert f"+++ {site.wrapper.parent}/job_submit_advisor.lua, " in said
    assert "local function judge" not in said, "long files of ours are named, not printed"


def test_neither_way_is_chosen_for_the_user(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --dry-run or --apply nothing happens."""
    with pytest.raises(SystemExit) as caught:
        site.run("install-hooks")
    assert caught.value.code == 2
    assert "--dry-run --apply" in capsys.readouterr().err


@pytest.mark.parametrize("lua", [None, SITE_LUA])
def test_applied_twice_is_applied_once_and_taken_out_nothing_is_left(site: Site, lua: str | None) -> None:
    """Byte by byte; what is replaced is kept beside it; slurmctld is told only when asked."""
    if lua is not None:
        (site.folder / "job_submit.lua").write_text(lua)
    site.conf.chmod(0o640)
    before = site.files()
    assert site.run("install-hooks", "--apply") == 0
    installed = site.files()
    assert site.run("install-hooks", "--apply") == 0
    assert site.files() == installed
    assert site.reconfigured == 0
    assert site.conf.stat().st_mode & 0o777 == 0o640
    (kept,) = site.folder.glob("slurm.conf.before-recovery-advisor-*")
    assert kept.read_text() == CONF
    site.epilog = str(site.wrapper)
    assert site.run("uninstall-hooks", "--apply", "--reconfigure") == 0
    assert site.files() == before
    assert not site.wrapper.parent.exists()
    assert site.reconfigured == 1
    assert site.run("uninstall-hooks", "--apply") == 0


def test_what_slurmctld_still_calls_stays_until_it_no_longer_does(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the site's own program would not run from then until the next reconfigure."""
    assert site.run("install-hooks", "--apply") == 0
    site.epilog = str(site.wrapper)
    assert site.run("uninstall-hooks", "--apply") == 0
    assert site.conf.read_text() == CONF
    assert site.wrapper.exists()
    assert "stays until slurmctld no longer calls" in capsys.readouterr().out
    site.epilog = "/site/epilog"
    assert site.run("uninstall-hooks", "--apply") == 0
    assert not site.wrapper.parent.exists()


def test_a_link_stays_a_link(site: Site) -> None:
    """slurm.conf is often one."""
    real = site.folder.parent / "real.conf"
    site.conf.rename(real)
    site.conf.symlink_to(real)
    assert site.run("install-hooks", "--apply") == 0
    assert site.conf.is_symlink()
    assert str(site.wrapper) in real.read_text()


def test_a_setting_in_an_included_file_is_changed_there(site: Site) -> None:
    """Relative names are beside slurm.conf, as Slurm has it."""
    site.conf.write_text("ClusterName=c\ninclude parts/hooks.conf\n")
    (site.folder / "parts").mkdir()
    (site.folder / "parts" / "hooks.conf").write_text("EpilogSlurmctld=/site/epilog\n")
    before = site.files()
    assert site.run("install-hooks", "--apply") == 0
    assert f"EpilogSlurmctld={site.wrapper}\n" in (site.folder / "parts" / "hooks.conf").read_text()
    assert "EpilogSlurmctld" not in site.conf.read_text()
    assert "exec '/site/epilog' \"$@\"" in site.wrapper.read_text()
    assert site.run("uninstall-hooks", "--apply") == 0
    assert site.files() == before


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("Include conf.d/%c.conf\n", "slurm.conf:1: Include conf.d/%c.conf cannot be followed"),
        ("A=1\nInclude conf.d/*.conf\n", "slurm.conf:2: Include conf.d/*.conf cannot be followed"),
        ("Include gone.conf\n", "slurm.conf:1: there is no "),
        ("Include slurm.conf\n", "is included more than once"),
        ("EpilogSlurmctld=/a\nA=1\nEpilogSlurmctld=/b\n", "EpilogSlurmctld is set more than once"),
        ("EpilogSlurmctld=/a'b\n", "slurm.conf:1: EpilogSlurmctld=/a'b: not an absolute path of plain characters"),
        ("EpilogSlurmctld=/a/*.sh\n", "not an absolute path of plain characters"),
        ("EpilogSlurmctld=rel\n", "not an absolute path of plain characters"),
        ("A=1 \\\nEpilogSlurmctld=/a\n", "slurm.conf:2: EpilogSlurmctld is part of a line that goes on"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(
    site: Site, capsys: pytest.CaptureFixture[str], conf: str, says: str
) -> None:
    """And nothing at all is changed."""
    site.conf.write_text(conf)
    before = site.files()
    assert site.run("install-hooks", "--apply") == 1
    assert site.files() == before
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_job_submit_script_that_slurm_would_not_load_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """slurmctld does not start with one: neither with theirs as it is, nor with our block where it cannot stand."""
    file = site.folder / "job_submit.lua"
    for text, says in (("function x(\n", "does not compile as it is"), ("return {\n}\n", "cannot stand at its end")):
        file.write_text(text)
        assert site.run("install-hooks", "--apply") == 1
        assert says in capsys.readouterr().err
        assert file.read_text() == text


def test_without_the_plugin_the_script_is_left_out(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Naming a plugin that is not there keeps slurmctld from starting."""
    (site.folder.parent / "plugins" / "job_submit_lua.so").unlink()
    assert site.run("install-hooks", "--apply") == 0
    assert "job_submit.lua is left out" in capsys.readouterr().out
    assert "JobSubmitPlugins=throttle\n" in site.conf.read_text()
    assert str(site.wrapper) in site.conf.read_text()


def test_a_slurmctld_that_does_not_answer_is_no_reason_to_guess(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever stopped it says so."""
    site.silent = True
    assert site.run("install-hooks", "--apply") == 1
    assert "if it is stopped: --offline" in capsys.readouterr().err
    options = ("--slurm-conf", str(site.conf), "--plugin-dir", str(site.folder.parent / "plugins"))
    assert site.run("install-hooks", "--apply", "--offline", *options) == 0
    assert "JobSubmitPlugins=throttle,lua" in site.conf.read_text()


def test_a_folder_that_slurm_cannot_enter_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The hook would be off, and one line in a log would say so."""
    site.folder.chmod(0o750)
    assert site.run("install-hooks", "--dry-run") == 1
    assert f"{site.folder} cannot be entered by SlurmUser (0750)" in capsys.readouterr().err


def test_nothing_is_written_through_links_that_somebody_laid(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """slurm.conf's folder often belongs to SlurmUser, and it is root who installs."""
    elsewhere = site.folder.parent / "elsewhere"
    elsewhere.mkdir()
    site.wrapper.parent.symlink_to(elsewhere)
    assert site.run("install-hooks", "--apply") == 1
    assert "is a link" in capsys.readouterr().err
    site.wrapper.parent.unlink()
    victim = site.folder.parent / "victim"
    for second in range(30):
        at = datetime.now(UTC) + timedelta(seconds=second)  # noqa: TID251 - the name of a copy holds the time
        site.conf.with_name(f"slurm.conf.before-recovery-advisor-{at:%Y%m%dT%H%M%SZ}").symlink_to(victim)
    assert site.run("install-hooks", "--apply") == 0
    assert (victim.exists(), list(elsewhere.iterdir())) == (False, [])


def test_a_file_that_somebody_edits_meanwhile_is_not_overwritten(site: Site) -> None:
    """Between the plan and its turn."""
    made = plan.install(plan.Wanted(conf=site.conf, hook_socket="/h.sock", isolated_file="/i"))
    site.conf.write_text(f"{CONF}A=1\n")
    with pytest.raises(plan.RefusedError, match="was changed in the meantime"):
        carrying_out.carry_out(made, datetime(2026, 1, 1, tzinfo=UTC))
    assert site.conf.read_text() == f"{CONF}A=1\n"


def test_hostile_text_in_a_diff_is_made_printable(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal obeys escape sequences."""
    site.conf.write_text("# \x1b[2J\nEpilogSlurmctld=/e\n")
    assert site.run("install-hooks", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "# \\x1b[2J" in said


def test_an_older_copy_of_ours_is_not_called_as_if_it_were_the_sites(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the first release's `install-hook` left it."""
    old = site.folder / "epilog_slurmctld"
    old.write_bytes(Path(command.__file__).parents[1].joinpath("hooks", "epilog_slurmctld").read_bytes())
    site.conf.write_text(f"EpilogSlurmctld={old}\n")
    assert site.run("install-hooks", "--apply") == 0
    assert "older copy" in capsys.readouterr().out
    assert str(old) not in site.wrapper.read_text()


def chained(site: Site, script: str) -> None:
    theirs = site.folder.parent / "theirs"
    theirs.write_text(script)
    theirs.chmod(0o755)
    site.conf.write_text(f"EpilogSlurmctld={theirs}\n")
    assert site.run("install-hooks", "--apply", "--no-job-submit") == 0


def test_the_sites_program_runs_as_it_did_before(site: Site) -> None:
    """Its environment, arguments and exit status; and the agent has been told."""
    chained(site, '#!/bin/sh\nprintf "%s %s" "$SLURM_JOB_ID" "$1"\nexit 3\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(f"{site.folder.parent}/h.sock")
        agent.settimeout(10)
        done = subprocess.run(
            [site.wrapper, "an argument"], env={"SLURM_JOB_ID": "17"}, capture_output=True, check=False, timeout=20
        )
        assert b'"SLURM_JOB_ID": "17"' in agent.recv(65536)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"17 an argument", b"")


@pytest.mark.parametrize("broken", ["#!/bin/sh\nexec /bin/sleep 60\n", "#!/nowhere\n", None])
def test_whatever_becomes_of_ours_the_sites_program_runs_within_two_seconds(site: Site, broken: str | None) -> None:
    """A hook that hangs, an interpreter that is gone, no file at all."""
    chained(site, "#!/bin/sh\necho theirs\n")
    notify = site.wrapper.with_name("notify")
    notify.unlink()
    if broken is not None:
        notify.write_text(broken)
        notify.chmod(0o755)
    began = time.monotonic()
    done = subprocess.run([site.wrapper], env={}, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"theirs\n")
    assert time.monotonic() - began < 2


def test_without_a_program_of_the_sites_the_hook_always_ends_well(site: Site) -> None:
    """Exit 0 also when nobody listens."""
    site.conf.write_text("ClusterName=c\n")
    assert site.run("install-hooks", "--apply") == 0
    done = subprocess.run([site.wrapper], env={"SLURM_JOB_ID": "17"}, capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert os.access(site.wrapper, os.X_OK)
