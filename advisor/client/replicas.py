"""One channel over several replicas of the service: calls go to the first that answers, and to another when it is lost.

Nothing is ever sent twice from here: a call that fails has failed, and the next one goes elsewhere.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from advisor.client.channels import settled
from advisor.client.errors import ClientError, NoReplica

HELLO_SECONDS = 3.0  # one that is frozen accepts a connection, and never says hello
_LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
# A method that nobody has: whoever lives refuses it, and why a connection failed is said of calls only.
_NOTHING = "/advisor.v1.OperatorService/Nothing"

# What gRPC says of a peer that answers → what that means to who called.
_NOT_TRUSTED = "shows a certificate that nobody trusted here has signed: name who did with --ca-file"
NOT_AN_ADVISOR: Mapping[str, str] = {
    "CERTIFICATE_VERI": _NOT_TRUSTED,
    "BAD_SIGNATURE": _NOT_TRUSTED,
    "Hostname Verification": "shows a certificate for another name: call it by a name that its certificate holds",
    "missing selected ALPN": "does not speak gRPC: give the address of service.listen.grpc, not that of pages and JSON",
}

Place = tuple[str, Callable[[], grpc.Channel]]


class ReplicaChannel(grpc.Channel):
    """`places`: names and how a channel to each is made. A call raises `NoReplica` when none answers, and says of each
    why.
    """

    def __init__(self, places: Sequence[Place], *, seconds: float = HELLO_SECONDS) -> None:
        self._places = list(places)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self.where = ""

    def _connected(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                self.where, self._channel = self._first_that_answers()
            return self._channel

    def _first_that_answers(self) -> tuple[str, grpc.Channel]:
        became = []
        for name, make in self._places:
            try:
                channel = make()
            except ClientError as error:
                became.append(str(error) if name in str(error) else f"{name}: {error}")
                continue
            why = self._absent(channel)
            if not why:
                return name, channel
            channel.close()
            became.append(f"{name}: {why}")
        raise NoReplica(f"no answer from any advisor: {'; '.join(became)}")

    def _absent(self, channel: grpc.Channel) -> str:
        """Why nobody is there; empty: somebody is, whatever he says."""
        connected = settled(channel, self._seconds)
        if connected is None:
            return f"silent for {self._seconds:g} s (frozen, or cut off)"
        if connected:
            return ""
        ask: Callable[..., object] = channel.unary_unary(_NOTHING)
        try:
            ask(b"", timeout=self._seconds)
        except grpc.RpcError as error:
            status: Any = error
            if status.code() is grpc.StatusCode.UNAVAILABLE:
                detail = status.details() or "refused"
                return next((said for mark, said in NOT_AN_ADVISOR.items() if mark in detail), detail[:200])
            if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"silent for {self._seconds:g} s (frozen, or cut off)"
        return ""

    def _lost(self, channel: grpc.Channel) -> None:
        """The next call finds another."""
        with self._lock:
            if self._channel is channel:
                channel.close()
                self._channel = None
                self._places.sort(key=lambda place: place[0] == self.where)  # whoever was lost comes last

    def _later(self, kind: str, *how: Any, **also: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            channel = self._connected()
            try:
                return getattr(channel, kind)(*how, **also)(*arguments, **options)
            except grpc.RpcError as error:
                status: Any = error
                if status.code() in _LOST:
                    self._lost(channel)
                raise

        return call

    def unary_unary(self, *how: Any, **also: Any) -> Any:
        return self._later("unary_unary", *how, **also)

    def unary_stream(self, *how: Any, **also: Any) -> Any:
        return self._later("unary_stream", *how, **also)

    def stream_unary(self, *how: Any, **also: Any) -> Any:
        return self._later("stream_unary", *how, **also)

    def stream_stream(self, *how: Any, **also: Any) -> Any:
        return self._later("stream_stream", *how, **also)

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        raise NotImplementedError("nobody here watches a channel's state")

    def unsubscribe(self, callback: Any) -> None:
        raise NotImplementedError("nobody here watches a channel's state")

    def close(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
