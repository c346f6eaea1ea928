"""The policy file: strict, everything wrong reported at once, and the shipped defaults are the code's."""

from dataclasses import fields
from pathlib import Path

import pytest

from advisor.core.policy import Policy
from advisor.core.words import Category
from advisor.rules.policy import (
    DEFAULTS_FILE,
    FILE_BYTES_MAX,
    RANGES,
    PolicyError,
    check_policy,
    check_timing,
    load_policy,
    parse_policy,
)


def test_the_shipped_file_holds_the_defaults() -> None:
    """What an operator copies from is what the code does, and names every key."""
    assert load_policy(DEFAULTS_FILE) == load_policy(None) == Policy()
    text = DEFAULTS_FILE.read_text()
    names = [field.name for field in fields(Policy)]
    assert all(f"\n{name} = " in text or f"\n[{name}]" in text for name in names)
    assert set(RANGES) == set(names)
    assert check_policy(Policy()) == ()


def test_a_site_changes_only_what_it_names() -> None:
    """Whole numbers are fine where numbers are meant, and one settle time leaves the others alone."""
    policy = parse_policy("hang_seconds = 900\nisolate = true\n[settle_seconds]\nunknown = 20\n")
    assert policy.hang_seconds == 900.0
    assert policy.isolate
    assert policy.settle_seconds == {**Policy().settle_seconds, Category.UNKNOWN: 20.0}


def test_all_problems_are_reported_together() -> None:
    """Unknown keys, wrong kinds, values out of range and impossible combinations, each with its key path."""
    text = """
    hang_secs = 5
    isolate = 1
    restarts_ceiling = 3.0
    suspect_score = "high"
    implicated_fraction_max = 1.5
    hang_seconds = nan
    confirmation_retries = 9
    exclusions_per_incident_max = true
    [settle_seconds]
    gpu = 1
    storage = -1
    unknown = 95
    """
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "site.toml")
    keys = [problem.split(":")[0] for problem in caught.value.problems]
    assert sorted(keys) == sorted(
        [
            "hang_secs",
            "isolate",
            "restarts_ceiling",
            "suspect_score",
            "implicated_fraction_max",
            "hang_seconds",
            "exclusions_per_incident_max",
            "settle_seconds.gpu",
            "settle_seconds.storage",
            "confirmation_retries",
            "decision_deadline_seconds",
        ]
    )
    assert str(caught.value).startswith("site.toml: ")


@pytest.mark.parametrize(
    "text",
    [
        "hang_startup_seconds = 10",
        "trusted_fatal_grace_seconds = 601",
        "restarts_per_root_cause = 21",
        "exclusions_per_incident_max = 9",
        "evidence_max = 201",
        "history_window_days = 1",
        "isolate = true\nisolations_max = 0",
        "decision_deadline_seconds = 3",
    ],
)
def test_impossible_combinations_are_refused(text: str) -> None:
    """Each names one key, and the defaults of the others make it impossible."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "data", [b"a = [", b"\xff", b"x = " + b"9" * 5000, b"#" * (FILE_BYTES_MAX + 1), b"a = " + b"[" * 5000]
)
def test_a_file_that_is_no_policy_gives_one_clear_error(tmp_path: Path, data: bytes) -> None:
    """Broken text, broken UTF-8, absurd numbers and absurd sizes end in an error that names the file."""
    path = tmp_path / "policy.toml"
    path.write_bytes(data)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


def test_bounds_are_allowed_values(tmp_path: Path) -> None:
    """What is not above a limit is within it: equal pairs of keys, and a file of the largest size."""
    equal = (
        "evidence_max = 200\nexclusions_per_incident_max = 8\nrestarts_per_root_cause = 20\nhang_startup_seconds = 600"
    )
    path = tmp_path / "policy.toml"
    path.write_text(equal + "\n#" + "-" * (FILE_BYTES_MAX - len(equal) - 2))
    assert load_policy(path).evidence_max == 200


def test_a_missing_file_gives_one_clear_error(tmp_path: Path) -> None:
    """A policy file that was named must be there."""
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        load_policy(tmp_path / "none.toml")


def test_the_deadline_must_leave_time_to_decide() -> None:
    """Deadline > evidence lag + settle + tick + take-over + agent poll + completing time; equal is too little."""
    policy = Policy(decision_deadline_seconds=21.0, settle_seconds={Category.UNKNOWN: 5.0})

    def check(completing_seconds: float) -> tuple[str, ...]:
        return check_timing(
            policy,
            tick_seconds=1.0,
            requeue_delay_seconds=6.0,
            evidence_lag_seconds=2.0,
            lease_takeover_seconds=10.0,
            agent_poll_seconds=1.0,
            completing_seconds=completing_seconds,
        )

    assert check(1.9) == ()
    assert [problem.split(":")[0] for problem in check(2.0)] == ["decision_deadline_seconds"]


def test_timing_against_the_scheduler() -> None:
    """The defaults suit Slurm's defaults; a margin above the delay, or a memory shorter than our chain, does not."""
    assert check_timing(Policy(), tick_seconds=1.0, requeue_delay_seconds=121.0, job_memory_seconds=300.0) == ()
    assert check_timing(Policy(), tick_seconds=1.0, requeue_delay_seconds=None) == ()
    trouble = check_timing(
        Policy(settle_margin_seconds=6.0, advice_time_to_live_seconds=2.0),
        tick_seconds=1.0,
        requeue_delay_seconds=6.0,
        job_memory_seconds=5.0,
    )
    assert [problem.split(":")[0] for problem in trouble] == [
        "advice_time_to_live_seconds",
        "settle_margin_seconds",
        "settle_seconds",
    ]
