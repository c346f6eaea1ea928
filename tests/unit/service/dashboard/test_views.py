"""Views of pages: what is written how, which filter a query is, and how nodes are laid out."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.core.words import NodeState
from advisor.service.dashboard.filtering import chosen
from advisor.service.dashboard.verbs import back_path
from advisor.service.dashboard.views.nodes import BLOCK_NODES, map_page
from advisor.service.dashboard.views.now import mode_in_short, mode_lines
from advisor.service.dashboard.views.shown import (
    ago_text,
    clock_text,
    line_html,
    number_text,
    span_text,
    text_html,
    words,
)
from advisor.service.errors import BadRequestError
from advisor.store.node_map import MappedNode
from advisor.v1 import common_pb2, operator_pb2

NOW = datetime(2026, 11, 29, 3, 12, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (83, "83 s"),
        (540, "9 min"),
        (8000, "2 h 13 min"),
        (200_000, "2 days"),
        (-90, "−90 s"),
    ],
)
def test_spans_are_read_at_a_glance(seconds: float, told: str) -> None:
    """A duration has the unit that a person would use."""
    assert span_text(seconds) == told


def test_moments_say_the_date_only_when_it_is_another() -> None:
    """Today's times are a clock, other days' have their date, other years' all of it; ago is in words."""
    assert clock_text(NOW, NOW) == "03:12:20"
    assert clock_text(NOW - timedelta(days=1), NOW) == "Nov 28 03:12:20"
    assert clock_text(NOW - timedelta(days=400), NOW) == "2025-10-25 03:12:20"
    assert clock_text(NOW, NOW, fine=True) == "03:12:20.000"
    assert ago_text(NOW - timedelta(seconds=4), NOW) == "4 s ago"
    assert ago_text(NOW + timedelta(hours=1), NOW) == "in 60 min"
    assert ago_text(NOW, NOW) == "now"


def test_words_and_numbers_are_as_people_write_them() -> None:
    """Enumerations lose their underscores, thousands stand apart."""
    assert words("gpu_out_of_memory") == "GPU out of memory"
    assert number_text(1234567) == "1\u202f234\u202f567"
    assert number_text(None) == "–"


def test_text_of_others_is_escaped_made_visible_and_bounded() -> None:
    """Markup is escaped, overrides and escapes are spelled out, lone surrogates survive, and what is cut is counted."""
    assert line_html("<b>\u202e\x1b[0m\ud800\n") == "&lt;b&gt;\\u202e\\x1b[0m\\ud800\\n"
    assert text_html("a\nb") == "a\nb"
    cut = text_html("<" * 5000, 10)
    assert cut.startswith("&lt;" * 10 + " <span")
    assert "4\u202f990 more characters" in cut


def test_a_query_becomes_the_contracts_filter() -> None:
    """Fields land where they belong; a window is frozen for the pages that follow; what is no word is refused."""
    names = ("job", "user", "action", "status", "since")
    wanted = chosen({"job": " 17 ", "action": "stop", "status": "withheld", "since": "1d", "other": "x"}, names, NOW)
    assert wanted.filter.job_id == "17"
    assert wanted.filter.action == common_pb2.ACTION_STOP
    assert wanted.filter.status == common_pb2.RECONCILIATION_STATUS_WITHHELD
    assert wanted.filter.since.ToDatetime(UTC) == NOW - timedelta(days=1)
    href = wanted.next_href("/decisions", "c/=")
    assert "from=2026-11-28T03%3A12%3A20%2B00%3A00" in href
    assert "cursor=c%2F%3D" in href
    later = chosen({"since": "1d", "from": "2026-11-28T03:12:20+00:00", "cursor": "c"}, names, NOW + timedelta(hours=1))
    assert later.filter.since.ToDatetime(UTC) == NOW - timedelta(days=1)
    assert later.first_href("/decisions") == "/decisions?since=1d"
    early = {"from": "0001-01-01T00:00:00+23:59"}
    for bad in ({"action": "explode"}, {"since": "1y"}, {"from": "yesterday"}, early, {"user": "x" * 200}):
        with pytest.raises(BadRequestError):
            chosen(bad, names, NOW)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/decisions?user=a", "/decisions?user=a"),
        ("", "/"),
        ("https://evil.example/x", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/evil.example"),
        ("/a\r\nSet-Cookie: x=1", "/aSet-Cookie%3A%20x%3D1"),
        ("javascript:alert(1)", "/"),
        ("decisions", "/decisions"),
    ],
)
def test_forms_lead_back_to_pages_of_ours(given: str, path: str) -> None:
    """Only a path of ours comes out, whatever went in."""
    assert back_path({"back": given}) == path


def node(name: str, score: float = 0.0, state: NodeState = NodeState.UP, *, isolated: bool = False) -> MappedNode:
    return MappedNode(
        cluster="alps",
        name=name,
        state=state,
        reason="",
        partitions=("train",),
        score=score,
        incidents=1 if score else 0,
        isolated=isolated,
        dry_run=False,
    )


def test_the_map_groups_by_name_and_ranks_the_worst() -> None:
    """Blocks are hundreds of one stem in natural order; the isolated come first, then by score; colours have signs."""
    nodes = [node(f"gpu{number}") for number in (1, 2, 10, 101)] + [
        node("cpu7", 0.6),
        node("gpu3", 2.0),
        node("gpu4", 0.1, isolated=True),
        node("gpu5", 0.0, NodeState.DRAINED),
        node("login"),
    ]
    page = map_page(nodes, capped=False, chosen="", suspect_score=0.5)
    assert [block.label for block in page.blocks] == ["cpu7", "gpu1 – gpu10", "gpu101", "login"]
    assert [tile.name for tile in page.blocks[1].tiles] == ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu10"]
    assert [item.name for item in page.worst] == ["gpu4", "gpu3", "cpu7"]
    assert page.summary == "9 nodes, 1 isolated, 2 suspect, 1 down or drained"
    signs = [level.sign for level, _ in page.counts]
    assert len(signs) == len(set(signs))
    some = map_page(nodes, capped=False, chosen="", suspect_score=0.5, query="GPU10")
    assert [tile.name for block in some.blocks for tile in block.tiles] == ["gpu10", "gpu101"]


def test_blocks_of_nodes_without_numbers_are_bounded() -> None:
    """However nodes are named, a block has at most a hundred."""
    nodes = [node("n" + "x" * number) for number in range(250)]
    blocks = map_page(nodes, capped=False, chosen="", suspect_score=0.5).blocks
    assert [len(block.tiles) for block in blocks] == [BLOCK_NODES, BLOCK_NODES, 50]


def test_the_mode_beside_what_was_set_is_the_services_own_default() -> None:
    """Where nothing was set, and for the rest beside narrower settings; a setting for everything leaves no rest."""
    autonomous, monitor = common_pb2.MODE_AUTONOMOUS, common_pb2.MODE_MONITOR
    narrow = operator_pb2.ModeSetting(mode=monitor, partition="debug", set_by="ada")
    stop = operator_pb2.ModeSetting(mode=monitor, set_by="ada")
    by_default = operator_pb2.ListModesResponse(default_mode=autonomous)
    assert mode_in_short(by_default).text == "autonomous"
    assert [(line.where, line.mode.text) for line in mode_lines(by_default)] == [("everything", "autonomous")]
    by_default.settings.append(narrow)
    assert mode_in_short(by_default).text == "partly autonomous"
    lines = [(line.where, line.mode.text, line.set_by) for line in mode_lines(by_default)]
    assert lines == [("partition debug", "monitor", "ada"), ("everything else", "autonomous", "default_mode")]
    by_default.settings.append(stop)
    assert mode_in_short(by_default).text == "monitor mode"
    assert [line.where for line in mode_lines(by_default)] == ["everything", "partition debug"]
