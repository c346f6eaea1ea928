"""Why, and who began it: ranked hypotheses from the incident's signals.

Order of argument: what the scheduler or the kernel knows outranks what a log says; the earliest initiating event within
clock skew outranks later ones; symptoms (a collective time-out), cascades and teardown are never a root. Nodes are
implicated by evidence about themselves only, never because an error printed their name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from advisor.core.detection import AFTERMATH, survived
from advisor.core.fingerprint import fingerprint
from advisor.core.model import Attribution, Hypothesis, Implication, Incident, PastAttempt, Signal, Snapshot
from advisor.core.places_of_signals import PlaceMap, ranks_of
from advisor.core.policy import Policy
from advisor.core.ranks import parse_ranks
from advisor.core.rules import Rule, RuleSet, rule_of
from advisor.core.suspects import missing_ranks, peer_nodes
from advisor.core.words import AttemptState, Category, Implicates, IncidentKind, Role, Trust

LATER_PENALTY = 0.12
SURVIVED_PENALTY = 0.35
AFTERMATH_PENALTY = 0.3
TRUSTED_BONUS = 0.3
WEAK = 0.4  # below this a hypothesis does not name a category
STRONG_HARDWARE = 0.9
RANKS_MAX = 64
HARDWARE = frozenset({Category.GPU_HARDWARE, Category.NODE_HARDWARE, Category.INTERCONNECT, Category.SYSTEM_SOFTWARE})

_EXITS = frozenset(
    {
        "slurm.task_signal",
        "slurm.task_exited",
        "torchelastic.root_cause",
        "torch.process_terminated",
        "mpi.exited_on_signal",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """One initiating signal with its effective rule and how well it explains the incident."""

    signal: Signal
    rule: Rule
    score: float
    against: str  # what lowered the score, for `why_not`


def attribute(snapshot: Snapshot, incident: Incident, rules: RuleSet, policy: Policy, now: datetime) -> Attribution:
    """The attribution of one incident. For kind NONE: category NONE, or what degrades a job that goes on."""
    index = rules.by_id()
    judged = [(s, rule) for s in incident.signals if (rule := rule_of(s, rules, index)) is not None]
    places = PlaceMap.of(snapshot, [s for s, _ in judged])
    scored = _score(snapshot, incident, judged, policy)
    if incident.kind is IncidentKind.NONE:
        return _degraded(snapshot, scored, places, policy)
    symptom = _symptom(snapshot, judged, places)
    groups = _group(scored)
    leads = [group[0] for group in groups]
    if (
        not leads
        or leads[0].score < WEAK
        or (symptom.category is not Category.UNKNOWN and leads[0].score < symptom.confidence)
    ):
        return _from_symptom(snapshot, incident, symptom, leads, places)
    return _from_lead(snapshot, groups, symptom, places, policy)


def _score(
    snapshot: Snapshot, incident: Incident, judged: Sequence[tuple[Signal, Rule]], policy: Policy
) -> list[_Scored]:
    """Initiating signals, best explanation first."""
    initiating = [(s, rule) for s, rule in judged if rule.role is Role.INITIATING]
    skew = timedelta(seconds=policy.clock_skew_seconds)
    first = next(((s, rule) for s, rule in initiating if rule.weight >= 0.5), None)
    stalled = next((s for s, rule in judged if rule.kind is IncidentKind.HANG and rule.role is Role.SYMPTOM), None)
    scored: list[_Scored] = []
    for position, (signal, rule) in enumerate(initiating):
        score, against = rule.weight, ""
        if signal.trust.trusted:
            score += TRUSTED_BONUS
        elif first is not None and signal is not first[0] and _later(signal, first[0], skew):
            score -= LATER_PENALTY
            against = f"it came after {first[1].title.lower()}"
        if (
            stalled is not None
            and not signal.trust.trusted
            and rule.category in AFTERMATH
            and _later(signal, stalled, skew)
        ):
            score -= AFTERMATH_PENALTY
            against = "it came after the time-out, when processes were being ended"
        if rule.clears and incident.kind is not IncidentKind.NONE and survived(signal, snapshot):
            # However trusted: a GPU that went on computing did not end the attempt.
            score = rule.weight - SURVIVED_PENALTY
            against = "training went on after it"
        if rule.id == "host.keyboard_interrupt" and not _interrupted(snapshot):
            score -= SURVIVED_PENALTY
            against = "the exit code is not that of an interrupt: the launcher sent it"
        if rule.id == "scheduler.cancelled" and any(
            r.weight >= 0.75 and r.ends and not s.trust.trusted for s, r in initiating
        ):
            # Somebody cleaned up after a failure that has its own evidence.
            score, against = 0.5, "the attempt had failed before it was cancelled"
        scored.append(_Scored(signal=signal, rule=rule, score=score - position * 1e-6, against=against))
    scored.sort(key=lambda item: -item.score)
    return scored


def _later(signal: Signal, first: Signal, skew: timedelta) -> bool:
    if signal.file == first.file and signal.file:
        return signal.order > first.order and not (
            signal.at and first.at and signal.at - first.at <= skew and signal.rank != first.rank
        )
    if signal.at is None or first.at is None:
        return False
    return signal.at - first.at > skew


def _group(scored: Iterable[_Scored]) -> list[list[_Scored]]:
    """By category, best first; within a category best first."""
    groups: dict[Category, list[_Scored]] = {}
    for item in scored:
        groups.setdefault(item.rule.category, []).append(item)
    return sorted(groups.values(), key=lambda group: -group[0].score)


def _symptom(snapshot: Snapshot, judged: Sequence[tuple[Signal, Rule]], places: PlaceMap) -> Hypothesis:
    """What remains to be said when nothing initiating is known: who did not arrive, and during what."""
    symptoms = [s for s, rule in judged if rule.role is not Role.INITIATING]
    hang = [s for s, rule in judged if rule.kind is IncidentKind.HANG and rule.role is Role.SYMPTOM]
    ranks, how = missing_ranks(hang, snapshot.attempt.world_size)
    evidence = tuple(s.id for s in (hang or symptoms)[:8])
    slow = [s for s, rule in judged if rule.kind is IncidentKind.STRAGGLER]
    if slow and not hang:
        late = tuple(
            sorted({rank for s in slow for key in ("missing", "slow") for rank in parse_ranks(s.fields.get(key, ""))})
        )
        return Hypothesis(
            category=Category.UNKNOWN,
            root_cause="a straggler report names slow ranks",
            confidence=0.5,
            ranks=late[:RANKS_MAX],
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
        exits = [s for s, rule in judged if rule.id in _EXITS]
        exits = [s for s in exits if s.fields.get("exitcode", "") not in {"-15", "-6"}]
        ranks = tuple(sorted({rank for s in exits[:1] for rank in ranks_of(s)}))[:RANKS_MAX]
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
        ranks, how = tuple(ranks_of(stuck)), "its watchdog is stuck"
    cause = "a collective timed out" if timed_out else "progress stopped"
    who = f": ranks {', '.join(map(str, ranks[:8]))} {how}" if ranks else ", and it is not visible which rank began it"
    return Hypothesis(
        category=Category.UNKNOWN, root_cause=cause + who, confidence=0.35, ranks=ranks, evidence=evidence
    )


def _interrupted(snapshot: Snapshot) -> bool:
    """Nothing contradicts that somebody pressed Ctrl-C: the exit code says so, or is not known."""
    status = snapshot.attempt.exit
    return status is None or status.code == 130 or status.signal == 2


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


def _from_symptom(
    snapshot: Snapshot, incident: Incident, symptom: Hypothesis, leads: Sequence[_Scored], places: PlaceMap
) -> Attribution:
    return Attribution(
        category=symptom.category,
        root_cause=symptom.root_cause,
        confidence=symptom.confidence,
        ranks=symptom.ranks,
        evidence=symptom.evidence,
        alternatives=tuple(_hypothesis(lead, places, "weak evidence") for lead in leads[:3])
        or (_unknown("symptoms are not causes"),),
        transient_storage=False,
        fingerprint="",
    )


def _from_lead(
    snapshot: Snapshot, groups: Sequence[Sequence[_Scored]], symptom: Hypothesis, places: PlaceMap, policy: Policy
) -> Attribution:
    """The attribution of the best hypothesis."""
    group = groups[0]
    lead = group[0]
    rule, category = lead.rule, lead.rule.category
    print_ = fingerprint(lead.signal, rule)
    nodes, note = _nodes(snapshot, group, places, policy)
    trusted = any(item.signal.trust.trusted and set(places.nodes(item.signal)) & set(nodes) for item in group)
    if nodes and not trusted and _elsewhere_too(snapshot.past, print_, nodes, rule.weight):
        category, nodes, note = Category.APPLICATION, (), "the same failure came on other nodes too"
    ranks = _ranks(snapshot, group, lead, places, nodes) or symptom.ranks
    gpus = _gpus(group, places, nodes)
    runner = [_hypothesis(g[0], places, _why_not(g[0], lead)) for g in groups[1:4]]
    if symptom.category is not Category.UNKNOWN:
        runner.append(replace(symptom, why_not="a symptom, where a cause is known"))
    close = groups[1][0].score > lead.score - 0.15 if len(groups) > 1 else False
    confidence = round(
        min(0.99, max(0.05, min(lead.score, rule.weight + (0.05 if trusted else 0.0))) * (0.85 if close else 1.0)), 3
    )
    started = snapshot.progress.first_step is not None
    everywhere = _everywhere(snapshot, group, places)
    return Attribution(
        category=category,
        root_cause=_sentence(lead, nodes, ranks, note),
        confidence=confidence,
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        evidence=tuple(dict.fromkeys(item.signal.id for item in group))[: policy.evidence_max],
        alternatives=tuple(runner) or (_unknown("a recognised cause explains the failure"),),
        implications=_implications(group, nodes, places, confidence),
        trusted=trusted,
        certain=rule.certain_always or (rule.certain and not started and everywhere),
        # A port that several ranks want is a launcher started several times, not a busy port.
        deterministic=rule.deterministic or rule.certain or (rule.id == "torch.address_in_use" and len(ranks) > 1),
        transient_storage=category is Category.STORAGE and rule.transient_storage and not nodes,
        fingerprint=print_,
    )


def _nodes(
    snapshot: Snapshot, group: Sequence[_Scored], places: PlaceMap, policy: Policy
) -> tuple[tuple[str, ...], str]:
    """Nodes that the hypothesis implicates, surest first, and a note where the evidence names too many."""
    lead = group[0]
    named: dict[str, float] = {}
    for item in group:
        if item.score < lead.score - 0.35:
            continue
        found = places.nodes(item.signal)
        match item.rule.implicates:
            case Implicates.NODE:
                pass
            case Implicates.CONDITIONAL:
                found = tuple(node for node in found if _corroborated(node, item, group, snapshot, places, policy))
            case Implicates.PEER:
                found = peer_nodes([g.signal for g in group if g.rule.implicates is Implicates.PEER], places)
            case Implicates.NOBODY | Implicates.RANK:
                found = ()
        for node in found:
            named.setdefault(node, item.score)
    if not named and lead.rule.implicates is Implicates.NODE and lead.rule.category in HARDWARE:
        only = places.only_exit_node()
        if only is not None:
            named[only] = lead.score
    allocation = snapshot.attempt.nodes
    if allocation is not None:
        named = {node: score for node, score in named.items() if node in allocation}
    elif not snapshot.offline:
        named = {}
    ordered = tuple(sorted(named, key=lambda node: -named[node]))
    if _too_many(ordered, lead.rule, snapshot, policy):
        return (), f"{len(ordered)} nodes report it at once: not the nodes' fault"
    return ordered, ""


def _too_many(nodes: Sequence[str], rule: Rule, snapshot: Snapshot, policy: Policy) -> bool:
    if len(nodes) < 2:
        return False
    size = len(snapshot.attempt.nodes) if snapshot.attempt.nodes is not None else None
    if len(nodes) > policy.exclusions_per_incident_max:
        return True
    if size is not None and size > 2 and len(nodes) > policy.implicated_fraction_max * size:
        return True
    if rule.id == "slurm.launch_failed":
        # Several launches that time out at once are the controller's congestion.
        return True
    return rule.category is Category.INTERCONNECT and len(nodes) > 2


def _corroborated(
    node: str, item: _Scored, group: Sequence[_Scored], snapshot: Snapshot, places: PlaceMap, policy: Policy
) -> bool:
    """A conditional implication counts with a second kind of evidence on the node, or with the node's history."""
    if any(
        fact.name == node and (fact.other_jobs >= 1 or fact.score >= policy.suspect_score) for fact in snapshot.nodes
    ):
        return True
    return any(
        other.rule.id != item.rule.id and other.rule.category in HARDWARE and node in places.nodes(other.signal)
        for other in group
    )


def _elsewhere_too(past: Sequence[PastAttempt], print_: str, nodes: tuple[str, ...], weight: float) -> bool:
    """The same failure on disjoint nodes, none of it trusted: the job brings it along."""
    alike = [p for p in past if p.fingerprint == print_ and print_ and not p.trusted]
    others = [p for p in alike if p.implicated_nodes and not set(p.implicated_nodes) & set(nodes)]
    return len(others) >= (2 if weight >= STRONG_HARDWARE else 1)


def _ranks(
    snapshot: Snapshot, group: Sequence[_Scored], lead: _Scored, places: PlaceMap, nodes: Sequence[str]
) -> tuple[int, ...]:
    """Ranks that printed the cause; for an application error that many print, those of the first report only."""
    alike = [item for item in group if item.rule.id == lead.rule.id]
    ranks: list[int] = []
    for item in alike:
        ranks.extend(sorted(ranks_of(item.signal)))
        for name in ("rank2", "second"):
            value = item.signal.fields.get(name, "")
            if value.isdigit():
                ranks.append(int(value))
    if not ranks:
        for item in group:
            ranks.extend(sorted(ranks_of(item.signal)))
    if not ranks and lead.rule.implicates in {Implicates.NODE, Implicates.RANK}:
        ranks.extend(places.exit_ranks())
    if not ranks and nodes:
        ranks.extend(rank for rank, node in sorted(snapshot.attempt.rank_nodes.items()) if node in nodes)
    return tuple(dict.fromkeys(ranks))[:RANKS_MAX]


def _gpus(group: Sequence[_Scored], places: PlaceMap, nodes: Sequence[str]) -> tuple[str, ...]:
    found = [
        f"{node}:{item.signal.gpu if item.signal.gpu is not None else item.signal.fields['pci']}"
        for item in group
        if item.signal.gpu is not None or "pci" in item.signal.fields
        for node in places.nodes(item.signal)
        if node in nodes and item.rule.category is Category.GPU_HARDWARE
    ]
    return tuple(dict.fromkeys(found))


def _everywhere(snapshot: Snapshot, group: Sequence[_Scored], places: PlaceMap) -> bool:
    """Nothing shows that only one of several nodes met it: a start-up error of the job, not of a machine."""
    nodes = {node for item in group for node in places.nodes(item.signal)}
    allocation = snapshot.attempt.nodes
    exits = places.exit_nodes()
    if len(nodes | set(exits)) >= 2:
        return True
    return not (allocation is not None and len(allocation) > 1 and len(nodes) == 1)


def _implications(
    group: Sequence[_Scored], nodes: Sequence[str], places: PlaceMap, confidence: float
) -> tuple[Implication, ...]:
    """One per node: those blamed, and with half the weight those that a conditional signal is about."""
    made: dict[str, Implication] = {}
    for item in group:
        if item.rule.implicates not in {Implicates.NODE, Implicates.CONDITIONAL, Implicates.PEER}:
            continue
        about = places.nodes(item.signal) or (tuple(nodes) if item.rule.implicates is Implicates.NODE else ())
        for node in about:
            blamed = node in nodes
            if not blamed and item.rule.implicates is not Implicates.CONDITIONAL:
                continue
            weight = (1.0 if item.signal.trust.trusted else 0.5) * confidence * (1.0 if blamed else 0.5)
            if node not in made or made[node].weight < weight:
                made[node] = Implication(
                    node=node,
                    weight=round(weight, 3),
                    trust=item.signal.trust,
                    role=item.rule.role,
                    category=item.rule.category,
                    rule=item.rule.id,
                    evidence=(item.signal.id,),
                )
    return tuple(made.values())


def _degraded(snapshot: Snapshot, scored: Sequence[_Scored], places: PlaceMap, policy: Policy) -> Attribution:
    """No incident. What a machine or the scheduler did to a job that goes on is still worth a category."""
    cancelled = snapshot.attempt.state is AttemptState.CANCELLED
    telling = [
        item for item in scored if item.rule.category in HARDWARE or item.rule.category is Category.SCHEDULER_EVENT
    ]
    telling = [item for item in telling if item.rule.weight >= 0.7] if not cancelled else list(scored)
    if not telling:
        return Attribution(category=Category.NONE, root_cause="nothing failed", confidence=0.9)
    lead = telling[0]
    group = [item for item in telling if item.rule.category is lead.rule.category]
    nodes, note = _nodes(snapshot, group, places, policy)
    confidence = round(min(0.95, lead.rule.weight) * (1.0 if cancelled else 0.7), 3)
    return Attribution(
        category=lead.rule.category,
        root_cause=_sentence(lead, nodes, (), note) + ("" if cancelled else "; training goes on"),
        confidence=confidence,
        nodes=nodes,
        evidence=tuple(item.signal.id for item in group)[: policy.evidence_max],
        implications=_implications(group, nodes, places, confidence * 0.5),
        trusted=bool(nodes) and all(item.signal.trust is not Trust.LOG for item in group),
        fingerprint="",
    )


def _sentence(lead: _Scored, nodes: Sequence[str], ranks: Sequence[int], note: str) -> str:
    """One line for a tired operator."""
    parts = [lead.rule.title]
    name, message = lead.signal.fields.get("exception", ""), lead.signal.fields.get("message", "")
    if name or message:
        parts.append(f": {name}{': ' if name and message else ''}{message[:120]}")
    if nodes:
        parts.append(f" ({', '.join(nodes[:4])})")
    elif ranks:
        parts.append(f" (rank {', '.join(map(str, ranks[:4]))})")
    if note:
        parts.append(f"; {note}")
    return "".join(parts)


def _why_not(loser: _Scored, winner: _Scored) -> str:
    if loser.against:
        return loser.against
    if winner.signal.trust.trusted and not loser.signal.trust.trusted:
        return "log evidence, where a trusted source says otherwise"
    return "weaker evidence"


def _hypothesis(item: _Scored, places: PlaceMap, why_not: str) -> Hypothesis:
    return Hypothesis(
        category=item.rule.category,
        root_cause=_sentence(item, (), tuple(sorted(ranks_of(item.signal)))[:4], ""),
        confidence=round(max(0.05, min(0.95, item.score - 0.2)), 3),
        nodes=places.nodes(item.signal) if item.rule.implicates is Implicates.NODE else (),
        ranks=tuple(sorted(ranks_of(item.signal)))[:RANKS_MAX],
        evidence=(item.signal.id,),
        why_not=why_not,
    )


def _unknown(why_not: str) -> Hypothesis:
    return Hypothesis(
        category=Category.UNKNOWN, root_cause="something that left no trace", confidence=0.05, why_not=why_not
    )
