"""`--policy` and `--rules`: other numbers and rules to decide with, and how their effect is shown."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from advisor.commands.output import CommandError
from advisor.core.policy import Policy
from advisor.core.rules import Rule
from advisor.replay import Instead
from advisor.rules.loader import RulesError, load_changed
from advisor.rules.policy import PolicyError, load_policy

PolicyOption = Annotated[
    Path | None, typer.Option("--policy", help="A policy file instead of the policy that decided.")
]
RulesOption = Annotated[
    Path | None, typer.Option("--rules", help="A rules file: its rules replace those of the same id, or are added.")
]


def instead_of(policy: Path | None, rules: Path | None) -> Instead:
    """Every problem of both files, with where it is, in one error."""
    problems: list[str] = []
    chosen: Policy | None = None
    changed: tuple[Rule, ...] = ()
    try:
        chosen = load_policy(policy) if policy is not None else None
    except PolicyError as error:
        problems.extend(f"{error.origin}: {problem}" for problem in error.problems)
    try:
        changed = load_changed(rules) if rules is not None else ()
    except RulesError as error:
        problems.extend(error.problems)
    if problems:
        raise CommandError("; ".join(problems), code=2)
    return Instead(policy=chosen, rules=changed)


def shown(differences: Iterable[tuple[str, str, str]], *, width: int = 14) -> Iterator[str]:
    """One line each: what, before, after."""
    for name, old, new in differences:
        yield f"  {name.replace('_', ' '):<{width}} {old or '-'}  →  {new or '-'}"
