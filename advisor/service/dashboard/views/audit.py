"""What people did: the audit log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from advisor.service.dashboard.views.shown import words
from advisor.v1 import audit_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    at: datetime
    who: str
    what: str
    why: str
    origin: str
    cluster: str
    subject: str
    detail: tuple[tuple[str, str], ...]


def audit_lines(records: Sequence[audit_pb2.AuditRecord]) -> tuple[AuditLine, ...]:
    return tuple(
        AuditLine(
            at=item.at.ToDatetime(UTC),
            who=item.who,
            what=words(item.what),
            why=item.why,
            origin=item.origin,
            cluster=item.cluster,
            subject=item.subject,
            detail=tuple(sorted(item.detail.items())),
        )
        for item in records
    )
