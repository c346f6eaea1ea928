"""What the fuzzers call: bytes in, and an error when something happens that must not.

Allowed is the one error type that each reader names for bad input. Everything else is a finding: another exception, a
bound that does not hold, work out of proportion to the input, or anything that looks like running what was read.
"""

import gzip
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.bundle import BundleError, read_bundle
from advisor.core import codec
from advisor.core.flight_recorder import DumpError, read_dump
from advisor.core.lines import LINE_BYTES_MAX, cap, clean, decode, mask, raw_line_numbers
from advisor.core.places import place_of
from advisor.core.primitive_pickle import RefusedPickleError, read_primitives
from advisor.core.scan import TAIL_BYTES_MAX, FileContext, FileState, Scanner, fold_signals
from advisor.core.scan_file import RECENT_BYTES_MAX
from advisor.core.stalled import compare
from advisor.core.times import line_time
from advisor.core.words import Trust
from advisor.core.wrapping import unwrap
from advisor.rules.job_rules import read_job_rules
from advisor.rules.loader import load_rules, parse_rules

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
NODES = ("node1", "node2")
SCANNER = Scanner(load_rules())
SECONDS_MAX = 3.0  # of CPU for the largest input that a fuzzer makes; far above what any of them takes
STATE_BYTES_MAX = 1 << 20
RUNNING = frozenset({"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"})

_ran: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in RUNNING:
        _ran.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_watch)


@contextmanager
def bounded() -> Iterator[None]:
    """Within it nothing is run, and nothing takes long."""
    _ran.clear()
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert not _ran, f"ran something: {_ran}"
    assert took < SECONDS_MAX, f"took {took:.1f} s of CPU"


def normaliser(data: bytes) -> None:
    """A file in one read, and in two."""
    flags, raw = data[:3].ljust(3, b"\0"), data[3:]
    with bounded():
        text = clean(raw)
        lines = text.split(b"\n")
        assert all(len(line) <= LINE_BYTES_MAX for line in lines)
        assert not any(byte in text for byte in (b"\r", b"\0"))
        assert len(raw_line_numbers(raw)) == len(lines)
        for line in lines[:50]:
            shown = decode(line)
            assert shown.isprintable()
            assert len(cap(shown)) <= 600
            mask(shown)
            line_time(shown, NOON)
            place_of(shown, frozenset(NODES))
        joined = unwrap(text)
        assert joined is None or len(joined[0].split(b"\n")) == len(joined[1])
    trust = (Trust.LOG, Trust.LOG, Trust.KERNEL)[flags[0] % 3]
    context = FileContext(
        source="fuzz",
        trust=trust,
        file="job.log",
        node="node1" if trust is Trust.KERNEL else None,
        nodes=(NODES, None, ())[flags[1] % 3],
        started_at=NOON,
        tasks_per_node=flags[1] % 5 or None,
        world_size=flags[1] % 7 or None,
        live=bool(flags[1] & 64),
    )
    cut = flags[2] * len(raw) // 256
    with bounded():
        state, signals = FileState(), ()
        for part, final in ((raw[:cut], False), (raw[cut:], True)):
            scanned = SCANNER.scan(context, state, part, fresh=False, final=final, seen_at=NOON)
            state, signals = scanned.state, fold_signals(signals, scanned, 100)
    assert len(state.tail) <= TAIL_BYTES_MAX
    assert len(state.recent) <= RECENT_BYTES_MAX
    assert len(signals) <= 100
    if context.nodes is not None:
        assert all(set(signal.nodes) <= set(context.nodes) for signal in signals if trust is Trust.LOG)
    stored = codec.encode(state)
    assert len(stored) <= STATE_BYTES_MAX
    assert codec.decode(FileState, stored) == state
    again = SCANNER.scan(replace(context, file="again"), FileState(), raw, fresh=True, final=True, seen_at=NOON)
    assert again.state.line == raw.count(b"\n")


def rules(data: bytes) -> None:
    """Signatures as a site brings them, and log rules as a job does."""
    with bounded():
        problems: list[str] = []
        for rule in parse_rules("site.toml", data, problems):
            assert rule.id
        assert all(problem.startswith("site.toml") and "\n" not in problem for problem in problems), problems
        for of_job in (True, False):
            read_job_rules(data, of_job=of_job)


def pickles(data: bytes) -> None:
    """A flight-recorder dump, and what several of them come to."""
    with bounded():
        with suppress(RefusedPickleError):
            read_primitives(data)
        dumps = []
        for rank in (0, 1, None):
            with suppress(DumpError):
                dumps.append(read_dump(data, rank))
        compare(dumps, 4)


# What a byte makes of the bytes after it, as a file of a bundle.
PLACES = (
    "logs/rank1.log",
    "logs/node2.out",
    "logs/job-error.json",
    "kernel/node1",
    "job.json",
    "attempts.jsonl",
    "metrics.json",
    "flight_recorder/dump_0",
    "flight_recorder/dump_1",
    "rules.json",
    "logs",
    "",
)
FORMS: tuple[str, ...] = ("plain", "gzip", "link", "folder", "pipe")
_SEPARATOR = b"\xff\xfe\xfd"


def bundles(data: bytes) -> None:
    """A folder of any files, packed, linked and nested as the input says."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        lay_out(root, data)
        with bounded():
            read_or_refuse(root / "bundle")
    finally:
        shutil.rmtree(root)


def read_or_refuse(path: Path) -> None:
    """A snapshot that can be stored, or one line that says why not."""
    refused: BundleError | None = None
    try:
        codec.encode(read_bundle(path, SCANNER, NOON))
    except BundleError as error:
        refused = error
    assert refused is None or ("\n" not in str(refused) and len(str(refused)) < 2_000)


def lay_out(root: Path, data: bytes) -> None:
    """Files as `data` has them: a byte for the place, one for the form, then the content up to a separator."""
    (root / "secret").write_text("[rank0]: CUDA error: uncorrectable ECC error encountered\n")
    (root / "bundle").mkdir()
    for part in data.split(_SEPARATOR)[:12]:
        if len(part) < 2:
            continue
        target = root / "bundle" / PLACES[part[0] % len(PLACES)]
        form, content = FORMS[part[1] % len(FORMS)], part[2:]
        if target.exists() or target.is_symlink():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        match form:
            case "plain":
                target.write_bytes(content)
            case "gzip":
                packed = gzip.compress(content * (1 + part[0] // 16), 1)
                target.write_bytes(packed[: len(packed) - part[0] % 3])
            case "link":
                target.symlink_to((root / "secret", root / "bundle", Path("/dev/zero"), target)[len(content) % 4])
            case "folder":
                target.mkdir()
            case _:
                os.mkfifo(target)


def packed(*files: tuple[str, str, bytes]) -> bytes:
    """The input that `bundles` lays out as these files."""
    return _SEPARATOR.join(bytes((PLACES.index(place), FORMS.index(form))) + content for place, form, content in files)


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "normaliser": normaliser,
    "rules": rules,
    "pickles": pickles,
    "bundles": bundles,
}
