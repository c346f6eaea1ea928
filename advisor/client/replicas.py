"""One channel over several replicas of the service: calls go to the first that answers, and to another when it is lost.

Nothing is ever sent twice from here: a call that fails has failed, and the next one goes elsewhere.
"""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from advisor.client.errors import ClientError

READY_SECONDS = 2.0  # one that is frozen accepts a connection, and never says hello
_LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})

Place = tuple[str, Callable[[], grpc.Channel]]


class ReplicaChannel(grpc.Channel):
    """`places`: names and how a channel to each is made. The last one is used as it is when none answers: then its
    error says what is wrong. Raises `ClientError` when nobody can be anywhere.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = list(places)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self.where = ""
        self._connected()

    def _connected(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                self.where, self._channel = self._first_that_answers()
            return self._channel

    def _first_that_answers(self) -> tuple[str, grpc.Channel]:
        *before, last = self._places
        for name, make in before:
            try:
                channel = make()
            except ClientError:
                continue
            try:
                grpc.channel_ready_future(channel).result(timeout=READY_SECONDS)
            except grpc.FutureTimeoutError:
                channel.close()
            else:
                return name, channel
        return last[0], last[1]()

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
