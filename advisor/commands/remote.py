"""`--server`: an advisor on another host. These options may stand anywhere on the line, before or after the command.

They are the same for every command that asks the service, so they are taken out of the line once, before the command's
own options are looked at, and become variables of the environment, which work as well.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.commands.output import CommandError

# option → variable
OPTIONS = {
    "--server": "ADVISOR_SERVER",
    "--token-file": "ADVISOR_TOKEN_FILE",
    "--ca-file": "ADVISOR_CA_FILE",
    "--client-certificate": "ADVISOR_CLIENT_CERTIFICATE",
    "--client-key": "ADVISOR_CLIENT_KEY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """`servers` are host:port of gRPC over TLS, of replicas; by a token or a certificate they know who we are."""

    servers: tuple[str, ...]
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate: tuple[Path, Path] | None = None


def take_out(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """The line without these options; their values go into the environment. Raises `CommandError`."""
    rest: list[str] = []
    left, found = list(arguments), list[str]()
    while left:
        argument = left.pop(0)
        if argument == "--":
            rest += [argument, *left]
            break
        name, joined, value = argument.partition("=")
        if name not in OPTIONS:
            rest.append(argument)
            continue
        if not joined:
            value = left.pop(0) if left else ""
        if not value.strip() or value.startswith("--"):
            raise CommandError(f"{name}: give a value", code=2)
        environment[OPTIONS[name]] = value
        found.append(name)
    if found and not environment.get(OPTIONS["--server"]):
        raise CommandError(f"{found[0]}: only with --server, the advisor that it is for", code=2)
    return rest


def given(environment: Mapping[str, str]) -> Remote | None:
    """The advisor that was named, None when it is the one on this host. Raises `CommandError`."""
    server = environment.get("ADVISOR_SERVER", "")
    paths = {option: environment.get(variable, "") for option, variable in OPTIONS.items() if option != "--server"}
    if not server:
        return None
    certificate, key = paths["--client-certificate"], paths["--client-key"]
    if bool(certificate) != bool(key):
        raise CommandError("--client-certificate and --client-key go together", code=2)
    if not certificate and not paths["--token-file"]:
        raise CommandError(f"--server {server}: give --token-file, or --client-certificate and --client-key", code=2)
    servers = tuple(part.strip() for part in server.split(","))
    if not all(":" in part and "/" not in part for part in servers):
        raise CommandError(f"--server {server}: write host:port, or several with commas between", code=2)
    return Remote(
        servers=servers,
        token_file=Path(paths["--token-file"]) if paths["--token-file"] else None,
        ca_file=Path(paths["--ca-file"]) if paths["--ca-file"] else None,
        certificate=(Path(certificate), Path(key)) if certificate else None,
    )
