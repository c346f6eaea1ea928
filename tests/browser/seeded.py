"""A night at a cluster, in a real store: what the pages of these tests and the screenshots show."""

import random
from dataclasses import dataclass, replace
from datetime import timedelta

from advisor.core.model import (
    Hypothesis,
    Progress,
)
from advisor.core.modes import ModeSetting
from advisor.core.node_isolation import Want
from advisor.core.words import (
    Action,
    AttemptState,
    Category,
    IncidentKind,
    Mode,
    NodeState,
    Reason,
    Role,
    Trust,
)
from advisor.store.records import (
    AgentMode,
    AttemptKey,
    AttemptRef,
    AuditFilter,
    CommittedDecision,
    Milestone,
    MilestoneKind,
    NodeReconciliation,
    ObservedJob,
    ObservedNode,
    Page,
)
from advisor.store.store import Store
from tests.browser.writing import (
    CLUSTER,
    SAID,
    WHY,
    XID,
    Told,
    answer,
    before,
    decide,
    decision_record,
    job,
    node_name,
    observe,
    progressed,
)

_ALL, _PAGE = AuditFilter(), Page(size=250)

# What somebody could print to do harm: to the page, to the reader, to a terminal.
HOSTILE = (
    "</pre><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">",
    "'\" onmouseover=alert(1) autofocus onfocus=\"document.title='taken'\" x='",
    "{{ 7*7 }} {% raw %} <svg/onload=document.title='taken'> &lt;b&gt;",
    "safe \u202egnp.exe \u2066hidden\u2069 \u200f end",
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m",
    "javascript:document.title='taken'",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """Names of what tests ask for."""

    decision_id: str
    incident_id: str
    job_key: str
    hostile_decision_id: str
    hostile_job_key: str
    node: str


async def seed(store: Store, *, nodes: int = 1024, history: int = 70) -> Seeded:
    """A small world with everything that a page can show."""
    await _cluster(store, nodes, history)
    names = [node_name(number) for number in range(401, 465)]
    main = await _recovered(store, names)
    await _others(store)
    hostile, hostile_key = await _hostile(store)
    await _operators(store, main[2])
    incident = next(
        row for row in (await store.audit.incidents(_ALL, _PAGE)).rows if row.attempt.job_key == main[2].job_key
    )
    return Seeded(
        decision_id=main[0],
        incident_id=incident.incident_id,
        job_key=main[2].job_key,
        hostile_decision_id=hostile,
        hostile_job_key=hostile_key,
        node=main[1],
    )


async def _cluster(store: Store, count: int, history: int) -> None:
    chance = random.Random(7)
    seen = []
    for number in range(1, count + 1):
        state = NodeState.UP
        if chance.random() < 0.012:
            state = chance.choice((NodeState.DRAINED, NodeState.DOWN, NodeState.NOT_RESPONDING))
        reason = (
            "" if state is NodeState.UP else chance.choice(("bad DIMM, ticket 8821", "kernel update", "Not responding"))
        )
        seen.append(
            ObservedNode(
                name=node_name(number),
                state=state,
                observed_at=before(90_000),
                reason=reason,
                partitions=("train",) if number % 8 else ("train", "debug"),
            )
        )
    await store.record_observations(CLUSTER, (), seen, complete=False, now=before(90_000))
    await store.register_agent(
        cluster=CLUSTER,
        host="ctl1",
        version="0.1.0",
        mode=AgentMode.ACT,
        scheduler="slurm 24.11.5",
        requeue_delay=timedelta(seconds=6),
        job_memory=timedelta(seconds=300),
        missing_rights=(),
        now=before(2),
    )
    past = [_past_failure(number, count, chance) for number in range(history)]
    long_runs = [
        replace(
            job(
                str(2000 + number),
                "erin",
                f"base-{number}",
                state=AttemptState.COMPLETED,
                since=86_400 * (6 + 2 * number),
                until=86_400 * (2 + 2 * number),
                nodes=[node_name(1 + (64 * number + more) % count) for more in range(min(128, count))],
            ),
            gpus=1024,
        )
        for number in range(8)
    ]
    await store.record_observations(
        CLUSTER, [*(one for jobs, _, _ in past for one in jobs), *long_runs], (), complete=False, now=before(60)
    )
    refs = [
        AttemptRef(
            cluster=CLUSTER, job_id=jobs[0].job_id, number=0, user=jobs[0].user, submitted_at=jobs[0].submitted_at
        )
        for jobs, _, _ in past
    ]
    keys = await store.resolve(refs)
    records = [
        decision_record(key, told, at=at) for key, (_, told, at) in zip(keys, past, strict=True) if key is not None
    ]
    for committed, (_, _, at) in zip(await store.commit_decisions(records), past, strict=True):
        assert isinstance(committed, CommittedDecision)
        await answer(store, committed.decision_id, SAID.WITHHELD, WHY.MONITOR_MODE, at=at - 1)


def _past_failure(number: int, count: int, chance: random.Random) -> tuple[list[ObservedJob], Told, float]:
    """A node that failed in monitor mode; most of the jobs were submitted again by their users. When it was decided."""
    since = 3600 * (24.0 * 25 * chance.random() ** 2 + 8)
    name = node_name(chance.choice((chance.randint(1, count), 77, 412, 690)))
    user, title = chance.choice(("alice", "bob", "chen", "dora")), f"sweep-{number}"
    failed = job(
        str(3000 + number), user, title, state=AttemptState.FAILED, since=since + 7200, until=since, nodes=[name]
    )
    jobs = [replace(failed, gpus=8)]
    told = Told(
        category=Category.GPU_HARDWARE,
        cause=f"Xid 79: the GPU has fallen off the bus ({name})",
        nodes=(name,),
        lines=((Role.INITIATING, Trust.LOG if number % 9 == 4 else Trust.KERNEL, XID),),
    )
    if number % 8 and since > 7200:
        later = since - 300 - 120 * (number % 20)
        again = job(
            str(5000 + number),
            user,
            title,
            state=AttemptState.COMPLETED,
            since=later,
            until=max(later - 14_400, 60),
            nodes=[node_name(1 + (number * 37) % count)],
        )
        jobs.append(replace(again, gpus=8, excluded_nodes=(name,)))
    return jobs, told, since - 4


async def _recovered(store: Store, names: list[str]) -> tuple[str, str, AttemptKey]:
    """Job 4711: six hours of training, a GPU that is lost, and the restart without its node."""
    bad = names[16]
    first = await observe(
        store, job("4711", "alice", "llama-70b", state=AttemptState.RUNNING, since=21_600, nodes=names)
    )
    await progressed(store, first, first=0, last=4123, since=21_300, until=1510)
    cause = "Xid 79: the GPU has fallen off the bus"
    told = Told(
        category=Category.GPU_HARDWARE,
        cause=f"{cause} ({bad})",
        mode=Mode.AUTONOMOUS,
        nodes=(bad,),
        why=f"Restart without {bad}: trusted evidence implicates nodes that can be avoided; cause: {cause} ({bad}).",
        lines=(
            (Role.INITIATING, Trust.KERNEL, XID),
            (Role.INITIATING, Trust.LOG, "[rank131]: torch.AcceleratorError: CUDA error: unspecified launch failure"),
            (
                Role.SYMPTOM,
                Trust.LOG,
                "[rank5]:[E1129 02:47:14.000000000 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective "
                "operation timeout: WorkNCCL(SeqNum=88123, OpType=ALLREDUCE)",
            ),
        ),
        alternatives=(
            Hypothesis(
                category=Category.APPLICATION,
                root_cause="A kernel failed for an unspecified reason (rank 131)",
                confidence=0.31,
                why_not="log evidence, where a trusted source says otherwise",
            ),
            Hypothesis(
                category=Category.INTERCONNECT,
                root_cause="A collective timed out on all ranks",
                confidence=0.12,
                why_not="a symptom that everyone sees points at nobody",
            ),
        ),
    )
    await store.record_observations(
        CLUSTER,
        [replace(job("4711", "alice", "llama-70b", state=AttemptState.FAILED, since=21_600, until=1502, nodes=names))],
        (),
        complete=False,
        now=before(1502),
    )
    decision_id = await decide(
        store, first, told, at=1500.4, progress=Progress(first_step=0, last_step=4123, last_at=before(1510))
    )
    await answer(store, decision_id, SAID.APPLIED, WHY.UNSPECIFIED, at=1499.9, detail="requeued; ExcNodeList=gpu0417")
    reached = (
        (MilestoneKind.FAULT_VISIBLE, 1504.6),
        (MilestoneKind.DETECTED, 1503.7),
        (MilestoneKind.ADVISED, 1500.4),
        (MilestoneKind.REQUEUE_ACCEPTED, 1499.9),
        (MilestoneKind.UPDATE_ACCEPTED, 1499.8),
        (MilestoneKind.RUNNING, 1493.0),
        (MilestoneKind.FIRST_PROGRESS, 1410.0),
        (MilestoneKind.CAUGHT_UP, 870.0),
    )
    await store.record_milestones({first: [Milestone(kind=kind, at=before(at)) for kind, at in reached]})
    second = [name for name in names if name != bad] + [node_name(500)]
    again = await observe(
        store, job("4711", "alice", "llama-70b", attempt=1, state=AttemptState.RUNNING, since=1493, nodes=second)
    )
    await progressed(store, again, first=4000, last=4310, since=1410, until=3, every=100)
    await answer(store, decision_id, SAID.VERIFIED, WHY.OBSERVED, at=1490)
    return decision_id, bad, first


async def _others(store: Store) -> None:
    """Failures that wait, that were stopped, and that nobody may touch."""
    running = [
        (
            "4802",
            "bob",
            "vision-moe",
            Told(
                category=Category.APPLICATION,
                cause="KeyError: 'lr_scheduler' while a checkpoint is loaded, on all ranks, a second time",
                action=Action.STOP,
                reason=Reason.SAME_FAILURE_SAME_PROGRESS,
                lines=((Role.INITIATING, Trust.LOG, "KeyError: 'lr_scheduler'"),),
                why="Stop: the same failure at the same place with no progress between; it would fail again.",
            ),
            260,
            AttemptState.FAILED,
        ),
        (
            "4790",
            "chen",
            "diffusion-xl",
            Told(
                category=Category.INTERCONNECT,
                cause="Rank 17 is behind in collective 5,512: the others wait for it",
                kind=IncidentKind.HANG,
                reason=Reason.HANG,
                nodes=(node_name(690),),
                lines=(
                    (Role.INITIATING, Trust.LOG, "[rank17]:[W] last enqueued work: 5511, last completed work: 5511"),
                ),
                confidence=0.81,
            ),
            540,
            AttemptState.RUNNING,
        ),
        (
            "4777",
            "dora",
            "rlhf-sweep",
            Told(
                category=Category.GPU_OUT_OF_MEMORY,
                cause="CUDA out of memory: tried to allocate 2.00 GiB (rank 0)",
                action=Action.RESTART,
                reason=Reason.CONFIRMATION_RETRY,
                lines=(
                    (
                        Role.INITIATING,
                        Trust.LOG,
                        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                    ),
                ),
                confidence=0.93,
            ),
            3_900,
            AttemptState.FAILED,
        ),
        (
            "4768",
            "alice",
            "tokenizer",
            Told(
                category=Category.STORAGE,
                cause="Stale file handle on /scratch, on 12 nodes at once",
                reason=Reason.STORAGE_DELAY,
                lines=((Role.INITIATING, Trust.KERNEL, "nfs: server fs1 not responding, still trying"),),
                confidence=0.9,
            ),
            9_800,
            AttemptState.FAILED,
        ),
    ]
    for number, (job_id, user, name, told, at, state) in enumerate(running):
        nodes = told.nodes or tuple(node_name(100 + 8 * number + more) for more in range(8))
        ended = at + 4 if state is AttemptState.FAILED else None
        key = await observe(
            store,
            job(
                job_id,
                user,
                name,
                state=state,
                since=at + 9000,
                until=ended,
                nodes=nodes,
                partition="train" if number % 2 else "debug",
            ),
        )
        await progressed(store, key, first=0, last=900 + 700 * number, since=at + 8900, until=at + 6)
        decision_id = await decide(store, key, told, at=at)
        if at > 3000:
            await answer(store, decision_id, SAID.WITHHELD, WHY.MONITOR_MODE, at=at - 1)


async def _hostile(store: Store) -> tuple[str, str]:
    """A job whose every text tries to be more than text, one of them of 64 KiB."""
    lines = (
        *((Role.INITIATING, Trust.LOG, text) for text in HOSTILE),
        (Role.SYMPTOM, Trust.LOG, "A" * 65_000 + HOSTILE[0]),
    )
    told = Told(
        category=Category.APPLICATION,
        cause=HOSTILE[0],
        lines=lines,
        why=HOSTILE[2],
        reason=Reason.WITHIN_BUDGET,
        alternatives=(
            Hypothesis(category=Category.UNKNOWN, root_cause=HOSTILE[1], confidence=0.1, why_not=HOSTILE[3]),
        ),
    )
    key = await observe(
        store,
        job("6666", "mallory", HOSTILE[0], state=AttemptState.FAILED, since=80_000, until=70_000, nodes=[node_name(9)]),
    )
    decision_id = await decide(store, key, told, at=69_990)
    await answer(store, decision_id, SAID.WITHHELD, WHY.SCHEDULER_REFUSED, at=69_989, detail=HOSTILE[4])
    return decision_id, key.job_key


async def _operators(store: Store, key: AttemptKey) -> None:
    await store.set_mode(
        ModeSetting(mode=Mode.AUTONOMOUS, cluster=CLUSTER, partition="train"),
        who="ops-kim",
        why="two weeks of monitor mode reviewed",
        origin="unix socket",
        now=before(180_000),
    )
    want = Want(
        node=node_name(417),
        category=Category.GPU_HARDWARE,
        why="Xid 79: the GPU has fallen off the bus",
        evidence_at=before(1504),
        job_key=key.job_key,
        number=key.number,
        job_id="4711",
        acts=True,
    )
    await store.isolate(CLUSTER, [want], now=before(1300))
    (isolation,) = await store.isolations()
    news = NodeReconciliation(
        generation=isolation.generation, status=SAID.VERIFIED, reason=WHY.OBSERVED, at=before(1290)
    )
    await store.record_node_reconciliation(isolation.isolation_id, news, cluster=CLUSTER, who="agent@ctl1")
