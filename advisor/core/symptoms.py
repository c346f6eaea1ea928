"""What can be said when nothing initiating is known: who did not arrive, what was going on, who ended first."""

from collections.abc import Sequence

from advisor.core.collectives import Arrival, arrival
from advisor.core.conditions import INPUT_STARVED, SLOWDOWN
from advisor.core.job_rules import JOB_HANG, JOB_SLOW
from advisor.core.model import Hypothesis, Signal, Snapshot
from advisor.core.places_of_signals import ranks_of
from advisor.core.ranks import parse_ranks
from advisor.core.rules import Rule
from advisor.core.suspects import IDLE, RECORDED, missing_ranks
from advisor.core.words import Category, IncidentKind, Role

RANKS_MAX = 64  # of an attribution
AGENT = "torchelastic.root_cause"
EXITS = frozenset(
    {
        "slurm.task_signal",
        "slurm.task_exited",
        AGENT,
        "torch.process_terminated",
        "mpi.exited_on_signal",
    }
)


def told_by_agent(judged: Sequence[tuple[Signal, Rule]], local: str) -> tuple[tuple[int, ...], str]:
    """Which rank of the job a launcher's agent says that its worker `local` was, and on which node, "" where it does
    not: a line of the worker's own tells only its number on a node.
    """
    ranks = {
        s.rank: s.nodes[0] if s.nodes else ""
        for s, rule in judged
        if rule.id == AGENT and s.count == 1 and s.rank is not None and s.fields.get("local") == local
    }
    return (tuple(ranks), next(iter(ranks.values()))) if len(ranks) == 1 else ((), "")


def symptom_hypothesis(snapshot: Snapshot, judged: Sequence[tuple[Signal, Rule]]) -> Hypothesis:
    """What remains to be said when nothing initiating is known: who did not arrive, and during what. All ranks: who
    keeps it keeps `RANKS_MAX` of them.
    """
    symptoms = [s for s, rule in judged if rule.role is not Role.INITIATING]
    recorded = [s for s, rule in judged if rule.id in RECORDED]
    hang = recorded + [s for s, rule in judged if rule.kind is IncidentKind.HANG and rule.role is Role.SYMPTOM]
    idle = [s for s, rule in judged if rule.id == IDLE] if hang else []
    ranks, how = missing_ranks(hang + idle, snapshot.attempt.world_size)
    evidence = tuple(s.id for s in (hang or symptoms)[:8])
    slow = [s for s, rule in judged if rule.kind is IncidentKind.STRAGGLER]
    if slow and not hang:
        late = tuple(
            sorted({rank for s in slow for key in ("missing", "slow") for rank in parse_ranks(s.fields.get(key, ""))})
        )
        return Hypothesis(
            category=Category.UNKNOWN,
            root_cause=_slow_text(slow, late),
            confidence=0.5,
            ranks=late,
            evidence=tuple(s.id for s in slow[:8]),
        )
    timed_out = any(s.rule == "torch.collective_timeout" for s in hang)
    if snapshot.progress.saving and hang:
        if not ranks and timed_out and all(0 not in ranks_of(s) for s in hang):
            ranks = (0,)
        return Hypothesis(
            category=Category.STORAGE,
            root_cause="a checkpoint save did not finish" + (f" ({how})" if how else ""),
            confidence=0.45,
            ranks=ranks,
            evidence=evidence,
        )
    if not hang:
        exits = [s for s, rule in judged if rule.id in EXITS]
        exits = [s for s in exits if s.fields.get("exitcode", "") not in {"-15", "-6"}]
        ranks = tuple(sorted({rank for s in exits[:1] for rank in ranks_of(s)}))
        killed = _killed(snapshot) or any(s.fields.get("signal") == "9" for s in exits)
        return Hypothesis(
            category=Category.HOST_OUT_OF_MEMORY if killed else Category.UNKNOWN,
            root_cause=_exit_text(snapshot, exits),
            confidence=0.35 if killed else 0.3,
            ranks=ranks,
            evidence=tuple(s.id for s in exits[:4]) or evidence,
        )
    stuck = next((s for s in hang if s.rule == "torch.watchdog_stuck"), None)
    if not ranks and stuck is not None and len(ranks_of(stuck)) == 1:
        ranks, how = tuple(ranks_of(stuck)), "waits in a CUDA or NCCL call that does not return"
    said = next((s.text for s in hang if s.rule == JOB_HANG), None)
    cause = _timed_out(arrival(hang, snapshot.attempt.world_size)) if timed_out else said or "progress stopped"
    who = f": {_ranks(ranks)} {how}" if ranks else ", and it is not visible which rank began it"
    return Hypothesis(
        category=Category.UNKNOWN,
        root_cause=cause + who,
        confidence=0.5 if recorded else 0.35,
        ranks=ranks,
        evidence=evidence,
    )


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _timed_out(found: Arrival) -> str:
    """What timed out, and what that means by itself."""
    if found.first:
        return "the first collective timed out (ranks that start at different times, or a wrong configuration)"
    what = f" ({found.op} #{found.seq})" if found.op and found.seq is not None else ""
    return f"a barrier{what} timed out" if found.barrier else f"a collective{what} timed out"


def _slow_text(slow: Sequence[Signal], late: Sequence[int]) -> str:
    """Our own comparison with the attempt's past says most, then a report that names ranks, then the job's own rule."""
    own = next((s for s in slow if s.rule in {SLOWDOWN, INPUT_STARVED}), None)
    if own is not None:
        return own.text
    return "a straggler report names slow ranks" if late or slow[0].rule != JOB_SLOW else slow[0].text


def _killed(snapshot: Snapshot) -> bool:
    """Ended by SIGKILL, and nobody says by whom: mostly the OOM killer."""
    status = snapshot.attempt.exit
    return status is not None and (status.code == 137 or (status.code, status.signal) in {(9, 0), (0, 9)})


def _exit_text(snapshot: Snapshot, exits: Sequence[Signal]) -> str:
    if exits:
        return f"the first task to end: {exits[0].text[:160]}"
    status = snapshot.attempt.exit
    if status is not None and (status.code or status.signal):
        why = "mostly the host's memory ran out" if _killed(snapshot) else "nothing says why"
        return f"the attempt ended with exit code {status.code}, signal {status.signal}: {why}"
    return "nothing says why the attempt failed"
