"""Flight-recorder dumps to compare, of the shape that torch 2.13 writes (checked against dumps of a gloo desync)."""

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

CREATED = 1_795_964_727_000_000_000  # 2026-11-29T15:05:27Z
FRAMES = [
    {
        "name": "all_reduce",
        "filename": "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d.py",
        "line": 3245,
    },
    {"name": "train_step", "filename": "/app/train.py", "line": 88},
]


def entry(seq: int, state: str = "completed", **changes: Any) -> dict[str, Any]:
    """One recorded collective; `changes` are fields of it."""
    plain: dict[str, Any] = {
        "frames": FRAMES,
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "pt_main_thread",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": CREATED + seq * 10**9,
        "input_sizes": [[1024, 4]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 4]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return {**plain, **changes}


def contents(
    entries: Sequence[Mapping[str, Any]],
    ranks: Mapping[str, Sequence[int]] | None = None,
    status: Mapping[str, tuple[int, int, int]] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """One rank's dump before it is pickled. `status`: enqueued, started, completed by group id."""
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {
        "version": "2.10",
        "entries": list(entries),
        "pg_config": {
            name: {"name": name, "desc": "", "ranks": str(list(members))} for name, members in (ranks or {}).items()
        },
        "pg_status": {key: dict(zip(names, numbers, strict=True)) for key, numbers in (status or {}).items()},
        "comm_lib_version": "2.27.3",
        **changes,
    }


def at(seq: int, world: int, last: str = "started", **changes: Any) -> dict[str, Any]:
    """A rank whose newest collective of the default group is `seq`; `changes` are fields of that one."""
    entries = [entry(number) for number in range(max(1, seq - 5), seq)] + [entry(seq, last, **changes)]
    done = seq if last == "completed" else seq - 1
    return contents(entries, {"0": range(world)}, {"0": (seq, seq if last != "scheduled" else done, done)})


def pickled(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
