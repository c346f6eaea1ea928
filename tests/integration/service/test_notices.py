"""From a failing job to a message in a chat: the whole service with a real server at the end."""

import asyncio
from pathlib import Path

from advisor.config import NotifySection
from tests.contract.notify.world import Receiver, http_receiver
from tests.integration.service.world import configuration, world_of


async def test_a_failing_job_is_told_once_however_often_the_service_starts(folder: Path) -> None:
    """With a link to the decision; the next service finds it told, and tells what is new as an update."""
    receiver = Receiver()
    async with http_receiver(receiver):
        (folder / "chat.url").write_text(f"http://127.0.0.1:{receiver.port}/hook\n")
        channel = NotifySection(
            kind="slack", name="chat", url_file=folder / "chat.url", link="https://a.example/{decision}"
        )
        config = configuration(folder).model_copy(update={"notify": (channel,)})
        async with world_of(folder, config) as world:
            await world.fail_on_node2()
            async with asyncio.timeout(40):
                while not any("node2" in told.text for told in receiver.received):  # noqa: ASYNC110 - a server's record
                    await asyncio.sleep(0.05)
        told = list(receiver.received)
        async with world_of(folder, config) as world:
            await world.ticks(8)
    assert receiver.received[: len(told)] == told
    assert all(text.text.count("https://a.example/") == 1 for text in receiver.received)
    assert len({text.key for text in receiver.received}) == len(receiver.received)
    updates = [number for number, text in enumerate(receiver.received) if f"(update {number})" in text.text]
    assert updates == list(range(1, len(receiver.received)))
