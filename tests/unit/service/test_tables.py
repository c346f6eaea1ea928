"""Tables on a narrow terminal: words whole, what says least left out and named, long ids cut where they have parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.commands.output import print_table
from advisor.commands.tables import GAP, layout, wrapped

RULES = ("rule", "category", "role", "points at", "meaning")
RULE = ("advisor.silent_corruption", "node_hardware", "initiating", "conditional", "Divergence moved with a node")
SECOND = ("nccl.timeout", "interconnect", "symptom", "nobody", "A collective did not finish within its time limit")


def test_what_fits_is_as_wide_as_it_is() -> None:
    """No column is wider than its longest cell, whatever the room."""
    found = layout(RULES, [RULE], 200)
    assert [width for _, width in found.shown] == [25, 13, 10, 11, 28]
    assert found.left_out == ()


@pytest.mark.parametrize(("width", "shown"), [(90, RULES), (80, ("rule", "category", "points at", "meaning"))])
def test_the_text_is_wrapped_before_a_column_goes(
    width: int, shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 90 the meaning takes several lines, at 80 the role goes, and it is said."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(RULES, [RULE, SECOND], empty="none", least=("role", "points at"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "rule"
    assert [title for title in RULES if title in lines[0]] == list(shown)
    assert all(len(line) <= width for line in lines)
    words = {word for line in lines for word in line.split()}
    assert {"advisor.silent_corruption", "interconnect", "collective", "Divergence"} <= words
    assert (lines[-1] == f"not shown in {width} columns: role") == (shown != RULES)


def test_in_a_pipe_a_row_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left out and nothing is wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(RULES, [RULE, (*SECOND[:4], "word " * 100)], empty="none", least=("role", "points at"))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_long_id_is_cut_behind_a_part() -> None:
    """Between words first; a path is cut after a slash, and what has no parts anywhere."""
    assert wrapped("see /var/lib/recovery-advisor/data now", 20).split("\n") == [
        "see",
        "/var/lib/recovery-",
        "advisor/data now",
    ]
    assert wrapped("a" * 25, 10).split("\n") == ["a" * 10, "a" * 10, "a" * 5]


texts = st.text(alphabet=st.sampled_from("ab,/ .-"), max_size=60)


@given(
    rows=st.lists(st.tuples(texts, texts, texts, texts), min_size=1, max_size=4),
    width=st.integers(20, 120),
    least=st.sampled_from([(), ("two",), ("three", "two")]),
)
def test_it_always_fits_and_loses_nothing(
    rows: list[tuple[str, str, str, str]], width: int, least: tuple[str, ...]
) -> None:
    """No line is wider than the terminal, every shown cell is whole, and short words are never broken."""
    titles = ("one", "two", "three", "four")
    found = layout(titles, rows, width, least)
    assert sum(wide for _, wide in found.shown) + GAP * (len(found.shown) - 1) <= width
    assert {titles[at] for at, _ in found.shown} | set(found.left_out) == set(titles)
    for at, wide in found.shown:
        for row in rows:
            lines = wrapped(row[at], wide).split("\n")
            assert all(len(line) <= wide for line in lines)
            assert "".join(lines).replace(" ", "") == row[at].replace(" ", "")
            for word in row[at].split():
                assert len(word) > wide or any(word in line for line in lines)


def test_a_column_that_says_nothing_has_room_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One without a title, whose cells are all empty: of nodes where none is suspect."""
    monkeypatch.setenv("COLUMNS", "60")
    print_table(("node", "", "score"), [("node1", "", "0.42")], empty="none")
    assert capsys.readouterr().out.split() == ["node", "score", "node1", "0.42"]
