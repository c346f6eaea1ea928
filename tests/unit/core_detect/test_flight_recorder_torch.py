"""torch's own analyser and ours on the same dumps. Skipped where torch is not installed (`pip install torch`)."""

import gc
from pathlib import Path
from typing import Any

import pytest

from advisor.core.flight_recorder import rank_of_name, read_dump
from advisor.core.stalled import Stall, compare
from tests.unit.core_detect.dumps import contents, entry, pickled

builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder", exc_type=ImportError)
loader = pytest.importorskip("torch.distributed.flight_recorder.components.loader", exc_type=ImportError)
manager = pytest.importorskip("torch.distributed.flight_recorder.components.config_manager", exc_type=ImportError)

WORLD = 6


def theirs(folder: Path) -> tuple[set[int], set[int]]:
    """Ranks that torch finds missing from a collective, and ranks that it finds in another one."""
    arguments = manager.JobConfig().parse_args([str(folder)])
    collecting = gc.isenabled()
    details, version = loader.read_dir(arguments)
    found = builder.build_db(details, arguments, version)
    if collecting:
        gc.enable()  # its loader leaves it switched off
    missing = {rank for collective in found.collectives for rank in collective.missing_ranks or ()}
    odd = {rank for collective in found.collectives for rank in collective.mismatch_collectives or ()}
    return missing, odd


def write(folder: Path, changed: int, **changes: Any) -> None:
    """Six ranks in the third collective; one of them differs."""
    for rank in range(WORLD):
        entries = [entry(1), entry(2), entry(3, "started", **(changes if rank == changed else {}))]
        status = {"0": (3, 3, 2)}
        if rank == changed and not changes:
            entries, status = entries[:2], {"0": (2, 2, 2)}
        (folder / f"trace_{rank}").write_bytes(pickled(contents(entries, {"0": range(WORLD)}, status)))


@pytest.mark.parametrize("changed", range(WORLD))
@pytest.mark.parametrize(
    "changes",
    [{}, {"profiling_name": "nccl:broadcast"}, {"input_sizes": [[7]], "output_sizes": [[7]]}],
    ids=["missing", "operation", "size"],
)
def test_torch_and_we_name_the_same_rank(tmp_path: Path, changed: int, changes: dict[str, Any]) -> None:
    """Missing, in another operation, or with another size. torch measures all by one rank, which may be the odd one."""
    write(tmp_path, changed, **changes)
    dumps = [read_dump(path.read_bytes(), rank_of_name(path.name)) for path in sorted(tmp_path.iterdir())]
    finding = compare(dumps, WORLD)
    assert finding is not None
    assert (finding.stall, finding.ranks) == (Stall.MISMATCH if changes else Stall.MISSING, (changed,))
    missing, odd = theirs(tmp_path)
    named = odd if changes else missing
    assert changed in named or named == set(range(WORLD)) - {changed}
