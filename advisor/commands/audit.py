"""`advisor audit`: is the history what it was, keys for its seals, and copies of them kept elsewhere."""

import asyncio
import json
import os
import pwd
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, timedelta
from pathlib import Path
from typing import IO, Annotated

import typer
from google.protobuf.json_format import MessageToDict

from advisor.clock import SystemClock
from advisor.commands.database import database_url, one_moment, opened
from advisor.commands.decisions import ago, connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given, load_config
from advisor.commands.output import CommandError, Format, harmless, one_line, print_json, print_table, short_time
from advisor.commands.progress import Bar
from advisor.core.amounts import many
from advisor.retaining import Retention
from advisor.seals.chain import Chain, Finding, compare_copies
from advisor.seals.documents import StoredSeal
from advisor.seals.keys import PublicKey, SealKey, SealKeyError, load_key, load_public_key
from advisor.store import seal_verify, seals
from advisor.store.history import History
from advisor.store.incarnation import current_incarnation
from advisor.v1 import audit_pb2

app = typer.Typer(rich_markup_mode=None, help="Is the history what it was? Keys, seals, and how long it is kept.")
keys = typer.Typer(rich_markup_mode=None, help="Keys that sign the seals.")
app.add_typer(keys, name="key", no_args_is_help=True)

FINDINGS_MAX = 1_000  # shown
UNSEALED_AFTER = timedelta(minutes=10)
SEAL_LINE_BYTES_MAX = 8 * 1024 * 1024
_OF_MODES = frozenset({"mode_set", "mode_removed"})
_PLACE = ("cluster", "partition", "job", "category", "account")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

DsnOption = Annotated[
    Path | None, typer.Option("--dsn-file", help="Database to look at. Default: the service's, as configured.")
]
KeyOption = Annotated[
    list[Path] | None, typer.Option("--public-key", help="A key's .pub file that you trust. May be given again.")
]


@keys.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes; FILE.pub beside it.")],
    replaces: Annotated[Path | None, typer.Option(help="The former private key: it vouches for the new one.")] = None,
) -> None:
    """Make a key that signs seals. Name it as seal.key_file, restart, and keep FILE.pub where auditors find it.

    \b
    Examples:
      advisor audit key new /etc/recovery-advisor/seal.key
      advisor audit key new /etc/recovery-advisor/seal-2.key --replaces /etc/recovery-advisor/seal.key
    """
    try:
        made = SealKey.new(load_key(replaces) if replaces is not None else None)
        made.write(path)
    except SealKeyError as error:
        raise CommandError(str(error)) from None
    print(f"key {made.public.fingerprint}: {path} (private), {path}.pub")


@app.command("list")
def list_records(
    who: Annotated[str, typer.Option(help="Only of this account.")] = "",
    what: Annotated[str, typer.Option(help="Only this, e.g. order_given, mode_set, verdict_corrected.")] = "",
    subject: Annotated[str, typer.Option(help="Only what was done to this: a decision's id, an order's, a node.")] = "",
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    since: Annotated[str, typer.Option(help="Not older than: 30m, 6h, 2d.")] = "",
    everything: Annotated[bool, typer.Option("--everything", help="Also what the advisor does by itself.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Who did what, when, why and from where, newest first.

    \b
    Examples:
      advisor audit list --since 7d
      advisor audit list --who ada --format jsonl
    """
    request = audit_pb2.ListAuditRequest(
        who=who, what=what, subject=subject, cluster=given("--cluster", cluster), everything=everything
    )
    if since:
        request.since.CopyFrom(ago(since))
    with connected(socket, configuration) as client:
        found = list(client.audit_records(request, most=limit))
    if form is not Format.TABLE:
        print_json([MessageToDict(item, preserving_proto_field_name=True) for item in found], form)
        return
    rows = (
        (
            short_time(item.at.ToDatetime(UTC)),
            item.who,
            item.what,
            affected(item),
            item.why,
            item.origin,
        )
        for item in found
    )
    print_table(("when", "who", "what", "of", "why", "from"), rows, empty="nothing", least=("from",))


def affected(item: audit_pb2.AuditRecord) -> str:
    """What was done to what, in one cell: ids only where nothing else is known of it."""
    chosen = " ".join(f"{name}={value}" for name, value in sorted(item.detail.items()))
    if item.what in _OF_MODES:
        # Written as cluster/partition/job/category, and the account where there is one; * is any.
        fields = zip(_PLACE, item.subject.split("/"), strict=False)
        place = ", ".join(f"{word} {value}" for word, value in fields if value != "*")
        return f"{chosen} for {place or 'everything'}"
    subject = "everything" if item.subject == "*" else item.subject
    if not chosen or not subject:
        return chosen or subject
    return chosen if _ID.search(subject) else f"{subject}: {chosen}"


@app.command("seals")
def list_seals(
    export: Annotated[Path | None, typer.Option(help="Write all seals into this file, one JSON line each.")] = None,
    check: Annotated[Path | None, typer.Option(help="Check an exported file by itself, without a database.")] = None,
    public_key: KeyOption = None,
    dsn_file: DsnOption = None,
    configuration: ConfigOption = None,
) -> None:
    """How the chain of seals stands; export it to where nobody who runs the database can write.

    \b
    Examples:
      advisor audit seals
      advisor audit seals --export /mnt/worm/seals-2026-11.jsonl
      advisor audit seals --check seals-2026-11.jsonl --public-key seal.key.pub
    """
    if check is not None:
        chain = Chain(trusted=_trusted(public_key))
        findings = [finding for seal in read_copy(check) for finding in chain.read(seal)] + list(chain.end())
        _conclude(findings, chain, f"{check}: {_chain_line(chain)}")
        return
    config = load_config(configuration).config
    if export is None:
        asyncio.run(_show_chain(database_url(config, dsn_file)))
        return
    # Before the database is opened: as root we become the service's user for that.
    with _new_file(export) as file:
        count = asyncio.run(_export(database_url(config, dsn_file), file))
    print(f"{many(count, 'seal')} in {export}: keep it where nobody who runs the database can write")


async def _show_chain(url: str) -> None:
    async with opened(url) as engine, one_moment(engine) as connection:
        status = await seals.status(connection)
    if not status.number or status.at is None:
        print("no seal yet")
        return
    signed = f"signed with key {status.key}" if status.key else "not signed: no key is configured"
    print(f"seal {status.number} of {status.at:%Y-%m-%d %H:%M:%S} UTC, {signed}")
    for name, upto in (status.heads or {}).items():
        print(f"  {name:<16} up to row {upto}")


async def _export(url: str, file: IO[str]) -> int:
    count = 0
    async with opened(url) as engine, one_moment(engine) as connection:
        async for seal in seals.stored(connection):
            file.write(copy_line(seal))
            count += 1
    return count


@contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    """One that was not there; gone again when it could not be written whole."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise CommandError(f"{path} cannot be made: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            yield file
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def copy_line(seal: StoredSeal) -> str:
    signature = seal.signature.hex() if seal.signature is not None else None
    line = {"number": seal.number, "document": seal.document.decode("ascii"), "signature": signature}
    return json.dumps(line, separators=(",", ":")) + "\n"


def read_copy(path: Path) -> Iterator[StoredSeal]:
    """Seals of an exported file. Errors name the line."""
    try:
        with path.open("rb") as file:
            for at, line in enumerate(iter(lambda: file.readline(SEAL_LINE_BYTES_MAX + 1), b""), start=1):
                try:
                    item = json.loads(line)
                    signature = item["signature"]
                    yield StoredSeal(
                        number=int(item["number"]),
                        document=item["document"].encode("ascii"),
                        signature=None if signature is None else bytes.fromhex(signature),
                    )
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise CommandError(f"{path}:{at}: not a seal as `audit seals --export` writes it", code=2) from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", code=2) from None


@app.command()
def verify(
    public_key: KeyOption = None,
    against: Annotated[
        Path | None, typer.Option(help="Seals exported earlier: what was rewritten or cut off since is found.")
    ] = None,
    allow_unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Seals without a signature after signed ones are in order.")
    ] = False,
    dsn_file: DsnOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Compare every row of the history with its seal. Exit 0: all is as it was; 1: what is wrong is listed.

    Without --public-key the chain is believed as to which key signs it; without --against its end may be missing.

    \b
    Examples:
      advisor audit verify
      advisor audit verify --public-key seal.key.pub --against /mnt/worm/seals-2026-11.jsonl
    """
    config = load_config(configuration).config
    trusted = _trusted(public_key)
    if not trusted and config.seal.key_file is not None:
        trusted = _trusted_beside(config.seal.key_file)
    copies = list(read_copy(against)) if against is not None else None
    chain = Chain(trusted=trusted, allow_unsigned=allow_unsigned)
    findings, waiting = asyncio.run(_verify(database_url(config, dsn_file), chain, copies))
    if form is not Format.TABLE:
        print_json(
            {
                "ok": not findings,
                "seals": chain.seals,
                "signed": chain.signed,
                "keys": list(chain.keys),
                "rows": sum(item.rows.rows for items in chain.sealed.values() for item in items),
                "dropped_rows": chain.dropped_rows,
                "unsealed_rows": sum(item.rows for item in waiting),
                "findings": [
                    {"wrong": i.wrong, "table": i.table, "row": i.row, "seal": i.seal, "detail": i.detail}
                    for i in findings
                ],
            },
            form,
        )
        if findings:
            raise typer.Exit(1)
        return
    rest = sum(item.rows for item in waiting)
    waits = f"; newer rows that wait for the next seal: {rest}" if rest else ""
    _conclude(findings, chain, _chain_line(chain) + waits)


async def _verify(
    url: str, chain: Chain, copies: list[StoredSeal] | None
) -> tuple[list[Finding], tuple[seal_verify.Waiting, ...]]:
    async with opened(url) as engine, one_moment(engine) as connection:
        with Bar("rows") as bar:
            findings = [finding async for finding in seal_verify.read_chain(connection, chain)]
            if copies is not None:
                known = {seal.number for seal in copies}
                stored = [seal async for seal in seals.stored(connection) if seal.number in known]
                findings.extend(compare_copies(stored, copies))
            findings += [finding async for finding in seal_verify.check_rows(connection, chain, told=bar.show)]
        waiting = await seal_verify.waiting(connection, chain)
    findings.extend(seal_verify.overdue(waiting, chain, now=SystemClock().now(), after=UNSEALED_AFTER))
    return findings, waiting


@app.command("retention")
def drop_old(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    months: Annotated[
        int | None, typer.Option(min=1, max=1200, help="Whole months to keep. Default: retention.months.")
    ] = None,
    dsn_file: DsnOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Drop months that are older than the configuration keeps, as the service does by itself every hour.

    What goes is compared with its seals first; how many rows of what kind went is kept in the chain, signed.

    \b
    Examples:
      advisor audit retention --dry-run --months 13
    """
    config = load_config(configuration).config
    kept = months or config.retention.months
    if not kept:
        print("everything is kept: retention.months is 0")
        return
    key = None
    if not dry_run and config.seal.key_file is not None:
        try:
            key = load_key(config.seal.key_file)
        except SealKeyError as error:
            raise CommandError(str(error), code=2) from None
    who = pwd.getpwuid(os.geteuid()).pw_name
    asyncio.run(_drop_old(database_url(config, dsn_file), kept, who=who, key=key, dry_run=dry_run))


async def _drop_old(url: str, months: int, *, who: str, key: SealKey | None, dry_run: bool) -> None:
    clock = SystemClock()
    async with opened(url) as engine:
        async with engine.begin() as connection:
            current = await current_incarnation(connection)
        history = History(engine, lambda: current.id)
        if dry_run:
            found = await history.too_old(months=months, now=clock.now())
            for item in found:
                held = f"  stays: {item.held_back}" if item.held_back else ""
                print(f"{item.part.name:<28} {item.rows:>10} rows {item.size_bytes / 1e6:>10.1f} MB{held}")
            print(f"{many(sum(not item.held_back for item in found), 'part')} would go, and what only they refer to")
            return
        went = Retention(history=history, key=key, clock=clock, months=months, who=who, origin="command line")
        refused = 0
        async for piece in went.once():
            refused += bool(piece.refused)
            print(harmless(f"{piece.what:<28} {piece.refused or many(piece.rows, 'row') + ' dropped'}"))
    if refused:
        raise typer.Exit(1)


def _trusted(paths: list[Path] | None) -> dict[str, PublicKey]:
    try:
        found = [load_public_key(path) for path in paths or ()]
    except SealKeyError as error:
        raise CommandError(str(error), code=2) from None
    return {key.fingerprint: key for key in found}


def _trusted_beside(path: Path) -> dict[str, PublicKey]:
    """The configured key's public half, where it lies beside it. What earlier keys signed comes before its seals."""
    try:
        key = load_public_key(path.with_name(path.name + ".pub"))
    except SealKeyError:
        return {}
    return {key.fingerprint: key}


def _chain_line(chain: Chain) -> str:
    rows = sum(item.rows.rows for items in chain.sealed.values() for item in items)
    signed = f"{chain.signed} signed" + (f" by {', '.join(chain.keys)}" if chain.keys else "")
    dropped = f", {chain.dropped_rows} of them dropped by retention" if chain.dropped_rows else ""
    return f"{many(chain.seals, 'seal')}, {signed}; {many(rows, 'row')}{dropped}"


def _conclude(findings: list[Finding], chain: Chain, line: str) -> None:
    for finding in findings[:FINDINGS_MAX]:
        print(harmless(one_line(str(finding))))
    if len(findings) > FINDINGS_MAX:
        print(f"and {len(findings) - FINDINGS_MAX} more: --format json")
    if findings:
        print(f"NOT as it was: {many(len(findings), 'finding')}; {line}")
        raise typer.Exit(1)
    print(f"as it was: {line}")
    if chain.signed and not chain.trusted:
        print("note: no --public-key was given, so the chain itself says which key signs it", file=sys.stderr)
