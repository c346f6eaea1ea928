"""Figures over seeds: intervals, paired differences, and what must not be mixed."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.commands.simulate import Told
from advisor.simulate.cluster import Cluster
from advisor.simulate.runs import Result, run
from advisor.simulate.world import HOUR, SCENARIOS, draw
from benchmarks.worth import as_text, bootstrap, main, summarise

SMALL = replace(SCENARIOS["small"], days=1.0, failures_per_1000_node_days=300.0)


@pytest.fixture(scope="module")
def results() -> tuple[Result, ...]:
    return run(SMALL, range(1, 7), ["nobody", "bound"], done=lambda _: None)


def test_a_summary_has_every_operator_with_an_interval(results: tuple[Result, ...]) -> None:
    """The mean lies within its bounds, and the parts of the time come to all of it."""
    summary = summarise([result.document() for result in results])
    assert list(summary["operators"]) == ["nobody", "bound"]
    for item in summary["operators"].values():
        assert item["ettr"]["low"] <= item["ettr"]["value"] <= item["ettr"]["high"]
        assert sum(item["parts"].values()) == pytest.approx(1.0)
    assert "Fewer than 20 seeds" in as_text(summary)


def test_differences_are_of_the_same_worlds(results: tuple[Result, ...]) -> None:
    """The bound, taken for the advisor, is better than nobody in each world; so the lower bound is above zero."""
    documents = []
    for result in results:
        nobody, bound = result.lived
        documents.append(replace(result, lived=(nobody, replace(bound, operator="advisor"))).document())
    paired = summarise(documents)["paired"]["advisor - nobody"]
    assert paired["ettr"]["low"] > 0
    assert paired["gpu_hours_lost"]["high"] < 0


def test_different_worlds_are_not_added_up(results: tuple[Result, ...]) -> None:
    """A day of one and two days of another have no mean."""
    longer = replace(results[0], scenario=replace(SMALL, days=2.0))
    with pytest.raises(ValueError, match="different worlds"):
        summarise([results[0].document(), longer.document()])


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """Seeds that were kept are not lived through again; those of another world are refused."""
    kept = tmp_path / "kept.jsonl"
    options = ["--scenario", "small", "--operators", "nobody,bound", "--days", "0.5", "--save", str(kept)]
    main([*options, "--seeds", "2"])
    first = kept.read_text()
    main([*options, "--seeds", "3"])
    assert kept.read_text().startswith(first)
    assert [json.loads(line)["seed"] for line in kept.read_text().splitlines()] == [1, 2, 3]
    with pytest.raises(SystemExit):
        main([*options, "--days", "0.25"])


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Not at once, and with how far the world is."""
    told = Told(days=2.0, where=sys.stderr, silent_seconds=0.0)
    told(3, "advisor", 0.5)
    told(3, "advisor", 1.0)
    assert "seed 3, advisor: day 1.00 of 2" in capsys.readouterr().err
    quiet = Told(days=2.0, where=sys.stderr)
    quiet(3, "advisor", 0.5)
    assert capsys.readouterr().err == ""


def test_the_bootstrap_is_narrower_with_more_seeds() -> None:
    """And of equal values it is a point."""
    few, many = (bootstrap([0.9, 0.8, 1.0] * times) for times in (2, 30))
    widths = [(found.high or 0.0) - (found.low or 0.0) for found in (few, many)]
    assert widths[0] > widths[1] > 0
    assert (bootstrap([0.5] * 5).low, bootstrap([0.5] * 5).high) == (0.5, 0.5)


def test_an_array_runs_as_many_tasks_as_it_may() -> None:
    """However many nodes are free, and all of them in the end."""
    scenario = replace(
        SMALL, days=4.0, failures_per_1000_node_days=0.001, small_jobs_per_day=0.0, arrays_per_day=1.0, mistakes=0.0,
        application_failures_per_job_day=0.0, fabric_events_per_day=0.0, storage_events_per_day=0.0,
        small_job_hours=1.0,
    )  # fmt: skip
    cluster, most = Cluster(draw(scenario, 2)), 0
    for hour in range(0, 96 * 4):
        cluster.advance(hour * HOUR / 4)
        tasks = [job for job in cluster.jobs.values() if job.spec.array_task is not None]
        for array in {job.spec.array_job_id for job in tasks}:
            most = max(most, sum(job.last.live for job in tasks if job.spec.array_job_id == array))
    assert most == scenario.array_limit
    assert len(tasks) >= scenario.array_tasks
