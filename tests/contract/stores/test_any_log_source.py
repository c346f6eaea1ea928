"""What every log source promises: files, Loki and VictoriaLogs alike, fakes and real servers alike."""

import asyncio
import json
import random
from datetime import timedelta

import pytest

from tests.contract.stores.world import (
    LogBatch,
    Reader,
    Unavailable,
    UnavailableReason,
    World,
    Written,
    ask,
    batch,
)


async def test_lines_come_whole_in_order_and_once(anywhere: World) -> None:
    """Every line once, those of a node in the order in which they were written."""
    await anywhere.write(*(Written(text=f"line {n}", at=-10 + n * 0.01, node=f"node{1 + n % 2}") for n in range(500)))
    reader = Reader(anywhere, anywhere.make())
    await reader.read()
    await reader.read()
    by_node: dict[str, list[int]] = {}
    for file, text in reader.got:
        by_node.setdefault(file, []).append(int(text.split()[1]))
    assert sorted(by_node.values()) == [list(range(0, 500, 2)), list(range(1, 500, 2))]


async def test_another_process_goes_on_where_the_last_one_stopped(anywhere: World) -> None:
    """The cursor is all that a replica needs: nothing is lost and nothing comes twice."""
    reader = Reader(anywhere, anywhere.make())
    for turn in range(4):
        await anywhere.write(*(Written(text=f"line {turn}.{n}", at=-1 + n * 0.001) for n in range(20)))
        await reader.read()
        anywhere.clock.advance(3)
        await reader.restart(anywhere.make())
    await reader.read()
    assert reader.texts == [f"line {turn}.{n}" for turn in range(4) for n in range(20)]


@pytest.mark.parametrize(("pages", "streams"), [(0.1, 1), (0.8, 1), (2.4, 1), (4.6, 2)])
async def test_more_lines_of_one_moment_than_a_page_holds(anywhere: World, pages: float, streams: int) -> None:
    """Lines that all have the same time are neither lost nor repeated, and reading them ends."""
    count = round(pages * anywhere.page_lines)
    same = [Written(text=f"same {n}", at=-0.5, node=f"node{1 + n % streams}") for n in range(count)]
    await anywhere.write("before", *same, Written(text="after", at=-0.4))
    reader = Reader(anywhere, anywhere.make())
    assert isinstance(await reader.read(), LogBatch), reader.absent
    assert sorted(reader.texts) == sorted(["before", "after", *(f"same {n}" for n in range(count))])
    assert reader.absent == []


async def test_a_batch_is_bounded_and_says_that_there_is_more(anywhere: World) -> None:
    """No batch is much longer than asked for, and together they are everything."""
    await anywhere.write(*(Written(text=f"{n:04d} " + "x" * 95, at=-5 + n * 0.001) for n in range(1_000)))
    source, cursor, got, pages = anywhere.make(), "", b"", 0
    while True:
        answer = await batch(source, anywhere.request(cursor, bytes_max=8_192))
        got += b"".join(chunk.data for chunk in answer.chunks)
        assert sum(len(chunk.data) for chunk in answer.chunks) <= 8_192
        cursor, pages = answer.cursor, pages + 1
        if not answer.more:
            break
        assert pages < 100
    assert pages > 12
    assert [int(line[:4]) for line in got.splitlines()] == list(range(1_000))


async def test_a_batch_that_was_not_taken_is_given_again(anywhere: World) -> None:
    """Until the cursor comes back the same lines are answered: a tick may end before it looked at them."""
    await anywhere.write("a", "b")
    source = anywhere.make()
    first = await batch(source, anywhere.request())
    again = await batch(source, anywhere.request())
    assert [chunk.data for chunk in again.chunks] == [chunk.data for chunk in first.chunks] == [b"a\nb\n"]


async def test_nothing_there_is_absence_and_not_an_empty_log(anywhere: World) -> None:
    """An attempt of which no line exists is `Unavailable(missing)`; when one comes it is read."""
    reader = Reader(anywhere, anywhere.make())
    answer = await reader.read()
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING
    await anywhere.write("here")
    await reader.read()
    assert reader.texts == ["here"]


async def test_an_attempt_that_has_not_begun_is_absent(anywhere: World) -> None:
    """Nothing is asked for it."""
    source = anywhere.make()
    answer = await ask(source, anywhere.request(started_at=None))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING


async def test_lines_of_other_jobs_stay_theirs(anywhere: World) -> None:
    """Of many jobs asked for at once each gets its own lines."""
    jobs = [f"{anywhere.tag}{n}" for n in range(40)]
    await anywhere.write(*(Written(text=f"of {job}", job=job) for job in jobs))
    source = anywhere.make()
    answers = await source.read([anywhere.request(job_id=job) for job in jobs])
    for job in jobs:
        answer = answers[f"{job}/0"]
        assert isinstance(answer, LogBatch)
        assert b"".join(chunk.data for chunk in answer.chunks) == f"of {job}\n".encode()


async def test_content_is_not_changed(anywhere: World) -> None:
    """Colours, NULs, quotes, backslashes, other scripts and long lines come as they were written."""
    texts = [
        "\x1b[31mred\x1b[0m",
        "nul\x00here",
        'say "hi" \\ and \\n',
        "наука 训练 🔥",
        "w" * 20_000,
        "tab\tand ` tick",
        "{}",
    ]
    await anywhere.write(*(Written(text=text, at=-5 + n * 0.1) for n, text in enumerate(texts)))
    reader = Reader(anywhere, anywhere.make())
    await reader.read()
    assert reader.texts == texts


async def test_the_end_of_an_attempt_is_final_once_nothing_more_can_come(anywhere: World) -> None:
    """A line that arrives a little after the end is delivered; after `final` nothing is left to ask."""
    reader = Reader(anywhere, anywhere.make())
    reader.changes = {"started_at": anywhere.clock.now() - timedelta(seconds=30)}
    await anywhere.write("at work")
    await reader.read()
    ended_at = anywhere.clock.now()
    reader.changes["ended_at"] = ended_at
    await reader.read()
    assert not reader.final
    anywhere.clock.advance(1)
    await anywhere.write(Written(text="last words", at=-0.5))
    await reader.read()
    anywhere.clock.advance(30)
    await reader.read()
    assert reader.final
    assert reader.texts == ["at work", "last words"]


@pytest.mark.parametrize("cursor", ["x", "[]", "{}", '{"v":2}', '{"v":1,"store":7,"files":7}', "[" * 100_000])
async def test_a_cursor_of_nobody_is_a_located_error(anywhere: World, cursor: str) -> None:
    """It is answered with its place, and others are served."""
    await anywhere.write("x", Written(text="y", job=f"{anywhere.tag}8"))
    source = anywhere.make()
    other = anywhere.request(job_id=f"{anywhere.tag}8")
    answers = await source.read([anywhere.request(cursor), other])
    broken = answers[f"{anywhere.job}/0"]
    assert isinstance(broken, Unavailable)
    assert broken.reason is UnavailableReason.GARBLED
    assert "cursor" in broken.detail
    assert isinstance(answers[other.key], LogBatch)


async def test_a_cancelled_read_loses_nothing(anywhere: World) -> None:
    """At whatever moment it is cancelled: the next read starts from the same cursor."""
    await anywhere.write("content")
    source = anywhere.make()
    for pauses in range(12):
        reading = asyncio.create_task(source.read([anywhere.request()]))
        for _ in range(pauses):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    answer = await batch(source, anywhere.request())
    assert b"".join(chunk.data for chunk in answer.chunks) == b"content\n"


async def test_a_closed_source_refuses_to_read(anywhere: World) -> None:
    """Reading after `close` is a programmer's error; closing twice is not."""
    source = anywhere.make()
    await source.close()
    await source.close()
    await anywhere.write("x")
    with pytest.raises(RuntimeError, match="closed"):
        await source.read([anywhere.request()])


async def test_no_requests_no_answers(anywhere: World) -> None:
    """Asking for nothing is answered with nothing."""
    source = anywhere.make()
    assert await source.read([]) == {}


@pytest.mark.parametrize("seed", range(6))
async def test_exactly_once_whatever_happens(anywhere: World, seed: int) -> None:
    """Random writes, reads, pauses, restarts and batches that were lost before they were stored: the lines that were
    kept are exactly those that were written.
    """
    chance = random.Random(seed)
    reader = Reader(anywhere, anywhere.make())
    reader.changes = {
        "started_at": anywhere.clock.now() - timedelta(seconds=60),
        "bytes_max": chance.choice([512, 1 << 20]),
    }
    written: list[str] = []
    for turn in range(40):
        match chance.randrange(6):
            case 0 | 1:
                lines = [f"line {turn}.{n}" for n in range(chance.randrange(30))]
                late = 0.0 if anywhere.kind == "files" else chance.choice([0, 0, 1, 4, 20])
                await anywhere.write(*(Written(text=text, at=-late - chance.random() * 0.5) for text in lines))
                written.extend(lines)
            case 2 | 3:
                await reader.read()
            case 4:
                anywhere.clock.advance(chance.choice([0.3, 1, 7, 25]))
            case 5:
                if chance.random() < 0.5:
                    before = reader.cursor, list(reader.got), dict(reader.cut)
                    await reader.read()
                    reader.cursor, reader.got, reader.cut = before  # it died before it had stored what it read
                await reader.restart(anywhere.make())
    anywhere.clock.advance(20)
    await reader.read()
    assert sorted(reader.texts) == sorted(written)
    assert json.loads(reader.cursor or "{}") is not None
