"""Errors of the service, and what a caller is told of them, the same over gRPC and HTTP.

ServiceError
├── SocketTakenError      another service holds the socket, or something else lies there (start-up)
└── CallError             the call cannot be answered as it was made; the text says why
    ├── BadRequestError       a message cannot be used: which field and why
    ├── NotFoundError         there is no such thing, or none that this caller may know of
    ├── TooLateError          what is asked for can be done no more: what has happened already
    ├── UnauthenticatedError  nobody is known by what was shown
    ├── ForbiddenError        this caller may not do it
    └── TooOftenError         too many calls: again after `retry_seconds`
"""

from dataclasses import dataclass
from enum import StrEnum

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from advisor.plain_text import STORE_SILENT

log = structlog.get_logger(__name__)


class ServiceError(Exception):
    pass


class SocketTakenError(ServiceError):
    pass


class CallError(ServiceError):
    pass


class BadRequestError(CallError):
    pass


class NotFoundError(CallError):
    pass


class TooLateError(CallError):
    pass


class UnauthenticatedError(CallError):
    pass


class ForbiddenError(CallError):
    pass


class TooOftenError(CallError):
    def __init__(self, text: str, *, retry_seconds: float) -> None:
        self.retry_seconds = retry_seconds
        super().__init__(text)


class FailureKind(StrEnum):
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    TOO_LATE = "too_late"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    TOO_OFTEN = "too_often"
    STORE_ABSENT = "unavailable"
    NOT_SERVED = "not_served"
    OURS = "internal"  # a defect: logged with its trace, told without detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a caller is told. `retry_seconds`: when it is worth trying again, None when that is not known."""

    kind: FailureKind
    text: str
    retry_seconds: float | None = None


_KIND_OF_CALL_ERROR = {
    BadRequestError: FailureKind.BAD_REQUEST,
    NotFoundError: FailureKind.NOT_FOUND,
    TooLateError: FailureKind.TOO_LATE,
    UnauthenticatedError: FailureKind.UNAUTHENTICATED,
    ForbiddenError: FailureKind.FORBIDDEN,
    TooOftenError: FailureKind.TOO_OFTEN,
}


def kind_of(error: Exception) -> FailureKind:
    """Whose fault an error is, and what about."""
    for call_error, kind in _KIND_OF_CALL_ERROR.items():
        if isinstance(error, call_error):
            return kind
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        return FailureKind.STORE_ABSENT
    return FailureKind.NOT_SERVED if isinstance(error, NotImplementedError) else FailureKind.OURS


def failure_of(error: Exception) -> Failure:
    """What to tell of an error that ended a call. Whoever asks logs the trace of `OURS`."""
    kind = kind_of(error)
    match kind:
        case FailureKind.STORE_ABSENT:
            # Which SQL it was is for our log, not for the caller.
            log.warning("store_absent", error=type(error).__name__)
            return Failure(kind=kind, text=STORE_SILENT, retry_seconds=1.0)
        case FailureKind.NOT_SERVED:
            return Failure(kind=kind, text="not served here")
        case FailureKind.OURS:
            return Failure(kind=kind, text="the advisor failed on this call: see its log")
        case _:
            retry = error.retry_seconds if isinstance(error, TooOftenError) else None
            return Failure(kind=kind, text=str(error), retry_seconds=retry)
