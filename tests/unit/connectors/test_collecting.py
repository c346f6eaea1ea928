"""A bundle is made of what Slurm, the service and the files still know, and says what they no longer do."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from advisor.bundle import read_bundle
from advisor.collecting import CollectError, Gathered, Wanted, gather_bundle
from advisor.core.decide import decide
from advisor.core.document import analysis_document
from advisor.core.model import Attempt, ExitStatus, Job, NodeFact, PastAttempt, Signal, Snapshot, Unavailable
from advisor.core.policy import Policy
from advisor.core.scan import Scanner
from advisor.core.words import AttemptState, Category, Trust, UnavailableReason
from advisor.ports import SchedulerJob
from advisor.rules.loader import load_rules
from connectors.kernel.files import KernelFileLogs
from connectors.logs.files import JobFileLogs
from tests.contract.world import StandingClock, private_folder

XID = "{} {} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"
OUT = (
    "iteration        5/     100 | elapsed time per iteration (ms): 100.0 | lm loss: 1.0E+00 |\n"
    'File "/home/alice/proj/train.py", line 5, in main\n'
    "[rank1]: torch.distributed.DistBackendError: NCCL error on node2 10.1.2.3\n"
)
JOB = Job(key="k", cluster="demo", job_id="17", user="alice", account="physics", batch=True, requeueable=True)


@dataclass
class FakeScheduler:
    """A scheduler that says what it is told to."""

    answer: SchedulerJob | Unavailable | None
    name: str = "fake"

    async def version(self) -> str | Unavailable:
        return "fake 1"

    async def job(self, job_id: str) -> SchedulerJob | Unavailable | None:
        return self.answer

    async def nodes(self) -> tuple[NodeFact, ...] | Unavailable:
        return ()

    async def requeue_delay_seconds(self) -> float | Unavailable:
        return 6.0


@dataclass
class Site:
    """Files of one job, and a clock a minute after its end."""

    folder: Path
    clock: StandingClock

    @property
    def ended(self) -> datetime:
        return self.clock.now()

    @property
    def attempt(self) -> Attempt:
        return Attempt(
            number=1,
            state=AttemptState.FAILED,
            nodes=("node1", "node2"),
            exit=ExitStatus(code=1),
            submitted_at=self.ended - timedelta(seconds=120),
            started_at=self.ended - timedelta(seconds=60),
            ended_at=self.ended,
        )

    @property
    def live(self) -> SchedulerJob:
        return SchedulerJob(
            job=JOB,
            attempt=self.attempt,
            name="secret-project",
            stdout_path=str(self.folder / "out.log"),
            stderr_path=str(self.folder / "out.log"),
            work_dir=str(self.folder),
            excluded_nodes=(),
        )

    def write(self) -> None:
        (self.folder / "out.log").write_text(OUT)
        at = (self.ended - timedelta(seconds=10)).isoformat()
        (self.folder / "node1.log").write_text(f"{at} node1 kernel: quiet\n")
        (self.folder / "node2.log").write_text(XID.format(at, "node2"))

    async def gather(
        self, answer: SchedulerJob | Unavailable | None, stored: list[Snapshot] | str, **wish: Any
    ) -> Gathered:
        here = replace_clock(self.clock, 5)
        return await gather_bundle(
            Wanted(job_id="17", **wish),
            self.folder / "made",
            stored=stored,
            scheduler=FakeScheduler(answer),
            outputs=JobFileLogs(clock=here, lookup_uid=lambda _: 0 or self.folder.stat().st_uid),
            kernels=[KernelFileLogs(clock=here, path=f"{self.folder}/%n.log", owners=(self.folder.stat().st_uid,))],
            clock=here,
        )


def replace_clock(clock: StandingClock, seconds: float) -> StandingClock:
    return StandingClock(at=clock.now() + timedelta(seconds=seconds))


def signal(trust: Trust, text: str, node: str = "", order: int = 0) -> Signal:
    return Signal(
        id=f"{trust}{order}",
        rule="r",
        trust=trust,
        source="s",
        seen_at=datetime(2026, 1, 1, tzinfo=UTC),
        nodes=(node,) if node else (),
        text=text,
        order=order,
    )


@pytest.fixture
def site() -> Iterator[Site]:
    with private_folder() as folder:
        yield Site(folder, StandingClock())


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


async def test_failed_job_that_slurm_still_knows(site: Site) -> None:
    """Output, kernel logs and facts of the failed attempt, each once, and nothing is missing."""
    site.write()
    made = await site.gather(site.live, "no service")
    files = tree(made.folder)
    assert files.keys() == {"job.json", "collected.json", "logs/stdout.log", "kernel/node1.log", "kernel/node2.log"}
    assert files["logs/stdout.log"] == OUT
    facts = json.loads(files["job.json"])
    assert facts["state"] == "FAILED"
    assert facts["exit_code"] == "1:0"
    assert facts["nodes"] == "node[1-2]"
    assert facts["restarts"] == 1
    assert facts["name"] == "secret-project"
    assert made.attempt == 1
    assert json.loads(files["collected.json"])["sources"]["service"] == "no service"


async def test_what_is_written_can_be_analysed(site: Site) -> None:
    """The bundle reads back as the same attempt, and past attempts survive."""
    site.write()
    past = PastAttempt(
        number=0,
        category=Category.GPU_HARDWARE,
        fingerprint="xid-79",
        reason=None,
        action=None,
        implicated_nodes=("node9",),
        trusted=True,
        nodes=("node9", "node1"),
        last_step=40,
        ended_at=site.ended,
    )
    stored = Snapshot(job=JOB, attempt=site.attempt, past=(past,))
    made = await site.gather(site.live, [stored])
    rules = load_rules(())
    read = read_bundle(made.folder, Scanner(rules), site.clock.now())
    assert read.past == (past,)
    assert read.attempt.nodes == ("node1", "node2")
    assert read.attempt.exit == ExitStatus(code=1)
    document = analysis_document(decide(read, rules, Policy(), site.clock.now()), read)
    assert document["attribution"]["category"] == "gpu_hardware"
    assert document["attribution"]["implicated"]["nodes"] == ["node2"]


async def test_redacted_bundle_gives_the_same_verdict_without_a_name(site: Site) -> None:
    """No user, host, project, path or address is left, and the analysis blames the same node by its stand-in."""
    site.write()
    made = await site.gather(site.live, "no service at /run/x on node7", redact=True)
    files = tree(made.folder)
    everything = json.dumps(files) + " ".join(files)
    for name in ("alice", r"node\d", "secret-project", "physics", r"\bproj\b", r"10\.1\.2\.3", str(site.folder)):
        assert not re.search(name, everything), name
    rules = load_rules(())
    read = read_bundle(made.folder, Scanner(rules), site.clock.now())
    document = analysis_document(decide(read, rules, Policy(), site.clock.now()), read)
    assert document["attribution"]["category"] == "gpu_hardware"
    assert document["attribution"]["implicated"]["nodes"] == ["host0002"]


async def test_past_attempt_from_the_service_alone(site: Site) -> None:
    """When Slurm has forgotten the job and its log is gone, the stored evidence stands in and the bundle says so."""
    signals = (
        signal(Trust.LOG, "second", order=2),
        signal(Trust.LOG, "first", order=1),
        signal(Trust.KERNEL, "NVRM: Xid 79", node="node2"),
    )
    stored = Snapshot(job=JOB, attempt=site.attempt, signals=signals)
    made = await site.gather(None, [stored])
    files = tree(made.folder)
    assert files["logs/evidence.log"] == "first\nsecond\n"
    assert files["kernel/node2.log"] == "NVRM: Xid 79\n"
    assert any("stored as evidence" in note for note in made.notes)


async def test_next_attempts_output_is_not_taken_for_an_earlier_one(site: Site) -> None:
    """Asked for attempt 0 while attempt 1 writes into the file, the file is left alone."""
    site.write()
    earlier = Snapshot(
        job=JOB,
        attempt=replace(site.attempt, number=0, submitted_at=site.ended - timedelta(hours=1)),
        signals=(signal(Trust.LOG, "of attempt 0"),),
    )
    made = await site.gather(site.live, [earlier], attempt=0)
    assert made.attempt == 0
    assert tree(made.folder)["logs/evidence.log"] == "of attempt 0\n"
    assert "logs/stdout.log" not in tree(made.folder)


async def test_job_that_waits_again_is_bundled_by_its_last_attempt(site: Site) -> None:
    """A requeued job is PENDING under the next number; its output is the last attempt's."""
    site.write()
    waiting = replace(
        site.live,
        attempt=Attempt(number=2, state=AttemptState.PENDING, nodes=(), submitted_at=site.ended),
    )
    made = await site.gather(waiting, "no service")
    assert made.attempt == 1
    assert tree(made.folder)["logs/stdout.log"] == OUT
    assert any("allocation" in note for note in made.notes)


async def test_what_a_bundle_lacks_is_said(site: Site) -> None:
    """No service, no logs: each is a line of its own; a bundle that lacks nothing has none."""
    made = await site.gather(site.live, "nothing listens")
    assert "service: nothing listens" in made.notes
    assert "logs: none could be had: add them with --log" in made.notes


async def test_running_job_says_how_long_it_is_silent(site: Site) -> None:
    """Of a live job the bundle holds the time since its last line: a hang is seen by that."""
    site.write()
    running = replace(site.live, attempt=replace(site.attempt, state=AttemptState.RUNNING, ended_at=None, exit=None))
    made = await site.gather(running, "no service")
    assert 3 <= json.loads(tree(made.folder)["job.json"])["silent_seconds"] <= 30


async def test_reused_job_id_is_not_mixed_up(site: Site) -> None:
    """A stored job of the same id, user and attempt that was submitted at another time is another job."""
    site.write()
    other = Snapshot(
        job=replace(JOB, cluster="other"),
        attempt=replace(site.attempt, submitted_at=site.ended - timedelta(days=9)),
        past=(),
    )
    made = await site.gather(site.live, [other])
    assert json.loads(tree(made.folder)["job.json"])["cluster"] == "demo"


async def test_nothing_known_is_one_clear_line(site: Site) -> None:
    """When nobody knows the job, the error says whom was asked and what each said."""
    gone = Unavailable(source="slurm", reason=UnavailableReason.TIMEOUT, detail="no answer in 5 s")
    with pytest.raises(CollectError, match=r"job 17: scheduler: timeout: no answer in 5 s; service: not running"):
        await site.gather(gone, "not running")
    assert not (site.folder / "made").exists()


async def test_not_started_job(site: Site) -> None:
    """A job that never ran has nothing to bundle."""
    waiting = replace(site.live, attempt=Attempt(number=0, state=AttemptState.PENDING, nodes=()))
    with pytest.raises(CollectError, match="has not started"):
        await site.gather(waiting, "no service")


async def test_added_files_keep_plain_names(site: Site) -> None:
    """Files given by hand are added under a name that any system takes, ranks in it kept."""
    site.write()
    for name in ("rank3.log", "a b;c.log"):
        (site.folder / name).write_text("added\n")
    added = tuple(site.folder / name for name in ("rank3.log", "a b;c.log", "rank3.log"))
    made = await site.gather(site.live, "no service", extra_logs=added)
    assert {n for n in tree(made.folder) if n.startswith("logs/")} == {
        "logs/stdout.log",
        "logs/rank3.log",
        "logs/2-rank3.log",
        "logs/a_b_c.log",
    }
