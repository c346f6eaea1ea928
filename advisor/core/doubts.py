"""What speaks against a kernel's line: nothing tells that it was in the job's time, or on its node.

Only a file that somebody named by hand has such lines: what is collected for a job is of its nodes and its time. A
doubted line is worth less than any word that the job's own log has for its failure, opens no incident, and blames no
node. One with a remark counts, and the verdict is less sure and tells it.
"""

from dataclasses import replace

from advisor.core.model import Signal
from advisor.core.words import Trust

DOUBTED_MAX = 0.5  # confidence in a cause that rests on a doubted line
REMARKED_MAX = 0.8
_DOUBT, _REMARK = "doubt", "remark"


def doubted(signal: Signal, why: str) -> Signal:
    """The same line as no trusted witness any more. `why`: a clause, for people."""
    return replace(signal, trust=Trust.LOG, fields={**signal.fields, _DOUBT: why})


def remarked(signal: Signal, why: str) -> Signal:
    """The same line, as trusted as before, with what makes it less likely to be of this job."""
    return replace(signal, fields={**signal.fields, _REMARK: why})


def doubt(signal: Signal) -> str:
    """Why the line may have nothing to do with the job; "" where nothing speaks against it."""
    return signal.fields.get(_DOUBT, "")


def remark(signal: Signal) -> str:
    return signal.fields.get(_REMARK, "") if signal.trust.trusted else ""
