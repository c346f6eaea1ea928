"""`advisor rules`: see the signatures, check one's own before the service loads them, and run a job's own log rules."""

import json
from pathlib import Path
from typing import Annotated

import typer

from advisor.commands.options import given_category
from advisor.commands.output import CommandError, Format, complain, print_json, print_table
from advisor.core.rules import Rule, RuleSet
from advisor.rules.job_rule_cases import CaseError, read_cases, run_case
from advisor.rules.loader import RulesError, load_rules

app = typer.Typer()
FormatOption = Annotated[Format, typer.Option("--format", help="table, json, or jsonl.")]


@app.command("list")
def list_rules(
    files: Annotated[list[Path] | None, typer.Argument(help="More rules, as TOML.")] = None,
    category: Annotated[str, typer.Option(help="Only rules of this category.")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """List every signature: what it means, whom it points at, and where that is known from.

    \b
    Examples:
      advisor rules list --category interconnect
    """
    given_category(category or None)
    rules = [rule for rule in _load(files).rules if not category or rule.category.value == category]
    if output is not Format.TABLE:
        print_json([_document(rule) for rule in rules], output)
        return
    print_table(
        ("rule", "category", "role", "points at", "meaning"),
        [(rule.id, rule.category.value, rule.role.value, rule.implicates.value, rule.title) for rule in rules],
        empty="no such rules",
        least=("role", "points at"),
    )


@app.command("check")
def check_rules(
    files: Annotated[list[Path], typer.Argument(help="Rule files, as TOML.", metavar="FILE...")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Check rule files: every problem with its file, rule and key. Exit 2 when there is one.

    \b
    Examples:
      advisor rules check /etc/recovery-advisor/site-rules.toml
    """
    try:
        rules = load_rules(files)
    except RulesError as error:
        if output is not Format.TABLE:
            print_json({"ok": False, "problems": list(error.problems)}, output)
        else:
            for problem in error.problems:
                complain(problem)
        raise typer.Exit(2) from None
    if output is not Format.TABLE:
        print_json({"ok": True, "rules": len(rules.rules), "digest": rules.digest}, output)
    else:
        print(f"{len(rules.rules)} rules, {len(rules.xids)} Xids, digest {rules.digest}")


@app.command("run")
def run_cases(
    cases: Annotated[Path, typer.Option("--cases", help="Cases, one JSON object a line.", metavar="FILE.jsonl")],
) -> None:
    """Run a job's own log rules (HyperPod's format) over given lines and times, without waiting.

    Prints one JSON object per case: its name, and the state at each of its check times. Rules that cannot be used are
    named on standard error, and the others of their case still work. Exit 2 when a case cannot be run at all.

    \b
    Examples:
      advisor rules run --cases cases.jsonl
    """
    try:
        read = read_cases(str(cases), cases.read_bytes())
    except OSError as error:
        raise CommandError(f"{cases}: cannot be read: {error.strerror}", code=2) from None
    except CaseError as error:
        raise CommandError(str(error), code=2) from None
    for case in read:
        for problem in case.rules.problems:
            complain(f"{case.place}: {problem}")
        states = [[seconds, state.value] for seconds, state in run_case(case)]
        print(json.dumps({"name": case.name, "states": states}))


def _load(files: list[Path] | None) -> RuleSet:
    try:
        return load_rules(files or ())
    except RulesError as error:
        raise CommandError(f"{error.problems[0]} (advisor rules check shows all)", code=2) from None


def _document(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.id,
        "title": rule.title,
        "category": rule.category.value,
        "role": rule.role.value,
        "implicates": rule.implicates.value,
        "kind": rule.kind.value,
        "weight": rule.weight,
        "pattern": rule.pattern,
        "source": rule.source,
    }
