"""Mail to the users of jobs: each is told of his own jobs only, and no name becomes somebody else's address."""

from pathlib import Path

import pytest

from advisor.core.words import UnavailableReason
from connectors.notify.mail import addresses
from tests.contract.notify.world import KINDS, Receiver, item, notice

TO = ("{user}@example.org", "log@example.org")


async def test_a_user_is_told_how_to_read_on(tmp_path: Path) -> None:
    """The template's address is his, and the message says what to type."""
    receiver = Receiver()
    async with KINDS["email"].serve(receiver):
        mail = KINDS["email"].make(receiver, tmp_path, recipients=("{user}@example.org",))
        assert await mail.send(notice(item(user="ada", job_id="4711"))) is None
    (got,) = receiver.received
    assert "advisor explain 4711" in got.text


@pytest.mark.parametrize("user", ["", "a@evil.example", "a,b", "a\nBcc: x", "-oops", "ü", "a b"])
async def test_a_name_that_cannot_stand_in_an_address_gets_none(tmp_path: Path, user: str) -> None:
    """Fixed recipients still hear of it; with nobody left it is said so."""
    assert addresses(TO, notice(item(user=user))) == ("log@example.org",)
    receiver = Receiver()
    async with KINDS["email"].serve(receiver):
        mail = KINDS["email"].make(receiver, tmp_path, recipients=("{user}@example.org",))
        failed = await mail.send(notice(item(user=user)))
    assert failed is not None
    assert (failed.unavailable.reason, receiver.received) == (UnavailableReason.NOT_CONFIGURED, [])


def test_nothing_about_two_users_goes_to_either() -> None:
    """A message of several users' jobs has fixed recipients only."""
    assert addresses(TO, notice(item(user="ada"), item(user="bob"))) == ("log@example.org",)
    assert addresses(TO, notice(item(user="ada"), item(user="ada"))) == ("ada@example.org", "log@example.org")
