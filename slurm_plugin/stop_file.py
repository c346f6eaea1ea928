"""The stop switch that needs nobody: while a file is on the controller, the agent acts on nothing. Stdlib only.

It works with the database down, the advisor down and the agent hung in a call: the short-lived process that acts looks
for the file itself, right before its first verb. What it holds is for people; that it is there is what counts.
"""

from pathlib import Path

_WHY_CHARACTERS_MAX = 200
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
