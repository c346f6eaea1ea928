"""Python tracebacks and torchelastic's "Root Cause" block: what spans several lines."""

import re

ROOT_CAUSE_LINES = 14  # the block has 7 lines; interleaved ones may stand between
_FRAME = re.compile(rb'File \\?"([^"\\\n]{1,400})\\?", line \d{1,7}, in ([\w<>.]{1,120})')
_FIELD = re.compile(r"\b(time|host|rank|exitcode|error_file|traceback) {0,12}: ?(.{0,300})$")
_LIBRARY = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>", "importlib", "runpy.py")
# Who printed a line, as srun --label ("12: ", "P1 12: ") and torch ("[rank3]: ", "[default0]:") put it in front.
_LABEL = re.compile(rb" *(?:(?:P\d{1,5} +)?\d{1,7}|\[[\w.-]{1,40}\]):", re.ASCII)
# A frame as rich draws it, in a box whose lines end where the terminal did: `│ /a/train.py:12 in main   │`.
_BORDER = "│".encode()
_BOXED = re.compile(
    _BORDER
    + rb" ([^\s:\xe2]{1,400}):\d{1,7} in"
    + rb"(?: |(?: {0,200}\xe2\x94\x82)?\n[^\n\xe2]{0,40}\xe2\x94\x82 )([\w<>.]{1,120})"
)
FRAMES_KEPT = 3


def printed_alike(text: bytes, line: bytes) -> bytes:
    """The lines of `text` by whoever printed `line`. Ranks that fail together print their tracebacks in between each
    other, in another order each time: the frames of one would be taken for those of another.
    """
    label = _LABEL.match(line)
    if label is None:
        return text
    return b"\n".join(other for other in text.split(b"\n") if other.startswith(label[0]))


def frames_before(text: bytes) -> str:
    """The innermost frames of the last traceback in `text`, as `file.py:function` joined by `;`, innermost last.

    Frames of the project itself are preferred: library frames are the same for unrelated faults. Line numbers are left
    out, so that an edit elsewhere does not make a known failure look new.
    """
    start = max(text.rfind(b"Traceback (most recent call last)"), 0)
    boxed = text.find(_BORDER, start) >= 0
    found = [
        (path.decode("utf-8", "replace"), function.decode("ascii", "replace"))
        for path, function in (_BOXED if boxed else _FRAME).findall(text, start)
    ]
    own = [frame for frame in found if not any(mark in frame[0] for mark in _LIBRARY)]
    return ";".join(f"{path.rsplit('/', 1)[-1]}:{function}" for path, function in (own or found)[-FRAMES_KEPT:])


def ignored_before(text: bytes) -> bool:
    """The last traceback in `text` is one that Python prints while it shuts down ("Exception ignored in")."""
    start = text.rfind(b"Traceback (most recent call last)")
    if start < 0:
        return False
    before = text[: text.rfind(b"\n", 0, start) + 1].rstrip().rsplit(b"\n", 1)[-1]
    return b"Exception ignored in" in before


def root_cause_line(line: str, block: dict[str, str]) -> bool:
    """Put one line of the block into `block`; True when it was the last."""
    match = _FIELD.search(line.rstrip())
    if match is None:
        return False
    key, value = match[1], match[2].strip()
    if key in block:
        # The next entry began: an earlier one is complete.
        return True
    if key == "rank":
        rank = re.match(r"(\d{1,7})(?: \(local_rank: (\d{1,4})\))?", value)
        if rank is not None:
            block["rank"] = rank[1]
            if rank[2] is not None:
                block["local"] = rank[2]
    elif key == "exitcode":
        code = re.match(r"-?\d{1,5}", value)
        if code is not None:
            block["exitcode"] = code[0]
    elif key == "traceback":
        block["error"] = value
        return True
    elif key in {"host", "time"}:
        block[key] = value
    return False
