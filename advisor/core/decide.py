"""One tick for one attempt: detect, attribute, isolate, conclude. A function of its arguments and nothing else.

The pipeline gathers the snapshot and commits what comes out, with its inputs; `advisor replay` calls this again with
the stored inputs and compares the bytes.
"""

from dataclasses import replace
from datetime import datetime

from advisor.core.attribution import attribute
from advisor.core.detection import detect, trusted_fatal
from advisor.core.isolation import isolate
from advisor.core.model import Decision, Snapshot
from advisor.core.policy import Policy
from advisor.core.remediation import conclude
from advisor.core.rules import RuleSet


def decide(snapshot: Snapshot, rules: RuleSet, policy: Policy, now: datetime) -> Decision:
    """What should happen next with the attempt. `now` is aware UTC; equal arguments give equal decisions."""
    incident = detect(snapshot, rules, policy, now)
    incident = replace(incident, trusted_fatal=trusted_fatal(incident, rules))
    attribution = attribute(snapshot, incident, rules, policy, now)
    isolation = isolate(snapshot, incident, attribution, policy, now)
    return conclude(snapshot, incident, attribution, isolation, policy, now)
