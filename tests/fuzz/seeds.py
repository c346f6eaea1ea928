"""Inputs that a fuzzer starts from: one of every shape that the readers know."""

import json
import pickle
from collections.abc import Mapping
from importlib import resources

from tests.fuzz.targets import SCANNER, packed
from tests.unit.core_detect.dumps import at, pickled

_LOG = (
    b" iteration 12/ 100 | consumed samples: 12 | elapsed time per iteration (ms): 12.0 | lm loss: 1.0 |\n"
    b"2026-11-29T11:59:01.5+01:00 node1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    b" 10%|#  | 1/9 [00:01<00:09,  1.0it/s]\r 20%|## | 2/9 [00:02<00:08]\x1b[31mRuntimeError: x\x1b[0m\r\n"
    b"[rank3]: Traceback (most recent call last):\n[rank3]:   File \"/a/b.py\", line 3, in f\n[rank3]: KeyError: 'x'\n"
    b"Root Cause (first observed failure):\n[0]:\n  time : 2026-11-29_11:59:00\n  host : node2\n"
    b"  rank : 3\n  exitcode : -9\n"
    b"slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-29T11:59:59 DUE TO TIME LIMIT ***\n\x00\xff\xfe"
)
_WRAPPED = (
    b'{"rank": 3, "hostname": "node1", "ts": 1795953600.5, "exc_info": "Traceback (most recent call last):\\n  File '
    b'\\"/a/b.py\\", line 3, in f\\nKeyError: \'x\'", "extra": {"local_rank": "1", "gpu": 2}}\n'
    b'3: {"event": "x", "exception": [{"exc_type": "KeyError", "exc_value": "1", "frames": [{"filename": "a.py", '
    b'"lineno": 3, "name": "f"}]}]}\n{"log": "KeyError: \'x\'\\n", "stream": "stderr"}\n'
    b"[    0.000000] Linux version\n[    1.000000] rtc_cmos 00:00: setting system clock to 2026-11-29T11:00:00 UTC "
    b"(1795950000)\n[ 3000.000001] NVRM: Xid (PCI:0000:3b:00): 79, x\n3,1,3000000001,-;NVRM: Xid (PCI:0000:3b:00): 48\n"
    b"node1:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 3 busId 3b000 commId 0x1 - Init START\n"
    b"|   3  NVIDIA H100   On  | 00000000:3B:00.0 Off |     0 |\n3, 00000000:3B:00.0\nP0 3: [7.batch] error: x\n"
    + "│ /a/b.py:3 in f   │\n│ /a/long.py:4 in │\n│ g │\nKeyError: 1\n".encode()
)
_FACTS = {
    "job_id": "7",
    "state": "FAILED",
    "nodes": "node[1-2]",
    "exit_code": "1:0",
    "started_at": "2026-11-29T10:00:00Z",
    "ended_at": 1_795_953_600,
    "world_size": 8,
    "tasks_per_node": 4,
    "rank_nodes": {"0": "node1"},
    "silent_seconds": 700,
    "restarts": 1,
}
_JOB_RULES = {
    "logMonitoringConfiguration": [
        {
            "name": "hang",
            "logPattern": ".*step ([0-9.]+)",
            "expectedStartCutOffInSeconds": 600,
            "expectedRecurringFrequencyInSeconds": 60,
            "metricThreshold": 1.5,
            "operator": "gteq",
            "metricEvaluationDataPoints": 3,
            "stopPattern": "done",
            "faultOnMatch": False,
        }
    ]
}
_SIGNATURE = b"""[[rule]]
id = "site.disk"
title = "The disk is gone"
pattern = '(?P<node>\\w+): disk gone'
category = "storage"
role = "initiating"
implicates = "node"
weight = 0.5
source = "ours"
positive = ["n1: disk gone"]
negative = ["x"]
"""


def seeds() -> Mapping[str, tuple[bytes, ...]]:
    """By target."""
    examples = [line.encode() for rule in SCANNER.rules for line in rule.positive]
    dumps = [pickled(at(43, 4)), pickled(at(42, 4, "completed")), b"{}", json.dumps(at(43, 2), default=str).encode()]
    dumps += [
        pickle.dumps(value, protocol) for value in ([1, "a", None], {"a": (1.5, True, -(2**70))}) for protocol in (2, 4)
    ]
    folder = resources.files("advisor.rules") / "signatures"
    shipped = [item.read_bytes()[:4_000] for item in folder.iterdir() if item.name.endswith(".toml")]
    facts, attempts = json.dumps(_FACTS).encode(), b'{"number": 0, "fingerprint": "x"}\n'
    metrics = (
        b'{"samples": [{"at": "2026-11-29T11:00:00Z", "node": "node1", "name": "DCGM_FI_DEV_XID_ERRORS", "value": 79}]}'
    )
    return {
        "normaliser": tuple(b"\0\0\x80" + text for text in (_LOG, _WRAPPED, *examples)),
        "rules": (_SIGNATURE, json.dumps(_JOB_RULES).encode(), *shipped),
        "pickles": tuple(dumps),
        "bundles": (
            packed(("logs/rank1.log", "plain", _LOG), ("job.json", "plain", facts), ("kernel/node1", "plain", _LOG)),
            packed(
                ("logs/rank1.log", "plain", _WRAPPED), ("job.json", "plain", facts), ("kernel/node1", "plain", _WRAPPED)
            ),
            packed(("logs/rank1.log", "gzip", _LOG), ("attempts.jsonl", "plain", attempts)),
            packed(("logs/rank1.log", "link", b"x"), ("job.json", "plain", facts), ("metrics.json", "plain", metrics)),
            packed(("logs/rank1.log", "plain", _LOG), ("flight_recorder/dump_0", "plain", dumps[0])),
            packed(("logs/job-error.json", "plain", b'{"message": {"message": "KeyError: x", "extraInfo": {}}}')),
        ),
    }
