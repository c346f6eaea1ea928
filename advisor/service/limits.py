"""How often one caller may call, by the greatest of his roles: a token bucket each, so that nobody starves the rest."""

import ipaddress
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from advisor.ports import Clock
from advisor.service.callers import Caller, Proof, Role
from advisor.service.errors import TooOftenError

BUCKETS_MAX = 8192
_GREATEST_FIRST = (Role.OPERATOR, Role.VIEWER, Role.USER)


@dataclass(slots=True)
class _Bucket:
    """`left`: calls that may be made at once, as of `at` (monotonic seconds)."""

    left: float
    at: float


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
