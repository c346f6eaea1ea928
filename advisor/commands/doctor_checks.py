"""What `advisor doctor` says of one thing that it looked at."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from advisor.commands.doctor_metrics import Finding


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at. `to_do` is empty when it is well."""

    name: str
    state: State
    found: str
    to_do: str = ""


def checks_of(name: str, findings: Iterable[Finding]) -> list[Check]:
    return [
        Check(
            name=name,
            state=State.FAIL if found.broken else State.WARN if found.to_do else State.OK,
            found=found.found,
            to_do=found.to_do,
        )
        for found in findings
    ]
