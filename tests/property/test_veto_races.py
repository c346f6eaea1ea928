"""A veto at every step of the protocol, with and without a fault at the same moment, on the model of the whole site.

What is answered must be true: confirmed means that nothing was done and nothing will be, unless it is on record.
"""

import asyncio
import random
import shutil
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO

import pytest
import structlog

from advisor.v1 import common_pb2
from slurm_plugin import guard
from tests.model.matrix import FAILS_AT, JOB, STEPS, STORIES, Fault, a_cluster, a_folder, let_it_fail, twice
from tests.model.simulation import Loop
from tests.model.site import Site

KEY = f"{JOB}/0"
HORIZON = 45.0
SATISFIED = common_pb2.RECONCILIATION_STATUS_ALREADY_SATISFIED
FAULTS = (
    None,
    *(Fault(target, kind) for target in ("agent", "advisor", "slurmctld") for kind in ("kill -9", "SIGSTOP")),
)
BACK_SECONDS = 5.0
# Steps that are taken all the time; here they count from the failure on.
BEFORE_TOO = frozenset({"agent: look", "report", "report: stored", "tick: gather", "tick file"})
RACES = [(step, fault) for step in STEPS if not step.startswith(("watchdog", "job starts")) for fault in FAULTS]


@dataclass(slots=True)
class Told:
    """What came of one veto: whether it was taken, when it was confirmed, and what was on record by then."""

    site: Site
    reached: bool = False
    taken: bool = False
    confirmed_at: float | None = None
    on_record: bool = False
    requeues_then: int = 0

    @property
    def requeues(self) -> int:
        changes = self.site.slurm.changes
        return sum(
            change.verb == "requeue" and change.job_id == JOB and change.by.startswith("agent") for change in changes
        )

    @property
    def confirmed(self) -> bool:
        items = self.site.database.advice.get(KEY, [])
        vetoed = [advice.advice_id for wish, advice in items if wish.action is guard.Action.NONE]
        return any(status == SATISFIED for name in vetoed for status, _ in self.site.database.said.get(name, []))


def race(step: str, fault: Fault | None) -> Told:
    """The story of one failed job, with a veto the first time that `step` is reached after the failure began."""
    loop, folder = Loop(), a_folder()
    site = Site(loop, folder, a_cluster(), STORIES["failed"].decide, look_seconds=0.05)
    told = Told(site=site)

    async def veto() -> None:
        while not told.taken:
            try:
                told.taken = await site.advisor.veto(KEY)
                return
            except ConnectionError:
                await asyncio.sleep(0.5)

    def strike() -> None:
        if fault is None:
            return
        process = site.lives[fault.target]
        if fault.kind == "SIGSTOP":
            process.stop()
            loop.call_later(BACK_SECONDS, site.slurmctld_goes_on if fault.target == "slurmctld" else process.go_on)
        else:
            site.slurmctld_dies() if fault.target == "slurmctld" else process.kill()
            loop.call_later(BACK_SECONDS, site.start_program, fault.target)

    def hook(reached: str) -> None:
        early = step in BEFORE_TOO and loop.time() < FAILS_AT
        if reached == step and not told.reached and not early:
            told.reached = True
            site.spawn(veto(), site.slurmctld)
            loop.call_soon(strike)

    async def played() -> None:
        site.step_hook = hook
        site.start()
        let_it_fail(site, STORIES["failed"])
        while loop.time() < HORIZON:
            await asyncio.sleep(0.05)
            if told.confirmed_at is None and told.confirmed:
                told.confirmed_at = loop.time()
                told.on_record, told.requeues_then = site.database.accepted(KEY), told.requeues
        await site.end()

    try:
        with structlog.testing.capture_logs(), redirect_stderr(StringIO()):
            loop.run_until_complete(played())
        return told
    finally:
        loop.close()
        shutil.rmtree(folder)


def problems(step: str, fault: Fault | None) -> list[str]:
    told, where = race(step, fault), f"{step} | {fault}"
    found = [f"{where}: {problem}" for problem in twice(told.site.slurm)]
    if not told.reached:
        return [*found, f"{where}: the step was never reached"]
    job = told.site.slurm.job(JOB)
    if not told.taken and not told.site.database.accepted(KEY):
        found.append(f"{where}: refused, and nothing was on record")
    if not told.taken and job.restarts == 0:
        found.append(f"{where}: refused, and nothing had happened")
    if told.taken and told.confirmed_at is None:
        found.append(f"{where}: never confirmed")
    if told.confirmed_at is not None and told.requeues > told.requeues_then:
        found.append(f"{where}: requeued after it was confirmed that nothing is under way")
    successor = f"{JOB}/1" in told.site.database.seen
    if told.confirmed_at is not None and told.requeues and not (told.on_record or successor):
        found.append(f"{where}: confirmed as if nothing had been done, but it was requeued")
    if told.taken and not told.requeues and job.state != "FAILED":
        found.append(f"{where}: vetoed, and it is {job.state}")
    return found


def test_a_veto_at_each_step_is_answered_truly() -> None:
    """Without a fault: early enough nothing happens, and what had happened is told."""
    assert [problem for step, fault in RACES if fault is None for problem in problems(step, fault)] == []
    early, late = race("tick: committed", None), race("acknowledgement: stored", None)
    assert (early.taken, early.requeues) == (True, 0)
    assert (late.taken, late.requeues) == (False, 1)


def test_a_veto_that_meets_the_acting_process_stops_it_before_its_first_verb() -> None:
    """It has started and has even looked: the guard asks once more, and the withdrawn generation is refused."""
    for step in ("applying process: start", "applying process: look"):
        told = race(step, None)
        assert (told.taken, told.requeues, told.confirmed_at is not None) == (True, 0, True), step


def test_a_veto_beside_a_fault_is_answered_truly() -> None:
    """Some of all steps × faults in `make test`, all of them in `make test-long`."""
    some = random.Random(7).sample([one for one in RACES if one[1] is not None], 24)
    assert [problem for step, fault in some for problem in problems(step, fault)] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_veto_beside_any_fault_is_answered_truly() -> None:
    """Every step × {kill -9, SIGSTOP} × {agent, advisor, slurmctld}."""
    assert [problem for step, fault in RACES for problem in problems(step, fault)] == []
