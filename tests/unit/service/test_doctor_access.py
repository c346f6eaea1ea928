"""What doctor sees of callers from afar."""

from datetime import timedelta
from pathlib import Path

import pytest

from advisor.clock import SystemClock
from advisor.commands.doctor_access import Seen, look_at_access
from advisor.service import tokens
from advisor.service_config import ListenSection
from tests.integration.service.pki import Authority

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
