"""`advisor replay`: make a decision again from what was stored with it."""

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from advisor.build import build_id
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption
from advisor.commands.output import CommandError, Format, harmless, print_json
from advisor.core import codec
from advisor.core.policy import Policy
from advisor.replay import Packed, reproduce
from advisor.rules.policy import PolicyError, load_policy
from advisor.v1 import audit_pb2

app = typer.Typer(rich_markup_mode=None)


@app.command()
def replay(
    decision_id: Annotated[
        str, typer.Argument(metavar="DECISION_ID", help="As `decisions list` prints it, or the beginning.")
    ],
    policy: Annotated[Path | None, typer.Option(help="Decide with this policy instead of the stored one.")] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Reproduce a decision from its stored inputs, byte for byte. Exit 0 when it is the same, 1 with a diff when not.

    \b
    Examples:
      advisor replay 01890c7e-…
      advisor replay 01890c7e-… --policy stricter.toml
    """
    try:
        other = load_policy(policy) if policy is not None else None
    except PolicyError as error:
        raise CommandError(str(error), code=2) from None
    with connected(socket, configuration) as client:
        stored = client.decision_inputs(decision_id)
    again = _decide_again(stored, other)
    same = again == stored.decision
    if form is Format.JSON:
        print_json(
            {
                "decision_id": stored.decision_id,
                "same": same,
                "build": {"stored": stored.build, "here": build_id()},
                "inputs_hash": stored.inputs_hash,
                "stored": json.loads(stored.decision),
                "replayed": json.loads(again),
            }
        )
    else:
        for line in _report(stored, again, same, policy):
            print(harmless(line))
    if not same:
        raise typer.Exit(1)


def _decide_again(stored: audit_pb2.DecisionInputs, policy: Policy | None) -> bytes:
    packed = Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy)
    try:
        return codec.encode(reproduce(packed, policy))
    except codec.CodecError as error:
        raise CommandError(
            f"the inputs of build {stored.build} cannot be read by this one ({build_id()}): {error}"
        ) from None


def _report(stored: audit_pb2.DecisionInputs, again: bytes, same: bool, policy: Path | None) -> Iterator[str]:
    if same:
        yield f"same: {len(again)} bytes, sha256 {codec.content_hash(again)}"
        return
    here = build_id()
    if policy is not None:
        yield f"different under {policy}"
    elif stored.build != here:
        yield f"different: decided by build {stored.build}, this is {here}"
    else:
        yield "different, although the build is the same: please report this"
    before, after = (
        json.dumps(json.loads(data), indent=1, sort_keys=True).splitlines() for data in (stored.decision, again)
    )
    yield from difflib.unified_diff(before, after, "stored", "replayed", lineterm="", n=1)
