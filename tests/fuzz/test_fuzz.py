"""Hostile input: whatever bytes a reader gets, it answers or refuses, in bounded time and memory, and runs nothing."""

import gzip
import importlib.util
import json
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import FORMS, PLACES, TARGETS, bounded, bundles, packed, pickles, read_or_refuse

FOUND = Path(__file__).parent / "found"
SEEDS = seeds()


@st.composite
def damaged(draw: st.DrawFn, target: str) -> bytes:
    """A good input with parts cut out, doubled, overwritten or joined with those of another."""
    data = draw(st.sampled_from(SEEDS[target]))
    for _ in range(draw(st.integers(0, 4))):
        start, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        other = draw(st.one_of(st.binary(max_size=40), st.sampled_from(SEEDS[target])))[:2_000]
        part = draw(st.sampled_from((b"", data[start:end] * 2, other, b"\0" * 300, b"[" * 3_000, b'{"a":' * 500)))
        data = data[:start] + part + data[end:]
    return data


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_seed_is_read_as_it_should_be(target: str) -> None:
    """The inputs that fuzzing starts from find nothing by themselves."""
    for seed in SEEDS[target]:
        TARGETS[target](seed)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_damaged_input_is_answered_or_refused(target: str) -> None:
    """Good inputs, broken in ways that keep most of their structure."""

    @given(damaged(target))
    @settings(max_examples=40, deadline=None)
    def holds(data: bytes) -> None:
        TARGETS[target](data)

    holds()


@pytest.mark.long
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_much_damaged_input_is_answered_or_refused(target: str) -> None:
    """The same, for longer."""

    @given(damaged(target))
    @settings(max_examples=3_000, deadline=None)
    def holds(data: bytes) -> None:
        TARGETS[target](data)

    holds()


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_stays_fixed(path: Path) -> None:
    """Every finding of a fuzzer is a file in `found/`, in the folder of its target."""
    TARGETS[path.parent.name](path.read_bytes())


def fuzz(target: str, seconds: int, folder: Path) -> str:
    """Run the coverage-guided fuzzer; its report."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no build for this Python")
    command = [sys.executable, "-m", "tests.fuzz.run", target, "--seconds", str(seconds), "--keep", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60 + 3 * seconds, check=False)
    assert run.returncode == 0, run.stderr[-4_000:]
    return run.stderr


def test_the_coverage_guided_fuzzer_works(tmp_path: Path) -> None:
    """One second of one target, since each start costs many times that: that it runs, and reaches new code."""
    report = fuzz("pickles", 1, tmp_path)
    assert "stat::number_of_executed_units" in report
    assert len(list((tmp_path / "corpus").iterdir())) > len(SEEDS["pickles"])


@pytest.mark.long
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_coverage_guided_fuzzer_finds_nothing(target: str, tmp_path: Path) -> None:
    """Two minutes each."""
    fuzz(target, 120, tmp_path)


class Runs:
    """Something that the standard reader would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("true",)


def test_the_watch_sees_what_a_careless_reader_runs() -> None:
    """The standard reader is caught by the same watch under which ours is not: the check can fail."""
    hostile = pickle.dumps(Runs())
    with pytest.raises(AssertionError, match="ran something"), bounded():
        pickle.loads(hostile)
    pickles(hostile)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _bomb(levels: int) -> bytes:
    data = b"\0" * (64 << 20)
    for _ in range(levels):
        data = gzip.compress(data, 9, mtime=0)  # the same bytes, and so the same name of a case, in every process
    return data


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("logs/rank1.log", _bomb(1)),
        ("logs/rank1.log", _bomb(2)),
        ("flight_recorder/dump_0", _bomb(1)),
        ("job.json", b'{"a":' * 200_000),
        ("job.json", b"[" * 500_000),
        ("job.json", b'{"world_size": 1' + b"0" * 5_000 + b"}"),
        ("job.json", json.dumps({"nodes": "n[0-999999999]"}).encode()),
        ("job.json", json.dumps({"nodes": "a[0-9999]b[0-9999]c[0-9999]"}).encode()),
        ("job.json", b'{"x": "' + b"y" * (8 << 20) + b'"}'),
        ("attempts.jsonl", b"{}\n" * 100_000),
        ("attempts.jsonl", b"[" * 100_000 + b"\n"),
        ("metrics.json", b'{"samples": [' + b"[" * 100_000),
        ("metrics.json", b'{"samples": [' + b"{}," * 100_000 + b"{}]}"),
        ("logs/rank1.log", b"x" * (4 << 20)),
        ("logs/rank1.log", b"\r" * (4 << 20)),
        ("logs/rank1.log", b"\x1b]" * (2 << 20)),  # found: 4 s
        ("logs/rank1.log", b"a b: " * (800 << 10)),
        ("logs/rank1.log", (b"1: " * 2_000 + b"\n") * 300),
        ("logs/job-error.json", b'{"message":' * 100_000),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}-bytes",
)
def test_bombs_cost_little(place: str, content: bytes, tmp_path: Path) -> None:
    """Small files that unpack, nest or expand to anything: read or refused, within seconds and megabytes."""
    target = tmp_path / place
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content)
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / "a.log").write_bytes(b"KeyError: 'x'\n")
    before = _peak_mb()
    with bounded():
        read_or_refuse(tmp_path)
    assert _peak_mb() - before < 200


def test_links_are_not_followed() -> None:
    """A link in a bundle leads nowhere: what it points to is not evidence."""
    for place in (place for place in PLACES if place):
        bundles(packed((place, "link", b"")))
    assert len(FORMS) == 5
