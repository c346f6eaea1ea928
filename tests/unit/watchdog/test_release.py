"""What is given back to which marked job, and what is never touched."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog import marks
from watchdog.liveness import Liveness
from watchdog.release import Facts, Job, Release, marked, plan

ALIVE, DEAD = Liveness(alive=True, reason="fresh"), Liveness(alive=False, reason="there is no tick file")
NODES = ("node1", "node2", "node3", "node4")
FACTS = Facts(advisor=ALIVE, now=2000.0, requeue_delay_seconds=6, pending_seconds=1800.0, fitting=NODES)


def fragment(**changes: object) -> str:
    value: dict[str, object] = {
        "v": 1,
        "job": "k",
        "attempt": 0,
        "generation": 3,
        "deadline": 2100,
        "nodes": ["node2"],
        "start": None,
        "found": None,
    }
    return json.dumps({"advisor": value | changes})


def comment(**changes: object) -> str:
    return f'health {{"x": 1}} {fragment(**changes)} end'


JOB = Job(
    job_id="17",
    shown_id="17",
    state="PENDING",
    restarts=1,
    submit=1980,
    eligible=1986,
    priority=10,
    reason="Resources",
    nodes_wanted=2,
    partition="main",
    excluded=("node4", "node2"),
    admin_comment=comment(),
)
LEASED = replace(JOB, eligible=2090, admin_comment=comment(start=2090, found=1986, nodes=[]), excluded=("node4",))


def body(release: Release) -> dict[str, object]:
    mark = marks.find(release.admin_comment)
    assert mark is not None
    value: dict[str, object] = json.loads(release.admin_comment[mark.begin : mark.end])["advisor"]
    return value


# --- StartTime -------------------------------------------------------------------------------------------------------


def test_a_lease_of_a_living_advisor_is_left_alone() -> None:
    """It has until its deadline."""
    assert plan(LEASED, FACTS) is None


def test_a_lease_of_a_dead_advisor_is_brought_forward() -> None:
    """To the earliest legal start, or now, whichever is later; the mark says so and others' text stays."""
    found = plan(LEASED, replace(FACTS, advisor=DEAD))
    assert found is not None
    assert (found.start_time, found.excluded) == (2001, None)
    assert found.admin_comment.startswith('health {"x": 1} ')
    assert found.admin_comment.endswith(" end")
    assert (body(found)["start"], body(found)["nodes"]) == (None, [])
    assert "returned" not in body(found)


def test_never_before_slurms_own_delay() -> None:
    """slurmd would refuse the launch."""
    found = plan(replace(LEASED, submit=1999), replace(FACTS, advisor=DEAD))
    assert found is not None
    assert found.start_time == 2005


def test_never_before_the_start_time_found() -> None:
    """A user's own begin time is not ours to move."""
    job = replace(LEASED, admin_comment=comment(start=2090, found=2050))
    found = plan(job, replace(FACTS, advisor=DEAD))
    assert found is not None
    assert found.start_time == 2050


@pytest.mark.parametrize("eligible", [2091, 2089, None])
def test_a_start_time_that_is_no_longer_ours_stays(eligible: int | None) -> None:
    """Users edit their jobs too."""
    assert plan(replace(LEASED, eligible=eligible), replace(FACTS, advisor=DEAD)) is None


def test_a_lease_beyond_its_deadline_is_brought_forward_though_the_advisor_lives() -> None:
    """The deadline holds for everybody."""
    job = replace(LEASED, eligible=2200, admin_comment=comment(start=2200, found=1986, nodes=[]))
    found = plan(job, FACTS)
    assert found is not None
    assert found.start_time == 2001


def test_nothing_to_gain_is_nothing_to_do() -> None:
    """The lease ends by itself first."""
    assert plan(LEASED, replace(FACTS, advisor=DEAD, now=2089.5)) is None


# --- exclusions ------------------------------------------------------------------------------------------------------


def test_a_job_that_can_start_keeps_our_exclusions() -> None:
    """Waiting for busy nodes is normal, also when the advisor is dead."""
    assert plan(replace(JOB, nodes_wanted=2), FACTS) is None
    assert plan(replace(JOB, nodes_wanted=2), replace(FACTS, advisor=DEAD)) is None


def test_bad_constraints_give_back_at_once() -> None:
    """Slurm itself says that the job can never start; the user's exclusion stays. A living agent is let go ahead."""
    found = plan(replace(JOB, reason="BadConstraints", priority=0), FACTS)
    assert found is not None
    assert (found.excluded, found.returned, found.confirm) == (("node4",), ("node2",), True)
    dead = replace(FACTS, advisor=replace(FACTS.advisor, alive=False))
    alone = plan(replace(JOB, reason="BadConstraints", priority=0), dead)
    assert alone is not None
    assert not alone.confirm
    assert (body(found)["nodes"], body(found)["returned"]) == ([], True)


def test_too_few_fitting_nodes_give_back() -> None:
    """Busy ones counted, down and drained ones not; seen twice before it is believed."""
    found = plan(replace(JOB, nodes_wanted=2), replace(FACTS, fitting=("node1", "node2", "node4")))
    assert found is not None
    assert (found.excluded, found.confirm) == (("node4",), True)


def test_a_shortage_that_is_not_ours_gives_nothing_back() -> None:
    """With or without our exclusions it could not start."""
    assert plan(replace(JOB, nodes_wanted=3), replace(FACTS, fitting=("node1", "node2"))) is None
    assert plan(JOB, replace(FACTS, fitting=())) is None


def test_before_its_begin_time_nothing_of_ours_keeps_it() -> None:
    """Slurm's own delay does."""
    short = replace(FACTS, fitting=("node1", "node2"))
    assert plan(replace(JOB, eligible=2100), short) is None
    assert plan(JOB, short) is not None


def test_pending_for_too_long_gives_back() -> None:
    """Whatever the reason, counted from when it could have started."""
    assert plan(JOB, replace(FACTS, now=1986 + 1799)) is None
    found = plan(JOB, replace(FACTS, now=1986 + 1801))
    assert found is not None
    assert found.excluded == ("node4",)


def test_a_dead_advisor_and_a_job_that_does_not_start() -> None:
    """When it cannot be told whether it could, it gets its nodes back."""
    assert plan(JOB, replace(FACTS, advisor=DEAD, fitting=None)) is not None
    assert (
        plan(replace(JOB, reason="ReqNodeNotAvail, UnavailableNodes:node3"), replace(FACTS, advisor=DEAD)) is not None
    )
    assert plan(JOB, replace(FACTS, fitting=None)) is None


def test_a_held_job_is_left_to_its_holder() -> None:
    """Not our exclusions keep it."""
    late = replace(FACTS, now=99999.0, advisor=DEAD, fitting=None)
    assert plan(replace(JOB, priority=0, reason="JobHeldAdmin"), late) is None


def test_only_what_is_still_there_is_given_back() -> None:
    """A person has already taken it out."""
    assert plan(replace(JOB, excluded=("node4",), reason="BadConstraints"), FACTS) is None


def test_lease_and_exclusions_in_one_update() -> None:
    """Both, and the mark says both."""
    job = replace(JOB, eligible=2090, admin_comment=comment(start=2090, found=1986), reason="BadConstraints")
    found = plan(job, replace(FACTS, advisor=DEAD))
    assert found is not None
    assert (found.start_time, found.excluded) == (2001, ("node4",))
    assert (body(found)["start"], body(found)["nodes"]) == (None, [])


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, state="RUNNING"),
        replace(JOB, state="COMPLETING"),
        replace(JOB, restarts=0),
        replace(JOB, admin_comment=""),
        replace(JOB, admin_comment='{"advisor": {"v": 1}}'),
        replace(JOB, admin_comment=comment(nodes="node2")),
        replace(JOB, admin_comment=comment(attempt=True)),
        replace(JOB, admin_comment=comment(v=9)),
    ],
)
def test_jobs_without_something_of_ours(job: Job) -> None:
    """Running ones, those without a mark, and those that carry what only looks like one."""
    assert marked(job) is None
    assert plan(job, replace(FACTS, advisor=DEAD, fitting=None, now=99999.0)) is None


SUBSETS = st.lists(st.sampled_from(NODES), unique=True).map(tuple)
TIMES = st.none() | st.integers(1900, 2300)


@given(
    excluded=SUBSETS,
    ours=SUBSETS,
    start=TIMES,
    found=TIMES,
    deadline=TIMES,
    eligible=TIMES,
    submit=st.integers(1900, 2000),
    fitting=st.none() | SUBSETS,
    alive=st.booleans(),
    now=st.floats(1990, 6000),
    reason=st.sampled_from(("BadConstraints", "Resources", "ReqNodeNotAvail")),
    priority=st.integers(0, 1),
    wanted=st.integers(1, 4),
)
def test_invariants(
    excluded: tuple[str, ...],
    ours: tuple[str, ...],
    start: int | None,
    found: int | None,
    deadline: int | None,
    eligible: int | None,
    submit: int,
    fitting: tuple[str, ...] | None,
    alive: bool,
    now: float,
    reason: str,
    priority: int,
    wanted: int,
) -> None:
    """Users' nodes stay, times only come forward and never too far, and a second look does nothing more."""
    text = comment(nodes=list(ours), start=start, found=found, deadline=deadline)
    job = replace(
        JOB,
        excluded=excluded,
        eligible=eligible,
        submit=submit,
        reason=reason,
        priority=priority,
        nodes_wanted=wanted,
        admin_comment=text,
    )
    facts = replace(FACTS, advisor=ALIVE if alive else DEAD, fitting=fitting, now=now)
    release = plan(job, facts)
    if release is None:
        return
    if release.excluded is not None:
        assert set(release.excluded) == set(excluded) - set(ours)
        assert set(release.returned) == set(excluded) & set(ours) != set()
    if release.start_time is not None:
        assert eligible is not None
        assert start == eligible
        assert max(submit + 6, found or 0, now) <= release.start_time < eligible
    after = replace(
        job,
        admin_comment=release.admin_comment,
        excluded=release.excluded if release.excluded is not None else excluded,
        eligible=release.start_time if release.start_time is not None else eligible,
    )
    again = plan(after, facts)
    assert again is None or (again.start_time is None and release.excluded is None)
