"""The output files of jobs: StdOut and StdErr, and files beside them that a site names.

**Reads.** Each path of a request, from where its cursor stopped; what rotation, truncation and attempts that share a
file mean is told in `connectors.logs.tail`. In short, for who calls this:

* An attempt that has neither started nor ended has written nothing: `Unavailable(missing)`.
* Keep asking after `ended_at` is set until `LogBatch.final`: the last bytes may reach a network file system late, and
  the answer given `grace_seconds` after the end fixes where this attempt's bytes end. Nothing written later is ever
  delivered as this attempt's.
* Give the last cursor of attempt N as `predecessor` of N+1. In a file opened with `--open-mode=append`, N+1 then
  begins where N ended; in one that is truncated, at 0.
* `fresh` on the first chunk of a new content of a path; `offset` counts from that content's beginning.

**Whose files.** The path is the user's choice and the advisor's rights may be wider than the user's, so a file is read
only if it belongs to the job's user, wherever links in the path lead to. Only regular files are ever opened.
"""

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Clock, LogBatch, LogRequest
from connectors.logs.cursor import Cursor
from connectors.logs.more_files import Found, check_pattern, find
from connectors.logs.news import News
from connectors.logs.opening import NULL_DEVICE, Access, RefusedError, check_path, printable
from connectors.logs.root_reader import RootReader
from connectors.logs.source import FILES_FREE, FileReader, Plan, ReadLimits, Tails
from connectors.logs.tail import Ownership, Tail

LISTED_SECONDS = 1.0  # so long a folder of thousands of files is not listed again
LISTS_MAX = 64


def uid_of(user: str) -> int | None:
    """The uid this host knows for a user's name."""
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _Listed:
    """What patterns named, by what it was asked for, and when."""

    what: tuple[object, ...]
    at: float
    found: Found


class JobFileLogs:
    """Implements `LogSource`, trust LOG.

    `extra_files`: patterns of more files beside StdOut (`connectors.logs.more_files`); one without `%j` may match files
    of the user's other jobs. `grace_seconds`: how long after its end an attempt's bytes may arrive;
    below the cluster's requeue delay. `skew_seconds`: between the clocks of file servers and the scheduler.
    """

    trust = Trust.LOG

    def __init__(
        self,
        name: str = "job-output",
        *,
        clock: Clock,
        extra_files: Sequence[str] = (),
        grace_seconds: float = 3.0,
        skew_seconds: float = 2.0,
        limits: ReadLimits | None = None,
        lookup_uid: Callable[[str], int | None] = uid_of,
        root_reader: RootReader | None = None,
    ) -> None:
        for pattern in extra_files:
            if wrong := check_pattern(pattern):
                raise ValueError(f"extra_files: {pattern!r}: {wrong}")
        self.name = name
        self._clock = clock
        self._patterns = tuple(extra_files)
        self._ownership = Ownership(grace_seconds=grace_seconds, skew_seconds=skew_seconds)
        self._lookup_uid = lookup_uid
        self._uids: dict[str, int] = {}
        self._listed: dict[str, _Listed] = {}  # many reads follow each other where much is to be read
        self._root_reader = root_reader
        self._news: News | None = None
        self._reader = FileReader(name, plan=self._plan, clock=clock, limits=limits or ReadLimits())

    def on_news(self, call: Callable[[], None]) -> None:
        """`call` is made soon after a file that is read changed, where the kernel tells. Implements `Newsworthy`."""
        self._news = News(self._clock, call)

    async def read(self, requests: Sequence[LogRequest]) -> Mapping[str, LogBatch | Unavailable]:
        if self._news is None:
            return await self._reader.read(requests)
        self._news.follow(self._folders(requests))
        try:
            return await self._reader.read(requests)
        finally:
            self._news.looked()

    async def close(self) -> None:
        if self._news is not None:
            await self._news.close()
        await self._reader.close()
        if self._root_reader is not None:
            self._root_reader.close()

    def _folders(self, requests: Sequence[LogRequest]) -> dict[str, None]:
        """Where the output of running attempts is, as far as this host's kernel sees all that is written there."""
        found: dict[str, None] = {}
        below = {pattern.rpartition("/")[0] for pattern in self._patterns}
        for request in requests:
            if request.started_at is None:
                continue
            for path in request.paths:
                folder = path.rpartition("/")[0] or "/"
                found[folder] = None
                for name in below if path == request.paths[0] else ():
                    if name:
                        found[f"{folder}/{name.replace('%j', request.job_id)}"] = None
        return {folder: None for folder in found if folder.startswith("/") and not self._reader.remote(folder)}

    def _plan(self, request: LogRequest) -> Plan | Unavailable:
        if request.started_at is None and request.ended_at is None:
            return self._unavailable(UnavailableReason.MISSING, f"{request.key}: the attempt has not started")
        paths: list[str] = []
        refused: list[Unavailable] = []
        for path in dict.fromkeys(request.paths):
            try:
                check_path(path)
            except RefusedError as why:
                refused.append(self._unavailable(why.reason, why.detail))
                continue
            if path != NULL_DEVICE:
                paths.append(path)
        if not paths:
            if refused:
                return refused[0]
            return self._unavailable(UnavailableReason.MISSING, f"{request.key}: the job writes no output file")
        return Plan(
            paths=tuple(paths),
            owner=request.user,
            unavailable=tuple(refused),
            tails=lambda paths, cursor, before: self._tails(request, paths, before),
        )

    def _unavailable(self, reason: UnavailableReason, detail: str) -> Unavailable:
        return Unavailable(source=self.name, reason=reason, detail=detail)

    def _tails(self, request: LogRequest, paths: Sequence[str], before: Cursor) -> Tails:
        """In a reading thread: everything here may ask the file system or the user database."""
        uid = self._uid(request)
        now = self._clock.now()
        more = self._more(request, paths, now)
        given = set(request.paths)
        every = [*_distinct(paths), *(path for path in more.paths if path not in given)]
        handing = self._root_reader.for_user(uid, request.job_id, every) if self._root_reader is not None else None
        access = Access(owners=frozenset({uid}), owner_name=f"{request.user} (uid {uid})", handing=handing)

        def tail(path: str) -> Tail:
            return Tail(
                path=path,
                access=access,
                now=now,
                started_at=request.started_at,
                ended_at=request.ended_at,
                ownership=self._ownership,
                before=before.marks.get(path),
                optional=path not in given,
            )

        unavailable = tuple(self._unavailable(why.reason, why.detail) for why in more.refused)
        return Tails(paths=every, tail=tail, handing=handing, unavailable=unavailable)

    def _uid(self, request: LogRequest) -> int:
        """Raises `RefusedError` for a user this host does not know: whose file it is cannot be told then."""
        if request.user_id is not None:
            return request.user_id
        uid = self._uids.get(request.user)
        if uid is None:
            uid = self._lookup_uid(request.user)
            if uid is None:
                raise RefusedError(
                    UnavailableReason.PERMISSION,
                    f"user {printable(request.user)!r} is not known on this host, so no file can be told to be theirs",
                )
            self._uids[request.user] = uid
        return uid

    def _more(self, request: LogRequest, paths: Sequence[str], now: datetime) -> Found:
        """Files that a pattern of the site names, asked for once: with the first output file."""
        if not self._patterns or not request.paths or paths[0] != request.paths[0]:
            return Found()
        ended = request.ended_at
        over = ended is not None and now >= ended + timedelta(seconds=self._ownership.grace_seconds)
        what = (paths[0], request.job_id, request.nodes, over)  # what was listed before the end may lack a late file
        listed = self._listed.get(request.key)
        if listed is None or listed.what != what or self._clock.monotonic() - listed.at > LISTED_SECONDS:
            at = self._clock.monotonic()
            found = find(paths[0], self._patterns, job_id=request.job_id, nodes=request.nodes)
            if len(found.paths) <= FILES_FREE:
                return found
            if len(self._listed) >= LISTS_MAX:
                self._listed.clear()
            listed = self._listed[request.key] = _Listed(what, at, found)
        return listed.found


def _distinct(paths: Sequence[str]) -> list[str]:
    """Without names that lead to the same file as an earlier one: StdOut and StdErr often do."""
    known: set[tuple[int, int]] = set()
    kept = []
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116 - a Path costs more than the call, and this runs for every file
        except OSError:
            kept.append(path)  # opening it will say what is wrong
            continue
        if (found.st_dev, found.st_ino) not in known:
            kept.append(path)
            known.add((found.st_dev, found.st_ino))
    return kept
