"""Reading squeue's columns."""

from advisor.demo.squeue import FORMAT, parse_rows

_END = "\x1f"


def _listing(*rows: tuple[str, ...]) -> str:
    return "\n".join(_END.join(row) + _END for row in rows) + "\n"


def _cells(job_id: str, comment: str = "(null)", reason: str = "None") -> tuple[str, ...]:
    numbers = ("FAILED", "2", "1795960552", "N/A", "1795960553", "4294901759")
    return (job_id, *numbers, reason, "node[1-2]", "alice", "256", comment)


def test_a_row_becomes_a_job() -> None:
    """Times are epochs or None, an empty comment is empty, exclusions are names."""
    row = parse_rows(_listing(_cells("7")), "7|node[1-2,4],other\n")[7]
    assert (row.state, row.restarts, row.submitted, row.eligible) == ("FAILED", 2, 1795960552, None)
    assert row.admin_comment == ""
    assert row.excluded == {"node1", "node2", "node4", "other"}


def test_line_ends_in_a_comment_do_not_make_a_second_job() -> None:
    """Columns are counted, so text that looks like another row stays text."""
    forged = "note\n9" + " RUNNING 0"
    rows = parse_rows(_listing(_cells("7", forged), _cells("8")), "7|(null)\n8|(null)\n")
    assert sorted(rows) == [7, 8]
    assert rows[7].admin_comment == forged
    assert rows[8].excluded == frozenset()


def test_no_column_that_a_user_writes_is_asked_for() -> None:
    """Job name, comment and paths are the user's words."""
    names = {part.split(":")[0].lower() for part in FORMAT.split(",")}
    assert names.isdisjoint({"name", "comment", "command", "workdir", "stdout", "stderr", "stdin", "wckey"})


def test_a_job_that_the_second_listing_does_not_show_is_left_out() -> None:
    """slurmctld ended between the two: its exclusions are not known to be none."""
    rows = parse_rows(_listing(_cells("7"), _cells("8")), "8|node1\n")
    assert {job: row.excluded for job, row in rows.items()} == {8: {"node1"}}
