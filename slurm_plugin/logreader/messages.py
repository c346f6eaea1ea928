"""What is said over the socket: one packet asks for some files of one user, one packet answers.

Asked: `{"v":1,"n":7,"uid":1000,"job":"main/123","paths":["/home/…"]}`. Answered: `{"v":1,"n":7,"files":[{"fd":0},
{"refused":"missing","detail":"…"}]}`, a descriptor for each `fd`, in order. `n` is the asker's own number: an answer to
an earlier question is told by it. `connectors.logs.root_reader` is the other side; the two share no code.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_plugin.logreader.opening import Refused

VERSION = 1
REQUEST_BYTES_MAX = 128 * 1024
PATHS_MAX = 64  # a kernel takes 253 descriptors in one message
DETAIL_CHARACTERS_MAX = 200
_JOB = re.compile(r"[A-Za-z0-9_./:+-]{0,120}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    number: int
    uid: int
    job: str  # for the journal only
    paths: tuple[str, ...]


def parse(data: bytes) -> Question | None:
    """None for anything that the advisor would not send."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("v") != VERSION:
        return None
    number, uid, job, paths = (value.get(key) for key in ("n", "uid", "job", "paths"))
    if type(number) is not int or not 0 <= number < 2**53 or type(uid) is not int or not 0 <= uid < 2**32 - 1:
        return None
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        return None
    if not isinstance(paths, list) or not 0 < len(paths) <= PATHS_MAX or not all(isinstance(p, str) for p in paths):
        return None
    return Question(number=number, uid=uid, job=job, paths=tuple(paths))


def answer(number: int, results: Sequence[int | Refused]) -> tuple[bytes, list[int]]:
    """The packet and the descriptors that go with it."""
    descriptors = [result for result in results if isinstance(result, int)]
    files: list[dict[str, object]] = []
    place = 0
    for result in results:
        if isinstance(result, Refused):
            files.append({"refused": result.reason, "detail": result.detail[:DETAIL_CHARACTERS_MAX]})
        else:
            files.append({"fd": place})
            place += 1
    return json.dumps({"v": VERSION, "n": number, "files": files}, separators=(",", ":")).encode(), descriptors
