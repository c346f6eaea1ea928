"""Bundles come from anywhere: read strictly, within bounds, and never from a pipe."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from advisor.bundle import BundleError, job_facts, read_bundle, write_bundle
from advisor.core.words import AttemptState, Category, Trust, UnavailableReason
from tests.unit.core_detect.logs import NOON, SCANNER

LOG = b"[rank3]: KeyError: 'x'\n"


def bundle(folder: Path, job: dict[str, Any] | None = None, **files: bytes) -> Path:
    """A bundle with these logs; `kernel__x` makes kernel/x."""
    path = folder / "bundle"
    path.mkdir()
    if job is not None:
        (path / "job.json").write_text(json.dumps(job))
    for name, data in files.items():
        where = path / name.replace("__", "/")
        where.parent.mkdir(exist_ok=True)
        where.write_bytes(data)
    return path


def test_a_bundle_becomes_a_snapshot(tmp_path: Path) -> None:
    """Facts, logs and kernel logs, with ranks and nodes from file names."""
    job = {
        "job_id": "7",
        "user": "u",
        "state": "FAILED",
        "exit_code": "1:0",
        "nodes": "node[1-2]",
        "world_size": 16,
        "tasks_per_node": 8,
        "restarts": 2,
        "start": "2026-11-29T10:00:00+00:00",
    }
    xid = b"2026-11-29T11:00:00+00:00 x kernel: NVRM: Xid (PCI:0000:3b:00): 79, y\n"
    path = bundle(tmp_path, job, **{"logs__rank12.log": b"ValueError: y\n", "kernel__node2.log": xid})
    snapshot = read_bundle(path, SCANNER, NOON)
    assert snapshot.offline
    assert (snapshot.attempt.number, snapshot.attempt.state) == (2, AttemptState.FAILED)
    assert snapshot.attempt.nodes == ("node1", "node2")
    by_rule = {signal.rule: signal for signal in snapshot.signals}
    assert (by_rule["python.program_error"].rank, by_rule["python.program_error"].nodes) == (12, ("node2",))
    assert (by_rule["kernel.xid"].trust, by_rule["kernel.xid"].nodes) == (Trust.KERNEL, ("node2",))
    assert by_rule["kernel.xid"].file == "kernel/node2.log"


def test_a_bare_log_file_is_a_bundle_without_facts(tmp_path: Path) -> None:
    """What it prints says that it failed; what nobody collected is unavailable, not empty."""
    path = tmp_path / "job.out"
    path.write_bytes(LOG)
    snapshot = read_bundle(path, SCANNER, NOON)
    assert snapshot.attempt.state is AttemptState.FAILED
    assert snapshot.attempt.nodes is None
    kernel = next(source for source in snapshot.sources if source.source == "kernel")
    assert kernel.unavailable is not None
    assert kernel.unavailable.reason is UnavailableReason.MISSING


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({"state": "CANCELLED by 1000"}, AttemptState.CANCELLED),
        ({"state": "NODE_FAIL"}, AttemptState.NODE_FAILURE),
        ({"state": "SOMETHING_NEW"}, AttemptState.OTHER),
        ({"exit_code": "0:0"}, AttemptState.COMPLETED),
        ({"exit_code": "1:0"}, AttemptState.FAILED),
        ({"silent_seconds": 2400}, AttemptState.RUNNING),
        ({"silent_seconds": 90}, AttemptState.FAILED),
    ],
)
def test_the_state_is_given_or_inferred(tmp_path: Path, job: dict[str, Any], state: AttemptState) -> None:
    """Slurm's word, then the exit code, then silence, then the log."""
    assert read_bundle(bundle(tmp_path, job, logs__a=LOG), SCANNER, NOON).attempt.state is state


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"nodes": "node[1-"}, "job.json: nodes: a bracket is not closed"),
        ({"nodes": "n[1-99999999]"}, "job.json: nodes: more than 65536 hosts"),
        ({"world_size": -1}, "job.json: world_size: must be a whole number"),
        ({"world_size": True}, "job.json: world_size: must be a whole number"),
        ({"exit_code": "x"}, "job.json: exit_code: must be code:signal"),
        ({"start": "yesterday"}, "job.json: start: must be an ISO time"),
        ({"start": "0001-01-01T00:00:00+05:00"}, "job.json: start: must be an ISO time"),
        ({"end": "9999-12-31T23:59:59Z"}, "job.json: end: must be a time of the years 1970 to 9000"),
        ({"silent_seconds": "long"}, "job.json: silent_seconds: must be a number of seconds"),
        ({"rank_to_node": {"a": 1}}, "job.json: rank_to_node: must map ranks to nodes"),
    ],
)
def test_bad_facts_are_one_located_line(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    """File, key, and what is wrong."""
    with pytest.raises(BundleError, match=r"job\.json") as caught:
        read_bundle(bundle(tmp_path, job, logs__a=LOG), SCANNER, NOON)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_slurms_words_for_nothing_are_nothing(tmp_path: Path) -> None:
    """A pending job has no nodes and no start."""
    job = {"nodes": "None assigned", "start": "Unknown", "end": "(null)"}
    attempt = read_bundle(bundle(tmp_path, job, logs__a=LOG), SCANNER, NOON).attempt
    assert (attempt.nodes, attempt.started_at, attempt.ended_at) == (None, None, None)


def test_broken_json_is_one_located_line(tmp_path: Path) -> None:
    """Also JSON that is too deep."""
    for text in ("{", "[]", "[" * 200_000):
        path = bundle(tmp_path, logs__a=LOG)
        (path / "job.json").write_text(text)
        with pytest.raises(BundleError, match=r"job\.json: "):
            read_bundle(path, SCANNER, NOON)
        for name in ("logs/a", "job.json"):
            (path / name).unlink()
        (path / "logs").rmdir()
        path.rmdir()


def test_pipes_and_links_are_never_opened(tmp_path: Path) -> None:
    """A FIFO would block, a link would lead elsewhere: both are left out of folders and refused as inputs."""
    secret = tmp_path / "secret"
    secret.write_bytes(LOG)
    path = bundle(tmp_path, {"job_id": "7"}, logs__a=b"fine\n")
    os.mkfifo(path / "logs" / "pipe")
    (path / "logs" / "link").symlink_to(secret)
    assert read_bundle(path, SCANNER, NOON).signals == ()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BundleError, match="neither a folder nor a regular file"):
        read_bundle(tmp_path / "fifo", SCANNER, NOON)
    (path / "job.json").unlink()
    (path / "job.json").symlink_to(secret)
    with pytest.raises(BundleError, match="a symbolic link"):
        read_bundle(path, SCANNER, NOON)
    (path / "job.json").unlink()
    os.mkfifo(path / "job.json")
    with pytest.raises(BundleError, match="not a regular file"):
        read_bundle(path, SCANNER, NOON)


def test_what_is_no_bundle_is_said_so(tmp_path: Path) -> None:
    """Missing paths and unrelated folders."""
    with pytest.raises(BundleError, match="no such file or directory"):
        read_bundle(tmp_path / "gone", SCANNER, NOON)
    with pytest.raises(BundleError, match="not a bundle"):
        read_bundle(tmp_path, SCANNER, NOON)


def test_earlier_attempts_are_read(tmp_path: Path) -> None:
    """Oldest first; a broken line is named by its number."""
    line = {"number": 0, "category": "gpu_hardware", "fingerprint": "f", "implicated_nodes": ["node1"], "trusted": True}
    path = bundle(tmp_path, logs__a=LOG, **{"attempts.jsonl": json.dumps(line).encode() + b"\n"})
    (past,) = read_bundle(path, SCANNER, NOON).past
    assert (past.category, past.implicated_nodes, past.trusted) == (Category.GPU_HARDWARE, ("node1",), True)
    (path / "attempts.jsonl").write_text(json.dumps(line) + '\n{"category": "weather"}\n')
    with pytest.raises(BundleError, match=r"attempts.jsonl: line 2: 'weather'"):
        read_bundle(path, SCANNER, NOON)


def test_ranks_are_mapped_by_labelled_host_names(tmp_path: Path) -> None:
    """`srun --label hostname` at the top of a log says where each task runs."""
    text = b"0: worker-2\n1: worker-5\n2: worker-1\nsalloc: error: Node failure on worker-1\n"
    path = bundle(tmp_path, {"nodes": "worker-[1-2,5]", "world_size": 3}, logs__a=text)
    assert read_bundle(path, SCANNER, NOON).attempt.rank_nodes == {0: "worker-2", 1: "worker-5", 2: "worker-1"}


def test_hard_wrapped_lines_are_joined(tmp_path: Path) -> None:
    """A collector cut at 100 columns, within the words that matter; the line where it began is named."""
    long = "[rank9]: RuntimeError: " + "x" * 58 + " CUDA error: uncorrectable ECC error encountered " + "y" * 90
    lines = ["start", *(long[i : i + 100] for i in range(0, len(long), 100)), "end", "short"]
    path = bundle(tmp_path, {"nodes": "node[1-4]", "world_size": 32}, logs__a="\n".join(lines).encode())
    signal = next(s for s in read_bundle(path, SCANNER, NOON).signals if s.rule == "cuda.ecc_uncorrectable")
    assert (signal.line, signal.rank, signal.nodes) == (2, 9, ("node2",))


def test_a_written_bundle_reads_back(tmp_path: Path) -> None:
    """What a snapshot says about its job survives the way into a folder and back."""
    job = {"job_id": "7", "user": "u", "state": "TIMEOUT", "exit_code": "0:15", "nodes": "node[1-2]", "world_size": 16}
    first = read_bundle(bundle(tmp_path, job, logs__a=LOG), SCANNER, NOON)
    folder = tmp_path / "out"
    write_bundle(folder, job=job_facts(first), logs={"a": LOG}, kernel={"node1.log": b"x\n"})
    second = read_bundle(folder, SCANNER, NOON)
    assert second.attempt == first.attempt
    assert second.signals == first.signals
    with pytest.raises(BundleError, match="file exists"):
        write_bundle(folder, job={}, logs={})
    with pytest.raises(BundleError, match="not a plain file name"):
        write_bundle(tmp_path / "evil", job={}, logs={"../x": b""})
