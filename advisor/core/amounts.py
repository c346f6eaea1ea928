"""How many of something there are, as people say it."""


def many(count: int, what: str, whats: str = "") -> str:
    """ "1 line", "2 lines"; `whats` where more of them are not called by an s."""
    return f"{count} {what if count == 1 else whats or what + 's'}"
