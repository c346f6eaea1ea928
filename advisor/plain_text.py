"""Text of others made harmless to look at; errors and durations as people say them."""

ERROR_CHARS_MAX = 300
ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}
# Bidirectional overrides and isolates reorder what is printed after them; separators break lines.
ESCAPED |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0x200F)}


def harmless(text: str) -> str:
    """Text of others for a terminal: control characters and lone surrogates are shown, never obeyed."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").translate(ESCAPED)


def one_line(text: str) -> str:
    return harmless(text).replace("\n", "\\n")


# What a service says to a call that its database is needed for; its clients tell it from a service that is not there.
STORE_SILENT = "the store does not answer: try again"


def error_text(error: BaseException) -> str:
    """What went wrong, in one line: without the statement that failed, which a database adds in further lines."""
    return f"{type(error).__name__}: {said(error)}"[:ERROR_CHARS_MAX]


def said(error: BaseException) -> str:
    """The first line of whoever said it first, without the names of the layers that passed it on."""
    return next(iter(str(getattr(error, "orig", None) or error).strip().splitlines()), "")


def seconds_text(seconds: float) -> str:
    """A duration that a person reads at a glance."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
