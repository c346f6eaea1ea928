"""`advisor replay`: make a decision again from what was stored with it, or as another policy would have made it."""

import difflib
import json
from collections.abc import Iterator
from typing import Annotated

import typer

from advisor.build import build_id
from advisor.commands.decisions import connected
from advisor.commands.instead import PolicyOption, RulesOption, instead_of, shown
from advisor.commands.options import ConfigOption, FormatOption, SocketOption
from advisor.commands.output import CommandError, Format, harmless, one_line, print_json
from advisor.core import codec
from advisor.core.model import Decision
from advisor.replay import Instead, Packed, Verdict, decide_instead, policy_differences, read_inputs, stored_policy
from advisor.v1 import audit_pb2

app = typer.Typer(rich_markup_mode=None)


@app.command()
def replay(
    decision_id: Annotated[
        str, typer.Argument(metavar="DECISION_ID", help="As `decisions list` prints it, or the beginning.")
    ],
    policy: PolicyOption = None,
    rules: RulesOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Reproduce a decision from its stored inputs, byte for byte. Exit 0 when it is the same, 1 with a diff when not.

    With --policy or --rules: what would have been decided of the same facts. Facts that other rules would have read
    from the logs are not known any more.

    \b
    Examples:
      advisor replay 01890c7e-…
      advisor replay 01890c7e-… --policy stricter.toml
      advisor replay 01890c7e-… --rules our-rules.toml --format json
    """
    instead = instead_of(policy, rules)
    with connected(socket, configuration) as client:
        stored = client.decision_inputs(decision_id)
    packed = Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy)
    again = _decide_again(stored, packed, instead)
    data = codec.encode(again)
    same = data == stored.decision
    other = instead != Instead()
    if form is not Format.TABLE:
        print_json(_document(stored, packed, again, instead), form)
    else:
        lines = _compared(stored, packed, again, instead) if other else _report(stored, data)
        for line in lines:
            print(harmless(line))
    if not same:
        raise typer.Exit(1)


def _decide_again(stored: audit_pb2.DecisionInputs, packed: Packed, instead: Instead) -> Decision:
    try:
        return decide_instead(packed, instead)
    except codec.CodecError as error:
        raise CommandError(
            f"the inputs of build {stored.build} cannot be read by this one ({build_id()}): {error}"
        ) from None


def _before(stored: audit_pb2.DecisionInputs, packed: Packed) -> Verdict:
    """What this build decides with the stored policy and rules: only what differs from that is the other's doing."""
    if stored.build == build_id():
        return Verdict.of(codec.decode(Decision, stored.decision))
    return Verdict.of(_decide_again(stored, packed, Instead()))


def _document(stored: audit_pb2.DecisionInputs, packed: Packed, again: Decision, instead: Instead) -> dict[str, object]:
    data = codec.encode(again)
    document: dict[str, object] = {
        "decision_id": stored.decision_id,
        "same": data == stored.decision,
        "build": {"stored": stored.build, "here": build_id()},
        "inputs_hash": stored.inputs_hash,
        "stored": json.loads(stored.decision),
        "replayed": json.loads(data),
    }
    if instead != Instead():
        before, after = _before(stored, packed), Verdict.of(again)
        document["different"] = {name: [old, new] for name, old, new in before.differences(after)}
        document["why"] = [before.why, after.why]
        if instead.policy is not None:
            changes = policy_differences(stored_policy(packed), instead.policy)
            document["policy"] = {name: [old, new] for name, old, new in changes}
        document["rules"] = [rule.id for rule in instead.rules]
    return document


def _compared(stored: audit_pb2.DecisionInputs, packed: Packed, again: Decision, instead: Instead) -> Iterator[str]:
    """What would have been decided instead, what of it differs, why, and which numbers are others."""
    inputs = read_inputs(packed)
    before, after = _before(stored, packed), Verdict.of(again)
    different = list(before.differences(after))
    head = f"job {inputs.snapshot.job.job_id}, attempt {inputs.snapshot.attempt.number}"
    if not different:
        yield f"{head}: the verdict is the same: {before.action} ({before.reason})"
    else:
        yield f"{head}: decided then  →  would be decided"
        yield from shown(different)
    if before.why != after.why:
        yield f"  why then       {one_line(before.why)}"
        yield f"  why now        {one_line(after.why)}"
    if instead.policy is not None:
        numbers = list(policy_differences(stored_policy(packed), instead.policy))
        yield f"policy: {len(numbers)} numbers differ from those that decided"
        yield from shown(numbers, width=32)
    if instead.rules:
        yield f"rules: {', '.join(rule.id for rule in instead.rules)}"
    if stored.build != build_id():
        yield f"note: decided by build {stored.build}; both sides are as this one ({build_id()}) decides"


def _report(stored: audit_pb2.DecisionInputs, again: bytes) -> Iterator[str]:
    if again == stored.decision:
        yield f"same: {len(again)} bytes, sha256 {codec.content_hash(again)}"
        return
    here = build_id()
    if stored.build != here:
        yield f"different: decided by build {stored.build}, this is {here}"
    else:
        yield "different, although the build is the same: please report this"
    before, after = (
        json.dumps(json.loads(data), indent=1, sort_keys=True).splitlines() for data in (stored.decision, again)
    )
    yield from difflib.unified_diff(before, after, "stored", "replayed", lineterm="", n=1)
