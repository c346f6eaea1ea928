"""What Slurm prints and allows, on the release that is installed here: both ways of reading, names, sharing."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.core.hostlist import HostlistError, expand, fold
from advisor.demo.cluster import Cluster, Shape
from advisor.demo.namespace import require
from advisor.demo.waiting import wait_for
from advisor.demo.world import running_cluster
from slurm_plugin import capacity
from slurm_plugin.job_json import parse_rows
from slurm_plugin.squeue import JobRow, Slurm
from slurm_plugin.stdout_paths import PatternValues, expand_path
from tests.slurm.capture import make_zoo

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SHARING = (
    "RequeueExitHold=112",
    "NodeSet=fast Nodes=node[1-2]",
    "PartitionName=shared Nodes=ALL OverSubscribe=FORCE:2 MaxTime=INFINITE State=UP",
)


@pytest.fixture(scope="module")
def zoo() -> Iterator[tuple[Cluster, dict[str, int]]]:
    with running_cluster(Shape(nodes=6, extra=SHARING), runtime=require().apart("zoo")) as (cluster, _):
        made = make_zoo(cluster)
        yield cluster, made
        for job in made.values():
            cluster.command("scancel", str(job))


@pytest.fixture
def slurm(zoo: tuple[Cluster, dict[str, int]]) -> Slurm:
    return Slurm(conf=str(zoo[0].conf))


def test_columns_and_json_say_the_same_of_every_job(slurm: Slurm) -> None:
    """Whichever way the agent read, it would see the same rows; the two questions are a moment apart."""

    def both() -> bool:
        by_columns = {row.job_id: replace(row, end=None, reason="") for row in slurm.jobs()}
        said = slurm.tool("squeue", "-a", "-t", "all", "--json")
        by_json = {row.job_id: replace(row, end=None, reason="") for row in parse_rows(said.stdout)}
        return by_columns == by_json and len(by_columns) >= 14

    wait_for("both ways to agree", both, seconds=20, every_seconds=0.5)


def test_details_are_there_for_every_job_also_for_ended_ones(slurm: Slurm) -> None:
    """Later releases leave ended jobs out of JSON unless they are asked for: a failed job's comment is needed most."""
    wait_for("details", lambda: {row.job_id for row in slurm.jobs()} <= {job for job, _ in slurm.details()}, seconds=20)


NAMES = st.lists(st.from_regex(r"\A[a-z]{1,3}-?0{0,2}[0-9]{0,3}\Z"), min_size=1, max_size=12)
LISTS = st.from_regex(
    r"\A[a-z]{1,2}\[[0-9]{1,3}(-[0-9]{1,3})?(,0?[0-9]{1,2}(-[0-9]{1,2})?)?\](,[a-z]{1,2}0?[0-9]{0,2})?\Z"
)


@EXAMPLES
@given(names=NAMES)
def test_slurm_expands_what_we_fold(zoo: tuple[Cluster, dict[str, int]], names: list[str]) -> None:
    """Every list that we hand to Slurm means the nodes that we mean; and we read what it folds."""
    cluster = zoo[0]
    assert set(cluster.expand(fold(names))) == set(names)
    folded = cluster.must("scontrol", "show", "hostlist", ",".join(names)).strip()
    assert set(expand(folded)) == set(names)


@EXAMPLES
@given(text=LISTS)
def test_we_expand_as_slurm_does(zoo: tuple[Cluster, dict[str, int]], text: str) -> None:
    """The same names in the same order, or both refuse."""
    done = zoo[0].command("scontrol", "show", "hostnames", text)
    theirs = tuple(dict.fromkeys(done.stdout.split())) if done.returncode == 0 and not done.stderr else None
    ours = None
    with contextlib.suppress(HostlistError):
        ours = expand(text)
    assert ours == theirs


def test_a_list_of_a_billion_names_is_refused_by_both(zoo: tuple[Cluster, dict[str, int]]) -> None:
    """At once, by them and by us."""
    text = "n[0-999999999]"
    assert zoo[0].command("scontrol", "show", "hostnames", text).stderr
    with pytest.raises(HostlistError):
        expand(text)


def _wait(slurm: Slurm, job: int, state: str) -> JobRow:
    """By our own reader: the zoo's AdminComment holds the separator that the tests' own one counts."""

    def look() -> JobRow | None:
        return next((row for row in slurm.jobs(str(job)) if row.state == state), None)

    return wait_for(f"{job} {state}", look, seconds=30, every_seconds=0.1)


PATTERNS = (
    "plain.log",
    "%j-%5j.out",
    "%u.%x",
    "%A_%a",
    "per%%cent-%j",
    "%J-%s-%n-%t.txt",
    "a\\\\b%j",
    "%12j",
    "%b-%q",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_output_is_where_we_look_for_it(slurm: Slurm, zoo: tuple[Cluster, dict[str, int]], pattern: str) -> None:
    """Expanded by us up to 22.05 and from 25.05 on, by Slurm in between: the file is the one that slurmd opened."""
    cluster = zoo[0]
    home = cluster.runtime.home("bob") / "out"
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    for old in home.iterdir():
        old.unlink()
    settings = slurm.config()
    if "\\\\" in pattern and "23.02" <= settings.version < "25":
        pytest.xfail("this release's tools expand what they tell slurmd to leave alone: docs/slurm.md")
    if "%b" in pattern and settings.version < "23":
        pattern = pattern.replace("%b", "%%")  # not a pattern there yet
    job = cluster.submit("bob", "#!/bin/sh\nexit 1\n", "-N1", "-J", "na%me", "-o", f"{home}/{pattern}")
    row = _wait(slurm, job, "FAILED")
    details = next(item for (job_id, _), item in slurm.details(str(job)).items() if job_id == str(job))
    values = PatternValues(
        job_id=str(job), name="na%me", user="bob", batch_host=row.nodes[0], work_dir=details.work_dir
    )
    (written,) = home.iterdir()
    assert expand_path(details.stdout, values, expanded=details.expanded) == str(written)


def test_nodes_that_are_shared_by_jobs(slurm: Slurm, zoo: tuple[Cluster, dict[str, int]]) -> None:
    """OverSubscribe=FORCE: two jobs that each fill a node run on it at once; both name it, and both are seen to fit."""
    cluster = zoo[0]
    options = ("-p", "shared", "-N1", "-n16", "--nodelist=node5")
    jobs = [cluster.submit(user, "#!/bin/sh\nsleep 60\n", *options) for user in ("alice", "bob")]
    try:
        for job in jobs:
            _wait(slurm, job, "RUNNING")
        rows = [_wait(slurm, job, "RUNNING") for job in jobs]
        assert [row.nodes for row in rows] == [("node5",), ("node5",)]
        details = slurm.details()
        fits = [capacity.fitting(row, details[row.job_id, row.submit or 0], slurm.nodes()) for row in rows]
        assert all(found is not None and "node5" in found for found in fits)
    finally:
        for job in jobs:
            cluster.command("scancel", str(job))


def test_features_and_what_fits_them(slurm: Slurm, zoo: tuple[Cluster, dict[str, int]]) -> None:
    """A job with a plain constraint fits the nodes that have it; of one with alternatives nothing is claimed."""
    cluster = zoo[0]
    cluster.must("scontrol", "update", "NodeName=node[1-3]", "AvailableFeatures=h200,ib", "ActiveFeatures=h200,ib")
    options = ("-H", "-N1")
    plain = cluster.submit("alice", "#!/bin/sh\nexit 0\n", *options, "--constraint=h200&ib")
    odd = cluster.submit("alice", "#!/bin/sh\nexit 0\n", *options, "--constraint=[h200*1&ib*1]", "-N2")
    details, nodes = slurm.details(), slurm.nodes()

    def fits(job: int) -> tuple[str, ...] | None:
        row = next(iter(slurm.jobs(str(job))))
        return capacity.fitting(row, details[row.job_id, row.submit or 0], nodes)

    assert set(fits(plain) or ()) == {"node1", "node2", "node3"}
    assert fits(odd) is None
    for job in (plain, odd):
        cluster.command("scancel", str(job))
