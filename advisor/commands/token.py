"""`advisor token`: static tokens for callers from afar. Only hashes are kept; a token is shown once."""

import os
import pwd
import re
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import typer

from advisor.clock import SystemClock
from advisor.commands.options import ConfigOption, FormatOption, load_config
from advisor.commands.output import CommandError, Format, complain, print_json, print_table
from advisor.commands.service_user import account_of, how_to_give, kept_from, user_named
from advisor.service import tokens
from advisor.service.tokens import ROLES, TokenFileError

app = typer.Typer(rich_markup_mode=None, help="Static tokens for callers from afar: new, list, revoke.")

FileOption = Annotated[
    Path | None, typer.Option("--file", help="The file of hashes. Default: service.listen.tokens_file.")
]
UserOption = Annotated[
    str,
    typer.Option(
        help="Who the service runs as: a new file is made readable for its group. Default: as its socket or its data "
        "folder tells."
    ),
]


@app.command()
def new(
    role: Annotated[str, typer.Option(help="user, viewer, agent, operator or admin.")],
    user: Annotated[str, typer.Option(help="The account that it stands for: whose jobs are its own, who did what.")],
    name: Annotated[str, typer.Option(help="What you call it, to revoke it by; it is in the audit too.")],
    expires: Annotated[str, typer.Option(help="Good for so many days, like 90d, or never.")] = "365d",
    service_user: UserOption = "",
    file: FileOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Print a new token, once. A running service takes it at the next call.

    \b
    Examples:
      advisor token new --role viewer --user alice --name alice-laptop
      advisor token new --role agent --user slurm --name ctl2 --expires never
      sudo advisor token new --role operator --user oscar --name oscar-laptop --service-user advisor
    """
    if role not in ROLES:
        raise CommandError(f"--role {role}: choose one of {', '.join(ROLES)}", code=2)
    path = _file(file, configuration)
    service = user_named(service_user) if service_user else _service(file, configuration)
    try:
        token = tokens.add(path, name=name, role=role, user=user, expires=_until(expires), service=service)
    except TokenFileError as error:
        raise CommandError(str(error)) from None
    print(token)
    complain(f"a token for {user} as {role}; its hash is in {path}, and it is not shown again")
    if service is None and os.geteuid() == 0:
        complain(f"who the service runs as is not known here: see that {path} is readable for it (--service-user)")
    elif service is not None and kept_from(service, path):
        complain(f"{service.pw_name}, who the service runs as, cannot read {path}: {how_to_give(service, path)}")


@app.command("list")
def list_tokens(file: FileOption = None, configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """All tokens by name, with role, user and expiry.

    \b
    Examples:
      advisor token list
    """
    path = _file(file, configuration)
    try:
        entries, problems = tokens.parse(tokens.read(path, service=_service(file, configuration)))
    except TokenFileError as error:
        raise CommandError(str(error)) from None
    for problem in problems:
        complain(f"{path}: {problem}")
    now = SystemClock().now()
    if form is not Format.TABLE:
        listed = [
            {
                "name": item.name,
                "role": item.role,
                "user": item.user,
                "expires": item.expires.isoformat() if item.expires is not None else None,
                "good": item.good_at(now),
            }
            for item in entries
        ]
        print_json(listed, form)
        return
    rows = (
        (
            item.name,
            item.role,
            item.user,
            (item.expires.isoformat() if item.expires is not None else "never")
            + ("" if item.good_at(now) else " (expired)"),
        )
        for item in entries
    )
    print_table(("name", "role", "user", "expires"), rows, empty=f"{path} holds no tokens")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="As `advisor token list` names it.")],
    file: FileOption = None,
    configuration: ConfigOption = None,
) -> None:
    """Take a token back: from the next call on it is not known, and streams that it opened end within seconds.

    \b
    Examples:
      advisor token revoke alice-laptop
    """
    path = _file(file, configuration)
    try:
        tokens.revoke(path, name, service=_service(file, configuration))
    except TokenFileError as error:
        raise CommandError(str(error)) from None
    print(f"{name} is no longer good")


def _file(given: Path | None, configuration: Path | None) -> Path:
    if given is not None:
        return given
    path = load_config(configuration).config.service.listen.tokens_file
    if path is None:
        raise CommandError("give --file, or set service.listen.tokens_file in the configuration", code=2)
    return path


def _service(file: Path | None, configuration: Path | None) -> pwd.struct_passwd | None:
    """Who the service runs as. With --file no usable configuration is needed."""
    try:
        return account_of(load_config(configuration).config.service)
    except CommandError:
        if file is None:
            raise
        return None


def _until(text: str) -> date | None:
    if text == "never":
        return None
    match = re.fullmatch(r"(\d{1,4})d", text)
    if match is None:
        raise CommandError(f"--expires {text}: write days, like 90d, or never", code=2)
    return SystemClock().now().date() + timedelta(days=int(match[1]) + 1)
