"""What a job's user is told where he looks: a line in the job's Comment, and the same in our mark. Pure, stdlib only.

The Comment is the user's and other tools': everything that is in it stays as it was. A JSON object gets one more key
beside its own, any other text gets the line behind it; an earlier line of ours is replaced. The line cannot be read as
JSON, so that no text from a log ever opts a job in or out.
"""

import json
import re

KEY = "advisor_told"
LINE_CHARACTERS_MAX = 300
COMMENT_CHARACTERS_MAX = 4096
_OURS = re.compile(r"(?:^| \| )advisor: [^|{}]*$")
_PLAIN = str.maketrans({"{": "(", "}": ")", "|": "/", "\\": "/", '"': "'"})


def line(explanation: str, *, job_id: str, attempt: int) -> str:
    """One plain line; "" where there is nothing to say."""
    text = " ".join("".join(c if c.isprintable() else " " for c in explanation).split()).translate(_PLAIN)
    if not text:
        return ""
    more = f" (advisor explain {job_id})"
    said = f"attempt {attempt}: {text}"
    most = LINE_CHARACTERS_MAX - len(more)
    return (said if len(said) <= most else said[: most - 1] + "…") + more


def merged(comment: str, told: str) -> str | None:
    """The comment with our line. None where it cannot be added without touching what is others', or says it already."""
    if not told or any("\udc80" <= c <= "\udcff" for c in comment):
        return None
    document = _object(comment)
    if document is not None:
        document[KEY] = told
        result = json.dumps(document, ensure_ascii=False)
    elif comment.lstrip().startswith(("{", "[")):
        return None  # it was to be something that a tool reads
    else:
        others = without(comment)
        result = f"{others} | advisor: {told}" if others else f"advisor: {told}"
    return result if result != comment and len(result) <= COMMENT_CHARACTERS_MAX else None


def without(comment: str) -> str:
    """Text, without our line at its end."""
    return _OURS.sub("", comment)


def _object(comment: str) -> dict[str, object] | None:
    """The whole comment as one JSON object, if it is one and says nothing twice."""
    try:
        value = json.loads(comment, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found
