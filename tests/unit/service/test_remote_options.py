"""An advisor on another host, named anywhere on the command line or by the environment."""

from pathlib import Path

import pytest

from advisor import cli
from advisor.commands.output import CommandError
from advisor.commands.remote import Remote, given, take_out
from advisor.service import tokens


@pytest.mark.parametrize(
    "line",
    [
        ["--server", "a:1", "decisions", "list", "--token-file", "/t"],
        ["decisions", "list", "--token-file=/t", "--server=a:1"],
        ["decisions", "--server", "a:1", "list", "--token-file", "/t"],
    ],
)
def test_the_options_may_stand_anywhere_and_are_gone_afterwards(line: list[str]) -> None:
    """Before, within or behind the command, joined by = or not."""
    environment: dict[str, str] = {}
    assert take_out(line, environment) == ["decisions", "list"]
    assert given(environment) == Remote(servers=("a:1",), token_file=Path("/t"))


def test_without_them_the_line_and_the_host_stay() -> None:
    """No option, or only behind --, changes nothing."""
    environment: dict[str, str] = {}
    assert take_out(["jobs", "--", "--server", "x"], environment) == ["jobs", "--", "--server", "x"]
    assert given(environment) is None


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (["--server"], "give a value"),
        (["decisions", "list", "--token-file", "/t"], "--token-file: only with --server"),
        (["--server", "--token-file", "/t"], "give a value"),
        (["--server", "a:1"], "give --token-file"),
        (["--server", "https://a:1", "--token-file", "/t"], "host:port"),
        (["--server", "a:1", "--client-certificate", "/c"], "go together"),
    ],
)
def test_what_is_missing_is_said(line: list[str], word: str) -> None:
    """Half a connection is refused with what to give."""
    with pytest.raises(CommandError, match=word):
        _read(line)


def _read(line: list[str]) -> Remote | None:
    environment: dict[str, str] = {}
    take_out(line, environment)
    return given(environment)


def _run(*line: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(line)
    return int(str(caught.value.code))


def test_a_token_is_printed_once_and_only_its_hash_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`token new` prints it; the file has its hash; list shows the name; revoke takes it out and keeps the rest."""
    file = tmp_path / "tokens"
    for name in ("laptop", "robot"):
        assert _run("token", "new", "--role", "viewer", "--user", "alice", "--name", name, "--file", str(file)) == 0
    laptop, robot = capsys.readouterr().out.split()
    assert len(laptop) == len(tokens.PREFIX) + 43
    text = file.read_text()
    assert laptop not in text
    assert tokens.digest_of(laptop) in text
    assert file.stat().st_mode & 0o077 == 0
    assert _run("token", "list", "--file", str(file), "--format", "json") == 0
    assert '"name": "laptop"' in capsys.readouterr().out
    assert _run("token", "revoke", "laptop", "--file", str(file)) == 0
    assert tokens.digest_of(laptop) not in file.read_text()
    assert tokens.digest_of(robot) in file.read_text()
    assert _run("token", "revoke", "laptop", "--file", str(file)) == 1
    assert "no token named laptop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("a viewer alice never", "line 1 is not"),
        ("a root alice never sha256:" + "0" * 64, "line 1 is not"),
        ("a viewer alice tomorrow sha256:" + "0" * 64, "line 1 is not"),
        ("a viewer alice never sha256:" + "g" * 64, "line 1 is not"),
        ("a viewer alice never advt_secret-secret", "line 1 is not"),
    ],
)
def test_a_line_that_is_none_is_left_out_and_never_quoted(line: str, word: str) -> None:
    """Other lines hold; the problem names the line's number and nothing that stands in it."""
    good = "b viewer bob 2030-01-01 sha256:" + "1" * 64
    entries, problems = tokens.parse(f"{line}\n\n# a comment\n{good}\n{good}\n")
    assert [entry.name for entry in entries] == ["b"]
    assert len(problems) == 2
    assert word in problems[0]
    assert "secret" not in problems[0]


def test_several_replicas_may_be_named() -> None:
    """With commas between; one that is no address spoils the line."""
    environment = {"ADVISOR_SERVER": "a:1, b:2", "ADVISOR_TOKEN_FILE": "/t"}
    assert given(environment) == Remote(servers=("a:1", "b:2"), token_file=Path("/t"))
    with pytest.raises(CommandError, match="host:port, or several"):
        given(environment | {"ADVISOR_SERVER": "a:1,b"})
