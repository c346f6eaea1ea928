"""Calling the contract's methods for a caller, from gRPC and from HTTP alike.

What holds for every call stands here once: the caller's role, whose jobs he sees, and which text is withheld. JSON
routes and pages call `Calls.unary` with messages of the contract and never a servicer itself.
"""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

from google.protobuf.message import Message

from advisor.service.access import NEEDED, require
from advisor.service.callers import Caller, Role
from advisor.service.errors import BadRequestError, NotFoundError, kind_of
from advisor.service.limits import Questions
from advisor.service.withholding import narrow, withhold
from advisor.store.errors import Ambiguous

CALLERS_KEPT = 256
_QUESTIONS = ("AuditService/", "ReportService/")

Answer = TypeVar("Answer", bound=Message)
MakeServicer = Callable[[Caller], Any]


class Calls:
    """`make`: name of a service ("AuditService") → its servicer for one caller."""

    def __init__(
        self,
        make: Mapping[str, MakeServicer],
        *,
        called: Callable[[str, str, float], None] = lambda _method, _kind, _seconds: None,
    ) -> None:
        """`called`: told of each call's method, how it ended ("ok", or a `FailureKind`) and its seconds."""
        self._make = dict(make)
        self._called = called
        self._made: dict[tuple[str, Caller], Any] = {}
        self._questions = Questions()

    async def unary(
        self, caller: Caller, method: str, request: Message, answers: type[Answer], context: Any = None
    ) -> Answer:
        """One call of `method` ("AuditService/GetDecision"), which answers with `answers`.

        Raises the errors of `advisor.service.errors`. The request may be changed. `context` is gRPC's own, if there is
        one: no unary method needs it.
        """
        began, kind = monotonic(), "cancelled"
        try:
            answer = await self._unary(caller, method, request, answers, context)
            kind = "ok"
        except Exception as error:
            kind = kind_of(error)
            raise
        else:
            return answer
        finally:
            if method in NEEDED:  # names that callers make up are not counted
                self._called(method, kind, monotonic() - began)

    async def _unary(
        self, caller: Caller, method: str, request: Message, answers: type[Answer], context: Any
    ) -> Answer:
        require(caller, method, request)
        narrow(caller, request)
        try:
            if method.startswith(_QUESTIONS):
                async with self._questions.turn(caller):
                    answer = await self.behaviour(caller, method)(request, context)
            else:
                answer = await self.behaviour(caller, method)(request, context)
        except (NotFoundError, BadRequestError) as error:
            if not _tells_of_others(caller, error):
                raise
            raise NotFoundError(f"there is no such thing among the jobs of {caller.name}") from None
        if not isinstance(answer, answers):
            raise TypeError(f"{method} answered with {type(answer).__name__}")
        if not method.startswith("AgentService/"):  # an agent acts on what it hears
            withhold(caller, answer)
        return answer

    def behaviour(self, caller: Caller, method: str) -> Callable[[Any, Any], Any]:
        """The method itself, bound to this caller. Without any check: those are `unary`'s."""
        service, _, name = method.partition("/")
        key = (service, caller)
        if key not in self._made:
            if service not in self._make:
                raise NotImplementedError(method)
            if len(self._made) >= CALLERS_KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[key] = self._make[service](caller)
        found: Callable[[Any, Any], Any] = getattr(self._made[key], name)
        return found


def _tells_of_others(caller: Caller, error: NotFoundError | BadRequestError) -> bool:
    """Whether "there is none" and "there are several" would tell a user about jobs that are not his."""
    if caller.sees_all_jobs or not caller.roles & Role.USER:
        return False
    return isinstance(error, NotFoundError) or isinstance(error.__context__, Ambiguous)
