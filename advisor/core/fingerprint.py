"""The same failure has the same fingerprint, whichever attempt, node or rank met it."""

import hashlib

from advisor.core.lines import mask
from advisor.core.model import Signal
from advisor.core.rules import XID_LOG_RULES, Rule
from advisor.core.words import Category

_MESSAGE_CHARS = 120


def fingerprint(signal: Signal, rule: Rule) -> str:
    """`rule:hash` over what identifies a failure: exception type, frames and masked message, or the rule alone.

    Scheduler events and failures without a known cause have none: they are not "the same failure" twice.
    """
    if rule.category in {Category.SCHEDULER_EVENT, Category.USER_CANCEL, Category.UNKNOWN}:
        return ""
    fields = signal.fields
    parts = [rule.id]
    if rule.id in XID_LOG_RULES:
        parts.append(fields.get("xid", ""))
    parts += [fields.get("exception", ""), fields.get("frames", ""), mask(fields.get("message", ""))[:_MESSAGE_CHARS]]
    return f"{rule.id}:{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"
