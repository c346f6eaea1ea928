"""`advisor rules`: see the signatures, and check one's own before the service loads them."""

from pathlib import Path
from typing import Annotated

import typer

from advisor.commands.output import CommandError, Format, complain, print_json, print_table
from advisor.core.rules import Rule, RuleSet
from advisor.rules.loader import RulesError, load_rules

app = typer.Typer()
FormatOption = Annotated[Format, typer.Option("--format", help="table or json.")]


@app.command("list")
def list_rules(
    files: Annotated[list[Path] | None, typer.Argument(help="More rules, as TOML.")] = None,
    category: Annotated[str, typer.Option(help="Only rules of this category.")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """List every signature: what it means, whom it points at, and where that is known from."""
    rules = [rule for rule in _load(files).rules if not category or rule.category.value == category]
    if output is Format.JSON:
        print_json([_document(rule) for rule in rules])
        return
    print_table(
        ("rule", "category", "role", "points at", "meaning"),
        [(rule.id, rule.category.value, rule.role.value, rule.implicates.value, rule.title) for rule in rules],
        empty="no such rules",
    )


@app.command("check")
def check_rules(
    files: Annotated[list[Path], typer.Argument(help="Rule files, as TOML.", metavar="FILE...")],
    output: FormatOption = Format.TABLE,
) -> None:
    """Check rule files: every problem with its file, rule and key. Exit 1 when there is one."""
    try:
        rules = load_rules(files)
    except RulesError as error:
        if output is Format.JSON:
            print_json({"ok": False, "problems": list(error.problems)})
        else:
            for problem in error.problems:
                complain(problem)
        raise typer.Exit(1) from None
    if output is Format.JSON:
        print_json({"ok": True, "rules": len(rules.rules), "digest": rules.digest})
    else:
        print(f"{len(rules.rules)} rules, {len(rules.xids)} Xids, digest {rules.digest}")


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
