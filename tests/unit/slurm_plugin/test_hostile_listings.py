"""Listings that are cut, empty, of another version, or full of what users and slurmctld may print.

Made from the golden output of three releases. A listing is believed as a whole or not at all.
"""

import contextlib
import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.job_json import parse_details, parse_rows
from slurm_plugin.observe import Memory, observation
from slurm_plugin.records import COLUMNS, RECORD, UNIT, JobRow, SlurmError, parse_config, parse_excluded, parse_jobs
from slurm_plugin.records import parse_nodes as nodes_of
from slurm_plugin.scope import ScopeConfig
from slurm_plugin.squeue import Output, Slurm
from tests.unit.slurm_plugin.test_versions import VERSIONS, each_version, said

PLAIN = dict(zip(COLUMNS, said("24.11", "squeue.bin").decode().split(RECORD)[0].split(UNIT), strict=True))


def listing(*changes: dict[str, str]) -> bytes:
    return "".join(UNIT.join((PLAIN | change).values()) + RECORD + "\n" for change in changes).encode(
        "utf-8", "surrogateescape"
    )


def read(raw: bytes) -> tuple[JobRow, ...]:
    return parse_jobs(raw, {})


@each_version
def test_a_cut_anywhere_makes_the_whole_listing_garbled(version: str) -> None:
    """At every byte of it; but between two records, where nothing tells it from a shorter one: hence the next test."""
    raw = said(version, "squeue.bin")
    end = (RECORD + "\n").encode()
    for at in range(1, len(raw)):
        if raw[:at].endswith(end):
            assert read(raw[:at])
            continue
        with pytest.raises(SlurmError, match="garbled"):
            read(raw[:at])


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "problem"),
    [
        (b"", b"slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1, "refused"),
        (said("22.05", "squeue.bin"), b"squeue: error: Invalid job format specification: x\n", 0, "refused"),
        (said("22.05", "squeue.bin"), b"sh: warning: setlocale: LC_ALL: cannot change locale\n", 0, "refused"),
        (said("22.05", "squeue.bin"), b"", 1, "refused"),
        (b"slurm_load_jobs error: Socket timed out\n", b"", 0, "garbled"),
        (b"JOBID PARTITION NAME\n", b"", 0, "garbled"),
        (b"\0" * 4096, b"", 0, "garbled"),
        (b"\n", b"", 0, "garbled"),
    ],
)
def test_noise_is_never_a_shorter_listing(stdout: bytes, stderr: bytes, status: int, problem: str) -> None:
    """Text on stderr with status 0, a status with a whole listing, an error where jobs were expected: no listing."""
    run = Slurm(run=lambda *_: Output(returncode=status, stdout=stdout, stderr=stderr))
    for ask in (run.jobs, run.nodes, run.details, run.config):
        with pytest.raises(SlurmError) as raised:
            ask()
        assert raised.value.problem in {problem, "garbled"}


def test_an_empty_listing_is_empty_and_the_agent_doubts_it() -> None:
    """It may be true; that it is not believed at once is the agent's business (EMPTY_SECONDS)."""
    assert read(b"") == ()
    assert parse_excluded(b"") == {}
    assert nodes_of(b"") == ()


@pytest.mark.parametrize(
    "change",
    [
        {"JobID": ""},
        {"JobID": "N/A"},
        {"JobID": "1e3"},
        {"JobID": "٣"},
        {"UserID": "alice"},
        {"State": ""},
        {"State": "RUNNING JobState=X"},
        {"RestartCnt": "N/A"},
        {"RestartCnt": "-1"},
        {"UserID": "9" * 19},
        {"PriorityLong": "0.00000000"},
        {"SubmitTime": "2026-11-29T20:23:51"},
        {"SubmitTime": "Tomorr 00:00"},
        {"EndTime": "Nov 29 20:23"},
        {"NodeList": "node[1-"},
        {"NodeList": "node[0-999999999]"},
    ],
    ids=str,
)
def test_a_value_that_decides_and_is_none_makes_the_listing_garbled(change: dict[str, str]) -> None:
    """Another version's format must not read as a job that is held, has no submit time, or was never restarted."""
    with pytest.raises(SlurmError, match="garbled"):
        read(listing({}, change))


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"StartTime": "N/A"}, "start", None),
        ({"StartTime": "NONE"}, "start", None),
        ({"EndTime": "Unknown"}, "end", None),
        ({"EndTime": "(null)"}, "end", None),
        ({"EndTime": "0"}, "end", None),
        ({"SubmitTime": "1798761599"}, "submit", 1798761599),  # the last second of a year, in UTC
        ({"SubmitTime": "1825655400"}, "submit", 1825655400),  # the hour that New York has twice
        ({"SubmitTime": "2147483648"}, "submit", 2147483648),  # beyond 32 bits
        ({"EligibleTime": "604801796012400"}, "eligible", None),  # --begin=now+1000000000weeks
        ({"EligibleTime": "604800000000"}, "eligible", None),  # and a thousandth of it: the year 21135
        ({"NodeList": "(null)"}, "nodes", ()),
        ({"NodeList": "None assigned"}, "nodes", ()),
        ({"Reason": "None"}, "reason", ""),
        ({"Reason": "(null)"}, "reason", ""),
        ({"Dependency": "(null)"}, "dependency", ""),
        ({"admin_comment": "(null)"}, "admin_comment", ""),
        ({"UserName": "(null)"}, "user", "(null)"),
        ({"UserName": "m\udcfcller"}, "user", "m\udcfcller"),
        ({"NumNodes": "2-4"}, "nodes_wanted", 2),
        ({"NumNodes": "1K"}, "nodes_wanted", 1024),
        ({"NumTasks": "N/A"}, "tasks", 0),
        ({"exit_code": "2560"}, "exit_status", 2560),
        ({"exit_code": "10:0"}, "exit_status", 2560),
        ({"exit_code": "0:137"}, "exit_status", 9),
        ({"exit_code": "N/A"}, "exit_status", 0),
        ({"State": "REVOKED"}, "state", "REVOKED"),  # of a federation: another cluster runs it
        ({"ArrayTaskID": "1-9%1"}, "array_task", None),
        ({"admin_comment": f"a{UNIT}b{RECORD}c\nd"}, "admin_comment", f"a{UNIT}b{RECORD}c\nd"),
    ],
    ids=str,
)
def test_values_that_are_odd_and_true(change: dict[str, str], field: str, value: object) -> None:
    """Slurm's many ways to say none, edges of time, ranges, arrays, federations, an administrator's separators."""
    (row,) = read(listing(change))
    assert getattr(row, field) == value


@pytest.mark.parametrize(
    "bad", [2**63, 10**30, -1, 1e400, float("nan"), None, "\udcff", [], {"set": True, "number": 10**30}]
)
@each_version
def test_no_value_of_one_job_keeps_the_others_from_being_told(version: str, bad: object) -> None:
    """Whatever stands in one field of one job: the listing is garbled, or each row can be told to the advisor."""
    document = json.loads(said(version, "squeue.json").decode("utf-8", "surrogateescape"))
    job = document["jobs"][0]
    for key in job:
        document["jobs"] = [job | {key: bad}]
        raw = json.dumps(document).encode("utf-8", "surrogateescape")
        with contextlib.suppress(SlurmError):
            for row in parse_rows(raw):
                details = parse_details(raw).get((row.job_id, row.submit or 0))
                told = observation(
                    "c", row, memory=Memory(), details=details, nodes=(), scope_config=ScopeConfig(), at=1.7e9
                )
                assert told.SerializeToString()


def test_very_many_jobs_and_very_long_node_lists() -> None:
    """Ten thousand jobs, each on a list of a hundred ranges: read within a second or so, none lost."""
    nodes = "n[" + ",".join(f"{at}-{at + 2}" for at in range(0, 400, 4)) + "]"
    raw = listing(*({"JobID": str(number), "NodeList": nodes} for number in range(1, 2001)))
    began = time.monotonic()
    rows = read(raw)
    assert (len(rows), len(rows[0].nodes)) == (2000, 300)
    assert time.monotonic() - began < 10


@settings(max_examples=300)
@given(
    version=st.sampled_from(VERSIONS),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), min_size=1, max_size=4),
    name=st.sampled_from(["squeue.bin", "squeue.json", "excluded.bin", "sinfo.bin", "config.txt"]),
)
def test_no_damage_raises_anything_else(version: str, cuts: Sequence[tuple[float, bytes]], name: str) -> None:
    """Bytes overwritten anywhere in any output: rows, or the one error."""
    raw = bytearray(said(version, name))
    for where, what in cuts:
        at = int(where * len(raw))
        raw[at : at + len(what)] = what
    readers = {
        "squeue.bin": [lambda text: parse_jobs(text, {})],
        "squeue.json": [parse_rows, parse_details],
        "excluded.bin": [parse_excluded],
        "sinfo.bin": [nodes_of],
        "config.txt": [parse_config],
    }[name]
    for reader in readers:
        with contextlib.suppress(SlurmError):
            reader(bytes(raw))


JOB = json.loads(said("26.05", "squeue.json").decode("utf-8", "surrogateescape"))["jobs"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": None},
        {"job_id": "17"},
        {"job_id": True},
        {"job_id": {"set": False, "infinite": False, "number": 17}},
        {"job_id": -1},
        {"user_id": {"set": True, "infinite": True, "number": 0}},
        {"job_state": []},
        {"job_state": [17]},
        {"job_state": None},
        {"nodes": "n[1-999999999]"},
    ],
    ids=str,
)
def test_json_in_which_a_job_is_not_told_is_garbled(change: dict[str, object]) -> None:
    """Numbers in objects that are not set, infinite or text; a state that is none."""
    with pytest.raises(SlurmError, match="garbled"):
        parse_rows(json.dumps({"jobs": [JOB | change]}).encode())


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"job_state": ["CANCELLED", "COMPLETING"]}, "state", "COMPLETING"),
        ({"job_state": ["PENDING", "REQUEUE_HOLD"]}, "state", "REQUEUE_HOLD"),
        ({"job_state": "FAILED"}, "state", "FAILED"),
        ({"exit_code": 1280}, "exit_status", 1280),
        ({"exit_code": {"return_code": 5, "status": "ERROR"}}, "exit_status", 1280),
        ({"exit_code": {"status": ["SIGNALED"], "signal": {"signal_id": 9, "name": "KILL"}}}, "exit_status", 9),
        ({"exit_code": "5:0"}, "exit_status", 0),
        ({"restart_cnt": {"set": True, "infinite": False, "number": 3}}, "restarts", 3),
        ({"start_time": {"set": True, "infinite": True, "number": 0}}, "start", None),
        ({"priority": {"set": False, "infinite": False, "number": 7}}, "priority", 0),
        ({"excluded_nodes": "node[1-2]"}, "excluded", ("node1", "node2")),
        ({"name": {"not": "text"}, "nodes": None}, "nodes", ()),
    ],
    ids=str,
)
def test_json_of_every_shape_so_far(change: dict[str, object], field: str, value: object) -> None:
    """States as text or list, numbers bare or in objects, exits in three forms."""
    (row,) = parse_rows(json.dumps({"jobs": [JOB | change]}).encode())
    assert getattr(row, field) == value


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"{}", b'{"jobs": 5}', b'{"jobs": [5]}', b'{"jobs": [', b"[" * 100_000, b"slurm: x"]
)
def test_json_that_is_no_listing(raw: bytes) -> None:
    """Of another shape, cut, or nested without end."""
    for reader in (parse_rows, parse_details):
        with pytest.raises(SlurmError, match="garbled"):
            reader(raw)


@pytest.mark.parametrize("raw", [b"", b"SLURM_VERSION\n", b"Configuration data as of now\n", b"\xff\xfe"])
def test_settings_without_a_version_are_none(raw: bytes) -> None:
    """The arithmetic of restarts rests on them."""
    with pytest.raises(SlurmError, match="garbled"):
        parse_config(raw)
