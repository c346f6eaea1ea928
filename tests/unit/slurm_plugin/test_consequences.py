"""What Slurm's settings mean: the defaults, what is worth changing, and how for which version."""

import pytest

from slurm_plugin import consequences
from slurm_plugin.squeue import parse_config

PLAIN = "SLURM_VERSION = 22.05.8\nEpilogSlurmctld = /e\nAuthInfo = cred_expire=30\nJobSubmitPlugins = lua\n"


def told(text: str) -> dict[str, consequences.Consequence]:
    return {item.setting: item for item in consequences.of(parse_config(text.encode()))}


def test_a_site_that_is_set_up_as_advised_has_nothing_to_do() -> None:
    """Everything is named all the same, with its number."""
    found = told(PLAIN)
    assert [item.to_do for item in found.values()] == [""] * 8
    assert found["requeue delay"].text == (
        "a restarted job starts 31 s after its requeue at the earliest (cred_expire=30, plus 1 s)"
    )
    assert found["SlurmdTimeout"].text.startswith("300 s: ")
    assert found["KillWait"].text.startswith("30 s: ")
    assert found["MinJobAge"].text.startswith("300 s: ")


def test_slurms_own_defaults_cost_two_minutes_and_it_says_how_to_shorten_them() -> None:
    """By the setting that this version has."""
    old = told("SLURM_VERSION = 22.05.8\n")["requeue delay"]
    assert old.text.startswith("a restarted job starts 121 s after its requeue")
    assert "AuthInfo=cred_expire=30" in old.to_do
    assert "requeue_delay=30" in told("SLURM_VERSION = 25.11.7\n")["requeue delay"].to_do
    short = told("SLURM_VERSION = 25.11.7\nSchedulerParameters = bf_interval=1,requeue_delay=3\n")["requeue delay"]
    assert (short.to_do, "4 s after" in short.text) == ("", True)


@pytest.mark.parametrize(
    ("version", "says", "well"),
    [
        ("22.05.8", "tested; requeue delay by cred_expire, output paths expanded by us", True),
        ("24.11.5", "tested; requeue delay by cred_expire, output paths as Slurm expands them", True),
        ("25.05.1", "not tried itself", True),
        ("26.05.5", "tested in part; shorter requeue delay by requeue_delay", True),
        ("21.08.8", "older than 22.05", False),
        ("soon", "older than 22.05", False),
    ],
)
def test_the_release_is_told_with_what_follows_from_it(version: str, says: str, well: bool) -> None:
    """How far it was tried, and what is different in it."""
    found = told(f"SLURM_VERSION = {version}\n")["Slurm"]
    assert says in found.text
    assert (found.to_do == "") is well


@pytest.mark.parametrize(
    ("line", "setting", "words"),
    [
        ("EpilogSlurmctld = (null)", "EpilogSlurmctld", "install-hooks"),
        ("MinJobAge = 30 sec", "MinJobAge", "MinJobAge=300"),
        ("JobRequeue = 0", "JobRequeue", "--requeue"),
        ("KillWait = 300 sec", "KillWait", "shorter KillWait"),
        ("SlurmdTimeout = 0 sec", "SlurmdTimeout", "SlurmdTimeout=300"),
        ("SlurmdTimeout = 3600 sec", "SlurmdTimeout", "shorter SlurmdTimeout"),
    ],
)
def test_what_is_worth_changing_is_told_with_the_change(line: str, setting: str, words: str) -> None:
    """And nothing else about that site."""
    kept = [other for other in PLAIN.splitlines() if not other.startswith(setting)]
    found = told("\n".join([*kept, line]) + "\n")
    assert words in found[setting].to_do
    assert [item.setting for item in found.values() if item.to_do] == [setting]


def test_ended_jobs_that_are_never_forgotten_are_well() -> None:
    """MinJobAge=0 in Slurm's words."""
    assert told(PLAIN + "MinJobAge = 0 sec\n")["MinJobAge"] == consequences.Consequence(
        setting="MinJobAge", text="0: ended jobs are not forgotten"
    )
