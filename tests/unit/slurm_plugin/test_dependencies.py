"""Slurm's dependency text, as 22.05.8 prints it, read as far as it says what must not run side by side."""

import pytest

from slurm_plugin.dependencies import is_singleton, waits_for


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("", ()),
        ("afterany:1(unfulfilled)", ("1",)),
        ("afterany:1(unfulfilled),afternotok:2(unfulfilled),afterany:1(unfulfilled)", ("1", "2")),
        ("afterany:1(unfulfilled)?afterany:2(unfulfilled)", ("1", "2")),
        ("afterany:10_*(unfulfilled),afterany:10_1", ("10_*", "10_1")),
        ("afterany:1:2", ("1", "2")),
        ("afterok:1(failed),after:1+1(unfulfilled),aftercorr:3,singleton(unfulfilled)", ()),
        ("afterany:x,afterany:1@other,afterany:,afterany:\u0661,notafterany:5", ()),
    ],
)
def test_jobs_that_are_waited_for(text: str, jobs: tuple[str, ...]) -> None:
    """Only what starts however the other one ends; what does not look like Slurm's text is left out."""
    assert waits_for(text) == jobs


def test_singleton() -> None:
    """It is one of the parts, whatever its state."""
    assert is_singleton("singleton")
    assert is_singleton("afterany:1(unfulfilled),singleton(unfulfilled)")
    assert not is_singleton("afterany:1(singleton)")
