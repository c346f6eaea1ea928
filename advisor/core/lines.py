"""Bytes to lines that patterns can be matched on.

Once per chunk, not per line: carriage returns end lines (a fault is often glued to a progress bar), terminal colours
and NULs go, over-long lines keep head and tail (the return code stands at the end). Text stays bytes until a rule
hits; only then is it decoded, with replacement, since nobody promised UTF-8.
"""

import re

LINE_BYTES_MAX = 8_192
TEXT_CHARS_MAX = 600

# CSI and OSC sequences, then single-character escapes. Also colours whose ESC byte a collector has eaten: `[36m(`.
# Not RE2: these begin with a literal and cannot backtrack far, and substituting costs RE2's wrapper ten times as much.
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_BARE_COLOUR = re.compile(rb"\[(?:0|1|22|39|[349][0-7])(?:;\d{1,2}){0,2}m")

_HEX = re.compile(r"0x[0-9a-fA-F]+|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


def clean(data: bytes) -> bytes:
    """Line-aligned bytes without colours, NULs, carriage returns and over-long lines. Keeps the number of lines of
    everything that had no carriage return."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\x00" in data:
        data = data.replace(b"\x00", b"")
    if b"m" in data and b"[0m" in data:
        data = _BARE_COLOUR.sub(b"", data)
    if _has_long_line(data):
        data = b"\n".join(shorten(line) for line in data.split(b"\n"))
    return data


def _has_long_line(data: bytes) -> bool:
    """Probes one byte range per LINE_BYTES_MAX instead of splitting: a line longer than that must cover a whole one."""
    if len(data) <= LINE_BYTES_MAX:
        return False
    start = 0
    while start + LINE_BYTES_MAX < len(data):
        end = data.rfind(b"\n", start, start + LINE_BYTES_MAX + 1)
        if end < 0:
            return True
        start = end + 1
    return len(data) - start > LINE_BYTES_MAX


def shorten(line: bytes) -> bytes:
    """Head and tail of an over-long line."""
    if len(line) <= LINE_BYTES_MAX:
        return line
    half = LINE_BYTES_MAX // 2 - 4
    return line[:half] + b" ... " + line[-half:]


def decode(line: bytes) -> str:
    """One line as text: bad UTF-8 replaced, control characters dropped."""
    text = line.decode("utf-8", "replace")
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " if char == "\t" else "" for char in text)
    return text


def cap(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Head and tail of a long text."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2 - 3
    return f"{text[:half]} ... {text[-half:]}"


def mask(text: str) -> str:
    """What stays the same when an error repeats: numbers, addresses and hashes are blanked."""
    return _NUMBER.sub("#", _HEX.sub("#", text))


def raw_line_numbers(raw: bytes) -> list[int]:
    """For each line of `clean(raw)` the index of the raw line (by newline) that it was part of."""
    numbers: list[int] = []
    for index, line in enumerate(raw.replace(b"\r\n", b"\n").split(b"\n")):
        numbers.extend([index] * (1 + line.count(b"\r")))
    return numbers
