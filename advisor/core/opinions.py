"""What other programs think of a failure: one more piece of evidence, beside and below everything that we read
ourselves.

An opinion is a signal of no rule, so that no detector sees it. It opens no incident, names no node, makes nothing
certain and changes no category. Where it agrees with the attribution it is listed as evidence and adds a little
confidence; where it does not it is told as an alternative, with why it lost. It is among the inputs of the decision
like any other signal.
"""

import hashlib
from dataclasses import replace
from datetime import datetime

from advisor.core.model import Attribution, Hypothesis, Signal, Snapshot
from advisor.core.words import Category, Role, Trust

RULE = "external.opinion"
AGREED = 0.02  # confidence that an opinion adds which agrees
SURE_MAX = 0.99
DOUBT = 0.2  # confidence of an opinion that does not
OPINIONS_MAX = 4


def opinion_signal(
    *, source: str, action: str, category: Category, text: str, seen_at: datetime, attempt: str
) -> Signal:
    """`action`: what the other program would do, as it spells it. `category`: ours, of what it says is the cause."""
    return Signal(
        id=hashlib.sha256(f"{source}|{attempt}|{RULE}|{text}".encode("utf-8", "surrogateescape")).hexdigest()[:24],
        rule=RULE,
        trust=Trust.EXTERNAL,
        source=source,
        seen_at=seen_at,
        file=source,
        text=text,
        role=Role.SYMPTOM,
        category=category,
        fields={"action": action},
    )


def with_opinions(attribution: Attribution, snapshot: Snapshot) -> Attribution:
    """The same attribution, and who agrees or disagrees with it."""
    opinions = [s for s in snapshot.signals if s.rule == RULE and s.trust is Trust.EXTERNAL][:OPINIONS_MAX]
    agreeing = [s for s in opinions if s.category is attribution.category is not Category.UNKNOWN]
    others = [s for s in opinions if s not in agreeing and s.category not in {Category.UNKNOWN, Category.NONE}]
    if agreeing:
        attribution = replace(
            attribution,
            confidence=round(max(attribution.confidence, min(SURE_MAX, attribution.confidence + AGREED)), 3),
            evidence=(*attribution.evidence, *(s.id for s in agreeing)),
        )
    if others:
        known = attribution.category is not Category.UNKNOWN
        why = "an outside opinion, where evidence says otherwise" if known else "an outside opinion, without evidence"
        alternatives = [
            Hypothesis(
                category=s.category,
                root_cause=f"{s.source}: {s.text[:160]}",
                confidence=DOUBT,
                evidence=(s.id,),
                why_not=why,
            )
            for s in others
        ]
        attribution = replace(attribution, alternatives=(*attribution.alternatives, *alternatives))
    return attribution
