"""What doctor says about Slurm and one job's files, with a scheduler that is only values."""

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

import pytest

from advisor.commands import doctor_slurm
from advisor.commands.doctor import (
    WATCHDOG_TAKE_OVER_SECONDS,
    look_at_channels,
    look_at_data_folder,
    look_at_dsn_file,
    look_at_root_readers,
    look_at_scheduler,
    look_at_watchdog,
)
from advisor.commands.doctor_checks import State
from advisor.commands.doctor_service import look_at_isolations, look_at_pauses, look_at_sources
from advisor.config import load
from advisor.core.model import Attempt, Job, NodeFact, Unavailable
from advisor.core.words import AttemptState, UnavailableReason
from advisor.ports import SchedulerJob
from advisor.v1 import common_pb2, operator_pb2
from connectors.scheduler.slurm_cli import SlurmCli
from slurm_plugin.squeue import Output
from tests.integration.service.world import short_folder
from watchdog import monitor
from watchdog.notice import AliveFile

STARTED = datetime(2026, 3, 1, tzinfo=UTC)


class FixedScheduler:
    """Knows one running job, or nothing, or does not answer."""

    name = "slurm"

    def __init__(self, version: str | Unavailable, job: SchedulerJob | None = None) -> None:
        self._version = version
        self._job = job

    async def version(self) -> str | Unavailable:
        return self._version

    async def job(self, job_id: str) -> SchedulerJob | Unavailable | None:
        return self._job

    async def nodes(self) -> tuple[NodeFact, ...] | Unavailable:
        return ()

    async def requeue_delay_seconds(self) -> float | Unavailable:
        return 6.0


def _running(output: Path) -> SchedulerJob:
    user = pwd.getpwuid(os.geteuid()).pw_name
    return SchedulerJob(
        job=Job(key="", cluster="c", job_id="5", user=user),
        attempt=Attempt(number=0, state=AttemptState.RUNNING, nodes=("node1",), started_at=STARTED),
        name="train",
        stdout_path=str(output),
        stderr_path=str(output),
        work_dir="/",
        excluded_nodes=(),
    )


async def test_readable_output_is_well(tmp_path: Path) -> None:
    """The job's output can be read: said, with the account that read it."""
    output = tmp_path / "5.out"
    output.write_text("hello\n")
    checks = await look_at_scheduler(load(None, {}).config, FixedScheduler("slurm 22.05.8", _running(output)), "5")
    assert [(check.name, check.state) for check in checks] == [("scheduler", State.OK), ("files", State.OK)]


async def test_output_that_cannot_be_read_says_why_and_what_to_do(tmp_path: Path) -> None:
    """A file that is not there fails with its reason and a next step."""
    scheduler = FixedScheduler("slurm 22.05.8", _running(tmp_path / "gone.out"))
    checks = await look_at_scheduler(load(None, {}).config, scheduler, "5")
    assert checks[-1].state is State.FAIL
    assert "missing" in checks[-1].found
    assert checks[-1].to_do


@pytest.mark.parametrize(
    "version", ["slurm 22.05.8", Unavailable(source="slurm", reason=UnavailableReason.MISSING, detail="no squeue")]
)
async def test_a_job_that_nobody_knows_fails_and_no_slurm_alone_does_not(version: str | Unavailable) -> None:
    """Slurm's tools are not needed where the service runs: a warning. A job that cannot be seen is a failure."""
    config = load(None, {}).config
    (seen,) = await look_at_scheduler(config, FixedScheduler(version), "")
    assert seen.state is (State.OK if isinstance(version, str) else State.WARN)
    assert (await look_at_scheduler(config, FixedScheduler(version), "5"))[-1].state is State.FAIL


async def test_a_users_fifo_is_a_warning_that_names_the_job(tmp_path: Path) -> None:
    """Output that is no regular file is one user's choice: nothing of the installation is wrong."""
    fifo = tmp_path / "5.out"
    os.mkfifo(fifo)
    checks = await look_at_scheduler(load(None, {}).config, FixedScheduler("slurm 22.05.8", _running(fifo)), "5")
    assert checks[-1].state is State.WARN
    assert "job 5: " in checks[-1].found
    assert "not_regular" in checks[-1].found


@pytest.mark.parametrize(("reason", "state"), [("not_regular", State.WARN), ("timeout", State.FAIL)])
def test_one_users_choice_never_fails_the_site(reason: str, state: State) -> None:
    """A source that had only a FIFO to read is well; one whose file system does not answer is not."""
    source = operator_pb2.SourceStatus(name="job-output", kind="log", available=False, reason=reason, detail="job 5: x")
    status = operator_pb2.Status(sources=[source])
    told = next(iter(look_at_sources(status, load(None, {}).config)))
    assert told.state is state
    assert "job 5" in told.found


def test_a_root_reader_that_is_configured_and_away_fails(tmp_path: Path) -> None:
    """With the unit to start; without one configured nothing is said."""
    assert list(look_at_root_readers(load(None, {}).config)) == []
    path = tmp_path / "advisor.toml"
    path.write_text(f'[[logs]]\nroot_reader = "{tmp_path}/reader.sock"\n')
    (check,) = look_at_root_readers(load(path, {}).config)
    assert check.state is State.FAIL
    assert "recovery-advisor-logreader" in check.to_do


async def test_channels_are_tried_without_sending(tmp_path: Path) -> None:
    """One that nobody listens on fails with its name, and its secret is not told."""
    (tmp_path / "url").write_text("http://127.0.0.1:1/s3cret\n")
    path = tmp_path / "advisor.toml"
    path.write_text(f'[[notify]]\nkind = "slack"\nname = "chat"\nurl_file = "{tmp_path}/url"\n')
    (check,) = await look_at_channels(load(path, {}).config)
    assert check.state is State.FAIL
    assert check.found.startswith("chat: refused")
    assert "s3cret" not in check.found


@pytest.mark.parametrize(
    ("said", "status", "well", "found"),
    [
        (b"", b"", True, "slurmdbd answers"),
        (b"", b"Slurm accounting storage is disabled\n", True, "none here"),
        (b"", b"sacct: error: Connection refused\n", False, "refused"),
    ],
)
async def test_a_site_without_accounting_is_well(said: bytes, status: bytes, well: bool, found: str) -> None:
    """It is told what stays unknown; an accounting that does not answer is a warning."""
    slurm = SlurmCli(run=lambda *_: Output(returncode=1 if status else 0, stdout=said, stderr=status))
    seen = await doctor_slurm.look_at_accounting(slurm)
    assert (seen[0], seen[2] == "") == (well, well)
    assert found in seen[1]


def test_with_a_database_of_its_own_no_data_folder_is_missed(tmp_path: Path) -> None:
    """Nobody makes one: only our own Postgres lives there."""
    folder = f'[service]\ndata_dir = "{tmp_path}/none"\n'
    (tmp_path / "own.toml").write_text(folder)
    (tmp_path / "dsn.toml").write_text(f'{folder}[store]\ndsn_file = "{tmp_path}/dsn"\n')
    assert look_at_data_folder(load(tmp_path / "own.toml", {}).config).state is State.WARN
    assert look_at_data_folder(load(tmp_path / "dsn.toml", {}).config).state is State.OK


@pytest.mark.parametrize(
    ("lease", "watchdog", "warned"),
    [
        (10, "[arithmetic]\ntake_over_seconds = 10.5\n", "10.5 s"),
        (10, "[arithmetic]\ntake_over_seconds = 11\n", ""),
        (30, "[arithmetic]\ntick_seconds = 1.0\n", "15 s"),
        (30, "", "15 s"),
        (30, "no TOML", ""),
        (30, None, ""),
    ],
)
def test_a_watchdog_that_reckons_with_a_shorter_lease_is_told(
    tmp_path: Path, lease: int, watchdog: str | None, warned: str
) -> None:
    """It would let jobs go, or call the arithmetic right, while another replica may still take over; over a database
    that is its own there is none, and whoever is started again on its socket has its jobs at once."""
    alone = f"[replicas]\nlease_seconds = {lease}\n"
    (tmp_path / "alone.toml").write_text(alone)
    (tmp_path / "advisor.toml").write_text(f'{alone}[store]\ndsn_file = "{tmp_path}/dsn"\n')
    if watchdog is not None:
        (tmp_path / "watchdog.toml").write_text(watchdog)
    alone_checks = look_at_watchdog(load(tmp_path / "alone.toml", {}).config, tmp_path)
    assert not [check for check in alone_checks if "take-over" in check.found]
    both = look_at_watchdog(load(tmp_path / "advisor.toml", {}).config, tmp_path)
    checks = [check for check in both if "take-over" in check.found]
    assert [check.state for check in checks] == ([State.WARN] if warned else [])
    for check in checks:
        assert f"reckons with a take-over in {warned}, " in check.found
        assert check.to_do == f"set arithmetic.take_over_seconds to {lease + 2}, then advisor-watchdog --check"


def test_whether_a_watchdog_lives_is_told_where_its_file_is_here(tmp_path: Path) -> None:
    """What its file configures runs nowhere by itself. Elsewhere than beside its file nobody can tell."""
    chosen = load(None, {}).config
    assert list(look_at_watchdog(chosen, tmp_path)) == []
    (tmp_path / "watchdog.toml").write_text(f'mode = "act"\nalive_file = "{tmp_path}/alive.json"\n')
    (dead,) = look_at_watchdog(chosen, tmp_path)
    assert (dead.state, dead.found) == (State.WARN, f"no watchdog runs here: there is no {tmp_path}/alive.json")
    assert dead.to_do.startswith("start it, as systemctl start recovery-advisor-watchdog does")
    assert dead.to_do.endswith(f"where none is meant to run, remove {tmp_path}/watchdog.toml")
    alive = AliveFile(tmp_path / "alive.json", mode="act", within_seconds=15, say=pytest.fail)
    alive.tell()
    (lives,) = look_at_watchdog(chosen, tmp_path)
    assert (lives.state, lives.to_do) == (State.OK, "")
    assert lives.found.endswith(' s ago, in mode "act"')
    alive.stopped()
    assert [check.state for check in look_at_watchdog(chosen, tmp_path)] == [State.WARN]


def test_the_watchdogs_own_take_over_is_known() -> None:
    """It is written in both, for the watchdog shares no code."""
    assert monitor.Config().arithmetic_take_over_seconds == WATCHDOG_TAKE_OVER_SECONDS


@pytest.mark.skipif(os.geteuid() != 0, reason="looking as another user needs root")
def test_a_dsn_file_that_the_services_user_cannot_read_is_told() -> None:
    """Though root, who runs doctor, reads it well."""
    with short_folder() as folder:
        (folder / "dsn").write_text("postgresql://advisor@/advisor")
        (folder / "dsn").chmod(0o600)
        (folder / "advisor.toml").write_text(f'[store]\ndsn_file = "{folder}/dsn"\n')
        chosen, nobody = load(folder / "advisor.toml", {}).config, pwd.getpwnam("nobody")
        (check,) = look_at_dsn_file(chosen, nobody)
        assert (check.state, f"nobody, who the service runs as, cannot read {folder}/dsn" in check.found) == (
            State.FAIL,
            True,
        )
        os.chown(folder / "dsn", nobody.pw_uid, nobody.pw_gid)
        assert list(look_at_dsn_file(chosen, nobody)) == []


def test_an_isolation_is_well_only_where_its_node_is_drained() -> None:
    """What is wanted and not done, and by whose choice, is told as that; what has ended is not told."""
    drained = operator_pb2.NodeIsolation(node="n1", status=common_pb2.RECONCILIATION_STATUS_VERIFIED)
    drained.drained_at.FromDatetime(STARTED)
    withheld, observes = common_pb2.RECONCILIATION_STATUS_WITHHELD, common_pb2.RECONCILIATION_REASON_AGENT_OBSERVES
    off = operator_pb2.NodeIsolation(
        node="n3", status=withheld, reason=observes, detail='[isolation] mode = "off" in agent.toml'
    )
    paused = operator_pb2.NodeIsolation(node="n4", status=withheld, reason=common_pb2.RECONCILIATION_REASON_PAUSED)
    answer = operator_pb2.ListIsolationsResponse(
        isolations=[
            drained,
            operator_pb2.NodeIsolation(node="n2", dry_run=True),
            off,
            paused,
            operator_pb2.NodeIsolation(node="n5"),
            operator_pb2.NodeIsolation(node="n6", ended_by="operator"),
        ]
    )
    assert [(check.state, check.found) for check in look_at_isolations(answer)] == [
        (State.OK, "1 node drained: n1 (advisor nodes isolations)"),
        (State.OK, "1 node on paper only, not drained: n2 (monitor mode, or isolate_dry_run of the policy)"),
        (State.WARN, 'the agent does not drain n3: [isolation] mode = "off" in agent.toml'),
        (State.WARN, "the agent has not drained n4: a pause holds it up (advisor resume --why TEXT ends it)"),
        (State.WARN, "the agent has not answered yet about 1 node to be drained: n5"),
    ]
    assert all(check.to_do for check in look_at_isolations(answer) if check.state is State.WARN)


def test_what_ends_a_pause_is_a_command_that_does_it() -> None:
    """With the reason that `advisor resume` asks for, and the cluster that was named when pausing."""
    until = operator_pb2.PauseInForce(set_by="root", why="firmware")
    until.until.FromDatetime(STARTED)
    one = operator_pb2.PauseInForce(cluster="prod", set_by="root", why="firmware")
    assert [(check.state, check.to_do) for check in look_at_pauses([until, one])] == [
        (State.WARN, "advisor resume --why TEXT ends it before"),
        (State.WARN, "advisor resume --cluster prod --why TEXT ends it before"),
    ]
