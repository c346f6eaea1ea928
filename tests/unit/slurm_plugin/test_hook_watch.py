"""A hook that is off is noticed by what it does not say."""

from dataclasses import replace

from slurm_plugin.hook_watch import SILENT_ENDS, HookWatch
from slurm_plugin.records import JobRow

ROW = JobRow(job_id="1", shown_id="1", state="RUNNING", restarts=0, submit=1000, user="alice", user_id=1)


def end(watch: HookWatch, number: int, *, announced: bool = False, state: str = "FAILED") -> bool:
    """One job is seen running, then over."""
    running = replace(ROW, job_id=str(number), state="RUNNING")
    watch.looked([running])
    if announced:
        watch.heard(str(number))
    return watch.looked([replace(running, state=state)])


def test_so_many_unannounced_ends_in_a_row_are_told_once() -> None:
    """And again only after it has been heard in between."""
    watch = HookWatch()
    assert [end(watch, number) for number in range(SILENT_ENDS + 2)] == [False] * (SILENT_ENDS - 1) + [
        True,
        False,
        False,
    ]
    assert not end(watch, 50, announced=True)
    assert [end(watch, 100 + number) for number in range(SILENT_ENDS)] == [False] * (SILENT_ENDS - 1) + [True]


def test_a_lost_notice_is_no_silence() -> None:
    """A burst may overflow the kernel's queue."""
    watch = HookWatch()
    assert not any(end(watch, number, announced=number % SILENT_ENDS == 0) for number in range(40))


def test_what_did_not_run_or_goes_on_has_no_end() -> None:
    """A job cancelled while it waited, one that is suspended, one that was requeued meanwhile."""
    watch = HookWatch()
    for number in range(20):
        waiting = replace(ROW, job_id=str(number), state="PENDING")
        watch.looked([waiting])
        assert not watch.looked([replace(waiting, state="CANCELLED")])
        assert not end(watch, number, state="SUSPENDED")
