"""`advisor store`: the database's schema, backups of it, and the lives that it has had."""

import asyncio
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Self

import typer
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url, select

from advisor.clock import SystemClock
from advisor.commands.audit import DsnOption
from advisor.commands.database import database_url, errors_told, opened, postgres_programs, with_whom
from advisor.commands.options import ConfigOption, FormatOption, load_config
from advisor.commands.output import CommandError, Format, one_line, print_json, print_table, short_time
from advisor.config import Config
from advisor.store.incarnation import begin_incarnation
from advisor.store.migrate import migrate as to_newest_schema
from advisor.store.tables import incarnations

app = typer.Typer(rich_markup_mode=None, help="The database itself: its schema, backups of it, what lives it has had.")

SHOWN_MAX = 100


@app.command("incarnations")
def show(dsn_file: DsnOption = None, configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """Show since when, and why, generations of advice are counted anew; the newest first.

    One begins by itself when a dump was restored, a standby promoted, or an agent has seen what is not there any more.

    \b
    Examples:
      advisor store incarnations
    """
    url = database_url(load_config(configuration).config, dsn_file)
    rows = asyncio.run(_incarnations(url))
    if form is not Format.TABLE:
        print_json(rows, form)
        return
    table = [(row["began"], row["incarnation"], row["why"]) for row in rows]
    print_table(("began", "incarnation", "why"), table, empty="no service has used this database yet")


async def _incarnations(url: str) -> list[dict[str, str]]:
    async with opened(url) as engine, engine.connect() as connection:
        found = await connection.execute(select(incarnations).order_by(incarnations.c.seq.desc()).limit(SHOWN_MAX))
        return [{"began": short_time(row.created_at), "incarnation": row.id, "why": row.why} for row in found]


@app.command()
def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where it goes; a file that is there is not replaced.")],
    dsn_file: DsnOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Write a backup of the database, while the service runs, as pg_dump makes it (custom format).

    With the pg_dump of our own Postgres: one of an older release refuses a newer server.

    \b
    Examples:
      advisor store dump /var/backups/advisor-2026-12-01.dump
    """
    with _created(file) as out:
        tools = _Tools.of(load_config(configuration).config, dsn_file)
        arguments = ("--format=custom", "--no-owner", f"--dbname={tools.address}")
        dumping = tools.start("pg_dump", *arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
        said = dumping.communicate()[1].decode("utf-8", "replace").strip()
        if dumping.returncode != 0:
            raise CommandError(f"nothing was written: {with_whom(one_line(said[:1000]))}")
        with file.open("rb", buffering=0) as written:
            if _lacking(tools, written, "nothing was written: what pg_dump made cannot be read"):
                raise CommandError(
                    f"nothing was written: the database holds no store ({tools.shown}): is it the right one?", code=2
                )
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `advisor store dump` or pg_dump -Fc has written.")],
    yes: Annotated[bool, typer.Option("--yes", help="Everything that the database holds now is replaced.")] = False,
    dsn_file: DsnOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Replace the database by a backup: all of it, or nothing when anything of it fails.

    The file is read to its end first: one that is broken, or of something else than a store, changes nothing.

    The service may run meanwhile. It notices, begins a new incarnation and acts on nothing for an hour, unless
    `advisor resume --why TEXT` ends that: modes, pauses and orders are those of the backup, so look at them first.

    \b
    Examples:
      advisor store restore /var/backups/advisor-2026-12-01.dump --yes
    """
    if not yes:
        raise CommandError("everything that the database holds now would be replaced: say --yes", code=2)
    try:
        with file.open("rb", buffering=0) as given, tempfile.TemporaryFile() as complaints:
            if given.read(len(_DUMP)) != _DUMP:
                raise CommandError(f"{file} is not a dump of `advisor store dump`", code=2)
            tools = _Tools.of(load_config(configuration).config, dsn_file)
            _look_at_dump(tools, file, given)
            given.seek(0)
            _restore(tools, given, complaints)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", code=2) from None
    print(
        "restored. Look at `advisor mode get` and `advisor orders list`, which are the backup's; then "
        "`advisor resume --why TEXT`"
    )


@app.command()
def migrate(dsn_file: DsnOption = None, configuration: ConfigOption = None) -> None:
    """Bring the database to the schema of this build; an empty one becomes an empty store.

    Every start of the service does so. Needed where a service that runs was given an empty database, or a backup of
    an older release: it does not touch what it did not find at its start, and goes on as soon as this is done.

    \b
    Examples:
      advisor store migrate
      advisor store migrate --dsn-file /etc/recovery-advisor/dsn
    """
    url = database_url(load_config(configuration).config, dsn_file)
    with errors_told():
        found, current = asyncio.run(to_newest_schema(url))
    if found is None:
        print(f"made an empty store, revision {current}")
    elif found != current:
        print(f"migrated from revision {found} to {current}")
    else:
        print(f"nothing to do: the database is at revision {current}")


_DUMP = b"PGDMP"  # how pg_dump's custom format begins
# What every dump of a store names, of whatever release, with contents where a table does not lie in parts.
_OURS = frozenset({"TABLE alembic_version", "TABLE DATA alembic_version", "TABLE incarnations", "TABLE decisions"})
_LISTED = re.compile(r"^\d+; \d+ \d+ (TABLE DATA|TABLE) \S+ (\S+) ", re.MULTILINE)
_SHOWN = ("host", "port", "dbname", "user")
# All tables at once, in a moment when nobody holds one: taken one by one, beside a service that runs, is a deadlock. A
# sequence cannot be locked so: while somebody who has read one waits for a table, all are let go.
_EMPTY = """
DO $$
DECLARE everything text := (
    SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
);
BEGIN
    FOR attempt IN 1..3000 LOOP
        EXIT WHEN everything IS NULL;
        BEGIN
            EXECUTE 'LOCK TABLE ' || everything || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
            SET LOCAL lock_timeout = '200ms';
            DROP SCHEMA public CASCADE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.01);
        END;
    END LOOP;
END $$;
SET LOCAL lock_timeout = 0;
DROP SCHEMA IF EXISTS public CASCADE;
CREATE SCHEMA public
"""


@contextmanager
def _created(file: Path) -> Iterator[IO[bytes]]:
    """A new file of ours, and none where what was to be written to it failed."""
    try:
        out = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise CommandError(f"{file} cannot be made: {error.strerror}", code=2) from None
    with out:
        try:
            yield out
        except BaseException:
            file.unlink(missing_ok=True)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    """Postgres' own programs, and how they reach our database. A password goes where other users do not see it."""

    folder: Path
    address: str
    shown: str  # the address as people may see it
    environment: Mapping[str, str]
    user: int | None  # the database lets in the service's user only, whose files ours are not

    @classmethod
    def of(cls, config: Config, dsn_file: Path | None) -> Self:
        folder = postgres_programs(config, ours=dsn_file is None and config.store.dsn_file is None)
        url = make_url(database_url(config, dsn_file))
        uid = os.geteuid()
        os.seteuid(os.getuid())
        _, given = url.get_dialect()().create_connect_args(url)  # several hosts as libpq wants them
        password = given.pop("password", None)
        return cls(
            folder=folder,
            address=make_conninfo(**given),
            shown=make_conninfo(**{name: given[name] for name in _SHOWN if name in given}),
            environment={"PGPASSWORD": str(password)} if password is not None else {},
            user=uid if uid != os.geteuid() else None,
        )

    def start(
        self, program: str, *arguments: str, stdin: IO[bytes] | int, stdout: IO[bytes] | int, stderr: IO[bytes] | int
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(self.folder / program), *arguments],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PGTZ": "UTC", **self.environment},
            user=self.user,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )


def _look_at_dump(tools: _Tools, file: Path, given: IO[bytes]) -> None:
    """Raises `CommandError` for one that is not whole, or not of a store. The database is not touched."""
    broken = f"nothing was restored: {file} is broken, or cut off"
    lacking = _lacking(tools, given, broken)
    if lacking:
        raise CommandError(f"nothing was restored: {file} is no dump of a store: no {', '.join(lacking)} in it", code=2)
    given.seek(0)
    _read_dump(tools, given, "--file=/dev/null", broken)


def _lacking(tools: _Tools, given: IO[bytes], broken: str) -> tuple[str, ...]:
    """What a dump lacks of a store's. `broken`: what to say of one that cannot be read."""
    given.seek(0)
    listed = {f"{kind} {name}" for kind, name in _LISTED.findall(_read_dump(tools, given, "--list", broken))}
    return tuple(sorted(_OURS - listed))


def _read_dump(tools: _Tools, given: IO[bytes], how: str, broken: str) -> str:
    pipe = subprocess.PIPE
    reading = tools.start("pg_restore", how, stdin=given, stdout=pipe, stderr=pipe)
    found, said = (text.decode("utf-8", "replace").strip() for text in reading.communicate())
    if reading.returncode != 0:
        raise CommandError(f"{broken}: {one_line(said[:1000])}", code=2)
    return found


def _restore(tools: _Tools, given: IO[bytes], complaints: IO[bytes]) -> None:
    """As a script in one transaction: pg_restore's own --clean cannot take away tables that lie in parts."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    script = tools.start("pg_restore", "--no-owner", "--file=-", stdin=given, stdout=pipe, stderr=complaints)
    arguments = ("--single-transaction", "--set=ON_ERROR_STOP=1", "--quiet", "--no-psqlrc", f"--command={_EMPTY}")
    database = f"--dbname={tools.address}"
    target = tools.start("psql", *arguments, "--file=-", database, stdin=pipe, stdout=null, stderr=complaints)
    if script.stdout is None or target.stdin is None:
        raise RuntimeError("both were asked for")
    with suppress(BrokenPipeError):  # psql has ended, and says why
        shutil.copyfileobj(script.stdout, target.stdin)
    script.stdout.close()
    if script.wait() != 0:
        target.kill()  # before it hears the end, and commits what there is
    with suppress(BrokenPipeError):
        target.stdin.close()
    if target.wait() != 0:
        complaints.seek(0)
        said = one_line(complaints.read(2000).decode("utf-8", "replace").strip())
        raise CommandError(f"nothing was restored: {with_whom(said)}")


@app.command()
def new_incarnation(
    why: Annotated[str, typer.Option(help="For the audit: which backup, from when.")],
    pause: Annotated[
        bool, typer.Option("--pause/--no-pause", help="Act on nothing for an hour, until somebody has looked.")
    ] = True,
    dsn_file: DsnOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Say that this database was put back to an earlier state: nothing that was advised before is acted on any more.

    Needed for a data folder or a disk that was copied back while Postgres was down, and for rows put back into tables
    that stayed (pg_restore --data-only): of every other restore the service knows by itself. Whether or not it runs
    meanwhile does not matter. Nothing is acted on for an hour, unless `advisor resume --why TEXT` ends that, or
    --no-pause says that no mode, pause or order was forgotten.

    \b
    Examples:
      advisor store new-incarnation --why "snapshot of the disk, Tuesday 03:00"
    """
    who = pwd.getpwuid(os.getuid()).pw_name  # who asks; root may look as the database's own user
    url = database_url(load_config(configuration).config, dsn_file)
    began = asyncio.run(_begin(url, who=who, why=why, paused=pause))
    print(f"incarnation {began} began; open advice is closed and decided anew")
    if pause:
        print(
            "nothing is acted on for an hour. Look at `advisor mode get` and `advisor orders list`, which are the "
            "backup's; then `advisor resume --why TEXT`"
        )


async def _begin(url: str, *, who: str, why: str, paused: bool) -> str:
    async with opened(url) as engine, engine.begin() as connection:
        began = await begin_incarnation(connection, who=who, why=why, now=SystemClock().now(), paused=paused)
        return began.id
