"""Files of log rules that jobs name: read whole, by the same care as their output.

The path is the user's choice: only a regular file of that user is opened, in a thread that may hang without harm, and
never more of it is read than a configuration may have.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import Clock, RulesRequest
from connectors.logs.files import uid_of
from connectors.logs.opening import Access, RefusedError, check_path, open_regular, printable, refusal
from connectors.logs.root_reader import RootReader
from connectors.logs.threads import FileThreads, Mounts, Task, ThreadLimits, Unfinished

SOURCE = "job-rules"
DEADLINE_SECONDS = 1.0  # it is waited for before output is read


class JobRulesFiles:
    """Implements `RulesReader`."""

    def __init__(
        self,
        *,
        clock: Clock,
        lookup_uid: Callable[[str], int | None] = uid_of,
        root_reader: RootReader | None = None,
    ) -> None:
        self._threads = FileThreads(clock, ThreadLimits(deadline_seconds=DEADLINE_SECONDS))
        self._mounts = Mounts(clock)
        self._lookup_uid = lookup_uid
        self._root_reader = root_reader

    async def read(self, requests: Sequence[RulesRequest]) -> Mapping[str, bytes | Unavailable]:
        tasks = [
            Task(mount=self._mounts.of(request.path), owner=request.user, call=partial(self._file, request))
            for request in requests
        ]
        results = await self._threads.run(tasks) if tasks else []
        answers: dict[str, bytes | Unavailable] = {}
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Unfinished):
                text = f"{printable(request.path)}: not read within {DEADLINE_SECONDS:g} s ({result})"
                answers[request.key] = _unavailable(UnavailableReason.TIMEOUT, text)
            else:
                answers[request.key] = result
        return answers

    async def close(self) -> None:
        await self._threads.close()
        if self._root_reader is not None:
            self._root_reader.close()

    def _file(self, request: RulesRequest) -> bytes | Unavailable:
        """In a reading thread."""
        try:
            check_path(request.path)
            uid = request.user_id if request.user_id is not None else self._lookup_uid(request.user)
            if uid is None:
                text = f"user {printable(request.user)!r} is not known on this host"
                return _unavailable(UnavailableReason.PERMISSION, text)
            reader = self._root_reader
            handing = reader.for_user(uid, "rules", [request.path]) if reader is not None else None
            access = Access(owners=frozenset({uid}), owner_name=f"{request.user} (uid {uid})", handing=handing)
            with open_regular(request.path, access) as opened:
                data = _whole(opened.fd, request.bytes_max)
        except RefusedError as why:
            return _unavailable(why.reason, why.detail)
        except OSError as error:
            refused = refusal(error, request.path)
            return _unavailable(refused.reason, refused.detail)
        if len(data) > request.bytes_max:
            text = f"{printable(request.path)}: larger than {request.bytes_max} bytes"
            return _unavailable(UnavailableReason.LIMIT, text)
        return data


def _whole(fd: int, bytes_max: int) -> bytes:
    """The content, or one byte more than is allowed."""
    parts: list[bytes] = []
    left = bytes_max + 1
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _unavailable(reason: UnavailableReason, detail: str) -> Unavailable:
    return Unavailable(source=SOURCE, reason=reason, detail=detail)
