"""Ranks that fail together print in between each other, in many dresses; what they failed with stays the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core.scan import Scanned
from tests.unit.core_detect.logs import scan

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 340, in <module>',
    "    main()",
    '  File "/home/u/train.py", line 306, in train',
    "    faults.strike(step)",
    '  File "/home/u/train.py", line 230, in strike',
    "    self._do(fault, step)",
    '  File "/home/u/train.py", line 248, in _do',
    '    batch["labels"]',
    "    ~~~~~^^^^^^^^^^",
    "KeyError: 'labels'",
)
LABELS = st.sampled_from(("{}: ", "[rank{}]: ", "[default{}]:", "  {}: "))


def frames(scanned: Scanned) -> set[str]:
    return {signal.fields["frames"] for signal in scanned.signals}


@given(LABELS, st.permutations([rank for rank in range(4) for _ in TRACEBACK]))
def test_frames_do_not_depend_on_whose_line_comes_first(label: str, order: list[int]) -> None:
    """Without this the same KeyError looks new on every attempt, and a job that will never run is never stopped."""
    left = {rank: iter(TRACEBACK) for rank in range(4)}
    text = "".join(f"{label.format(rank)}{next(left[rank])}\n" for rank in order)
    assert frames(scan(text)) == {"train.py:train;train.py:strike;train.py:_do"}


@pytest.mark.parametrize(
    "text",
    [
        '{"msg": "Traceback (most recent call last):\\n  File \\"/a/t.py\\", line 1, in f\\nKeyError: 1\\n"}' + "\n",
        "╭── Traceback (most recent call last) ──╮\n│ /a/t.py:1 in f │\n╰──╯\nKeyError: 'x'\n",
        " 10%|#  | 1/9 [00:01<00:09,  1.0it/s]KeyError: 'x'\n",
        " 10%|#  | 1/9\rKeyError: 'x'\r\n",
        "\x1b[31mKeyError\x1b[0m: 'x'\n",
        "KeyEr\x00ror: '\xff'\n",
    ],
    ids=["json", "rich", "glued to a bar", "behind a carriage return", "coloured", "NUL and bad bytes"],
)
def test_an_exception_is_found_in_whatever_it_is_wrapped(text: str) -> None:
    """Collectors and terminals dress a traceback in many ways; it stays the same exception."""
    (signal,) = scan(text.encode("utf-8" if "╭" in text or "│" in text else "latin-1")).signals
    assert signal.fields["exception"] == "KeyError"


PLAIN = "\n".join(TRACEBACK) + "\n"
BOX = """\
╭─────────────────────── Traceback (most recent call last) ────────────────────────╮
│ /home/u/train.py:306 in train                                                    │
│                                                                                  │
│   305     for step in range(10):                                                 │
│ ❱ 306         faults.strike(step)                                                │
│                                                                                  │
│ /home/u/train.py:230 in strike                                                   │
│                                                                                  │
│ ❱ 230         self._do(fault, step)                                              │
│                                                                                  │
│ /home/u/with/a/name/so/long/that/the/line/is/too/short/for/it/train.py:248 in    │
│ _do                                                                              │
│                                                                                  │
│ ❱ 248             batch["labels"]                                                │
╰──────────────────────────────────────────────────────────────────────────────────╯
KeyError: 'labels'
"""
TAKEN_APART = {
    "event": "step failed",
    "exception": [
        {
            "exc_type": "KeyError",
            "exc_value": "'labels'",
            "is_cause": False,
            "frames": [
                {"filename": "/home/u/train.py", "lineno": 306, "name": "train", "locals": {"x": {"y": "1"}}},
                {"filename": "/home/u/train.py", "lineno": 230, "name": "strike"},
                {"filename": "/home/u/train.py", "lineno": 248, "name": "_do"},
            ],
        }
    ],
}
FILLER = "#include <c10/core/Allocator.h> "


@pytest.mark.parametrize(
    "text",
    [
        BOX,
        "".join(f"3: {line}\n" for line in BOX.splitlines()),
        json.dumps({"level": "ERROR", "message": "step failed", "exc_info": PLAIN}) + "\n",
        json.dumps({"message": PLAIN}, separators=(",", ":")) + "\n",
        json.dumps({"note": FILLER * 900, "message": FILLER * 20 + PLAIN, "level": "ERROR"}) + "\n",
        json.dumps({"log.level": "error", "error.stack_trace": PLAIN}) + "\n",
        json.dumps({"text": f"x | {PLAIN}", "record": {"message": PLAIN, "exception": {"type": "KeyError"}}}) + "\n",
        json.dumps(TAKEN_APART) + "\n",
        json.dumps({"message": {"message": "KeyError: 'labels'", "extraInfo": {"py_callstack": PLAIN}}}) + "\n",
        "".join(json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" for line in TRACEBACK),
    ],
    ids=["rich", "rich behind labels", "exc_info", "message", "cut", "ecs", "loguru", "structlog", "elastic", "docker"],
)
def test_the_dress_of_a_traceback_does_not_make_it_another_failure(text: str) -> None:
    """A job whose logger is changed between two attempts has failed the same way twice."""
    (plain,) = scan(PLAIN).signals
    (signal,) = scan(text).signals
    assert (signal.rule, signal.fields) == (plain.rule, plain.fields)


@pytest.mark.parametrize(
    ("members", "rank", "node", "gpu"),
    [
        ({"rank": 12}, 12, "node2", None),
        ({"global_rank": "12", "rank": 3}, 12, "node2", None),
        ({"RANK": "12", "LOCAL_RANK": "4"}, 12, "node2", None),
        ({"local_rank": 3, "hostname": "node3.cluster.internal"}, 19, "node3", None),
        ({"local_rank": 3, "node_rank": 2}, 19, "node3", None),
        ({"extra": {"rank": 12, "gpu": 4}}, 12, "node2", 4),
        ({"device": "cuda:5", "host": "node4"}, None, "node4", 5),
        ({"host": {"name": "node4"}}, None, "node4", None),
        ({"host": "node4", "port": 29500}, None, None, None),
        ({"hostname": "elsewhere9", "rank": 12}, 12, "node2", None),
        ({"dp_rank": 12, "rank": "12/32", "gpu": "H100", "node": "10.0.0.1"}, None, None, None),
        ({"rank": -1}, None, None, None),
        ({"rank": True, "args": {"rank": 7}, "ranks": [{"rank": 3}]}, None, None, None),
    ],
)
def test_members_of_a_json_line_say_who_wrote_it(
    members: dict[str, object], rank: int | None, node: str | None, gpu: int | None
) -> None:
    """By the usual names, where they stand as members of the record."""
    line = json.dumps({**members, "message": "CUDA error: uncorrectable ECC error encountered"})
    (signal,) = scan(line + "\n").signals
    assert (signal.rank, signal.nodes, signal.gpu) == (rank, (node,) if node else (), gpu)


def test_what_stands_in_a_message_names_nobody() -> None:
    """Whoever can print a message can print anything that looks like a member; it stays text, also where it was cut."""
    forged = 'CUDA error: uncorrectable ECC error encountered {"rank": 7, "hostname": "node1"}'
    for filler in ("", FILLER * 900):
        (signal,) = scan(json.dumps({"message": filler + forged}) + "\n").signals
        assert (signal.rank, signal.nodes) == (None, ())


def test_json_lines_of_many_ranks_are_one_signal_with_all_their_ranks() -> None:
    """Also where they are answered from memory: ranks of four digits stand where process numbers do in other lines."""
    error = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    tight, loose = ((",", ":"), (3, 1033, 1034)), ((", ", ": "), (5, 2046, 2047))
    lines = [
        json.dumps({"rank": rank, "message": error}, separators=s) for s, ranks in (tight, loose) for rank in ranks
    ]
    (signal,) = scan("\n".join(lines) + "\n").signals
    assert (signal.count, signal.fields["ranks"]) == (6, "3,5,1033-1034,2046-2047")
