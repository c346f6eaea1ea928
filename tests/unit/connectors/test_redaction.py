"""Names are taken out of a bundle, and what an analysis reads stays in."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.redaction import Redactor


def redactor() -> Redactor:
    return Redactor(hosts=["node1", "node2"], users=["alice"], words=["big-model"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1: ok, node2: not", "host0001: ok, host0002: not"),
        ("srun: error: node[1-2,7]: gone", "srun: error: host[0001-0003]: gone"),
        ("from node9.cluster.example.com and node1.cluster.example.com", "from host0003 and host0001"),
        ("node1.log is a file", "host0001.log is a file"),
        ("denode1 node1x my-node1", "denode1 node1x my-node1"),
        ("alice's job big-model ran", "user1's job name1 ran"),
        ('File "/home/alice/proj/train.py", line 5', 'File "/home/user1/part1/part2.py", line 5'),
        ("saved to /lustre/alice/ckpt/iter_10/m.pt.", "saved to /lustre/user1/ckpt/part1/part2.pt."),
        ("ckpt:/home/alice/x", "ckpt:/home/user1/part1"),
        ("10.1.2.3:29500 and 10.1.2.3 and 10.1.2.4", "10.0.0.1:29500 and 10.0.0.1 and 10.0.0.2"),
        ("fe80::1ff:fe23:4567:890a", "fd00::0:1"),
        ("aa:bb:cc:dd:ee:ff", "02:00:00:00:00:01"),
        ("mail alice@corp.example.com", "mail mail@redacted"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz", "HF_TOKEN=REDACTED"),
        ("api_key: 's3cr3t-value'", "api_key: REDACTED"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer REDACTED"),
        ("s3://bucket/alice/x?sig=1", "s3://redacted"),
        ("Mar  1 12:00:00 login-a kernel: NVRM: Xid", "Mar  1 12:00:00 host0003 kernel: NVRM: Xid"),
        ("2026-03-01T12:00:00.123+01:00 ctl.corp sshd[7]: bye", "2026-03-01T12:00:00.123+01:00 host0003 sshd[7]: bye"),
        ("x\nsrun: error: gamma: task 3: Killed", "x\nsrun: error: host0003: task 3: Killed"),
        ("srun: error: node1: tasks 1-2: Killed", "srun: error: host0001: tasks 1-2: Killed"),
        ("slurmstepd: error: *** STEP 7.0 ON gamma CANCELLED", "slurmstepd: error: *** STEP 7.0 ON host0003 CANCELLED"),
    ],
)
def test_names_are_replaced(text: str, expected: str) -> None:
    """Each kind of name has its stand-in, the same one every time."""
    assert redactor().text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "[rank3]:[E ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)",
        "2026-11-29T13:45:44.123456 12:34:56 iteration 10/ 500 | tokens: 123456789 | loss: 1.2E+00",
        'File "/usr/lib/python3.11/threading.py", line 9',
        "/dev/nvidia0 /proc/self/status /sys/class/infiniband/mlx5_0",
        "std::vector c10::Error torch.distributed.elastic 2.18.5",
        "127.0.0.1:29500 0.0.0.0",
        "tokenizer: GPT2Tokenizer eos_token_id: 50256",
        "CUDA out of memory. gpu0 rank12 step100 layer7",
        "exit code 1:0, 50% done, a/b and and/or",
        "2026-03-01 12:00:00,123 INFO trainer[5]: step 7",
        "srun: error: Unable to create step for job 5: Requested node configuration is not available",
    ],
)
def test_what_an_analysis_reads_stays(text: str) -> None:
    """Devices, codes, ranks, steps, times, system and package paths are no names."""
    assert redactor().text(text) == text


def test_packages_keep_their_path() -> None:
    """Where software is installed is private, which file of it is meant is not."""
    path = "/opt/alice-env/lib/python3.11/site-packages/torch/nn/functional.py"
    assert Redactor(users=["alice"]).path(path) == "/opt/part1/lib/python3.11/site-packages/torch/nn/functional.py"


def test_hosts_that_are_called_like_our_stand_ins() -> None:
    """A stand-in is never taken for a name and replaced again."""
    hide = Redactor(hosts=["host0002", "host0001"])
    assert hide.text("host0001 host0002 host0003") == "host0002 host0001 host0003"


def test_nodes_called_like_gpus_are_known_by_exact_name() -> None:
    """`gpu0` in a log is a device, also on a cluster whose nodes are called gpu101."""
    assert Redactor(hosts=["gpu101"]).text("gpu101: gpu0 gpu102") == "host0001: gpu0 gpu102"


@given(st.lists(st.sampled_from(["node1", "node2", "node33", "alice", "/home/alice/x.py", "10.9.8.7", " ", ":", "\n"])))
def test_no_name_survives_and_equal_names_stay_equal(parts: list[str]) -> None:
    """Whatever is written side by side: no known name is left, and doing it twice gives the same."""
    text = " ".join(parts)
    hidden = redactor().text(text)
    assert not re.search(r"\bnode\d|\balice\b|10\.9\.8\.7", hidden)
    assert redactor().text(text) == hidden
    assert len(hidden.split("\n")) == len(text.split("\n"))


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """Logs are no clean text: anything goes in, and lines stay lines."""
    assert redactor().data(data).count(b"\n") == data.count(b"\n")


def test_a_long_log_does_not_take_long() -> None:
    """Two megabytes of ordinary and of nasty text are done in seconds."""
    begun = datetime.now(UTC)  # noqa: TID251 - a duration, not a fact
    redactor().text("node1 iteration 10/500 loss 1.0 /home/alice/a/b.py 10.0.0.1\n" * 20_000)
    for nasty in ("/" * 300_000, "a." * 150_000, ":" * 300_000, "1." * 150_000, "token" * 60_000, "a:" * 150_000):
        redactor().text(nasty)
    assert (datetime.now(UTC) - begun).total_seconds() < 20  # noqa: TID251
