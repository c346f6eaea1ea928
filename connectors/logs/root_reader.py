"""Asking the root log reader for files that the advisor's own user may not open.

The reader (`slurm_plugin.logreader`) opens each file as the job's user and hands over a read-only descriptor; what the
packets hold is told in its `messages`. Whose file it must be comes from the scheduler's report, never from the path,
and what comes back is judged here once more.

All calls block, at most `ANSWER_SECONDS`: they are made in reading threads.
"""

import array
import fcntl
import json
import os
import socket
import threading
from collections.abc import Sequence

from advisor.core.words import UnavailableReason
from connectors.logs.opening import Handing, RefusedError, printable

VERSION = 1
ANSWER_SECONDS = 3.0  # longer than the reader lets one question take
PACKET_BYTES_MAX = 128 * 1024
PATHS_MAX = 64
CONNECTIONS_KEPT_MAX = 16
_ROOM = 64 * 1024  # for an answer


class RootReader:
    """One reader at a Unix socket. Safe for any number of threads; each question has a connection of its own."""

    def __init__(self, path: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.path = path
        self._answer_seconds = answer_seconds
        self._lock = threading.Lock()
        self._free: list[socket.socket] = []
        self._number = 0

    def for_user(self, uid: int, job: str, paths: Sequence[str]) -> "HandedFiles":
        return HandedFiles(self, uid, job, paths)

    def check(self) -> str:
        """What is wrong with the reader, "" when it answers. Asks for a file that it never gives."""
        answer = self.ask(0, "doctor", ["/"])[0]
        if isinstance(answer, int):
            os.close(answer)
            return f"{self.path}: it hands over root's files: this is not our reader"
        return "" if answer.reason is UnavailableReason.PERMISSION and "uid 0" in answer.detail else answer.detail

    def ask(self, uid: int, job: str, paths: Sequence[str]) -> list[int | RefusedError]:
        """A descriptor or a refusal for each path, at most `PATHS_MAX`. The descriptors are the caller's to close."""
        with self._lock:
            self._number += 1
            number = self._number
            connection = self._free.pop() if self._free else None
        packet = json.dumps({"v": VERSION, "n": number, "uid": uid, "job": job, "paths": list(paths)}).encode()
        if len(packet) > PACKET_BYTES_MAX:
            return [RefusedError(UnavailableReason.LIMIT, "paths too long for one question")] * len(paths)
        try:
            answers, connection = self._exchange(connection, packet, number, len(paths))
        except TimeoutError:
            text = f"the root log reader at {self.path} did not answer within {self._answer_seconds:g} s"
            return [RefusedError(UnavailableReason.TIMEOUT, text)] * len(paths)
        except (OSError, ValueError) as error:
            closed = isinstance(error, BrokenPipeError | ConnectionResetError)
            why = "it closes the connection; is our user the one that it serves, --client?" if closed else str(error)
            text = (
                f"the root log reader at {self.path} does not answer ({why}): "
                "systemctl status recovery-advisor-logreader"
            )
            return [RefusedError(UnavailableReason.PERMISSION, text)] * len(paths)
        with self._lock:
            if len(self._free) < CONNECTIONS_KEPT_MAX:
                self._free.append(connection)
            else:
                connection.close()
        return answers

    def close(self) -> None:
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()

    def _exchange(
        self, kept: socket.socket | None, packet: bytes, number: int, count: int
    ) -> tuple[list[int | RefusedError], socket.socket]:
        """A kept connection may be one to a reader that was started again since: then once more on a new one."""
        if kept is not None:
            try:
                return self._once(kept, packet, number, count), kept
            except ConnectionError:
                pass
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connection.settimeout(self._answer_seconds)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return self._once(connection, packet, number, count), connection

    def _once(self, connection: socket.socket, packet: bytes, number: int, count: int) -> list[int | RefusedError]:
        """Closes the connection when anything goes wrong on it: what it still says would be of another question."""
        try:
            connection.send(packet, socket.MSG_NOSIGNAL)
            while True:
                data, descriptors = _receive(connection)
                try:
                    value = json.loads(data)
                    if value["n"] == number:
                        answers = _answers(value["files"], descriptors, count)
                        descriptors = []
                        return answers
                except (KeyError, TypeError, IndexError) as error:
                    raise ValueError(f"an answer that is none of ours: {error!r}") from error
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
        except BaseException:
            connection.close()
            raise


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    space = socket.CMSG_SPACE(PATHS_MAX * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(_ROOM, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, held in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(held[: len(held) - len(held) % descriptors.itemsize])
    if not data:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ConnectionResetError("it closed the connection")
    return data, descriptors.tolist()


def _answers(files: list[dict[str, object]], descriptors: list[int], count: int) -> list[int | RefusedError]:
    if len(files) != count or sum("fd" in file for file in files) != len(descriptors):
        raise ValueError(f"{len(files)} answers and {len(descriptors)} descriptors to {count} questions")
    given = iter(descriptors)
    return [
        next(given) if "fd" in file else RefusedError(_reason(file["refused"]), str(file.get("detail", "")))
        for file in files
    ]


def _reason(word: object) -> UnavailableReason:
    try:
        return UnavailableReason(str(word))
    except ValueError:
        return UnavailableReason.REFUSED


class HandedFiles(Handing):
    """The files of one user's job, asked for many at a time: a question costs the reader a process. One thread's.

    Close it when the reading is over: descriptors of files that nobody came for go then.
    """

    def __init__(self, reader: RootReader, uid: int, job: str, paths: Sequence[str]) -> None:
        self._reader, self._uid, self._job = reader, uid, job
        self._ahead = list(dict.fromkeys(paths))
        self._asked: set[str] = set()
        self._held: dict[str, int | RefusedError] = {}

    def open(self, path: str) -> int:
        if path not in self._held:
            self._ask(path)
        answer = self._held.pop(path)
        if isinstance(answer, int):
            if fcntl.fcntl(answer, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                os.close(answer)
                raise RefusedError(UnavailableReason.REFUSED, f"{printable(path)}: handed over for writing")
            return answer
        raise RefusedError(answer.reason, f"{printable(path)}: as the job's user: {answer.detail}")

    def close(self) -> None:
        for answer in self._held.values():
            if isinstance(answer, int):
                os.close(answer)
        self._held.clear()

    def _ask(self, path: str) -> None:
        """For this file and those that will be wanted next, unless they were asked for before."""
        paths, room = [path], PACKET_BYTES_MAX // 2 - len(json.dumps(path))
        if path in self._ahead and path not in self._asked:
            begin = self._ahead.index(path)
            for name in [*self._ahead[begin + 1 :], *self._ahead[:begin]]:
                room -= len(json.dumps(name)) + 1
                if len(paths) == PATHS_MAX or room < 0:
                    break
                if name not in self._asked:
                    paths.append(name)
        self._asked.update(paths)
        for name, answer in zip(paths, self._reader.ask(self._uid, self._job, paths), strict=True):
            self._held[name] = answer
