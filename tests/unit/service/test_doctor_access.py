"""What doctor sees of callers from afar."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.commands import token as token_command
from advisor.commands.doctor_access import Seen, look_at_access
from advisor.commands.service_user import account_of
from advisor.service import tokens
from advisor.service_config import ListenSection, ServiceSection
from tests.integration.service.pki import Authority
from tests.integration.service.world import short_folder

NOW = SystemClock().now()


def _listen(folder: Path, **more: object) -> ListenSection:
    certificate, key = Authority(folder).issue("server")
    given = {"http": "0.0.0.0:8443", "certificate_file": str(certificate), "key_file": str(key)}
    return ListenSection.model_validate(given | {"tokens_file": str(folder / "tokens")} | more)


def _seen(listen: ListenSection, days: float = -30.0) -> dict[str, Seen]:
    """As looked at so many days from now; certificates of these tests are good for one day."""
    return {item.name: item for item in look_at_access(listen, NOW + timedelta(days=days))}


def test_nothing_is_said_where_nothing_is_listened_on() -> None:
    """Without an address there is nothing to look at."""
    assert list(look_at_access(ListenSection(), NOW)) == []


@pytest.mark.parametrize(("days", "broken", "word"), [(-30, False, ""), (0.5, False, "renew"), (2, True, "renew")])
def test_a_certificate_is_told_before_it_ends(tmp_path: Path, days: float, broken: bool, word: str) -> None:
    """Well before it is fine, in its last two weeks a warning, and after it a failure."""
    tls = _seen(_listen(tmp_path), days)["tls"]
    assert tls.broken is broken
    assert word in tls.to_do
    assert bool(word) == bool(tls.to_do)


def test_a_file_of_tokens_that_lets_nobody_in_is_a_failure(tmp_path: Path) -> None:
    """Missing or open to others it is one; an expired token and a line that is none are warnings; else all is well."""
    listen, file = _listen(tmp_path), tmp_path / "tokens"
    assert _seen(listen)["tokens"].broken
    tokens.add(file, name="a", role="viewer", user="alice", expires=None)
    assert not _seen(listen)["tokens"].to_do
    tokens.add(file, name="old", role="viewer", user="bob", expires=(NOW - timedelta(days=60)).date())
    assert "old" in _seen(listen)["tokens"].found
    with file.open("a") as lines:
        lines.write("nonsense\n")
    assert "line 4" in _seen(listen)["tokens"].found
    file.chmod(0o666)
    assert _seen(listen)["tokens"].broken


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to another user needs root")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that other users may pass, with the data folder of a service that runs as `daemon` in it."""
    with short_folder() as folder:
        (folder / "data").mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(folder / "data", pwd.getpwnam("daemon").pw_uid, -1)
        (folder / "advisor.toml").write_text(
            f'[service]\nsocket = "{folder}/no.sock"\ndata_dir = "{folder}/data"\n[service.listen]\n'
            f'http = "127.0.0.1:8444"\ncertificate_file = "{folder}/server.crt"\nkey_file = "{folder}/server.key"\n'
            f'tokens_file = "{folder}/tokens"\n'
        )
        yield folder


def _readable(folder: Path) -> ListenSection:
    """Certificate and key as `daemon` may read them."""
    listen = _listen(folder)
    for name in ("server.key", "server.crt"):
        os.chown(folder / name, 0, pwd.getpwnam("daemon").pw_gid)
        (folder / name).chmod(0o640)
    return listen


def _as(user: pwd.struct_passwd, path: Path) -> str:
    """What that account reads there, "" for nothing."""
    command = ["cat", str(path)]
    groups = [user.pw_gid]
    run = subprocess.run(
        command, capture_output=True, text=True, user=user.pw_uid, group=user.pw_gid, extra_groups=groups, check=False
    )
    return run.stdout


@needs_root
@pytest.mark.parametrize("named", ["", "daemon"])
def test_the_services_user_can_read_the_file_that_root_makes(
    open_folder: Path, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the data folder tells who that is, or as told; the file stays root's, and no other user can read it."""
    daemon, nobody = pwd.getpwnam("daemon"), pwd.getpwnam("nobody")
    if named:
        (open_folder / "data").rmdir()
    token_command.new(
        role="viewer",
        user="ada",
        name="ada-laptop",
        expires="never",
        service_user=named,
        configuration=open_folder / "advisor.toml",
    )
    file = open_folder / "tokens"
    assert "ada-laptop" in _as(daemon, file)
    assert _as(nobody, file) == ""
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (0, 0o640)
    assert "cannot read" not in capsys.readouterr().err


@needs_root
def test_a_file_that_the_services_user_cannot_read_is_told(
    open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By doctor as broken, with what to do, though root reads it well; and by the next `token new`."""
    listen, file, daemon = _readable(open_folder), open_folder / "tokens", pwd.getpwnam("daemon")
    service = ServiceSection(socket=open_folder / "no.sock", data_dir=open_folder / "data")
    assert account_of(service) == daemon
    tokens.add(file, name="a", role="viewer", user="alice", expires=None)
    seen = {item.name: item for item in look_at_access(listen, NOW, daemon)}
    assert seen["tokens"].broken
    assert f"chgrp daemon {file} && chmod g+r {file}" in seen["tokens"].to_do
    assert not seen["tls"].broken
    token_command.new(
        role="viewer",
        user="ada",
        name="b",
        expires="never",
        configuration=open_folder / "advisor.toml",
        service_user="",
    )
    assert f"daemon, who the service runs as, cannot read {file}" in capsys.readouterr().err
    os.chown(file, 0, daemon.pw_gid)
    file.chmod(0o640)
    assert not {item.name: item for item in look_at_access(listen, NOW, daemon)}["tokens"].to_do
    (open_folder / "server.key").chmod(0o600)
    tls, _ = look_at_access(listen, NOW, daemon)
    assert (tls.broken, f"cannot read {listen.key_file}" in tls.found) == (True, True)


@needs_root
def test_a_file_of_the_services_user_is_good_for_root(open_folder: Path) -> None:
    """Doctor, list and revoke take it as the service does; a third account's they do not."""
    listen, file, daemon = _readable(open_folder), open_folder / "tokens", pwd.getpwnam("daemon")
    tokens.add(file, name="a", role="viewer", user="alice", expires=None)
    os.chown(file, daemon.pw_uid, daemon.pw_gid)
    assert {item.name: item.found for item in look_at_access(listen, NOW, daemon)}["tokens"] == "1 token"
    tokens.revoke(file, "a", service=daemon)
    assert file.stat().st_uid == daemon.pw_uid
    os.chown(file, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(tokens.TokenFileError, match="belongs to another user"):
        tokens.read(file, service=daemon)
