"""A seed → which jobs start when and how they fail, and what befalls whom. Pure, and the same for the same arguments.

The two are drawn from streams of their own, so that leaving one kind of injection out moves no job.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

USERS = ("alice", "bob")
HOSTILE = "mallory"


class Kind(StrEnum):
    KILL = "kill"  # kill -9; started again after `seconds`, as by a supervisor
    FREEZE = "freeze"  # SIGSTOP, SIGCONT after `seconds`
    PARTITION = "partition"  # packets are dropped in the network namespace
    HOLD = "hold"  # bytes between two programs are held back by a relay
    DELAY = "delay"  # bytes between two programs are late by `amount` seconds
    LOSS = "loss"  # a share `amount` of packets is lost
    CLOCK = "clock"  # wall clock of one program is off by `amount` seconds
    DISK = "disk"  # the file system of one program is full
    LOG = "log"  # the log of a running job is broken in the way `target` says; a folder or FIFO is taken away again
    NODE = "node"  # a node's slurmd dies and comes back after `seconds`
    DRAIN = "drain"  # an administrator drains a node, and takes it back after `seconds`
    FLOOD = "flood"  # a hostile job prints `amount` MB per second
    TRICK = "trick"  # a hostile job, see tricks.py


class Story(StrEnum):
    """What is wrong with a job, and so what must become of it."""

    HEALTHY = "healthy"
    CRASH = "crash"  # a Python traceback in the first attempt only
    XID = "xid"  # a GPU falls off the bus, in the kernel's log
    HANG = "hang"  # one rank falls silent
    KILLED = "killed"  # one rank is killed -9, as by the kernel for memory
    HOPELESS = "hopeless"  # a configuration error, in every attempt
    GPU_MEMORY = "gpu_memory"  # CUDA out of memory at the same step, in every attempt
    CANCELLED = "cancelled"  # its user cancels it while it runs
    CANCELLED_AFTER = "cancelled_after"  # it fails, and its user cancels it before it starts again
    NOT_OURS = "not_ours"  # it fails and never opted in
    EXCLUDING = "excluding"  # xid, and its user excluded a node at submission
    HELD = "held"  # waits in its user's hold


RECOVERABLE = frozenset({Story.CRASH, Story.XID, Story.HANG, Story.KILLED, Story.EXCLUDING})
HOPELESS = frozenset({Story.HOPELESS, Story.GPU_MEMORY})

_STORIES: Mapping[Story, int] = {
    Story.HEALTHY: 3,
    Story.CRASH: 4,
    Story.XID: 5,
    Story.HANG: 3,
    Story.KILLED: 3,
    Story.HOPELESS: 2,
    Story.GPU_MEMORY: 1,
    Story.CANCELLED: 2,
    Story.CANCELLED_AFTER: 1,
    Story.NOT_OURS: 2,
    Story.EXCLUDING: 2,
    Story.HELD: 1,
}
PROCESSES = ("advisor", "agent", "watchdog", "postgres", "slurmctld", "slurmd")
LINKS = ("database", "nodes", "controller")
RELAYED = ("database", "agent")
CLOCKS = ("advisor", "watchdog", "postgres")
DISKS = ("postgres", "agent", "advisor")
LOG_WAYS = ("truncated", "binary", "rotated", "folder", "fifo")
TRICKS = (
    *("forged_xid", "forged_progress", "forged_nodes", "endless_line", "rules", "distinct_errors"),
    *("comment_bomb", "escapes", "shell_names", "dumps"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    number: int
    at: float  # seconds after the beginning
    user: str
    story: Story
    nodes: int
    fails_at: int  # step
    steps: int
    cancel_after: float = 0.0  # seconds after it began to run, or after it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """`target`: a process, link, disk, way or trick; of several replicas or nodes the one that `which` names."""

    number: int
    at: float
    kind: Kind
    target: str
    seconds: float = 0.0
    amount: float = 0.0
    which: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    seed: int
    seconds: float
    jobs: Sequence[PlannedJob]
    injections: Sequence[Injection]


def make(seed: int, seconds: float, *, nodes: int, without: frozenset[Kind] = frozenset()) -> Schedule:
    """What happens in `seconds` seconds on `nodes` nodes."""
    return Schedule(
        seed=seed,
        seconds=seconds,
        jobs=_jobs(random.Random(f"jobs {seed}"), seconds),
        injections=[
            item for item in _injections(random.Random(f"faults {seed}"), seconds, nodes) if item.kind not in without
        ],
    )


def _jobs(draw: random.Random, seconds: float) -> list[PlannedJob]:
    jobs: list[PlannedJob] = []
    at = 0.5
    while at < seconds - 10:
        fails_at = draw.randint(6, 40)
        story = draw.choices(list(_STORIES), list(_STORIES.values()))[0]
        jobs.append(
            PlannedJob(
                number=len(jobs),
                at=round(at, 2),
                user=draw.choice(USERS),
                story=story,
                nodes=draw.choice((1, 2, 2, 3)),
                fails_at=1 if story is Story.HOPELESS else fails_at,
                steps=fails_at + draw.randint(5, 60),
                cancel_after=round(draw.uniform(0.5, 4.0), 2),
            )
        )
        at += draw.expovariate(1 / 6.0)
    return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _What:
    kind: Kind
    target: str
    seconds: float = 0.0
    amount: float = 0.0


def _injections(draw: random.Random, seconds: float, nodes: int) -> list[Injection]:
    """One every five seconds on average; each kind of every target comes round in an hour."""
    makers: Sequence[tuple[int, Callable[[random.Random], _What]]] = (
        (6, _kill),
        (5, _freeze),
        (3, lambda d: _What(kind=Kind.PARTITION, target=d.choice(LINKS), seconds=d.uniform(2, 20))),
        (2, lambda d: _What(kind=Kind.HOLD, target=d.choice(RELAYED), seconds=d.uniform(2, 20))),
        (
            2,
            lambda d: _What(kind=Kind.DELAY, target=d.choice(RELAYED), seconds=d.uniform(5, 25), amount=d.random() / 3),
        ),
        (1, lambda d: _What(kind=Kind.LOSS, target="controller", seconds=d.uniform(5, 20), amount=0.3)),
        (3, _clock),
        (2, lambda d: _What(kind=Kind.DISK, target=d.choice(DISKS), seconds=d.uniform(3, 15))),
        (3, lambda d: _What(kind=Kind.LOG, target=d.choice(LOG_WAYS), seconds=d.uniform(3, 15))),
        (2, lambda d: _What(kind=Kind.NODE, target="node", seconds=d.uniform(5, 40))),
        (1, lambda d: _What(kind=Kind.DRAIN, target="node", seconds=d.uniform(20, 60))),
        (1, lambda d: _What(kind=Kind.FLOOD, target="log", seconds=d.uniform(5, 12), amount=100.0)),
        (4, lambda d: _What(kind=Kind.TRICK, target=d.choice(TRICKS))),
    )
    found: list[Injection] = []
    at = 8.0
    while at < seconds:
        make_one = draw.choices([one for _, one in makers], [weight for weight, _ in makers])[0]
        what = make_one(draw)
        found.append(
            Injection(
                number=len(found),
                at=round(at, 2),
                kind=what.kind,
                target=what.target,
                seconds=round(what.seconds, 2),
                amount=round(what.amount, 2),
                which=draw.randrange(nodes),
            )
        )
        at += 0.5 + draw.expovariate(1 / 4.5)
    return found


def _kill(draw: random.Random) -> _What:
    # Away for a moment, as a supervisor has it, or for so long that deadlines pass.
    away = draw.choice((0.5, 2.0, 5.0, 12.0)) if draw.random() < 0.85 else draw.uniform(20, 45)
    target = draw.choices(PROCESSES, (5, 5, 3, 4, 1, 2))[0]
    return _What(kind=Kind.KILL, target=target, seconds=min(away, 8.0) if target == "slurmctld" else away)


def _freeze(draw: random.Random) -> _What:
    target = draw.choices(PROCESSES, (4, 4, 3, 3, 2, 2))[0]
    return _What(kind=Kind.FREEZE, target=target, seconds=draw.uniform(1, 8 if target == "slurmd" else 15))


def _clock(draw: random.Random) -> _What:
    amount = draw.choice((-1, 1)) * draw.choice((5.0, 60.0, 3600.0, 86400.0))
    return _What(kind=Kind.CLOCK, target=draw.choice(CLOCKS), seconds=draw.uniform(5, 30), amount=amount)
