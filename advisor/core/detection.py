"""Has this attempt crashed, hung, slowed down or diverged? One incident per attempt, signals in causal order.

Facts of the scheduler are made into signals here, so that attribution weighs one kind of evidence. What progress has
survived does not open an incident; what an unavailable source did not show is not taken for silence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from advisor.core import hang
from advisor.core.conditions import condition_signals, signal_id
from advisor.core.doubts import doubt
from advisor.core.job_rules import JOB_HANG, is_asked_hang
from advisor.core.model import ExitStatus, Incident, NodeFact, Signal, Snapshot
from advisor.core.policy import Policy
from advisor.core.rules import XID_LOG_RULES, Rule, RuleSet, rule_of, xid_code
from advisor.core.words import Action, AttemptState, Category, IncidentKind, NodeState, Reason, Role, Trust

OUTPUT_NOT_OPENED = "scheduler.output_not_opened"
CANCELLED = "advisor.job_cancelled"  # concluded from what was printed, where nobody tells the state
_STATE_RULES: Mapping[AttemptState, str] = {
    AttemptState.NODE_FAILURE: "scheduler.node_failure",
    AttemptState.PREEMPTED: "scheduler.preempted",
    AttemptState.TIME_LIMIT: "scheduler.time_limit",
    AttemptState.CANCELLED: "scheduler.cancelled",
    AttemptState.OUT_OF_MEMORY: "scheduler.out_of_memory",
    AttemptState.LAUNCH_FAILURE: "scheduler.launch_failure",
}
# What may say something about the machine although the job goes on.
_MACHINE = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT})
_DEGRADING = _MACHINE | {Category.SCHEDULER_EVENT}
# What processes print when a collective time-out has already begun to end them.
AFTERMATH = frozenset({Category.APPLICATION, Category.UNKNOWN, Category.GPU_OUT_OF_MEMORY, Category.USER_CANCEL})
_BY_COUNT = frozenset({"numerics.loss_nan", "numerics.norm_nan"})
_FAILED_TASKS = frozenset({"slurm.task_exited", "slurm.task_signal", "slurm.task_oom"})
KILLED_TASK = "slurm.task_killed"
_ONGOING = frozenset({IncidentKind.STRAGGLER, IncidentKind.DIVERGENCE})
_SILENCE = frozenset({"advisor.no_progress", JOB_HANG})
# Printed because somebody requeued a live attempt: why it was ended, and of one that hung no cause of that.
_REQUEUED = "slurm.requeued_banner"
ALIVE_SECONDS = 30.0  # a bundle's running job that printed so recently is alive
NAN_LINES_MIN = 3  # one NaN step is skipped and forgotten; a diverged run prints it again and again
_BATCH = timedelta(seconds=5)  # lines that one look brings were written at most about so long apart
NODE_FACT_LAG = timedelta(seconds=90)  # a node declared down this long after the end may still be the cause


def detect(snapshot: Snapshot, rules: RuleSet, policy: Policy, now: datetime) -> Incident:
    """The incident of one attempt, kind NONE when there is none."""
    index = rules.by_id()
    attempt = snapshot.attempt
    facts = scheduler_signals(snapshot, rules, now)
    judged = [(signal, rule_of(signal, rules, index)) for signal in (*facts, *snapshot.signals)]
    known = [(s, rule) for s, rule in judged if rule is not None and rule.role is not Role.BENIGN]
    known = _within(snapshot, _own_deaths(known), policy)
    known += [(s, index[s.rule]) for s in condition_signals(snapshot, known, index, now)]
    requeued = [s.seen_at for s, rule in known if rule.id == _REQUEUED]
    silent = _hang_signal(snapshot, rules, policy, now, requeued)
    if silent is not None:
        known = [(s, rule) for s, rule in known if rule.id != _REQUEUED]
    fresh = [(s, rule) for s, rule in known if not (rule.clears and survived(s, snapshot))]
    if silent is not None:
        rule = rule_of(silent, rules, index)
        if rule is not None:
            fresh.append((silent, rule))
    ended = attempt.state.ended
    kind = _kind(snapshot, fresh, silent is not None, rules)
    if kind is IncidentKind.NONE:
        kept = [s for s, rule in known if rule.role is Role.INITIATING and rule.category in _DEGRADING]
        if attempt.state is AttemptState.CANCELLED:
            kept = [s for s, rule in known if rule.id == "scheduler.cancelled"]
        elif attempt.state is AttemptState.COMPLETED or snapshot.progress.finished:
            kept = []
    else:
        # Survived errors stay as weaker evidence of an attempt that is over: a caught error can be the cause of a hang.
        kept = [s for s, _ in (known if ended or kind is IncidentKind.HANG else fresh)]
        if silent is not None:
            kept.append(silent)
    ordered = causal_order(kept, live=not snapshot.offline)
    incident = Incident(
        kind=kind,
        signals=ordered,
        visible_at=min(map(_visible_at, ordered), default=None),
        detected_at=now if kind is not IncidentKind.NONE else None,
        ended=ended,
        summary=_summary(kind, snapshot, ordered),
    )
    return replace(incident, trusted_fatal=trusted_fatal(incident, rules))


def _own_deaths(judged: Sequence[tuple[Signal, Rule]]) -> list[tuple[Signal, Rule]]:
    """Without tasks that Slurm killed: a task that was killed after its step began to end, or after another task had
    failed, did not die by itself.
    """
    ends: dict[str, int] = {}
    for signal, rule in judged:
        ending = rule.role is Role.TEARDOWN or rule.id in _FAILED_TASKS or (rule.ends and rule.weight >= 0.5)
        if ending and signal.file and rule.id != KILLED_TASK:
            ends[signal.file] = min(signal.order, ends.get(signal.file, signal.order))
    return [(s, rule) for s, rule in judged if rule.id != KILLED_TASK or s.order < ends.get(s.file, s.order + 1)]


def _within(snapshot: Snapshot, judged: Sequence[tuple[Signal, Rule]], policy: Policy) -> list[tuple[Signal, Rule]]:
    """Without what machines reported after the attempt's end: it cannot have ended it."""
    ended_at = snapshot.attempt.ended_at
    if ended_at is None:
        return list(judged)
    latest = {
        Trust.KERNEL: ended_at + timedelta(seconds=policy.clock_skew_seconds),
        Trust.TELEMETRY: ended_at + NODE_FACT_LAG,  # a scrape shows a value some time after it changed
    }
    return [(s, rule) for s, rule in judged if s.at is None or s.trust not in latest or s.at <= latest[s.trust]]


def _visible_at(signal: Signal) -> datetime:
    """When the event could be read: its own time where a trusted source wrote it at about the time of its bytes."""
    written = min(signal.written_at or signal.seen_at, signal.seen_at)
    own = signal.at
    believed = signal.trust.trusted and own is not None and written - _BATCH <= own <= written
    return own if believed and own is not None else written


def _kind(snapshot: Snapshot, fresh: Iterable[tuple[Signal, Rule]], silent: bool, rules: RuleSet) -> IncidentKind:
    attempt = snapshot.attempt
    state = attempt.state
    evidence = list(fresh)
    if state is AttemptState.COMPLETED:
        return IncidentKind.NONE
    if state is AttemptState.CANCELLED and not snapshot.offline:
        return IncidentKind.NONE
    if snapshot.progress.finished and state in {AttemptState.FAILED, AttemptState.OTHER, AttemptState.RUNNING}:
        # Errors after the end of training are teardown noise, whatever the exit code says; unless what was trained last
        # is not saved.
        lost = unsaved(snapshot) or any(_spoils_the_save(s, rule) for s, rule in evidence)
        return IncidentKind.CRASH if state is AttemptState.FAILED and lost else IncidentKind.NONE
    if snapshot.offline and state is AttemptState.RUNNING and (hang.silence(snapshot) or ALIVE_SECONDS) < ALIVE_SECONDS:
        # It printed seconds before the bundle was taken: what its log alone complains about has not ended it, nor has
        # an Xid that leaves the GPU at work.
        evidence = [
            (s, rule)
            for s, rule in evidence
            if (s.trust.trusted and _fatal(s, rules)) or rule.kind in _ONGOING or is_asked_hang(s)
        ]
    symptom = any(rule.kind is IncidentKind.HANG for _, rule in evidence)
    ending = [(s, rule) for s, rule in evidence if rule.role is Role.INITIATING and rule.ends and _weighs(s, rule)]
    ending = _before_time_out(evidence, ending, live=not snapshot.offline)
    if state.ended or state is AttemptState.REQUEUE_HELD:
        if any(rule.kind is IncidentKind.DIVERGENCE and rule.weight >= 0.8 for _, rule in ending):
            return IncidentKind.DIVERGENCE
        if state is AttemptState.FAILED and symptom and not ending:
            return IncidentKind.HANG
        return IncidentKind.CRASH
    if any(s.trust.trusted and _fatal(s, rules) for s, _ in ending):
        return IncidentKind.CRASH
    if silent or any(is_asked_hang(s) for s, _ in evidence):
        # Some rank may have crashed, but the attempt did not end: what the others do is hang.
        return IncidentKind.HANG
    healed = snapshot.progress.numbers.finite  # a step that was skipped, however often that has happened
    ending = [(s, rule) for s, rule in ending if rule.id not in _BY_COUNT or (s.count >= NAN_LINES_MIN and not healed)]
    if ending:
        divergence = all(rule.kind is IncidentKind.DIVERGENCE for _, rule in ending)
        return IncidentKind.DIVERGENCE if divergence else IncidentKind.CRASH
    if symptom:
        return IncidentKind.HANG
    if any(rule.kind is IncidentKind.STRAGGLER for _, rule in evidence):
        return IncidentKind.STRAGGLER
    return IncidentKind.NONE


def _before_time_out(
    evidence: Sequence[tuple[Signal, Rule]], ending: Sequence[tuple[Signal, Rule]], *, live: bool
) -> list[tuple[Signal, Rule]]:
    """Without the errors that a collective time-out leaves behind: of processes that were being ended already."""
    order = {signal.id: index for index, signal in enumerate(causal_order((s for s, _ in evidence), live=live))}
    stalls = [order[s.id] for s, rule in evidence if rule.kind is IncidentKind.HANG and rule.id not in _SILENCE]
    if not stalls:
        return list(ending)
    first = min(stalls)
    stall = next(s for s, _ in evidence if order[s.id] == first)
    return [
        (s, rule)
        for s, rule in ending
        if s.trust.trusted or rule.category not in AFTERMATH or order[s.id] < first or not (live or _compare(s, stall))
    ]


def _compare(one: Signal, other: Signal) -> bool:
    """Something tells which of the two came first: a file that both are of, or their times."""
    return (one.file == other.file and bool(one.file)) or (one.at is not None and other.at is not None)


def _weighs(signal: Signal, rule: Rule) -> bool:
    """Strong enough to open an incident by itself. An Xid that an application caused is not, nor one of any time."""
    if doubt(signal) or (signal.rule in XID_LOG_RULES and rule.category is Category.APPLICATION):
        return False
    return rule.weight >= 0.4


def _fatal(signal: Signal, rules: RuleSet) -> bool:
    """Trusted evidence that the node or GPU is gone for the job, whatever its processes still think."""
    if signal.rule in XID_LOG_RULES:
        code = xid_code(signal.fields)
        entry = rules.xids.get(code) if code is not None else None
        return entry is not None and entry.fatal
    return True


def trusted_fatal(incident: Incident, rules: RuleSet) -> bool:
    """The incident rests on trusted evidence that ends a GPU or a node: no need to wait for the ranks to notice."""
    index = rules.by_id()
    for signal in incident.signals:
        rule = rule_of(signal, rules, index)
        if rule is None or not signal.trust.trusted or rule.role is not Role.INITIATING or not signal.nodes:
            continue
        if rule.category in _MACHINE and rule.weight >= 0.85 and _fatal(signal, rules):
            return True
    return False


def _spoils_the_save(signal: Signal, rule: Rule) -> bool:
    """What keeps the last save from being made, even where no save was ever announced."""
    return rule.role is Role.INITIATING and rule.category is Category.STORAGE and _weighs(signal, rule)


def unsaved(snapshot: Snapshot) -> bool:
    """The attempt saves checkpoints, and none of its last step is known."""
    saved, last = snapshot.progress.checkpoint_step, snapshot.progress.last_step
    return saved is not None and last is not None and saved < last


def survived(signal: Signal, snapshot: Snapshot) -> bool:
    """At least two further steps were seen after this signal.

    Within a file by line; across files by when it could be read, with room for the other ranks to finish their step.
    """
    progress = snapshot.progress
    line = progress.cleared_lines.get(signal.file)
    if line is not None and signal.file:
        return signal.line <= line
    if snapshot.offline or progress.cleared_at is None or progress.last_at is None:
        return False
    slack = timedelta(seconds=max(3.0 * (progress.interval_seconds or 0.0), 5.0))
    return signal.seen_at + slack < progress.cleared_at


def scheduler_signals(snapshot: Snapshot, rules: RuleSet, now: datetime) -> tuple[Signal, ...]:
    """The scheduler's own facts about the attempt: trusted, but for what a user can bring about by what he asks for."""
    attempt = snapshot.attempt
    # A bundle may not tell when it ended: then it is only known that this came last.
    untold = snapshot.offline and attempt.ended_at is None
    when = now if untold else attempt.ended_at or attempt.started_at or now
    made: list[Signal] = []
    index = rules.by_id()

    def make(
        rule_id: str,
        seen_at: datetime,
        nodes: tuple[str, ...] = (),
        text: str = "",
        trust: Trust = Trust.SCHEDULER,
    ) -> None:
        rule = index.get(rule_id)
        if rule is not None:
            made.append(
                Signal(
                    id=signal_id(snapshot, rule_id, *nodes),
                    rule=rule_id,
                    trust=trust,
                    source="scheduler",
                    seen_at=seen_at,
                    at=None if untold and seen_at == now else seen_at,
                    nodes=nodes,
                    text=text or rule.title,
                    role=rule.role,
                    category=rule.category,
                )
            )

    used = frozenset(attempt.nodes or ())
    for fact in snapshot.nodes:
        if fact.name not in used or not _counts(fact, snapshot):
            continue
        down = fact.state is NodeState.DOWN
        rule_id = "scheduler.node_down" if down else "scheduler.node_not_responding"
        make(rule_id, fact.since or when, (fact.name,), f"node {fact.name} is {fact.state.value}")
    state_rule = None if snapshot.stopped_by_us else _STATE_RULES.get(attempt.state)
    concluded = any(signal.rule == CANCELLED for signal in snapshot.signals)
    if state_rule is not None and not concluded:
        make(state_rule, when)
    if attempt.state is AttemptState.FAILED and attempt.exit is not None:
        text = f"exit code {attempt.exit.code}, signal {attempt.exit.signal}"
        make("scheduler.exit_code", when, (), text)
        if _output_not_opened(attempt.exit):
            # Any user can bring it about on any node, by a path that is nowhere: no more than a log's word against it.
            first = (attempt.nodes or ())[:1]  # the batch script's
            make(OUTPUT_NOT_OPENED, when, first, f"{text}: ESLURMD_IO_ERROR", Trust.LOG)
    return tuple(made)


def _output_not_opened(status: ExitStatus) -> bool:
    """slurmstepd's error 4021, ESLURMD_IO_ERROR, the only one that ends a batch job and drains no node. slurmctld
    takes it for a wait status: signal 53, and 15 where the other half is shown (squeue's exit_code, 22.05.8).
    """
    return status.signal == 53 and status.code in {0, 15}


def _counts(fact: NodeFact, snapshot: Snapshot) -> bool:
    """The node went away while the attempt used it, and no step has come since."""
    if fact.state not in {NodeState.DOWN, NodeState.NOT_RESPONDING}:
        return False
    attempt = snapshot.attempt
    progress = snapshot.progress
    if fact.since is None:
        return True
    if attempt.ended_at is not None and fact.since > attempt.ended_at + NODE_FACT_LAG:
        return False
    if attempt.state.live and progress.cleared_at is not None:
        return fact.since + timedelta(seconds=3.0 * (progress.interval_seconds or 1.0)) >= progress.cleared_at
    return True


def _hang_signal(
    snapshot: Snapshot, rules: RuleSet, policy: Policy, now: datetime, requeued: Sequence[datetime]
) -> Signal | None:
    """A signal when progress is overdue, or was when a live attempt was ended. Only where its log can be read.

    `requeued`: when its log was seen to say that it was.
    """
    attempt = snapshot.attempt
    if "advisor.no_progress" not in rules.by_id():
        return None
    if attempt.state is not AttemptState.RUNNING:
        ended = _ended_while_live(snapshot, requeued)
        if ended is None:
            return None
        now = min(now, ended)
    progress = snapshot.progress
    if snapshot.offline:
        limit, since = hang.silence_limit(snapshot, policy), progress.last_at or now
        silent = hang.silence(snapshot)
        if silent is None or silent < limit:
            return None
    else:
        logs = [source for source in snapshot.sources if source.trust is Trust.LOG]
        readable = any(source.unavailable is None for source in logs)
        if not readable or any(source.unavailable is not None for source in logs):
            return None
        due = hang.expected(snapshot, policy)
        told_at = _ended_for_a_hang(snapshot, requeued)
        if due is not None and now >= due.at:
            limit, since = due.seconds, due.at
        elif told_at is not None:
            limit, since = policy.hang_startup_seconds if due is None else due.seconds, told_at
        else:
            return None
    step = "none" if progress.last_step is None else str(progress.last_step)
    return Signal(
        id=signal_id(snapshot, "advisor.no_progress", step),
        rule="advisor.no_progress",
        trust=Trust.LOG,
        source="advisor",
        seen_at=since,
        at=None if snapshot.offline and progress.last_at is None else since,
        # The limit, not the seconds so far: the same hang is the same signal at every tick.
        text=f"no progress for more than {limit:.0f} s; last step {step}",
        role=Role.SYMPTOM,
        category=Category.UNKNOWN,
    )


def _ended_while_live(snapshot: Snapshot, requeued: Sequence[datetime]) -> datetime | None:
    """Since when an attempt that is over could take no step any more, of which nothing tells how it ended: it was put
    back into the queue while it ran, by us or by somebody else. None of any other, and where nobody knows.
    """
    attempt, advice = snapshot.attempt, snapshot.advice
    if snapshot.offline or attempt.state not in {AttemptState.COMPLETING, AttemptState.OTHER}:
        return None
    moments = [*requeued]
    if attempt.ended_at is not None:
        moments.append(attempt.ended_at)
    if advice is not None and advice.action is Action.RESTART:
        moments.append(advice.created_at)
    return min(moments, default=None)


def _ended_for_a_hang(snapshot: Snapshot, requeued: Sequence[datetime]) -> datetime | None:
    """When a restart was advised because the attempt hung, that it was then ended for: what it printed while it was
    being ended is no sign of life.
    """
    attempt, advice, last_at = snapshot.attempt, snapshot.advice, snapshot.progress.last_at
    if advice is None or (advice.action, advice.reason) != (Action.RESTART, Reason.HANG):
        return None
    if attempt.state is AttemptState.RUNNING and not requeued:
        return None
    return advice.created_at if last_at is None or last_at <= advice.created_at else None


def causal_order(signals: Iterable[Signal], *, live: bool) -> tuple[Signal, ...]:
    """Earliest first. A line without a usable time stands where it stands in its file."""
    by_file: dict[str, datetime] = {}
    keyed: list[tuple[datetime, bool, str, int, int, Signal]] = []
    pool = list(signals)
    floor = min((s.at or s.seen_at for s in pool), default=None)
    for index, signal in enumerate(sorted(pool, key=lambda s: (s.source, s.file, s.order))):
        if signal.at is not None:
            when = signal.at
        elif live or not signal.file:
            when = signal.seen_at
        else:
            when = by_file.get(signal.file, floor or signal.seen_at)
        by_file[signal.file] = max(when, by_file.get(signal.file, when))
        keyed.append((when, not signal.file, signal.file, signal.order, index, signal))
    keyed.sort(key=lambda item: item[:5])  # at one moment, lines come before what was concluded from them
    return tuple(item[5] for item in keyed)


def _summary(kind: IncidentKind, snapshot: Snapshot, signals: tuple[Signal, ...]) -> str:
    step = snapshot.progress.last_step
    where = f" after step {step}" if step is not None else " before the first step"
    match kind:
        case IncidentKind.NONE:
            return "no incident"
        case IncidentKind.HANG:
            return f"the attempt makes no progress{where}"
        case IncidentKind.CRASH:
            return f"the attempt failed{where}" if snapshot.attempt.state.ended else f"a failure is visible{where}"
        case IncidentKind.DIVERGENCE:
            return f"the numbers went bad{where}"
        case IncidentKind.STRAGGLER:
            return f"the attempt is slowed down{where}"
