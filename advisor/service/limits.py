"""How often and how much at once one caller may call, by the greatest of his roles: nobody starves the rest."""

import asyncio
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from advisor.ports import Clock
from advisor.service.callers import Caller, Proof, Role
from advisor.service.errors import TooOftenError

BUCKETS_MAX = 8192
# The store answers questions of the audit over four connections: one of them is never for others than operators.
QUESTIONS_TOGETHER = 3
QUESTIONS_EACH = 2
QUESTIONS_WAIT_SECONDS = 10.0
# Reports of one cluster are worked in one after the other. Of the store's ten connections they use a part.
REPORTS_WAITING = 4
REPORTS_TOGETHER = 4
QUIET_SECONDS = 1.0  # between two lines that say the same of anybody
_GREATEST_FIRST = (Role.OPERATOR, Role.VIEWER, Role.USER)


@dataclass(slots=True)
class _Bucket:
    """`left`: calls that may be made at once, as of `at` (monotonic seconds)."""

    left: float
    at: float


class Seldom:
    """Whether it is time to log the same again: whoever floods us does not fill the log as well."""

    def __init__(self, *, seconds: float = QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._again_at = 0.0

    def due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._again_at:
            return False
        self._again_at = now + self._seconds
        return True


class Questions:
    """How many questions are asked at once by who is no operator: so many by each, so many together. Others wait."""

    def __init__(
        self,
        *,
        each: int = QUESTIONS_EACH,
        together: int = QUESTIONS_TOGETHER,
        wait_seconds: float = QUESTIONS_WAIT_SECONDS,
    ) -> None:
        self._each = each
        self._wait_seconds = wait_seconds
        self._together = asyncio.Semaphore(together)
        self._own: dict[str, asyncio.Semaphore] = {}
        self._here: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """A question is answered within. Raises `TooOftenError` when its turn does not come."""
        if caller.roles & Role.OPERATOR:
            yield
            return
        own = self._own.setdefault(caller.name, asyncio.Semaphore(self._each))
        self._here[caller.name] += 1
        try:
            await self._wait(own)
            try:
                yield
            finally:
                self._together.release()
                own.release()
        finally:
            self._here[caller.name] -= 1
            if not self._here[caller.name]:
                del self._here[caller.name], self._own[caller.name]

    async def _wait(self, own: asyncio.Semaphore) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await own.acquire()
                try:
                    await self._together.acquire()
                except BaseException:
                    own.release()
                    raise
        except TimeoutError:
            raise TooOftenError("many questions are waiting for their answers: try again", retry_seconds=2.0) from None


class Queues:
    """Work that the store does one after the other for each key: few wait for their turn, more are sent away at once.

    Without it, reports that wait for a slow store would hold all of its connections, which the tick needs too, and
    their messages all memory.
    """

    def __init__(self, *, waiting: int = REPORTS_WAITING, together: int = REPORTS_TOGETHER) -> None:
        self._waiting = waiting
        self._together = asyncio.Semaphore(together)
        self._own: dict[str, asyncio.Lock] = {}
        self._here: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Raises `TooOftenError` when so many wait already."""
        if self._here[key] > self._waiting:
            raise TooOftenError(f"{self._waiting} reports of {key!r} wait for the store already", retry_seconds=1.0)
        own = self._own.setdefault(key, asyncio.Lock())
        self._here[key] += 1
        try:
            async with own, self._together:
                yield
        finally:
            self._here[key] -= 1
            if not self._here[key]:
                del self._here[key], self._own[key]


class RateLimits:
    """`per_second`: calls of a role; of NONE: calls of one address that shows nothing, or nothing that is known."""

    def __init__(self, per_second: Mapping[Role, float], *, burst_seconds: float, clock: Clock) -> None:
        self._per_second = dict(per_second)
        self._burst_seconds = burst_seconds
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: Caller) -> None:
        """One call. Raises `TooOftenError`."""
        if caller.proof is Proof.NOTHING:
            self.take_unknown(caller.peer)
            return
        ours = [role for role in _GREATEST_FIRST if role & caller.roles][:1]
        ours += [Role.AGENT] if caller.roles & Role.AGENT else []
        rate = max((self._per_second[role] for role in ours), default=self._per_second[Role.NONE])
        self._take(f"{caller.proof} {caller.uid} {caller.name} {caller.credential}", rate)

    def take_unknown(self, address: str) -> None:
        """One call, or one wrong credential, from an address. Raises `TooOftenError`."""
        self._take(f"from {_network(address)}", self._per_second[Role.NONE])

    def _take(self, key: str, rate: float) -> None:
        now, most = self._clock.monotonic(), max(rate * self._burst_seconds, 1.0)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = _Bucket(left=most, at=now)
        self._buckets.move_to_end(key)
        bucket.left = min(most, bucket.left + (now - bucket.at) * rate)
        bucket.at = now
        if bucket.left < 1.0:
            wait = (1.0 - bucket.left) / rate
            raise TooOftenError(f"too many calls, {rate:g} per second are served: wait", retry_seconds=wait)
        bucket.left -= 1.0


def _network(address: str) -> str:
    """An IPv6 address stands for its /64: its host has all of them."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6 and not parsed.is_loopback:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
