"""Another policy or other rules on decisions of a job that lost a GPU and of one that ran out of its memory."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.rules.policy import DEFAULTS_FILE
from tests.integration.service.programs import PROJECT
from tests.integration.service.world import NODES, World, iteration, world_of

pytestmark = pytest.mark.postgres

OUT_OF_MEMORY = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


async def advisor(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as another process, while the service of this one answers."""
    command = [sys.executable, "-m", "advisor", *arguments, "--socket", str(world.running.socket)]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=PROJECT, timeout=60, check=False
    )


async def backtest(world: World, *arguments: str) -> Any:
    done = await advisor(world, "backtest", "--since", "1h", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def histories(world: World) -> None:
    """One job that lost node2's GPU, one that ran out of GPU memory, one that runs."""
    await world.fail_on_node2("17")
    world.log("18").write_text("".join(map(iteration, range(1, 20))) + OUT_OF_MEMORY)
    elsewhere = ("node5", "node6", "node7", "node8")
    await world.report(world.job("RUNNING", job="18", nodes=elsewhere))
    await world.ticks(2)
    await world.report(world.job("FAILED", job="18", nodes=elsewhere))
    await world.advice_where(lambda seen: {item.attempt.job_id for item in seen} == {"17", "18"})
    count = -1
    while count != (count := len(await world.decisions())):  # while exclusions are refined
        await world.ticks(8)


async def test_a_changed_policy_changes_what_it_is_about_and_nothing_else(folder: Path) -> None:
    """The policy in force changes no decision; one without exclusions changes those that exclude, each named with its
    job; broken files are named with their place; a backtest that was broken off goes on where it was.
    """
    (none := folder / "none.toml").write_text("exclusions_per_job_max = 0\nexclusions_per_incident_max = 0\n")
    (wrong := folder / "wrong.toml").write_text("restarts_ceiling = 'x'\nnonsense = 1\n")
    async with world_of(folder) as world:
        await histories(world)
        stored = await world.decisions()
        excluding = {item.advice.advice_id for item in stored if item.advice.exclude_nodes}
        assert excluding
        assert excluding != {item.advice.advice_id for item in stored}

        same = await backtest(world, "--policy", str(DEFAULTS_FILE))
        assert (same["changed"], same["drifted"], same["changes"]) == (0, 0, [])
        assert same["decisions"] == len(stored)

        journal = folder / "journal.jsonl"
        other = await backtest(world, "--policy", str(none), "--resume", str(journal))
        assert {item["decision_id"] for item in other["changes"]} == excluding
        assert {item["job_id"] for item in other["changes"]} == {"17"}
        assert all(item["different"]["exclude_nodes"] == ["node2", ""] for item in other["changes"])
        assert len(other["limits"]) == 3

        head, *_ = journal.read_text().splitlines(keepends=True)
        journal.write_text(head + '{"cursor":')  # broken off while the first page was written
        again = await backtest(world, "--policy", str(none), "--resume", str(journal), "--workers", "2")
        assert again["changes"] == other["changes"]
        refused = await advisor(world, "backtest", "--policy", str(wrong), "--rules", str(none))
        assert refused.returncode == 2
        for part in ("wrong.toml: restarts_ceiling", "nonsense", "none.toml: exclusions_per_job_max"):
            assert part in refused.stderr

        (one,) = list(excluding)[:1]
        shown = await advisor(world, "replay", one, "--policy", str(none))
        assert shown.returncode == 1
        for part in ("job 17, attempt 0", "exclude nodes", "node2  →  -", "exclusions per job max"):
            assert part in shown.stdout
        assert NODES[1] == "node2"


async def test_a_changed_rule_changes_what_it_found(folder: Path) -> None:
    """A rule that says that running out of GPU memory is a fault of storage changes that job's decisions only."""
    rules = folder / "rules.toml"
    async with world_of(folder) as world:
        await histories(world)
        found = next(item for item in await world.decisions() if item.advice.attempt.job_id == "18")
        rule = found.advice.evidence[0].rule
        text = next(
            block
            for file in sorted((PROJECT / "advisor/rules/signatures").glob("*.toml"))
            for block in file.read_text().split("[[rule]]")
            if f'id = "{rule}"' in block
        )
        rules.write_text("[[rule]]" + text.replace('category = "gpu_out_of_memory"', 'category = "storage"'))
        other = await backtest(world, "--rules", str(rules))
        assert other["changed"] > 0
        assert {item["job_id"] for item in other["changes"]} == {"18"}
        assert {tuple(item["different"]["category"]) for item in other["changes"]} == {("gpu_out_of_memory", "storage")}
