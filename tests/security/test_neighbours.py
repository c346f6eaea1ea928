"""What one user's jobs print costs that user's jobs: beside two thousand of them a quiet one is heard as ever."""

import os
import random
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from advisor.clock import SystemClock
from advisor.core.model import Attempt, Job
from advisor.core.scan import Scanner
from advisor.core.words import AttemptState
from advisor.gathering import SCAN_SECONDS_MAX, Gatherer
from advisor.rules.loader import load_rules
from advisor.sighting import Sighting
from advisor.store.records import AttemptKey, StoredAttempt
from advisor.turns import READ_BYTES_FIRST
from connectors.logs.files import JobFileLogs

NOISY_JOBS = 2_000
READ_BYTES_MAX = 8 << 20
CRASH = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
# Beside the time that scanning may take, a look may cost this many times what a piece of the same noise costs that is
# looked at alone, just before: a part of a first read, and a few jobs of the many. Processor time, both. A look that
# reads and scans all there is costs 64 times the one and 125 times the other.
OF_A_FIRST_READ = 4
READS_MAX = 2
JOBS_ALONE = 16
JOBS_MAX = 640


def garbage(seed: int, size: int) -> bytes:
    """Distinct errors, forged Xids and ranks, escapes, and lines without an end."""
    draw = random.Random(seed)
    parts: list[bytes] = []
    length = 0
    while length < size:
        number = draw.getrandbits(48)
        part = draw.choice(
            [
                b"[rank%d]: ValueError: distinct error %x\n" % (number % 70_000, number),
                b"kernel: NVRM: Xid (PCI:0000:%02x:00): 79, node%d\n" % (number % 256, number % 9_999),
                b"\x1b]0;%x\x07\x1b[2J<script>%d</script>\r" % (number, number),
                b"iteration %d/ 1000 | loss: nan\n" % (number % 10**9),
                b"Traceback (most recent call last):\n" * 3,
                b"%x" % number * 400,
                os.fsencode("\udcff") * 300,
            ]
        )
        parts.append(part)
        length += len(part)
    return b"".join(parts)[:size]


def item(name: str, user: str, path: Path, started_at: datetime) -> StoredAttempt:
    return StoredAttempt(
        key=AttemptKey(job_key=name, number=0),
        job=Job(key=name, cluster="c", job_id=name, user=user),
        attempt=Attempt(number=0, state=AttemptState.RUNNING, nodes=("node1",), started_at=started_at),
        stdout_path=str(path),
        user_id=os.geteuid(),
    )


async def look(gatherer: Gatherer, items: Sequence[StoredAttempt]) -> tuple[list[Sighting], float]:
    """One tick's reading, and the processor time that all threads of this process took for it."""
    began = time.process_time()
    sightings = gatherer.sight(items)
    await gatherer.gather(sightings)
    return sightings, time.process_time() - began


async def alone(scanner: Scanner, items: Sequence[StoredAttempt]) -> float:
    """What a look at these costs that has nothing else to do."""
    clock = SystemClock()
    source = JobFileLogs(clock=clock)
    gatherer = Gatherer(sources=(source,), scanner=scanner, clock=clock, read_bytes_max=READ_BYTES_MAX, signals_max=200)
    try:
        return (await look(gatherer, items))[1]
    finally:
        await source.close()


async def test_a_quiet_job_beside_two_thousand_noisy_ones_is_heard_in_the_next_look(tmp_path: Path) -> None:
    """Its crash line is a signal after the first look that could see it, and that look's time is bounded."""
    clock = SystemClock()
    started = clock.now() - timedelta(minutes=1)
    noise = [garbage(seed, 18 * 1024) for seed in range(16)]
    items = []
    for number in range(NOISY_JOBS):
        path = tmp_path / f"m{number}.out"
        path.write_bytes(noise[number % len(noise)])
        items.append(item(f"m{number}", "mallory", path, started))
    quiet = tmp_path / "quiet.out"
    quiet.write_text("iteration 1/ 1000 | loss: 2.0\n")
    items.append(item("quiet", "alice", quiet, started))
    scanner = Scanner(load_rules())
    _, reference = [await alone(scanner, items[:JOBS_ALONE]) for _ in range(2)]  # the first look at all is dearer
    source = JobFileLogs(clock=clock)
    gatherer = Gatherer(sources=(source,), scanner=scanner, clock=clock, read_bytes_max=READ_BYTES_MAX, signals_max=200)
    try:
        await look(gatherer, items)
        with quiet.open("a") as file:
            file.write(CRASH)
        sightings, took = await look(gatherer, items)
    finally:
        await source.close()
    heard = sightings[-1]
    assert [signal.text for signal in heard.signals if "ECC" in signal.text]
    assert heard.failed is None
    assert took < SCAN_SECONDS_MAX + JOBS_MAX / JOBS_ALONE * reference
    # There was more noise than a look has time for: the bound was at work.
    assert sum(sighting.more for sighting in sightings) > NOISY_JOBS / 2


async def test_eight_megabytes_of_distinct_errors_hold_nobody_up(tmp_path: Path) -> None:
    """One job prints nothing but errors, each another one: a read of them is cut to what a look has time for."""
    clock = SystemClock()
    started = clock.now() - timedelta(minutes=1)
    loud, quiet = tmp_path / "loud.out", tmp_path / "quiet.out"
    words = (str(number).translate(str.maketrans("0123456789", "abcdefghij")) for number in range(270_000))
    loud.write_text("".join(f"[rank7]: ValueError: bad {word}\n" for word in words))
    assert loud.stat().st_size > READ_BYTES_MAX
    quiet.write_text(CRASH)
    scanner, piece = Scanner(load_rules()), READ_BYTES_FIRST // OF_A_FIRST_READ
    parts = [tmp_path / "warm.out", tmp_path / "part.out"]
    for place, part in enumerate(parts, 40):  # far behind what will be read: what is known already costs nothing
        part.write_bytes(loud.read_bytes()[place * piece :][:piece])
    _, reference = [await alone(scanner, [item(part.stem, "mallory", part, started)]) for part in parts]
    items = [item("loud", "mallory", loud, started), item("quiet", "alice", quiet, started)]
    source = JobFileLogs(clock=clock)
    gatherer = Gatherer(sources=(source,), scanner=scanner, clock=clock, read_bytes_max=READ_BYTES_MAX, signals_max=200)
    try:
        first, took = await look(gatherer, items)
        second, took_again = await look(gatherer, items)
    finally:
        await source.close()
    assert [signal.text for signal in first[1].signals if "ECC" in signal.text]
    assert first[0].more
    assert second[0].more
    assert max(took, took_again) < SCAN_SECONDS_MAX + READS_MAX * OF_A_FIRST_READ * reference
