"""What `doctor` sees of callers from afar: our certificate, and the file of tokens."""

import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from advisor.commands.service_user import how_to_give, kept_from
from advisor.core.amounts import many
from advisor.service import tokens
from advisor.service.certificates import TlsError, TlsFiles
from advisor.service_config import ListenSection

SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`to_do` is empty when it is well; `broken`: callers are turned away because of it."""

    name: str
    found: str
    to_do: str = ""
    broken: bool = False


def look_at_access(listen: ListenSection, now: datetime, service: pwd.struct_passwd | None = None) -> Iterator[Seen]:
    """Nothing where nothing is listened on. `service`: who the service runs as, which root's own eyes do not show."""
    if not (listen.grpc or listen.http) or listen.certificate_file is None or listen.key_file is None:
        return
    named = (listen.certificate_file, listen.key_file, listen.client_ca_file)
    yield _kept_from("tls", service, named) or _certificate(listen, listen.certificate_file, listen.key_file, now)
    if listen.tokens_file is not None:
        yield _kept_from("tokens", service, (listen.tokens_file,)) or _tokens(listen.tokens_file, now, service)


def _kept_from(name: str, service: pwd.struct_passwd | None, files: Sequence[Path | None]) -> Seen | None:
    """What the service cannot read although we can."""
    for file in files:
        if service is not None and file is not None and kept_from(service, file):
            found = f"{service.pw_name}, who the service runs as, cannot read {file}: callers from afar are turned away"
            return Seen(name=name, broken=True, found=found, to_do=how_to_give(service, file))
    return None


def _certificate(listen: ListenSection, certificate: Path, key: Path, now: datetime) -> Seen:
    try:
        TlsFiles(certificate=certificate, key=key, client_ca=listen.client_ca_file).build(("h2",))
        ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (TlsError, OSError, ValueError) as error:
        return Seen(name="tls", broken=True, found=str(error), to_do="put a matching certificate and key there")
    found = f"{certificate} is good until {ends:%Y-%m-%d}"
    if ends <= now:
        return Seen(name="tls", broken=True, found=f"{certificate} expired on {ends:%Y-%m-%d}", to_do="renew it")
    if ends - now < SOON:
        return Seen(name="tls", found=found, to_do="renew it: it is read again when it changes")
    return Seen(name="tls", found=found)


def _tokens(path: Path, now: datetime, service: pwd.struct_passwd | None) -> Seen:
    try:
        entries, problems = tokens.parse(tokens.read(path, service=service))
    except tokens.TokenFileError as error:
        if service is not None and os.geteuid() not in {0, service.pw_uid} and not os.access(path, os.R_OK):
            found = f"{error}, by you: whether the service can is not known"
            return Seen(name="tokens", found=found, to_do=f"run doctor as root or as {service.pw_name}")
        return Seen(name="tokens", broken=True, found=f"{error}: no token is good", to_do="see docs/access.md")
    if problems:
        return Seen(name="tokens", found=f"{path}: {problems[0]}", to_do="correct or remove the line")
    expired = [item.name for item in entries if not item.good_at(now)]
    if expired:
        found = f"{many(len(entries), 'token')}, expired: {', '.join(expired[:5])}"
        return Seen(name="tokens", found=found, to_do="advisor token revoke, and new ones for who needs them")
    return Seen(name="tokens", found=f"{many(len(entries), 'token')}")
