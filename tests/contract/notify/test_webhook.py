"""What is particular to webhooks: the address as a secret, tokens, redirects, and our own JSON."""

from pathlib import Path

from advisor.core.words import UnavailableReason
from tests.contract.notify.world import Receiver, http_receiver, item, notice, webhook


async def test_our_json_holds_every_field(tmp_path: Path) -> None:
    """Documented, versioned, and with the token of a file that may change."""
    receiver = Receiver()
    async with http_receiver(receiver):
        token = tmp_path / "token"
        token.write_text("first\n")
        channel = webhook(receiver, tmp_path, slack=False, token_file=token)
        assert await channel.send(notice()) is None
        token.write_text("second\n")
        assert await channel.send(notice()) is None
    assert [headers["authorization"] for headers in receiver.headers] == ["Bearer first", "Bearer second"]
    value = receiver.received[0].raw
    assert (value["schema"], value["key"], value["repeat"]) == ("advisor.notification/1", notice().key, False)
    (decision,) = value["decisions"]
    assert decision["decided_at"] == "2026-11-29T12:00:00+00:00"
    assert (decision["job_id"], decision["nodes"], decision["incident"]) == ("4711", ["node2"], item().incident)


async def test_the_address_is_read_again(tmp_path: Path) -> None:
    """A webhook that leaked is replaced without a restart."""
    receiver = Receiver()
    async with http_receiver(receiver):
        channel = webhook(receiver, tmp_path, slack=True)
        (tmp_path / "url").write_text(f"http://127.0.0.1:{receiver.port}/hook/new\n")
        await channel.send(notice())
    assert receiver.seen == ["POST /hook/new HTTP/1.1"]


async def test_an_address_that_cannot_be_read_is_told_by_its_file(tmp_path: Path) -> None:
    """Missing, empty, or no address at all."""
    channel = webhook(Receiver(port=1), tmp_path, slack=True)
    for content, reason in (
        ("", UnavailableReason.PERMISSION),
        ("ftp://s3cret\n", UnavailableReason.NOT_CONFIGURED),
    ):
        (tmp_path / "url").write_text(content)
        answer = await channel.send(notice())
        assert answer is not None
        assert answer.unavailable.reason is reason
        assert str(tmp_path / "url") in answer.unavailable.detail
        assert "s3cret" not in answer.unavailable.detail
