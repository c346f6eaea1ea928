"""What every channel to people promises, run on each of them against a real server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from advisor.core.words import UnavailableReason
from advisor.ports import Notifier
from connectors.notify import wording
from tests.contract.notify.world import KINDS, Behaviour, Receiver, item, notice


@dataclass
class World:
    kind: str
    receiver: Receiver
    folder: Path

    def make(self, **options: Any) -> Notifier:
        return KINDS[self.kind].make(self.receiver, self.folder, **options)


@pytest.fixture(params=sorted(KINDS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    receiver = Receiver()
    async with KINDS[request.param].serve(receiver):
        yield World(request.param, receiver, tmp_path)


async def test_a_notice_arrives_once_with_all_that_matters(world: World) -> None:
    """Who, what, why, which nodes, and where to read on; under the notice's key."""
    assert await world.make().send(notice()) is None
    (got,) = world.receiver.received
    assert got.key == notice().key
    for text in ("4711", "ada", "alps", "restart", "gpu_hardware", "node2", "fell off the bus", "/decisions/1"):
        assert text in got.text, text
    assert "monitor" not in got.text


async def test_monitor_mode_and_updates_are_told(world: World) -> None:
    """Nobody takes advice for something that was done, nor an update for another incident."""
    await world.make().send(notice(item(mode="monitor", update=2)))
    (got,) = world.receiver.received
    assert "[monitor]" in got.text
    assert "(update 2)" in got.text


async def test_many_incidents_are_one_message(world: World) -> None:
    """A line each, and the number of those beyond the bound."""
    await world.make().send(notice(*[item(job_id=str(5000 + n)) for n in range(60)]))
    (got,) = world.receiver.received
    assert "60 incidents on alps" in got.text
    assert "job 5019 " in got.text
    assert "job 5020 " not in got.text
    assert "40 more" in got.text


async def test_a_repeat_says_so(world: World) -> None:
    """Under the key of the try that broke off."""
    await world.make().send(notice(repeat=True))
    assert "may be a repeat" in world.receiver.received[0].text


async def test_hostile_text_stays_text(world: World) -> None:
    """No line, mention, link, markup or header comes out of a name or a log line; nothing is endless."""
    hostile = (
        "x\r\nBcc: all@example.com\r\n\r\n<!channel> <@U1> @here @all [click](https://evil.example) "
        "<https://evil.example|safe> \u202eRTL\u202c \x1b[31m \0 </pre><script>alert(1)</script> "
        "&amp; ![](http://e/x.png) "
    )
    sent = notice(item(root_cause=hostile + "y" * 5000, user=hostile, job_id=hostile, nodes=(hostile,) * 50))
    assert await world.make().send(sent) is None
    (got,) = world.receiver.received
    assert len(got.text) < 12_000
    for text in ("@here", "@all", "://evil", "\u202e", "\x1b", "\0", "\r\nBcc", "\nBcc"):
        assert text not in got.text.replace("https://advisor.example.com", ""), text
    if world.kind == "slack":
        for text in ("<", ">", "]("):
            assert text not in got.text, text
    if world.kind == "email":
        assert got.raw["Bcc"] is None
        assert len(got.raw["Subject"].splitlines()) == 1
        assert sorted(got.raw.keys()) == sorted(set(got.raw.keys()))


@pytest.mark.parametrize(
    ("behaviour", "uncertain"),
    [
        (Behaviour.REFUSE, False),
        (Behaviour.LATER, False),
        (Behaviour.CUT, True),
        (Behaviour.HANG, True),
    ],
)
async def test_what_does_not_get_out_is_a_value(world: World, behaviour: Behaviour, uncertain: bool) -> None:
    """With a reason, and whether it may have arrived all the same; no secret is in it."""
    world.receiver.behaviour = behaviour
    answer = await world.make(timeout_seconds=0.3 if behaviour is Behaviour.HANG else 5.0).send(notice())
    assert answer is not None
    assert answer.unavailable.source == "channel"
    assert answer.unavailable.detail
    assert "s3cret" not in answer.unavailable.detail
    assert answer.uncertain == (uncertain and not (world.kind == "email" and behaviour is Behaviour.HANG))
    assert answer.wait_seconds == (17.0 if world.kind != "email" and behaviour is Behaviour.LATER else 0.0)


async def test_a_server_that_fails_after_reading(world: World) -> None:
    """HTTP: nobody knows what it did; SMTP: it says that it did not take the message."""
    world.receiver.behaviour = Behaviour.FAIL
    answer = await world.make().send(notice())
    assert answer is not None
    assert answer.uncertain == (world.kind != "email")


async def test_nobody_listens(world: World) -> None:
    """Certain that nothing arrived."""
    world.receiver.port = 1
    answer = await world.make().send(notice())
    assert answer is not None
    assert (answer.unavailable.reason, answer.uncertain) == (UnavailableReason.REFUSED, False)


async def test_the_check_sends_nothing(world: World) -> None:
    """And tells a server that takes notices from one that does not."""
    channel = world.make()
    assert await channel.check() is None
    assert world.receiver.received == []
    world.receiver.behaviour = Behaviour.REFUSE
    assert await channel.check() is not None
    await channel.close()


def test_text_is_cut_and_readable() -> None:
    """Escapes are shown, the end of what is too long is marked."""
    assert wording.harmless("a\nb\u202e") == "a\\x0ab\\x202e"
    assert len(wording.harmless("x" * 1000)) == wording.TEXT_CHARACTERS_MAX
    assert wording.harmless("grüße 日本") == "grüße 日本"
