"""The stop switch that needs nobody: while a file is on the controller, the agent acts on nothing. Stdlib only.

It works with the database down, the advisor down and the agent hung in a call: the short-lived process that acts looks
for the file itself, right before its first verb. What it holds is for people; that it is there is what counts.
"""

from pathlib import Path

_WHY_CHARACTERS_MAX = 200
_EPOCH_SECONDS_MAX = 4_102_444_800  # the year 2100: whoever touches a file may give it any time
STOP_FILE = "/etc/recovery-advisor/stop"


def engaged(path: str) -> str:
    """Why nothing may be done, "" when nothing stops us. A file that cannot be looked at stops us too."""
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            said = file.read(_WHY_CHARACTERS_MAX)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    why = " ".join(said.decode("utf-8", "replace").split())
    return f"{path}: {why}" if why else f"{path} is there"


def written_at(path: str) -> float | None:
    """When it was last written, in seconds of the epoch; None where nobody can tell, or it is no time to speak of."""
    try:
        found = Path(path).stat().st_mtime
    except OSError:
        return None
    return found if 0 <= found < _EPOCH_SECONDS_MAX else None
