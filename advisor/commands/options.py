"""Options that several commands share, and how they become a configuration or a client."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from advisor import config
from advisor.client.channels import remote_channel
from advisor.client.connection import Client
from advisor.client.replicas import ReplicaChannel
from advisor.commands import remote
from advisor.commands.output import CommandError, Format
from advisor.core.words import Category

ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Configuration file. Default: $ADVISOR_CONFIG, then the one in /etc/recovery-advisor."
    ),
]
SocketOption: TypeAlias = Annotated[
    Path | None, typer.Option("--socket", help="The service's Unix socket. Default: as configured.")
]
FormatOption: TypeAlias = Annotated[
    Format, typer.Option("--format", help="table, json, or jsonl.", case_sensitive=False)
]


def given(option: str, value: str | None) -> str:
    """An option's value, "" when it was left out. Given but empty is refused: an unset variable must not mean all."""
    if value is not None and not value.strip():
        raise CommandError(f"{option} is empty (an unset variable?): leave it out to mean all", code=2)
    return value or ""


def given_category(value: str | None) -> str:
    """A category's name, "" when it was left out. One that is none would match nothing, and look like good news."""
    chosen = given("--category", value)
    if chosen and chosen not in list(Category):
        raise CommandError(f"--category {chosen}: choose one of {', '.join(Category)}", code=2)
    return chosen


def load_config(path: Path | None) -> config.Loaded:
    """The configuration, or one line that names every problem."""
    try:
        return config.load(config.find_file(path, os.environ), os.environ)
    except config.ConfigError as error:
        raise CommandError(f"configuration: {error}", code=2) from None


def open_client(socket: Path | None, configuration: Path | None) -> Client:
    """The advisor that `--server` names, else the one on this host. Raises `ClientError`."""
    far = remote.given(os.environ) if socket is None else None
    if far is None:
        return Client(find_socket(socket, configuration))
    reach = partial(remote_channel, token_file=far.token_file, ca_file=far.ca_file, certificate=far.certificate)
    if len(far.servers) == 1:
        return Client(Path(), channel=reach(far.servers[0]), where=far.servers[0])
    return Client(Path(), channel=ReplicaChannel([(server, partial(reach, server)) for server in far.servers]))


def find_socket(given: Path | None, configuration: Path | None) -> Path:
    """Where the service listens: as told, as configured, or where one runs on this host."""
    if given is not None:
        if "," in str(given) and not given.exists():
            raise CommandError(
                f"--socket {given}: one socket is asked, of one replica; several may be named as --server host:port,…",
                code=2,
            )
        return given
    loaded = load_config(configuration)
    chosen = loaded.config.service.socket
    system = Path("/run/recovery-advisor/advisor.sock")
    if loaded.path is None and "service.socket" not in loaded.origins and not chosen.exists() and system.exists():
        return system
    return chosen
