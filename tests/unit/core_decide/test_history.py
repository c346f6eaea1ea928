"""Node history: decay, one voice per job, and who becomes a suspect."""

from datetime import timedelta

import pytest

from advisor.core.history import (
    PastImplication,
    decayed,
    implication_weight,
    is_suspect,
    node_score,
    other_jobs,
    recurrence,
)
from advisor.core.policy import Policy
from advisor.core.words import Role, Trust
from tests.unit.core_decide.worlds import NOON

POLICY = Policy()


def _ago(days: float, job: str = "a", weight: float = 1.0) -> PastImplication:
    return PastImplication(job=job, weight=weight, at=NOON - timedelta(days=days))


@pytest.mark.parametrize(
    ("days", "worth"), [(0, 1.0), (7, 0.5), (14, 0.25), (30, 0.5 ** (30 / 7)), (31, 0.0), (-1, 1.0)]
)
def test_a_score_halves_every_half_life(days: float, worth: float) -> None:
    """After the window nothing is left, and a clock that stepped back adds nothing."""
    assert decayed(1.0, NOON - timedelta(days=days), NOON, POLICY) == pytest.approx(worth)


def test_each_job_counts_once() -> None:
    """A job that fails a hundred times on a node says no more than one that fails once; another job does."""
    noisy = [_ago(n / 100) for n in range(100)]
    assert node_score(noisy, NOON, POLICY) == pytest.approx(1.0)
    assert node_score([*noisy, _ago(7, "b")], NOON, POLICY) == pytest.approx(1.5)
    assert node_score([*noisy, _ago(7, "b")], NOON, POLICY, except_job="a") == pytest.approx(0.5)
    assert other_jobs([_ago(30, "b")], NOON, POLICY) == 1
    assert other_jobs([*noisy, _ago(7, "b"), _ago(40, "c"), _ago(1, "d", 0.0)], NOON, POLICY, except_job="a") == 1


def test_the_order_of_history_changes_no_bit() -> None:
    """Floating-point sums depend on order; the score does not."""
    rows = [_ago(n * 1.7, f"job{n}", 0.1 * n) for n in range(1, 9)]
    assert node_score(rows, NOON, POLICY) == node_score(rows[::-1], NOON, POLICY)


def test_one_log_line_makes_no_suspect_and_two_jobs_do() -> None:
    """Untrusted evidence needs company; a kernel record does not."""
    log = implication_weight(Trust.LOG, Role.INITIATING, 0.9)
    kernel = implication_weight(Trust.KERNEL, Role.INITIATING, 0.9)
    assert not is_suspect(log, POLICY)
    assert is_suspect(node_score([_ago(0, "a", log), _ago(0, "b", log)], NOON, POLICY), POLICY)
    assert is_suspect(kernel, POLICY)


@pytest.mark.parametrize("trust", Trust)
@pytest.mark.parametrize("role", Role)
def test_weights_stay_between_nothing_and_one(trust: Trust, role: Role) -> None:
    """trust × role × confidence, whatever the confidence claims."""
    for confidence in (-1.0, 0.0, 0.5, 1.0, 7.0):
        assert 0.0 <= implication_weight(trust, role, confidence) <= 1.0
    assert implication_weight(trust, Role.TEARDOWN, 1.0) == 0.0


def _printed(user: str, job: str, days: float = 0.0) -> PastImplication:
    return PastImplication(job=job, weight=0.45, at=NOON - timedelta(days=days), user=user, trusted=False)


def test_what_jobs_print_counts_once_for_their_user() -> None:
    """Somebody who prints an Xid in ten jobs is one witness; two users are two; the kernel counts for each job."""
    forged = [_printed("ada", f"job{number}") for number in range(10)]
    assert node_score(forged, NOON, POLICY) == pytest.approx(0.45)
    assert not is_suspect(node_score(forged, NOON, POLICY), POLICY)
    assert other_jobs(forged, NOON, POLICY) == 1
    assert is_suspect(node_score([*forged, _printed("bob", "b")], NOON, POLICY), POLICY)
    assert node_score([_ago(0, "a"), _ago(0, "b")], NOON, POLICY) == pytest.approx(2.0)


def test_a_users_own_word_does_not_corroborate_his_next_job() -> None:
    """Neither by another job of his; what the kernel said of it does."""
    rows = [_printed("ada", "job1")]
    assert other_jobs(rows, NOON, POLICY, except_job="job2", except_user="ada") == 0
    assert node_score(rows, NOON, POLICY, except_job="job2", except_user="ada") == 0.0
    assert other_jobs(rows, NOON, POLICY, except_job="job2", except_user="bob") == 1
    trusted = [PastImplication(job="job1", weight=1.0, at=NOON, user="ada", trusted=True)]
    assert other_jobs(trusted, NOON, POLICY, except_job="job2", except_user="ada") == 1


def test_a_node_that_is_only_suspected_weighs_half() -> None:
    """The one formula, for blame and for history."""
    assert implication_weight(Trust.KERNEL, Role.INITIATING, 0.9) == 0.9
    assert implication_weight(Trust.KERNEL, Role.INITIATING, 0.9, blamed=False) == 0.45
    assert implication_weight(Trust.LOG, Role.INITIATING, 1.0) == 0.45


@pytest.mark.parametrize(
    ("days_back", "ahead", "chance"),
    [(0, 1, 0.095), (0, 7, 0.181), (0, 30, 0.276), (1, 7, 0.0996), (7, 7, 0.0353), (60, 7, 0.0149), (365, 7, 0.0149)],
)
def test_a_repaired_node_fails_again_soon_or_not_at_all(days_back: float, ahead: float, chance: float) -> None:
    """From the measured shares: what survived the first week is on its way back to any node's 1.5 % a week."""
    assert recurrence(days_back, ahead) == pytest.approx(chance, abs=5e-4)
