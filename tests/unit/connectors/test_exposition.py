"""Prometheus' text format, of which only the fields that matter are read."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.metrics.exposition import ExpositionError, read

XID = "DCGM_FI_DEV_XID_ERRORS"
TEXT = rb"""# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="3",Hostname="node0000",err_msg="GPU, \"fallen\" {off} \\ the\nbus",hpc_job="9001"} 79
DCGM_FI_DEV_XID_ERRORS{gpu="4"} 0 1795952188000

DCGM_FI_DEV_XID_ERRORS_OTHER{gpu="5"} 1
up 1
node_vmstat_oom_kill 2.0
"""


def test_only_what_is_wanted_with_labels_as_they_were_meant() -> None:
    """Commas, braces, quotes and line ends inside labels; a time at the end is nobody's business."""
    found = list(read(TEXT, frozenset({XID, "node_vmstat_oom_kill"})))
    assert found[0] == (
        XID,
        {"gpu": "3", "Hostname": "node0000", "err_msg": 'GPU, "fallen" {off} \\ the\nbus', "hpc_job": "9001"},
        79.0,
    )
    assert found[1:] == [(XID, {"gpu": "4"}, 0.0), ("node_vmstat_oom_kill", {}, 2.0)]


@pytest.mark.parametrize(
    "line", [b'{gpu="1"', b"{gpu=1} 2", b'{gpu="1"} x', b'{gpu="1"}', b'{gpu="1"} 1 2 3', b'{"a"="b"} 1', b" a b c"]
)
def test_a_line_that_is_wanted_and_broken_is_told_by_its_number(line: bytes) -> None:
    """Half of an answer is not taken for a whole one."""
    with pytest.raises(ExpositionError, match="line 3"):
        list(read(b"# a\nother 1\n" + XID.encode() + line + b"\n", frozenset({XID})))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Exporters are trusted to measure, not to be well-formed."""
    with contextlib.suppress(ExpositionError):
        list(read(XID.encode() + data, frozenset({XID})))
