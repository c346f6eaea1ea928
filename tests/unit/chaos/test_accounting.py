"""The accounting after chaos: each invariant has a run that broke it, and is seen to notice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.demo.squeue import JobRow
from benchmarks.chaos.accounting import Account, Seen, broken_share, judge, restart_delays
from benchmarks.chaos.injections import Done
from benchmarks.chaos.jobs import Act, Launched
from benchmarks.chaos.schedule import Injection, Kind, PlannedJob, Story
from benchmarks.chaos.witness import Controller, NodeSeen, Sighting, Start, read_controller, read_starts

JOB = 7


def launched(story: Story, **more: Any) -> Launched:
    plan = PlannedJob(number=0, at=0.0, user="alice", story=story, nodes=2, fails_at=5, steps=20)
    return Launched(plan=plan, job_id=JOB, at=100.0, folder=Path("/nowhere"), **({"excluded": frozenset()} | more))


def row(state: str, **more: Any) -> JobRow:
    fields: dict[str, Any] = {
        "job_id": JOB,
        "restarts": 0,
        "submitted": 100,
        "eligible": 100,
        "start": 101,
        "priority": 5,
        "reason": "None",
        "nodes": "node[1-2]",
        "user": "alice",
        "exit_code": "0:0",
        "admin_comment": "",
    }
    return JobRow(state=state, **(fields | more))


def sighted(*rows: JobRow) -> list[Sighting]:
    return [Sighting(at=100.0 + 10 * at, row=one) for at, one in enumerate(rows)]


def book(*, requeues: Sequence[float] = (), starts: Sequence[float] = (), ends: Sequence[float] = ()) -> Controller:
    made = [Start(at=at, attempt=number, nodes="node[1-2]") for number, at in enumerate(starts)]
    return Controller(requeues=list(requeues), starts=made, ends=list(ends))


def restart(attempt: int = 0, generation: int = 1) -> Mapping[str, Any]:
    about = {"job_id": str(JOB), "job_key": "k", "attempt": attempt}
    return {"advice": {"attempt": about, "action": "ACTION_RESTART", "generation": generation, "reason": "x"}}


def injected(kind: Kind, target: str, began: float, ended: float, note: str = "") -> Done:
    what = Injection(number=0, at=0.0, kind=kind, target=target)
    return Done(what=what, began=began, ended=ended, note=note)


RECOVERED = Seen(
    launched=[launched(Story.CRASH)],
    acts=[],
    injected=[],
    hostile={},
    jobs={JOB: sighted(row("RUNNING"), row("FAILED"), row("RUNNING", restarts=1), row("COMPLETED", restarts=1))},
    nodes={},
    ran={},
    controller={JOB: book(requeues=[113.0], starts=[101.0, 120.0], ends=[110.0, 130.0])},
    decisions=[restart()],
    ended=200.0,
)


def breached(account: Account) -> set[str]:
    return {invariant for invariant, _ in account.breaches}


def test_a_recovered_failure_is_accounted_for() -> None:
    """A crash, its requeue, its end: nothing is wrong, and the delay is slurmctld's own."""
    account = judge(RECOVERED)
    assert account.breaches == []
    assert dict(account.outcomes) == {"recovered": 1}
    assert restart_delays(RECOVERED) == ([3.0], [3.0])


def test_a_second_requeue_of_one_attempt_is_a_breach() -> None:
    """Two requeues with no start between them, unless a slurmctld that was killed had not saved the first."""
    controller = {JOB: book(requeues=[113.0, 115.0], starts=[101.0, 120.0], ends=[110.0])}
    assert breached(judge(replace(RECOVERED, controller=controller))) == {"at most one requeue per attempt"}
    killed = injected(Kind.KILL, "slurmctld", 114.0, 116.0)
    assert breached(judge(replace(RECOVERED, controller=controller, injected=[killed]))) == set()


def test_a_healthy_attempt_that_ended_is_a_breach() -> None:
    """A stale requeue kills the next attempt: nothing was to happen to that one, and nothing was injected."""
    controller = {JOB: book(requeues=[113.0, 125.0], starts=[101.0, 120.0, 131.0], ends=[110.0])}
    assert breached(judge(replace(RECOVERED, controller=controller))) == {"no healthy attempt is ended"}
    dead = injected(Kind.NODE, "node", 122.0, 140.0, "node2")
    assert breached(judge(replace(RECOVERED, controller=controller, injected=[dead]))) == set()


def test_a_cancelled_job_that_runs_again_is_a_breach() -> None:
    """Unless slurmctld was killed before it had saved the cancel."""
    seen = replace(
        RECOVERED,
        launched=[launched(Story.CANCELLED)],
        acts=[Act(at=105.0, job_id=JOB, what="cancel", accepted=True)],
    )
    assert breached(judge(seen)) == {"a cancelled job does not run again"}
    killed = injected(Kind.KILL, "slurmctld", 108.0, 110.0)
    account = judge(replace(seen, injected=[killed]))
    assert account.breaches == []
    assert len(account.notes) == 1


def test_what_is_not_ours_must_stay_as_it_was() -> None:
    """A mark on a job that never opted in, and a user's exclusion that is gone."""
    marked = sighted(row("FAILED", admin_comment='{"advisor": {}}'))
    seen = replace(RECOVERED, launched=[launched(Story.NOT_OURS)], jobs={JOB: marked}, controller={}, decisions=[])
    assert breached(judge(seen)) == {"what is not ours is not touched"}
    excluding = replace(RECOVERED, launched=[launched(Story.EXCLUDING, excluded=frozenset({"node8"}))])
    assert breached(judge(excluding)) == {"the user's own exclusions are kept"}


def test_an_exclusion_of_a_node_that_it_never_had_is_a_breach() -> None:
    """Whoever wrote that node's name."""
    jobs = {JOB: sighted(row("COMPLETED", restarts=1, excluded=frozenset({"node5"})))}
    assert breached(judge(replace(RECOVERED, jobs=jobs))) == {"exclusions name nodes of its own attempts"}


def test_a_requeue_that_no_decision_stands_for_is_a_breach() -> None:
    """And so is a generation that is missing."""
    assert breached(judge(replace(RECOVERED, decisions=[]))) == {"no act without committed advice"}
    gap = [restart(generation=3), restart(generation=1)]
    assert breached(judge(replace(RECOVERED, decisions=gap))) == {"generations are counted without a gap"}


def test_a_failure_that_was_left_is_explained_by_what_was_broken_only() -> None:
    """Everything dead for all of the time explains it, half of the time does not."""
    left = {JOB: sighted(row("RUNNING"), row("FAILED"))}
    seen = replace(RECOVERED, jobs=left, controller={}, decisions=[], ended=500.0)
    assert breached(judge(seen)) == {"every failure is accounted for"}
    dead = injected(Kind.KILL, "agent", 100.0, 500.0)
    assert dict(judge(replace(seen, injected=[dead])).outcomes) == {"explained": 1}
    half = injected(Kind.KILL, "agent", 100.0, 230.0)
    assert broken_share(replace(seen, injected=[half]), 110.0, 350.0) == 0.5
    assert breached(judge(replace(seen, injected=[half]))) == {"every failure is accounted for"}


def test_a_hang_that_nobody_could_see_is_explained() -> None:
    """Its log was taken away while this attempt ran; without that a job that still runs is a breach."""
    seen = replace(
        RECOVERED,
        launched=[launched(Story.HANG)],
        jobs={JOB: sighted(row("RUNNING"))},
        controller={JOB: book(starts=[101.0])},
    )
    seen = replace(seen, decisions=[])
    assert breached(judge(seen)) == {"every failure is accounted for"}
    gone = injected(Kind.LOG, "fifo", 105.0, 115.0, f"log of job {JOB} fifo")
    assert dict(judge(replace(seen, injected=[gone])).outcomes) == {"explained": 1}
    before = injected(Kind.LOG, "fifo", 95.0, 99.0, f"log of job {JOB} fifo")
    assert breached(judge(replace(seen, injected=[before]))) == {"every failure is accounted for"}


def test_a_job_that_slurm_holds_itself_is_nobody_elses() -> None:
    """A launch that slurmd refused leaves the job held by Slurm; we release no hold that is not ours."""
    held = {JOB: sighted(row("PENDING", priority=0, reason="launch failed requeued held"))}
    account = judge(replace(RECOVERED, jobs=held))
    assert account.breaches == []
    assert dict(account.outcomes) == {"explained": 1}


def test_one_of_several_replicas_explains_nothing() -> None:
    """The others are there."""
    dead = injected(Kind.KILL, "advisor", 100.0, 500.0)
    seen = replace(RECOVERED, injected=[dead], ended=500.0)
    assert broken_share(seen, 110.0, 350.0) == 1.0
    assert broken_share(replace(seen, replicas=2), 110.0, 350.0) == 0.0


def test_a_job_that_waits_held_or_beyond_its_deadline_is_a_breach() -> None:
    """A hold that nobody placed, and a StartTime of ours after the deadline that our mark names."""
    held = {JOB: sighted(row("PENDING", priority=0, reason="JobHeldAdmin"))}
    assert "nothing is left held" in breached(judge(replace(RECOVERED, jobs=held)))
    comment = '{"advisor":{"v":1,"deadline":150,"start":200,"nodes":[]}}'
    late = {JOB: sighted(row("PENDING", admin_comment=comment), row("COMPLETED", restarts=1))}
    assert breached(judge(replace(RECOVERED, jobs=late))) == {"no start is put off past the deadline"}


def test_an_administrators_drain_that_changed_is_a_breach() -> None:
    """Its reason is another while the drain lasts; and a drain of ours is left at the end."""
    drain = injected(Kind.DRAIN, "node", 100.0, 150.0, "node3: rma 1, do not touch")
    nodes = {"node3": [NodeSeen(asked=119.0, at=120.0, state="drained", reason="advisor: x gpu_hardware")]}
    seen = replace(RECOVERED, injected=[drain], nodes=nodes)
    assert breached(judge(seen)) == {"an administrator's drain is kept", "no node is left drained by us"}


def test_a_drain_counts_from_when_slurm_took_it() -> None:
    """A slurmctld that was dead when it was asked for has the node without it until then."""
    drain = injected(Kind.DRAIN, "node", 100.0, 150.0, "node3: rma 1, do not touch")
    drain.held, drain.released = 130.0, 140.0
    moments = {119.0: 120.0, 129.0: 131.0, 139.0: 141.0, 148.0: 149.0}
    nodes = {"node3": [NodeSeen(asked=asked, at=at, state="idle", reason="") for asked, at in moments.items()]}
    assert breached(judge(replace(RECOVERED, injected=[drain], nodes=nodes))) == set()
    drain.held = 118.0
    assert breached(judge(replace(RECOVERED, injected=[drain], nodes=nodes))) == {"an administrator's drain is kept"}


def test_slurmctlds_log_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Starts of both schedulers, ends, requeues that were asked for, and those that Slurm did by itself."""
    log = tmp_path / "slurmctld.log"
    log.write_text(
        "[2026-11-29T23:34:47.829] sched/backfill: _start_job: Started JobId=1 in main on node[1-2]\n"
        "[2026-11-29T23:34:48.854] _job_complete: JobId=1 done\n"
        "[2026-11-29T23:34:48.910] Requeuing JobId=1\n"
        "[2026-11-29T23:34:54.851] sched: Allocate JobId=1 NodeList=node[2-3] #CPUs=2 Partition=main\n"
        "[2026-11-29T23:53:12.932] _job_complete: requeue JobId=1 per user/system request\n"
        "[2026-11-29T23:53:19.941] Requeuing JobId=1\n"
        "[2026-11-29T23:54:02.148] requeue job JobId=1 due to failure of node node5\n"
        "[2026-11-29T23:54:02.270] Requeuing JobId=1\n"
        "[2026-11-29T23:53:20.000] error: x JobName=Requeuing JobId=2\n"
        "[2026-11-29T23:55:00.925] error: Duplicate jobid on nodes node3, set to state DRAIN\n"
        "[2026-11-29T23:55:00.965] Requeuing JobId=1\n"
    )
    of = read_controller(log)
    assert list(of) == [1]
    assert [one.nodes for one in of[1].starts] == ["node[1-2]", "node[2-3]"]
    assert (len(of[1].requeues), len(of[1].own), len(of[1].ends)) == (1, 3, 1)


def test_an_id_that_was_given_again_is_of_the_last_job_that_has_it() -> None:
    """A killed slurmctld had forgotten the first one, which was none of ours: what was done, was done to the other."""
    first = replace(launched(Story.NOT_OURS), at=60.0)
    kill = injected(Kind.KILL, "slurmctld", 62.0, 70.0)
    both = replace(RECOVERED, launched=[first, replace(launched(Story.CRASH), at=100.0)], injected=[kill])
    account = judge(both)
    assert breached(account) == set()
    assert [verdict.outcome for verdict in account.verdicts] == ["explained", "recovered"]


def test_what_a_job_wrote_of_its_starts_may_be_cut(tmp_path: Path) -> None:
    """Lines that a full disk or a kill left half written are left out."""
    file = tmp_path / "starts"
    file.write_text("0 1795997131.25 node[1-2]\n1 17959\nx y z\n")
    assert [one.attempt for one in read_starts(file)] == [0]
    assert read_starts(tmp_path / "none") == ()


def test_a_job_whose_output_was_taken_away_is_explained() -> None:
    """It waits for its storage, or was given up since slurmd could not open it; with its log in place, neither."""
    taken = injected(Kind.LOG, "folder", 90.0, 95.0, f"log of job {JOB} folder")
    waits = {"advice": {"attempt": {"job_id": str(JOB)}, "action": "ACTION_RESTART", "reason": "storage_delay"}}
    waiting = replace(RECOVERED, jobs={JOB: sighted(row("PENDING", reason="BeginTime", restarts=1))}, decisions=[waits])
    failed = replace(RECOVERED, jobs={JOB: sighted(row("FAILED", exit_code="15:53"))})
    for seen in (waiting, failed):
        assert "every failure is accounted for" in breached(judge(seen))
        assert "every failure is accounted for" not in breached(judge(replace(seen, injected=[taken])))
