"""`advisor correct` and `advisor corrections`: right verdicts beside wrong ones, and bundles to test rules against."""

import json
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict

from advisor.client import action_name
from advisor.commands.decisions import ACTIONS, connected
from advisor.commands.job_ids import named
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, complain, one_line, print_json, print_table, short_time
from advisor.core.words import Category
from advisor.v1 import common_pb2, operator_pb2

correct_app = typer.Typer()
corrections_app = typer.Typer(rich_markup_mode=None, help="Corrected verdicts: see, and make test cases of them.")
TRUTH = "truth.jsonl"


@correct_app.command()
def correct(
    decision_id: Annotated[
        str, typer.Argument(metavar="DECISION_ID", help="As `decisions list` prints it, or the beginning.")
    ],
    category: Annotated[str | None, typer.Option(help="The right category, e.g. application.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="A node that was to blame; may be repeated.")] = None,
    no_node: Annotated[bool, typer.Option("--no-node", help="No node was to blame.")] = False,
    action: Annotated[str, typer.Option(help="What had been right: restart, stop or none.")] = "",
    why: Annotated[str, typer.Option(help="How you know, kept beside it. Required.")] = "",
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Say what the right verdict would have been. It counts in the shadow report and becomes a test case.

    What you leave out is not corrected. A node that you clear loses the weight that the wrong verdict gave it. Said
    again, the newer one holds.

    \b
    Examples:
      advisor correct e3a382e8 --category application --no-node --why "the loader divides by zero"
      advisor correct e3a382e8 --category interconnect --node gpu017 --why "the cable was loose"
    """
    if not why.strip():
        raise CommandError("say how you know: --why TEXT is kept", code=2)
    if node and no_node:
        raise CommandError("--node and --no-node cannot both be so", code=2)
    if category is not None and category not in list(Category):
        raise CommandError(f"--category {category}: choose one of {', '.join(Category)}", code=2)
    if action and action not in ACTIONS:
        raise CommandError(f"--action {action}: choose one of {', '.join(ACTIONS)}", code=2)
    request = operator_pb2.CorrectVerdictRequest(decision_id=decision_id, category=category, why=why)
    if action:
        request.action = common_pb2.Action.Value(f"ACTION_{action.upper()}")
    if node or no_node:
        request.nodes.names.extend(node or ())
        request.nodes.SetInParent()
    with connected(socket, configuration) as client:
        made = client.call(client.operators.CorrectVerdict, request)
    if form is not Format.TABLE:
        print_json(_document(made), form)
        return
    print(one_line(f"{made.decision_id[:13]} ({named(made.attempt)}): {_change(made)}"))


@corrections_app.command("list")
def list_corrections(
    cluster: Annotated[str | None, typer.Option(help="Only of this cluster.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """The newest correction of each decision, newest first.

    \b
    Examples:
      advisor corrections list --format jsonl
    """
    found = _found(cluster, socket, configuration)
    if form is not Format.TABLE:
        print_json([_document(item) for item in found], form)
        return
    rows = (
        (
            item.decision_id[:13],
            named(item.attempt),
            _change(item),
            item.who,
            short_time(item.at.ToDatetime(UTC)),
            item.why,
        )
        for item in found
    )
    columns = ("decision", "job", "corrected", "by", "when", "why")
    print_table(columns, rows, empty="no corrections", least=("when",))


@corrections_app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="A new folder: one bundle for each, and truth.jsonl beside them.")],
    redact: Annotated[bool, typer.Option("--redact", help="Replace users, hosts, paths and addresses.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Only of this cluster.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Write a bundle of each corrected attempt with the right verdict beside it: cases to test rules against.

    A bundle holds what can still be read, and for what is gone the evidence that was stored with the decision. Look at
    them before you give them away, also with --redact.

    \b
    Examples:
      advisor corrections export cases --redact
      advisor analyze cases/attribution/*/ --format jsonl
    """
    from advisor.collecting import Wanted
    from advisor.commands.bundle import gather

    found = _found(cluster, socket, configuration)
    if not found:
        raise CommandError("there are no corrections to export")
    cases = folder / "attribution"
    try:
        cases.mkdir(parents=True)
    except OSError as error:
        raise CommandError(f"{cases}: {error.strerror}", code=2) from None
    truths: list[dict[str, Any]] = []
    for number, item in enumerate(reversed(found), 1):
        name = f"{number:03}-{_category(item)}-{item.decision_id[:8]}"
        wanted = Wanted(job_id=item.attempt.job_id, attempt=item.attempt.attempt, redact=redact)
        try:
            made = gather(wanted, cases / name, socket=socket, configuration=configuration)
        except CommandError as error:
            complain(f"{named(item.attempt)}: no bundle: {error}")
            continue
        for note in made.notes:
            complain(f"{name}: {note}")
        truths.append(_truth(name, item, redacted=redact))
    lines = "".join(json.dumps(truth, ensure_ascii=True) + "\n" for truth in truths)
    (folder / TRUTH).write_text(lines, encoding="ascii")
    print(one_line(f"{len(truths)} of {len(found)} corrections are cases in {folder}"))
    if len(truths) < len(found):
        raise typer.Exit(1)


def _found(cluster: str | None, socket: Path | None, configuration: Path | None) -> list[operator_pb2.Correction]:
    request = operator_pb2.ListCorrectionsRequest(cluster=given("--cluster", cluster) or None)
    with connected(socket, configuration) as client:
        return list(client.call(client.operators.ListCorrections, request).corrections)


def _category(item: operator_pb2.Correction) -> str:
    return item.category if item.HasField("category") else item.was_category


def _truth(name: str, item: operator_pb2.Correction, *, redacted: bool) -> dict[str, Any]:
    """As tests/cases/truth.jsonl has it. What was not corrected was right. Redacted bundles name other nodes."""
    nodes = list(item.nodes.names) if item.HasField("nodes") else list(item.was_nodes)
    return {
        "id": name,
        "name": name,
        "confidence": "high",
        "category": [_category(item)],
        "nodes": [] if redacted else nodes,
        **({"nodes_redacted": len(nodes)} if redacted and nodes else {}),
        "action": [action_name(item.action or item.was_action)],
        "root_cause": "" if redacted else item.why,
        "source": f"correction {item.correction_id}",
    }


def _change(item: operator_pb2.Correction) -> str:
    parts = []
    if item.HasField("category"):
        parts.append(f"{item.was_category} → {item.category}")
    if item.action:
        parts.append(f"{action_name(item.was_action)} → {action_name(item.action)}")
    if item.HasField("nodes"):
        before, after = ("+".join(names) or "no node" for names in (item.was_nodes, item.nodes.names))
        parts.append(f"{before} → {after}")
    return ", ".join(parts)


def _document(item: operator_pb2.Correction) -> dict[str, object]:
    document: dict[str, object] = MessageToDict(item, preserving_proto_field_name=True)
    if item.HasField("nodes"):
        document["nodes"] = list(item.nodes.names)
    return document
