"""Hostlists both ways."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.core.hostlist import HostlistError, expand, fold, short
from watchdog.slurm import SlurmError
from watchdog.slurm import expand as watchdogs_expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ("node1",)),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("node[08-11]", ("node08", "node09", "node10", "node11")),
        ("gx-1-[3-4]", ("gx-1-3", "gx-1-4")),
        ("rack[1-2]n[1-2]", ("rack1n1", "rack1n2", "rack2n1", "rack2n2")),
        ("a1,login[1-2],a1", ("a1", "login1", "login2")),
        ("", ()),
    ],
)
def test_hostlists_expand_as_in_slurm(text: str, names: tuple[str, ...]) -> None:
    """Ranges keep their zeros, brackets multiply, duplicates go."""
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n[1-999999999]", "n[[1]]", "n]1", "n[a-b]", "n[3-1]", "n;rm", "a b", "n[1-9]" * 9]
)
def test_what_is_no_hostlist_is_refused(text: str) -> None:
    """Broken, hostile or endless lists are errors, not hangs."""
    with pytest.raises(HostlistError):
        expand(text)


@given(st.lists(st.from_regex(r"\A[a-z]{1,4}-?[0-9]{0,4}\Z"), max_size=30))
def test_folding_loses_nothing(names: list[str]) -> None:
    """What is folded expands to the same set of names."""
    assert set(expand(fold(names))) == set(names)


@given(st.lists(st.from_regex(r"\A[a-z]{1,3}(-ib)?0{0,2}[0-9]{0,3}(\.x)?\Z"), max_size=20))
def test_the_watchdog_reads_what_we_write(names: list[str]) -> None:
    """It shares nothing with anybody, its reader of hostlists neither: both say the same of every list."""
    assert set(watchdogs_expand(fold(names))) == set(names)


@given(st.from_regex(r"\A([a-z]{1,2}\[[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,2})?\]){1,2}(,[a-z]{1,2}[0-9]?){0,2}\Z"))
def test_both_readers_expand_alike(text: str) -> None:
    """Or refuse alike."""

    def said(reader: Callable[[str], tuple[str, ...]]) -> tuple[str, ...] | None:
        try:
            return reader(text)
        except (HostlistError, SlurmError):
            return None

    assert said(watchdogs_expand) == said(expand)


def test_folding_is_short() -> None:
    """Numbers of one width share a bracket."""
    assert fold(["node1", "node2", "node3", "node7", "login"]) == "node[1-3,7],login"
    assert fold(["n08", "n09", "n10"]) == "n[08-10]"
    assert fold(["n01", "n1", "n007", "n10"]) == "n[01,10],n1,n007"


def test_short_names_drop_the_domain_but_not_addresses() -> None:
    """Slurm knows hosts by their short names; an address is no name."""
    assert short("node22.cluster.internal") == "node22"
    assert short("10.0.0.14") == "10.0.0.14"
