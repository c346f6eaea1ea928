"""The reader's loop: who asks, how often, and one short-lived child per question.

Nothing here waits for a file, a user database or a client. A child that hangs in the kernel on a dead file system is
killed after `CHILD_SECONDS` and, where the kernel does not let it go, counted: so many per user and in all, and more
are refused at once. Each question gets one answer: the child's, or ours when the child has ended without one.
"""

import contextlib
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm_plugin.logreader.journal import Journal
from slurm_plugin.logreader.messages import REQUEST_BYTES_MAX, Question, answer, parse
from slurm_plugin.logreader.opening import Refused, become, kernels_devices, open_as

CONNECTIONS_MAX = 32
CHILDREN_MAX = 32
CHILDREN_PER_USER_MAX = 4
CHILD_SECONDS = 2.0
TURN_SECONDS = 0.5
TOLD_SECONDS = 5.0  # between two signs of life
_CREDENTIALS = struct.Struct("iII")
_LATE = Refused(reason="timeout", detail="the file system did not answer in time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`uid_min`: users below are the system's own and never served. `under`: if given, only files below these."""

    client_uid: int
    uid_min: int = 1000
    under: tuple[str, ...] = ()
    files_per_second: float = 20_000.0


@dataclass(slots=True, kw_only=True)
class _Child:
    connection: socket.socket
    question: Question
    began: float
    verdicts: int  # read end: what became of each file, for the journal
    killed: bool = False


class Reader:
    """Serves an already listening SEQPACKET socket until told to stop."""

    def __init__(
        self, listening: socket.socket, limits: Limits, journal: Journal, *, on_turn: Callable[[], None] = lambda: None
    ) -> None:
        self._listening, self._limits, self._journal, self._on_turn = listening, limits, journal, on_turn
        self._selector = selectors.DefaultSelector()
        self._connections: set[socket.socket] = set()
        self._children: dict[int, _Child] = {}
        self._left, self._left_at = limits.files_per_second, time.monotonic()
        self._stopped = False
        self._devices = kernels_devices()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        # A child that ends wakes us: its signal's number comes out of this pipe.
        self._woken, waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def stop(self) -> None:
        self._stopped = True

    def serve(self) -> None:
        told_at = -TOLD_SECONDS
        while not self._stopped:
            self.turn()
            if time.monotonic() - told_at >= TOLD_SECONDS:
                told_at = time.monotonic()
                self._on_turn()
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def turn(self) -> None:
        """One wait for something to do, then all of it."""
        for key, _ in self._selector.select(TURN_SECONDS):
            if key.fileobj is self._listening:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._hear(key.fileobj)
            else:
                os.read(self._woken, 4096)
        self._reap()
        self._journal.count()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(peer)
        if uid != self._limits.client_uid or len(self._connections) >= CONNECTIONS_MAX:
            self._journal.tell("client_refused", uid=uid, connections=len(self._connections))
            connection.close()
            return
        connection.setblocking(False)
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            # No room for ancillary data: descriptors that a client sends are closed by the kernel.
            data, _, flags, _ = connection.recvmsg(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        question = parse(data) if not flags & socket.MSG_TRUNC else None
        if question is None:
            if data:
                self._journal.tell("question_garbled", bytes=len(data))
            self._drop(connection)
            return
        refused = self._refused(question)
        if refused is not None:
            for path in question.paths:
                self._journal.asked(question.uid, question.job, path, refused.reason)
            self._answer(connection, question, refused)
            return
        self._selector.unregister(connection)  # one question at a time: the next waits in the kernel
        self._start(connection, question)

    def _refused(self, question: Question) -> Refused | None:
        """What is said without a look at the file system."""
        now, rate = time.monotonic(), self._limits.files_per_second
        self._left, self._left_at = min(rate, self._left + (now - self._left_at) * rate), now
        if question.uid < self._limits.uid_min or question.uid == 65534:
            return Refused(reason="permission", detail=f"files of uid {question.uid} are not read (--uid-min)")
        if len(question.paths) > self._left:
            return Refused(reason="limit", detail=f"more than {rate:g} files per second were asked for")
        if len(self._children) >= CHILDREN_MAX:
            return Refused(reason="limit", detail="too many opens have not come back")
        hanging = sum(child.question.uid == question.uid for child in self._children.values())
        if hanging >= CHILDREN_PER_USER_MAX:
            return Refused(reason="timeout", detail="earlier opens for this user have not come back")
        self._left -= len(question.paths)
        return None

    def _start(self, connection: socket.socket, question: Question) -> None:
        verdicts, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _open_all(connection, question, self._limits.under, self._devices, told)
                status = 0
            finally:
                os._exit(status)
        os.close(told)
        self._children[pid] = _Child(
            connection=connection, question=question, began=time.monotonic(), verdicts=verdicts
        )

    def _reap(self) -> None:
        now = time.monotonic()
        for pid, child in list(self._children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[pid]
                self._finish(child, status)
            elif now - child.began > CHILD_SECONDS and not child.killed:
                child.killed = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._tell(child, b"")
                self._answer(child.connection, child.question, _LATE)

    def _finish(self, child: _Child, status: int) -> None:
        try:
            said = os.read(child.verdicts, 64 * 1024)
        except BlockingIOError:
            said = b""
        os.close(child.verdicts)
        if child.killed:
            return
        self._tell(child, said)
        if status == 0:
            self._listen_again(child.connection)
        else:
            self._answer(child.connection, child.question, _LATE)

    def _tell(self, child: _Child, said: bytes) -> None:
        outcomes = said.decode("ascii", "replace").split()
        for place, path in enumerate(child.question.paths):
            outcome = outcomes[place] if place < len(outcomes) else _LATE.reason
            self._journal.asked(child.question.uid, child.question.job, path, outcome)

    def _answer(self, connection: socket.socket, question: Question, refused: Refused) -> None:
        packet, _ = answer(question.number, [refused] * len(question.paths))
        try:
            connection.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:  # gone, or it does not read: either way it has to come again
            self._drop(connection)
            return
        self._listen_again(connection)

    def _listen_again(self, connection: socket.socket) -> None:
        if connection in self._connections and connection not in self._selector.get_map():
            self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            if connection in self._selector.get_map():
                self._selector.unregister(connection)
        connection.close()


def _open_all(
    connection: socket.socket, question: Question, under: tuple[str, ...], devices: frozenset[int], told: int
) -> None:
    """In the child. What cannot be sent at once is not sent: the parent then says that it was too late."""
    become(question.uid)
    results = [open_as(question.uid, path, under=under, devices=devices) for path in question.paths]
    outcomes = ["opened" if isinstance(result, int) else result.reason for result in results]
    os.write(told, " ".join(outcomes).encode())
    packet, descriptors = answer(question.number, results)
    socket.send_fds(connection, [packet], descriptors, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
