"""The benign corpus: lines that healthy jobs and nodes print, by framework, each group with its source."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from advisor.core.lines import mask
from advisor.core.words import Trust

FOLDER = Path(__file__).with_name("benign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lines of one kind. `node`: whose kernel log they stand in, None for a job's own log.

    `ends`: these lines say that training is over, which hides what comes after them.
    """

    name: str
    source: str
    lines: tuple[str, ...]
    node: str | None = None
    ends: bool = False

    @property
    def trust(self) -> Trust:
        return Trust.LOG if self.node is None else Trust.KERNEL


def load_groups() -> tuple[Group, ...]:
    """All groups of all files, in order. An unknown key or an empty group is an error."""
    groups = []
    for path in sorted(FOLDER.glob("*.toml")):
        for raw in tomllib.loads(path.read_text("utf-8"))["group"]:
            lines = tuple(raw.pop("lines").splitlines())
            group = Group(**{**raw, "name": f"{path.stem}: {raw['name']}", "lines": lines})
            if not lines or not all(line.strip() for line in lines):
                raise ValueError(f"{group.name}: an empty line")
            groups.append(group)
    return tuple(groups)


def shape(line: str) -> str:
    """What makes two lines the same shape: numbers masked, spaces folded."""
    return " ".join(mask(line).split())
