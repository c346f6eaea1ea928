"""What a notice says, as plain text that nothing in it can turn into anything else.

Users choose names and lines of logs, and both get here. So control characters, direction marks and other invisible
ones are shown as escapes, texts are cut, `@` is kept from mentioning anybody and `://` from becoming a link. What a
channel's own markup needs beyond that is escaped by the channel.
"""

from advisor.ports import Notice, NoticeItem

TEXT_CHARACTERS_MAX = 400
NODES_SHOWN = 12
ITEMS_SHOWN = 20
_APART = "\u200b"  # a character without width: still readable, and no longer a mention or a link


def harmless(text: str, most: int = TEXT_CHARACTERS_MAX) -> str:
    """One line of what anybody may have written."""
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: most + 1])
    shown = shown[: most - 1] + "…" if len(shown) > most else shown
    return shown.replace("@", f"@{_APART}").replace("://", f":{_APART}//")


def subject(notice: Notice) -> str:
    """One line."""
    if len(notice.items) == 1:
        return _headline(notice.items[0])
    clusters = sorted({harmless(item.cluster, 40) for item in notice.items})
    return f"{len(notice.items)} incidents on {', '.join(clusters[:3])}"


def lines(notice: Notice) -> list[str]:
    """The message, headline first."""
    if len(notice.items) == 1:
        said = _whole(notice.items[0])
    else:
        said = [subject(notice)]
        for item in notice.items[:ITEMS_SHOWN]:
            said.append(f"{_headline(item)} {item.link}".rstrip())
        if len(notice.items) > ITEMS_SHOWN:
            said.append(f"and {len(notice.items) - ITEMS_SHOWN} more: advisor decisions list")
    if notice.repeat:
        said.append("(An earlier try broke off: this may be a repeat.)")
    return said


def _headline(item: NoticeItem) -> str:
    who = f"job {harmless(item.job_id, 40)} of {harmless(item.user, 40)} on {harmless(item.cluster, 40)}"
    what = f"{harmless(item.action, 20)}: {harmless(item.category, 40)}"
    monitor = "" if item.mode == "autonomous" else f" [{harmless(item.mode, 20)}]"
    update = f" (update {item.update})" if item.update else ""
    return f"{who}: {what}{monitor}{update}"


def _whole(item: NoticeItem) -> list[str]:
    nodes = [harmless(node, 60) for node in item.nodes[:NODES_SHOWN]]
    more = f" and {len(item.nodes) - NODES_SHOWN} more" if len(item.nodes) > NODES_SHOWN else ""
    said = [_headline(item), harmless(item.explanation)]
    if item.root_cause:
        said.append(f"Cause: {harmless(item.root_cause)}")
    if nodes:
        said.append(f"Nodes: {', '.join(nodes)}{more}")
    said.append(
        f"Attempt {item.attempt}, partition {harmless(item.partition, 40)}, {item.decided_at:%Y-%m-%d %H:%M:%S} UTC"
    )
    said.append(item.link or f"advisor decisions show {item.decision_id}")
    return said
