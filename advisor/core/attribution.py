"""Why, and who began it: ranked hypotheses from the incident's signals.

Order of argument: what the scheduler or the kernel knows outranks what a log says; the earliest initiating event within
clock skew outranks later ones; symptoms (a collective time-out), cascades and teardown are never a root. Nodes are
implicated by evidence about themselves only, never because an error printed their name.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from advisor.core.blame import HARDWARE, implicated_gpus, implicated_nodes, implicated_ranks, implications, ranks_on
from advisor.core.calibration import calibrated
from advisor.core.certainty import certain
from advisor.core.detection import OUTPUT_NOT_OPENED, survived
from advisor.core.divergence import with_suspects
from advisor.core.doubts import DOUBTED_MAX, REMARKED_MAX, doubt, remark
from advisor.core.fingerprint import fingerprint
from advisor.core.hypotheses import WEAK, Scored, by_category, score
from advisor.core.model import Attribution, Hypothesis, Incident, PastAttempt, Snapshot
from advisor.core.opinions import with_opinions
from advisor.core.places_of_signals import PlaceMap, ranks_of
from advisor.core.policy import Policy
from advisor.core.ranks import RANKS_MAX as SCANNED_MAX
from advisor.core.rules import RuleSet, rule_of
from advisor.core.suspects import RECORDED
from advisor.core.symptoms import EXITS, RANKS_MAX, symptom_hypothesis, told_by_agent
from advisor.core.words import AttemptState, Category, Implicates, IncidentKind, Reason

STRONG_HARDWARE = 0.9


def attribute(snapshot: Snapshot, incident: Incident, rules: RuleSet, policy: Policy, now: datetime) -> Attribution:
    """The attribution of one incident. For kind NONE: category NONE, or what degrades a job that goes on."""
    index = rules.by_id()
    judged = [(s, rule) for s in incident.signals if (rule := rule_of(s, rules, index)) is not None]
    if snapshot.progress.in_job_restarts:
        # Which task ended an earlier life says nothing of the last.
        judged = [(s, rule) for s, rule in judged if rule.id not in EXITS or not survived(s, snapshot)]
    places = PlaceMap.of(snapshot, [s for s, _ in judged])
    scored = score(snapshot, incident, judged, policy)
    if incident.kind is IncidentKind.NONE:
        return _degraded(snapshot, scored, places, policy)
    symptom = symptom_hypothesis(snapshot, judged)
    groups = by_category(scored)
    leads = [group[0] for group in groups]
    if (
        not leads
        or leads[0].score < WEAK
        or leads[0].rule.id in RECORDED  # who, but not why: that is what the symptoms tell
        or (symptom.category is not Category.UNKNOWN and leads[0].score < symptom.confidence)
    ):
        return with_opinions(_from_symptom(snapshot, incident, symptom, leads, places), snapshot)
    agent = told_by_agent(judged, _local(leads[0]))
    found = with_suspects(_from_lead(snapshot, groups, symptom, agent, places, policy), snapshot, policy)
    return with_opinions(found, snapshot)


def _from_symptom(
    snapshot: Snapshot, incident: Incident, symptom: Hypothesis, leads: Sequence[Scored], places: PlaceMap
) -> Attribution:
    return Attribution(
        category=symptom.category,
        root_cause=symptom.root_cause,
        # That nobody says who sent SIGKILL is a guess, and keeps its small number.
        confidence=symptom.confidence
        if symptom.category is Category.HOST_OUT_OF_MEMORY
        else calibrated(symptom.confidence),
        ranks=symptom.ranks[:RANKS_MAX],
        evidence=symptom.evidence,
        alternatives=tuple(
            _hypothesis(lead, places, "weak evidence") for lead in leads[:3] if lead.rule.id not in RECORDED
        )
        or (_unknown("symptoms are not causes"),),
        transient_storage=False,
        fingerprint="",
    )


def _from_lead(
    snapshot: Snapshot,
    groups: Sequence[Sequence[Scored]],
    symptom: Hypothesis,
    agent: tuple[tuple[int, ...], str],
    places: PlaceMap,
    policy: Policy,
) -> Attribution:
    """The attribution of the best hypothesis. `agent`: who that is by a launcher's agent, and on which node."""
    group = groups[0]
    lead = group[0]
    rule, category = lead.rule, lead.rule.category
    print_ = fingerprint(lead.signal, rule)
    nodes, note = implicated_nodes(snapshot, group, places, policy)
    doubtful = doubt(lead.signal)
    if doubtful:
        nodes, note = (), _doubted(lead, doubtful)
    elif not note:
        note = remark(lead.signal)
    trusted = any(item.signal.trust.trusted and set(places.nodes(item.signal)) & set(nodes) for item in group)
    if nodes and not trusted and _elsewhere_too(snapshot.past, print_, nodes, rule.weight):
        nodes, note = (), "the same failure came on other nodes too"
        # What the job brings along; or what all nodes share, and then waiting helps.
        category = category if rule.transient_storage else Category.APPLICATION
    ranks = implicated_ranks(snapshot, group, lead, places, nodes) or agent[0]
    on = agent[1] if ranks == agent[0] else ""
    if not ranks:
        ranks = ranks_on(snapshot, groups[1:], places, nodes or places.nodes(lead.signal))
    if not ranks and not _local(lead):
        ranks = symptom.ranks
    gpus = implicated_gpus(group, places, nodes)
    runner = [_hypothesis(g[0], places, _why_not(g[0], lead)) for g in groups[1:4]]
    if symptom.category is not Category.UNKNOWN:
        runner.append(replace(symptom, ranks=symptom.ranks[:RANKS_MAX], why_not="a symptom, where a cause is known"))
    close = groups[1][0].score > lead.score - 0.15 if len(groups) > 1 else False
    most = rule.weight + (0.05 if trusted and not rule.guess else 0.0)
    confidence = round(min(0.99, max(0.05, min(lead.score, most)) * (0.85 if close else 1.0)), 3)
    return Attribution(
        category=category,
        root_cause=_sentence(lead, nodes, ranks, note, on),
        confidence=_sure(confidence, lead),
        nodes=nodes,
        ranks=ranks[:RANKS_MAX],
        gpus=gpus,
        evidence=tuple(dict.fromkeys(item.signal.id for item in group))[: policy.evidence_max],
        alternatives=tuple(runner) or (_unknown("a recognised cause explains the failure"),),
        implications=implications(group, nodes, places, confidence),
        trusted=trusted,
        certain=certain(snapshot, groups, places, nodes),
        # A port that several ranks want is a launcher started several times, not a busy port.
        deterministic=rule.deterministic
        or rule.certain
        or (rule.id == "torch.address_in_use" and len(ranks) > 1)
        or (rule.id == OUTPUT_NOT_OPENED and not nodes and all(_failed_alike(past, print_) for past in snapshot.past)),
        transient_storage=category is Category.STORAGE and rule.transient_storage and not nodes,
        fingerprint=print_,
    )


def _sure(confidence: float, lead: Scored) -> float:
    """What a line does not tell is right less often than what it does."""
    if doubt(lead.signal):
        return min(confidence, DOUBTED_MAX)
    sure = confidence if lead.rule.guess else calibrated(confidence)
    return min(sure, REMARKED_MAX) if remark(lead.signal) else sure


def _doubted(item: Scored, why: str) -> str:
    """Where a line was that blames nobody, and why it does not."""
    where = f"said of {_few(item.signal.nodes)}, but " if item.signal.nodes else ""
    return f"{where}{why}"


def _failed_alike(past: PastAttempt, print_: str) -> bool:
    """It failed the same way; what the scheduler ended says neither."""
    return past.fingerprint == print_ or past.reason is Reason.SCHEDULER_EVENT


def _elsewhere_too(past: Sequence[PastAttempt], print_: str, nodes: tuple[str, ...], weight: float) -> bool:
    """The same failure on disjoint nodes, none of it trusted: the job brings it along."""
    alike = [p for p in past if p.fingerprint == print_ and print_ and not p.trusted]
    others = [p for p in alike if p.implicated_nodes and not set(p.implicated_nodes) & set(nodes)]
    return len(others) >= (2 if weight >= STRONG_HARDWARE else 1)


def _nothing(snapshot: Snapshot, doubted: Sequence[Scored] = ()) -> Attribution:
    """No failure. How much that says depends on what there was to read, and on whether the end was seen."""
    attempt = snapshot.attempt
    sure, sentence = 0.9, "nothing failed"
    if snapshot.offline and attempt.state is AttemptState.OTHER and not snapshot.progress.finished:
        # Nobody told the state: it was concluded from the text, and the text does not tell.
        if any(source.lines for source in snapshot.sources):
            sure, sentence = 0.4, "no failure visible; whether it ended is not known"
        else:
            sure, sentence = 0.05, "not known: there was nothing to read"
    for item in doubted[:1]:
        sentence = f"{sentence}; {item.rule.title}: {_doubted(item, doubt(item.signal))}"
        sure = min(sure, DOUBTED_MAX)
    return Attribution(
        category=Category.NONE,
        root_cause=sentence,
        confidence=sure,
        evidence=tuple(item.signal.id for item in doubted[:1]),
    )


def _degraded(snapshot: Snapshot, scored: Sequence[Scored], places: PlaceMap, policy: Policy) -> Attribution:
    """No incident. What a machine or the scheduler did to a job that goes on is still worth a category."""
    cancelled = snapshot.attempt.state is AttemptState.CANCELLED
    telling = [
        item for item in scored if item.rule.category in HARDWARE or item.rule.category is Category.SCHEDULER_EVENT
    ]
    telling = [item for item in telling if item.rule.weight >= 0.7] if not cancelled else list(scored)
    doubted = [item for item in telling if doubt(item.signal)]
    telling = [item for item in telling if item not in doubted]
    if not telling:
        return _nothing(snapshot, doubted)
    lead = telling[0]
    group = [item for item in telling if item.rule.category is lead.rule.category]
    nodes, note = implicated_nodes(snapshot, group, places, policy)
    confidence = round(min(0.95, lead.rule.weight) * (1.0 if cancelled else 0.7), 3)
    return Attribution(
        category=lead.rule.category,
        root_cause=_sentence(lead, nodes, (), note) + ("" if cancelled else "; training goes on"),
        confidence=confidence,
        nodes=nodes,
        evidence=tuple(item.signal.id for item in group)[: policy.evidence_max],
        implications=implications(group, nodes, places, confidence * 0.5),
        trusted=bool(nodes) and all(item.signal.trust.trusted for item in group),
        fingerprint="",
    )


def _sentence(lead: Scored, nodes: Sequence[str], ranks: Sequence[int], note: str, on: str = "") -> str:
    """One line for a tired operator. `on`: the node that the rank ran on, which nothing blames."""
    parts = [lead.rule.title]
    name, message = lead.signal.fields.get("exception", ""), lead.signal.fields.get("message", "")
    if name or message:
        parts.append(f": {name}{': ' if name and message else ''}{message[:120]}")
    if nodes:
        parts.append(f" ({_few(nodes)})")
    elif ranks:
        parts.append(f" (rank{'s' if len(ranks) > 1 else ''} {_few(ranks)}{f' on {on}' if on else ''})")
    elif local := _local(lead):
        parts.append(f" (local rank {local})")
    if note:
        parts.append(f"; {note}")
    return "".join(parts)


def _local(item: Scored) -> str:
    """The number within its node of the only rank that printed it, where a line tells no more; "" otherwise."""
    signal = item.signal
    return signal.fields.get("local", "") if signal.count == 1 and signal.rank is None else ""


def _few(names: Sequence[str] | Sequence[int]) -> str:
    least = "at least " if len(names) >= SCANNED_MAX else ""  # so many are told apart in a log
    return ", ".join(map(str, names[:4])) + (f" and {least}{len(names) - 4} more" if len(names) > 4 else "")


def _why_not(loser: Scored, winner: Scored) -> str:
    if loser.against:
        return loser.against
    if winner.signal.trust.trusted and not loser.signal.trust.trusted:
        return "log evidence, where a trusted source says otherwise"
    return "weaker evidence"


def _hypothesis(item: Scored, places: PlaceMap, why_not: str) -> Hypothesis:
    return Hypothesis(
        category=item.rule.category,
        root_cause=_sentence(item, (), tuple(sorted(ranks_of(item.signal))), ""),
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
