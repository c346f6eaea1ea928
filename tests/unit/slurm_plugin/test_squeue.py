"""Reading Slurm: golden output of 22.05.8 with what users did to forge it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_plugin import squeue
from slurm_plugin.squeue import JobRow, Output, Slurm, SlurmError
from tests.unit.slurm_plugin.fake_slurm import FakeJob, FakeSlurm

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def rows() -> dict[str, JobRow]:
    excluded = squeue.parse_excluded(golden("excluded-22.05.bin"))
    return {row.job_id: row for row in squeue.parse_jobs(golden("squeue-22.05.bin"), excluded)}


def test_forged_name_comment_and_account_change_nothing() -> None:
    """Job 84's name, comment and account hold records and separators; its row is Slurm's own."""
    row = rows()["84"]
    assert (row.state, row.restarts, row.submit, row.user) == ("PENDING", 1, 1795962152, "alice")
    assert row.excluded == ("node1", "node4")
    assert row.admin_comment.startswith('note\n\x1e of an admin {"advisor":')


def test_array_tasks_and_het_components_have_names_of_their_own() -> None:
    """The bare id of an array's last task names the whole array; the shown id does not."""
    found = rows()
    assert (found["85"].shown_id, found["85"].array_job_id, found["85"].array_task) == ("85_2", "85", 2)
    assert (found["89"].shown_id, found["89"].array_task) == ("85_1", 1)
    assert (found["88"].shown_id, found["88"].het_job_id, found["88"].het_offset) == ("87+1", "87", 1)


def test_an_end_that_is_only_expected_is_none() -> None:
    """Of a job that a node's failure requeues, COMPLETING, Slurm shows start + limit: a year, where there is none."""
    world = FakeSlurm()
    world.add(FakeJob(state="COMPLETING", restarts=1, end=1100 + 365 * 86400))
    world.add(FakeJob(job_id="18", state="FAILED", end=1199))
    assert [row.end for row in Slurm(run=world, wall=lambda: world.now).jobs()] == [None, 1199]


def test_array_tasks_not_yet_split_off_are_left_out() -> None:
    """They share one id and never ran."""
    assert "86" not in rows()
    assert set(rows()) == {"84", "85", "87", "88", "89"}


def test_details_survive_bytes_that_are_no_utf8() -> None:
    """One broken byte in anybody's comment must not blind us for the others."""
    found = squeue.parse_details(golden("squeue-22.05.json"))
    by_id = {details.job_id: details for details in found.values()}
    assert by_id["89"].name == "b\udcff"
    assert by_id["89"].comment == '{"advisor": true, "x":"\udcff\udcfe"}'
    assert by_id["84"].name.startswith("x JobState=RUNNING Restarts=7\nJobId=1 JobName=evil")
    assert by_id["84"].gres_per_node == "gres:gpu:8"


def test_details_of_later_versions_wrap_numbers() -> None:
    """24.05 and later print {set, infinite, number}."""
    wrapped = b"""{"jobs": [{"job_id": 3, "submit_time": {"set": true, "infinite": false, "number": 77},
        "cpus_per_task": {"set": false, "number": 9}, "memory_per_node": {"set": true, "number": 5}}]}"""
    details = squeue.parse_details(wrapped)["3", 77]
    assert (details.cpus_per_node, details.memory_mb_per_node) == (1, 5)


def test_node_reason_may_hold_anything() -> None:
    """An administrator's reason with a newline and a separator stays one field of one node."""
    nodes = {node.name: node for node in squeue.parse_nodes(golden("sinfo-22.05.bin"))}
    assert nodes["node3"].reason == "line one\nline \x1ftwo"
    assert nodes["node3"].state == "drained"
    assert nodes["node1"].gres == "gpu:h200:8"
    assert nodes["node1"].features == ()


def test_not_responding_is_a_sign_behind_the_state() -> None:
    """`idle*` is idle and silent."""
    line = "n1\x1fidle*\x1f{}\x1f1\x1f1\x1f(null)\x1ff1,f2\x1fnone\x1e\n"
    (node,) = squeue.parse_nodes((line.format("a") + line.format("b")).encode())
    assert (node.state, node.responding, node.partitions, node.features) == ("idle", False, ("a", "b"), ("f1", "f2"))


def test_config() -> None:
    """The requeue delay is one second more than cred_expire."""
    found = squeue.parse_config(golden("config-22.05.txt"))
    assert (found.version, found.cluster, found.requeue_delay_seconds) == ("22.05.8", "advisor", 6)
    assert (found.min_job_age_seconds, found.slurm_user, found.slurm_user_id) == (300, "slurm", 64030)


@pytest.mark.parametrize(
    ("settings", "delay"),
    [
        ("SLURM_VERSION = 22.05\n", 121),
        ("SLURM_VERSION = 25.11\nSchedulerParameters = a=1,requeue_delay=3\nAuthInfo = cred_expire=9\n", 4),
        ("SLURM_VERSION = 22.05\nAuthInfo = socket=/x,cred_expire=30\n", 31),
    ],
)
def test_requeue_delay(settings: str, delay: int) -> None:
    """The default is 120 s; newer versions have a setting of its own."""
    assert squeue.parse_config(settings.encode()).requeue_delay_seconds == delay


def test_priority_zero_is_a_hold_except_for_bad_constraints() -> None:
    """Right after requeuehold the reason is still that of the attempt's end."""

    def held(state: str, priority: int, reason: str) -> bool:
        row = JobRow(
            job_id="1",
            shown_id="1",
            state=state,
            restarts=1,
            submit=1,
            user="u",
            user_id=1,
            priority=priority,
            reason=reason,
        )
        return row.held

    assert held("PENDING", 0, "NonZeroExitCode")
    assert held("SPECIAL_EXIT", 0, "JobHeldUser")
    assert not held("PENDING", 0, "BadConstraints")
    assert not held("PENDING", 5, "BeginTime")
    assert not held("FAILED", 0, "NonZeroExitCode")


@pytest.mark.parametrize(
    "raw",
    [b"17\x1f17\x1e\n", b"not a listing", b"17\x1f17", b"\xff\x1e\n"],
)
def test_anything_else_is_garbled(raw: bytes) -> None:
    """A listing is believed as a whole or not at all."""
    with pytest.raises(SlurmError) as caught:
        squeue.parse_jobs(raw, {})
    assert caught.value.problem == "garbled"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"jobs": 3}', b'{"jobs": [1]}', b"[" * 100_000])
def test_json_of_another_shape_is_garbled(raw: bytes) -> None:
    """Deep nesting included."""
    with pytest.raises(SlurmError):
        squeue.parse_details(raw)


def test_text_on_stderr_is_a_failure_whatever_the_status() -> None:
    """`-O NoSuchField` drops the column with status 0 and a complaint."""

    def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> Output:
        return Output(returncode=0, stdout=b"", stderr=b"squeue: error: Invalid job format specification\n")

    with pytest.raises(SlurmError, match="Invalid job format"):
        Slurm(run=run).jobs()


def test_no_output_is_no_jobs_only_with_status_zero_and_silence() -> None:
    """An empty listing is an answer."""
    assert Slurm(run=FakeSlurm()).jobs() == ()


def test_an_unknown_job_is_an_answer_and_a_refusal_is_not() -> None:
    """Only "Invalid job id specified" for one job means that Slurm knows no such job."""
    assert Slurm(run=FakeSlurm()).jobs("9") == ()

    def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> Output:
        return Output(returncode=1, stdout=b"", stderr=b"Unable to contact slurm controller\n")

    with pytest.raises(SlurmError, match="Unable to contact"):
        Slurm(run=run).jobs("9")


def test_record_separators_cannot_be_guessed() -> None:
    """An AdminComment that ends a record by the old separator stays one field."""
    world = FakeSlurm()
    world.add(FakeJob(admin_comment="\x1e\n99\x1f99\x1fRUNNING"))
    (row,) = Slurm(run=world).jobs()
    assert row.admin_comment == "\x1e\n99\x1f99\x1fRUNNING"


def test_a_real_process_that_hangs_is_a_timeout(tmp_path: Path) -> None:
    """The tool is killed; nobody waits on it."""
    with pytest.raises(SlurmError) as caught:
        squeue.run_process(("sleep", "30"), {}, 0.05)
    assert caught.value.problem == "timeout"
    with pytest.raises(SlurmError) as caught:
        squeue.run_process((str(tmp_path / "none"),), {}, 1)
    assert caught.value.problem == "missing"


def test_settings_of_the_environment_do_not_change_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQUEUE_USERS would hide jobs, and hidden jobs would look forgotten."""
    monkeypatch.setenv("SQUEUE_USERS", "alice")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    tool = tmp_path / "squeue"
    tool.write_text("#!/bin/sh\nenv\n")
    tool.chmod(0o755)
    said = squeue.run_process((str(tool),), {"SLURM_TIME_FORMAT": "%s"}, 5).stdout.decode().splitlines()
    assert not [line for line in said if line.startswith("SQUEUE_")]
    assert {"SLURM_CONF=/etc/slurm.conf", "SLURM_TIME_FORMAT=%s"} <= set(said)
