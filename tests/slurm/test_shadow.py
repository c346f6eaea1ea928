"""Monitor mode on a real Slurm: what people do is read from what Slurm shows, and the report says so."""

import json
from collections.abc import Iterator

import pytest

from advisor.client import Client
from advisor.demo.waiting import wait_for
from advisor.demo.world import World
from advisor.v1 import audit_pb2, common_pb2, report_pb2

OPT_IN = json.dumps({"advisor": {"enabled": True}})
FAILS = "#!/bin/sh\nsleep 2\nexit 7\n"
# Progress, and then nothing more: the hang limit of these tests is eight seconds.
HANGS = (
    "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do\n"
    "  printf 'iteration %8d/     100 | elapsed time per iteration (ms): 300.0 | loss: 1.0\\n' $i; sleep 0.3\n"
    "done\nsleep 300\n"
)


@pytest.fixture
def watching(world: World) -> Iterator[World]:
    """Monitor mode everywhere; the next scenario sets its own."""
    world.stack.set_mode("monitor")
    yield world
    world.cluster.command("scontrol", "update", "nodename=ALL", "state=resume")


def submit(world: World, name: str, script: str) -> int:
    home = world.cluster.runtime.home("alice")
    options = ("-N1", "--gres=gpu:8", f"--job-name={name}", f"--output={home}/{name}-%j.out", f"--comment={OPT_IN}")
    return world.cluster.submit("alice", script, *options)


def advised(client: Client, job: int) -> bool:
    chosen = audit_pb2.Filter(job_id=str(job), action=common_pb2.ACTION_RESTART)
    return any(True for _ in client.decisions(chosen, most=1))


def cases(client: Client) -> dict[int, report_pb2.ShadowCase]:
    """Of first attempts, by job."""
    report = client.shadow_report(report_pb2.GetShadowReportRequest(cluster="demo"))
    return {int(item.attempt.job_id): item for item in report.cases if item.attempt.attempt == 0}


def test_the_report_says_what_people_did(watching: World, client: Client) -> None:
    """Requeued; submitted again; requeued with its node drained; cancelled while it hung."""
    cluster = watching.cluster
    requeued, again, drained = (submit(watching, name, FAILS) for name in ("shadow-a", "shadow-b", "shadow-c"))
    cancelled = submit(watching, "shadow-d", HANGS)
    for job in (requeued, again, drained):
        cluster.wait_state(job, "FAILED", seconds=30)
        wait_for(f"advice for {job}", lambda job=job: advised(client, job), seconds=30, every_seconds=0.2)

    wait_for("advice for the hang", lambda: advised(client, cancelled), seconds=60, every_seconds=0.2)
    chosen = audit_pb2.Filter(job_id=str(drained))
    node = next(iter(client.attempts(chosen, most=1))).nodes[0]
    cluster.must("scontrol", "update", f"nodename={node}", "state=drain", "reason=bob: fan is dead")
    cluster.must("scontrol", "requeue", str(requeued), user="alice")
    cluster.must("scontrol", "requeue", str(drained), user="alice")
    cluster.must("scancel", str(cancelled), user="alice")
    copy = submit(watching, "shadow-b", FAILS)
    done = {requeued: "requeued", again: "resubmitted", drained: "requeued", cancelled: "cancelled"}
    wait_for("what people did", lambda: {job: cases(client)[job].did for job in done} == done, seconds=40)
    wait_for("the drain", lambda: list(cases(client)[drained].their_nodes) == [node], seconds=20)
    found = cases(client)
    assert {job: found[job].outcome for job in done} == {
        requeued: "agreed",
        again: "agreed",
        drained: "other_nodes",
        cancelled: "we_restart",
    }
    assert (found[again].resubmitted_as, found[again].gpus) == (str(copy), 8)
    assert list(found[drained].their_nodes) == [node]
    assert found[cancelled].held_gpus
    told = watching.stack.cli("shadow", "record", f"{drained}#0", "--did", "other", "--why", "the fan, not the job")
    assert told.returncode == 0, told.stderr
    said = cases(client)[drained]
    assert (said.did, said.outcome, said.recorded_by) == ("other", "nobodys", "root")
    assert_tables_fit(watching)


def assert_tables_fit(world: World) -> None:
    """And the figures know the failures of this session, with the GPUs that Slurm gave them."""
    for report in ("shadow", "reliability"):
        shown = world.stack.cli("report", report, "--since", "1h")
        assert shown.returncode == 0, shown.stderr
        assert [line for line in shown.stdout.splitlines() if len(line) > 80 and "://" not in line] == []
    figures = world.stack.ask("report", "reliability", "--since", "1h")
    assert figures["all"]["failures"] >= 3
    assert figures["all"]["gpu_hours"] > 0
