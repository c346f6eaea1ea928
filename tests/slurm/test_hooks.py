"""Our hooks in a slurmctld that already has hooks of its own: put there, chained, harmless, and taken out again.

Run as a program, inside a namespace of its own, this file has a Slurm whose configuration it may change; the test
starts it there.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import require
from advisor.demo.waiting import wait_for
from slurm_plugin import isolated_file, mark

ROOT = Path(__file__).resolve().parents[2]
SITE_LUA = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.name == "forbidden" then
    slurm.log_user("the site does not allow that")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""
OPT_IN = '{"advisor": {"enabled": true}}'


def test_hooks_in_a_slurmctld_that_has_its_own() -> None:
    """Installed as shown, both sides' hooks run, the agent stopped included; taken out, all is as before."""
    _in_a_namespace("--short")


@pytest.mark.long
def test_hooks_in_every_way_they_can_fail() -> None:
    """Hung, broken, the first hook of a site; isolated nodes at submission, and what cron gives back."""
    _in_a_namespace()


def _in_a_namespace(*options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "advisor.demo.namespace", "--", sys.executable, "-P", __file__, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "all hooks well"


@dataclass(slots=True, kw_only=True)
class Site:
    cluster: Cluster

    @property
    def root(self) -> Path:
        return self.cluster.runtime.root

    @property
    def epilog(self) -> Path:
        return self.root / "site_epilog"

    @property
    def ended(self) -> Path:
        """Where the site's own program writes down which jobs have ended."""
        return self.root / "slurm" / "log" / "ctld" / "ended"

    @property
    def hook_socket(self) -> Path:
        return self.root / "hook.sock"

    @property
    def isolated(self) -> Path:
        return self.root / "isolated.json"

    @property
    def wrapper(self) -> Path:
        return self.cluster.conf.parent / "recovery-advisor" / "epilog_slurmctld"

    def prepare(self) -> None:
        self.epilog.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >>{self.ended}\nexit 0\n')
        self.epilog.chmod(0o755)
        config = f'cluster = "demo"\nhook_socket = "{self.hook_socket}"\nisolated_file = "{self.isolated}"\n'
        (self.root / "agent.toml").write_text(f'{config}[slurm]\nconf = "{self.cluster.conf}"\n')

    def agent(self, *words: str) -> str:
        """`advisor-agent WORDS...` as root, which succeeds."""
        done = subprocess.run(
            [
                self.cluster.runtime.python,
                "-P",
                "-m",
                "slurm_plugin",
                *words,
                "--config",
                str(self.root / "agent.toml"),
            ],
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, *options: str, script: str = "#!/bin/sh\nexit 1\n") -> "subprocess.CompletedProcess[str]":
        home = self.cluster.runtime.home("alice")
        return self.cluster.command("sbatch", "--parsable", *options, user="alice", cwd=home, text=script)

    def accepted(self, *options: str, script: str = "#!/bin/sh\nexit 1\n") -> int:
        done = self.submit(*options, script=script)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.strip().split(";")[0])

    def admin_comment(self, job: int) -> str:
        out = self.cluster.must("squeue", "-h", "-t", "all", "-j", str(job), "-O", "admin_comment:|")
        return out.strip().removesuffix("|").replace("(null)", "")

    def seconds_to_failed(self, what: str, *, most: float) -> None:
        """A job's end, from the last line of its script on: slurmctld waits for the hooks in between."""
        job = self.accepted(f"-J{what}")
        began = time.monotonic()
        wait_for(f"{what}: FAILED", lambda: self.cluster.job(job).state == "FAILED", seconds=20, every_seconds=0.02)
        took = time.monotonic() - began
        wait_for("the site's program", lambda: str(job) in self.ended.read_text().split(), seconds=5)
        print(f"{what}: FAILED {took:.2f} s after submission, the site's program has run")
        assert took < most


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(path))
        path.chmod(0o666)
        agent.settimeout(10)
        yield agent
    path.unlink(missing_ok=True)


def heard(agent: socket.socket, job: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if json.loads(agent.recv(65536)).get("SLURM_JOB_ID") == str(job):
            return
    raise AssertionError(f"no notice of job {job}")


def main(*, short: bool) -> None:
    runtime = require()
    cluster = Cluster(runtime=runtime, shape=Shape(nodes=3))
    site = Site(cluster=cluster)
    site.prepare()
    cluster.shape = Shape(nodes=3, extra=(f"EpilogSlurmctld={site.epilog}  # the site's own",))
    cluster.start()
    script = cluster.conf.parent / "job_submit.lua"
    script.write_text(SITE_LUA)
    before = {path: path.read_bytes() for path in (cluster.conf, script)}
    try:
        site.ended.touch(mode=0o666)
        site.ended.chmod(0o666)
        shown = site.agent("install-hooks", "--dry-run")
        assert {path: path.read_bytes() for path in before} == before
        assert f"+EpilogSlurmctld={site.wrapper}  # the site's own" in shown
        site.agent("install-hooks", "--apply", "--reconfigure")
        both_sides_run(site)
        comments_are_judged(site)
        harmless_when_the_agent_is_not_well(site)
        if not short:
            harmless_when_the_hook_is_not_well(site)
            isolated_nodes_are_avoided(site)
            a_lease_is_ended_by_the_watchdog(site)
        taken_out_all_is_as_before(site, before)
        if not short:
            the_first_hook_of_a_site(site)
    except BaseException:
        print(*cluster.controller_log.read_text(errors="replace").splitlines()[-40:], sep="\n")
        raise
    finally:
        cluster.stop()
    print("all hooks well")


def both_sides_run(site: Site) -> None:
    with listening(site.hook_socket) as agent:
        job = site.accepted()
        heard(agent, job)
    wait_for("the site's program", lambda: str(job) in site.ended.read_text().split(), seconds=10)
    refused = site.submit("-Jforbidden", f"--comment={OPT_IN}")
    assert "the site does not allow that" in refused.stderr


def comments_are_judged(site: Site) -> None:
    refused = site.submit('--comment={advisor: {"enabled": true}}')
    assert refused.returncode != 0
    assert "--comment: not JSON at character 2: a key in double quotes is expected here" in refused.stderr
    print("refused:", refused.stderr.strip().splitlines()[0])
    assert "no such key; known are" in site.submit('--comment={"advisor": {"enable": false}}').stderr
    warned = site.submit('--comment={"APS": {"auto_resume_mode": 1}}')
    assert warned.returncode == 0
    hostile = site.submit("--comment=" + '{"advisor":' * 1200)
    assert hostile.returncode != 0
    assert site.admin_comment(site.accepted()) == ""
    job = site.accepted("--begin=now+1hour", f"--comment={OPT_IN}")
    assert site.admin_comment(job) == "advisor:opted-in"
    # What the agent does afterwards passes through Slurm's plugin too.
    site.cluster.must("scontrol", "update", f"JobId={job}", "AdminComment=changed", "ExcNodeList=node3", user="slurm")
    assert (site.admin_comment(job), site.cluster.job(job).excluded) == ("changed", {"node3"})
    array = site.accepted("--begin=now+1hour", "--array=0-1", f"--comment={OPT_IN}")
    assert site.admin_comment(array).split("|")[0] == "advisor:opted-in"
    het = site.accepted("--begin=now+1hour", "-N1", f"--comment={OPT_IN}", ":", "-N1")
    assert site.admin_comment(het).split("|")[0] == "advisor:opted-in"
    site.cluster.must("scancel", "--user=alice")


def harmless_when_the_agent_is_not_well(site: Site) -> None:
    """Measured with two processes of which one is really stopped; slurmctld runs the hook, not we."""
    site.seconds_to_failed("absent", most=8)
    stopped = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import socket, time\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            f"s.bind({str(site.hook_socket)!r})\nprint('bound', flush=True)\ntime.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    assert stopped.stdout is not None
    stopped.stdout.readline()
    site.hook_socket.chmod(0o666)
    stopped.send_signal(signal.SIGSTOP)
    fill(site.hook_socket)
    site.seconds_to_failed("stopped-and-full", most=8)
    stopped.kill()
    stopped.wait()
    site.hook_socket.unlink()


def harmless_when_the_hook_is_not_well(site: Site) -> None:
    notify = site.wrapper.with_name("notify")
    ours = notify.read_bytes()
    notify.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    site.seconds_to_failed("hook-hangs", most=10)
    notify.write_text("#!/nowhere\n")
    site.seconds_to_failed("hook-broken", most=8)
    notify.write_bytes(ours)


def fill(path: Path) -> None:
    """Until the stopped listener's queue takes no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        for _ in range(1000):
            try:
                sender.sendto(b"x", str(path))
            except BlockingIOError:
                return
    raise AssertionError("the queue never filled: the listener is not stopped")


def isolated_nodes_are_avoided(site: Site) -> None:
    site.agent("install-hooks", "--apply", "--exclude-isolated", "opted-in")
    alike = {"node2": {"main": 3}, "gone": {"main": 3}}
    isolated_file.write(site.isolated, written=time.time(), alike=alike)  # noqa: TID251 - as the agent does
    held = ("--begin=now+1hour", f"--comment={OPT_IN}")
    # The script is read again when its time has changed, at the next submission.
    job = site.accepted(*held, "-N2")
    assert site.cluster.job(job).excluded == {"node2"}
    found = mark.find(site.admin_comment(job))
    assert found is not None
    assert found.nodes == ("node2",)
    assert site.cluster.job(site.accepted(*held, "-N3")).excluded == frozenset()
    assert site.cluster.job(site.accepted("--begin=now+1hour", "-N2")).excluded == frozenset()
    # The tasks of an array share one record while they wait, and nobody could give them anything back.
    array = str(site.accepted(*held, "-N1", "--array=0-3"))
    assert "node" not in site.cluster.must("squeue", "-h", "-j", array, "-o", "%x")
    site.isolated.write_text('{"v":1,"written":1,"nodes":["node2"]}')
    assert site.cluster.job(site.accepted(*held, "-N2")).excluded == frozenset()
    site.isolated.write_text("[" * 60000)
    assert site.cluster.job(site.accepted(*held, "-N2")).excluded == frozenset()
    site.cluster.must("scancel", "--user=alice")
    given_back_by_the_watchdog(site)


def given_back_by_the_watchdog(site: Site) -> None:
    """Another node goes away: with everything of ours dead, one look of the watchdog's by cron lets the job run."""
    alike = {"node2": {"main": 3}}
    isolated_file.write(site.isolated, written=time.time(), alike=alike)  # noqa: TID251 - as the agent does
    site.cluster.must("scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=maintenance")
    job = site.accepted("-N2", f"--comment={OPT_IN}", script="#!/bin/sh\nexit 0\n")
    assert site.cluster.job(job).state == "PENDING"
    assert f"job {job}: exclusion of node2 given back" in run_by_cron(site)
    site.cluster.wait_state(job, "COMPLETED", seconds=20)
    site.cluster.must("scontrol", "update", "NodeName=node3", "State=RESUME")


def a_lease_is_ended_by_the_watchdog(site: Site) -> None:
    """All of us died while StartTime was leased for ten minutes: one look by cron brings it to what Slurm allows."""
    job = site.accepted(script='#!/bin/sh\n[ "$SLURM_RESTART_COUNT" = 1 ]\n')
    site.cluster.wait_state(job, "FAILED", seconds=20)
    site.cluster.must("scontrol", "requeue", str(job), user="slurm")
    found = site.cluster.job(job)
    assert found.submitted is not None
    lease = found.submitted + 600
    ours = mark.Mark(job="k", attempt=0, generation=1, deadline=lease, start=lease, found=found.submitted + 6)
    changes = (f"StartTime=uts{lease}", f"AdminComment={mark.render(ours)}")
    site.cluster.must("scontrol", "update", f"JobId={job}", *changes, user="slurm")
    assert f"job {job}: StartTime {lease} brought forward" in run_by_cron(site)
    assert run_by_cron(site).count("given back") == 0
    row = site.cluster.wait_state(job, "COMPLETED", seconds=30, restarts=1)
    assert row.start is not None
    print(f"a lease of 600 s ended by cron: started {row.start - found.submitted} s after the requeue")
    assert row.start < lease - 500


def run_by_cron(site: Site) -> str:
    """`advisor-watchdog --once` as SlurmUser, with no other program of ours anywhere. Returns what it says."""
    config = site.root / "watchdog.toml"
    config.write_text(f'mode = "act"\ntick_file = "{site.root}/none"\n[slurm]\nconf = "{site.cluster.conf}"\n')
    done = subprocess.run(
        [
            *("/usr/bin/python3", "-I", "-S", str(site.cluster.runtime.code / "watchdog" / "__main__.py")),
            *("--config", str(config), "--once"),
        ],
        user="slurm",
        group="slurm",
        extra_groups=[],
        env=site.cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def taken_out_all_is_as_before(site: Site, before: dict[Path, bytes]) -> None:
    out = site.agent("uninstall-hooks", "--apply")
    assert "stays until slurmctld no longer calls" in out
    assert site.wrapper.exists()
    assert {path: path.read_bytes() for path in before} == before
    site.cluster.must("scontrol", "reconfigure")
    site.agent("uninstall-hooks", "--apply")
    assert not site.wrapper.parent.exists()
    site.seconds_to_failed("site-alone", most=8)
    assert site.submit("--comment={advisor: 1}").returncode == 0


def the_first_hook_of_a_site(site: Site) -> None:
    """Nothing of the site's is there: slurmctld begins to call its first one at its next start, and says so after."""
    cluster = site.cluster
    script = cluster.conf.parent / "job_submit.lua"
    script.unlink()
    text = "".join(line for line in cluster.conf.read_text().splitlines(keepends=True) if "EpilogSlurmctld" not in line)
    cluster.conf.write_text(text)
    restart(cluster)
    assert "restart it once" in site.agent("install-hooks", "--apply", "--reconfigure")
    assert site.submit("--comment={advisor: 1}").returncode != 0
    restart(cluster)
    with listening(site.hook_socket) as agent:
        heard(agent, site.accepted())
    out = site.agent("uninstall-hooks", "--apply", "--reconfigure")
    assert "until it is restarted" in out
    assert cluster.conf.read_text() == text
    assert not script.exists()
    assert not site.wrapper.parent.exists()
    job = site.accepted("--comment={advisor: 1}")
    cluster.wait_state(job, "FAILED", seconds=20)
    log = cluster.controller_log.read_text(errors="replace")
    print("after taking out the only hook by reconfigure:", log.count("no script specified"), "lines of complaint")


def restart(cluster: Cluster) -> None:
    cluster.stop_controller()
    cluster.start_controller()
    wait_for("slurmctld", lambda: cluster.command("scontrol", "ping").returncode == 0, seconds=20)
    wait_for("idle nodes", lambda: cluster.idle_nodes() == frozenset(cluster.nodes), seconds=30)


if __name__ == "__main__":
    main(short="--short" in sys.argv[1:])
