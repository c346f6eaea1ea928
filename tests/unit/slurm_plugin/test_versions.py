"""What three releases of Slurm print about the same zoo of jobs (`tests/slurm/capture.py`), read in both ways."""

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.consequences import of as consequences_of
from slurm_plugin.job_json import parse_details, parse_rows, version_of
from slurm_plugin.records import JobDetails, JobRow, parse_config, parse_excluded, parse_jobs, parse_nodes

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("22.05", "24.11", "26.05")
FORGED = "x JobState=RUNNING Restarts=7\nJobId=1 JobName=evil JobState=RUNNING\x1f\x1e\nFAILED"
each_version = pytest.mark.parametrize("version", VERSIONS)


def said(version: str, name: str) -> bytes:
    return (GOLDEN / version / name).read_bytes()


def rows(version: str) -> dict[str, JobRow]:
    found = parse_jobs(said(version, "squeue.bin"), parse_excluded(said(version, "excluded.bin")))
    return {row.job_id: row for row in found}


def named(version: str) -> dict[str, JobRow]:
    """Rows by what is odd about them."""
    found = rows(version)
    pairs = (line.split() for line in said(version, "jobs.txt").decode().splitlines())
    return {name: found[job] for name, job in pairs if job in found}


def details(version: str) -> dict[str, JobDetails]:
    by_id = {item.job_id: item for item in parse_details(said(version, "squeue.json")).values()}
    pairs = (line.split() for line in said(version, "jobs.txt").decode().splitlines())
    return {name: by_id[job] for name, job in pairs if job in by_id}


@each_version
def test_json_and_columns_say_the_same(version: str) -> None:
    """Same jobs, same values; but an expected end, which only columns hide, and the words in brackets of a reason."""
    by_json = {row.job_id: row for row in parse_rows(said(version, "squeue.json"))}
    by_columns = rows(version)
    assert by_json.keys() == by_columns.keys()
    for job, row in by_columns.items():
        shown = by_json[job]
        assert shown.reason == row.reason.partition(":")[0]
        assert row.end in (None, shown.end)
        assert replace(shown, end=row.end, reason=row.reason) == row


@each_version
def test_how_an_attempt_ended(version: str) -> None:
    """Codes and signals, although 22.05 prints a wait status and later versions `code:signal`."""
    found = named(version)
    ends = {name: (row.state, row.exit_status >> 8, row.exit_status & 0x7F) for name, row in found.items()}
    assert ends["forged"] == ("FAILED", 3, 0)
    assert ends["bytes"] == ("FAILED", 255, 0)
    assert ends["signal"] == ("FAILED", 0, 9)
    assert ends["completed"] == ("COMPLETED", 0, 0)
    assert ends["cancelled"] == ("CANCELLED", 0, 15)
    assert ends["special"] == ("SPECIAL_EXIT", 112, 0)


@each_version
def test_a_requeued_job_with_the_mark_of_an_administrator(version: str) -> None:
    """Its count, its exclusions, and an AdminComment that holds both separators."""
    row = named(version)["requeued"]
    assert (row.state, row.restarts, row.end, row.excluded) == ("PENDING", 1, None, ("node1", "node3", "node4"))
    assert row.admin_comment == 'of an admin\n\x1e {"advisor": {"v": 1}} \x1f'


@each_version
def test_names_that_mean_nothing_elsewhere(version: str) -> None:
    """Jobs called `(null)` and `N/A`, a forged record as name and comment, bytes that are no UTF-8."""
    found = details(version)
    assert (found["held"].name, found["dependent"].name) == ("(null)", "N/A")
    assert found["forged"].name == found["forged"].comment == FORGED
    assert (found["bytes"].name, found["bytes"].comment) == ("b\udcff", "\udcff\udcfe \x01\t\"'")
    assert found["running"].gres_per_node.replace("/", ":") == "gres:gpu:8"
    assert found["listed"].nodes_required == "node4"


@each_version
def test_arrays_and_components_answer_to_their_own_names(version: str) -> None:
    """The running task is one; `1-9%1` that wait are none yet; both components of the heterogeneous job are."""
    found = {row.shown_id: row for row in rows(version).values()}
    assert {"8_0", "14+0", "14+1"} <= found.keys()
    assert not any(shown.startswith("8_") and shown != "8_0" for shown in found)
    assert (found["8_0"].array_job_id, found["8_0"].array_task, found["14+1"].het_job_id) == ("8", 0, "14")


@each_version
def test_holds_and_dependencies(version: str) -> None:
    """Who is held, and what the others wait for, in Slurm's own words."""
    found = named(version)
    assert {name for name, row in found.items() if row.held} == {"held", "long", "special"}
    assert found["held"].dependency == "singleton(unfulfilled)"
    assert found["dependent"].dependency == "afterany:7(unfulfilled)"
    assert not found["listed"].requeueable


@each_version
def test_where_the_output_is(version: str) -> None:
    """Patterns as given, or, from 23.02 on, as Slurm expanded them: then nobody expands them again."""
    pattern, expanded = details(version)["signal"].stdout, details(version)["signal"].expanded
    assert expanded is (version != "22.05")
    assert pattern == "/srv/ra/home/alice/" + ("alice-00003-sbatch.log" if expanded else "%u-%5j-%x.log")


def test_what_slurms_own_tools_leave_in_a_path_is_expanded_by_us() -> None:
    """24.11's JSON has these four as they were given; a `%` of the job's name stays."""
    job = b'{"job_id": 5, "standard_output": "/o/%J-%s-%n-%3t-na%me.log", "standard_error": ""}'
    raw = b'{"meta": {"slurm": {"release": "24.11.5"}}, "jobs": [' + job + b"]}"
    (found,) = parse_details(raw).values()
    assert (found.stdout, found.expanded) == ("/o/5-batch-0-000-na%me.log", True)


@each_version
def test_settings_and_nodes(version: str) -> None:
    """The version, the hook (`EpilogSlurmctld[0]` in later ones), the requeue delay; a drain's reason in full."""
    settings = parse_config(said(version, "config.txt"))
    assert settings.version.startswith(version)
    assert version_of(said(version, "squeue.json")) == tuple(map(int, version.split(".")))
    assert settings.epilog_slurmctld == "/srv/ra/slurm/hooks/epilog_slurmctld"
    assert (settings.requeue_delay_seconds, settings.requeue_exit_hold) == (6, (112,))
    assert settings.slurm_user == "slurm"
    assert {item.setting for item in consequences_of(settings)} >= {"requeue delay", "EpilogSlurmctld"}
    nodes = {node.name: node for node in parse_nodes(said(version, "sinfo.bin"))}
    assert (nodes["node6"].state, nodes["node6"].reason) == ("drained", "line one\nline \x1ftwo")
    assert nodes["node1"].gres == "gpu:h200:8"
    assert all(node.responding for node in nodes.values())
