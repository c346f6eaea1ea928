"""The drainer between a scripted Slurm and its reports: level-triggered, judged on a look that began after."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from advisor.v1 import agent_pb2, common_pb2
from slurm_plugin import wire
from slurm_plugin.config import decode
from slurm_plugin.drainer import STEPS_MAX, Drainer
from slurm_plugin.records import UNIT
from slurm_plugin.squeue import Output, Slurm, SlurmError

ID = "01a2285d-d9dd-7aca-b195-2f157edd838d"
OURS = f"advisor: {ID} gpu_hardware"


@dataclass
class Clock:
    at: float = 100.0

    def monotonic(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def boot(self) -> float:
        return self.at


@dataclass
class Nodes:
    """A Slurm that has nodes only, with their states and reasons."""

    shown: dict[str, tuple[str, str]] = field(default_factory=lambda: {f"n{i}": ("idle", "none") for i in range(1, 9)})
    verbs: list[tuple[str, ...]] = field(default_factory=list)
    looks: int = 0
    silent: bool = False
    meanwhile: Callable[[], None] = lambda: None  # happens while Slurm looks

    def __call__(self, argv: Sequence[str], environment: object, timeout_seconds: float) -> Output:
        if self.silent:
            raise SlurmError("timeout", "no answer")
        if argv[0] == "sinfo":
            self.looks += 1
            self.meanwhile()
            end = argv[-1].rpartition("%E")[2]
            rows = (UNIT.join((name, s, "main", "1", "1", "", "", r)) for name, (s, r) in self.shown.items())
            return Output(returncode=0, stdout="".join(f"{row}{end}\n" for row in rows).encode(), stderr=b"")
        self.verbs.append(tuple(argv[1:]))
        values = dict(item.split("=", 1) for item in argv[2:])
        drains = values["State"] == "DRAIN"
        self.shown[values["NodeName"]] = ("drained", values["Reason"]) if drains else ("idle", "none")
        return Output(returncode=0, stdout=b"", stderr=b"")


@dataclass
class World:
    slurm: Nodes
    drainer: Drainer
    clock: Clock
    said: list[agent_pb2.ReportNodeReconciliationRequest]

    def hear(self, *, generation: int = 1, drained: bool = True, dry_run: bool = False, seen: bool = False) -> None:
        desired = agent_pb2.NODE_DESIRE_DRAINED if drained else agent_pb2.NODE_DESIRE_NOT_DRAINED
        advice = agent_pb2.NodeAdvice(
            isolation_id=ID,
            node="n1",
            generation=generation,
            desired=desired,
            dry_run=dry_run,
            category="gpu_hardware",
            seen_drained=seen,
            time_to_live=wire.duration(30),
        )
        self.drainer.heard([advice])

    async def look(self) -> None:
        await self.drainer.reconcile(self.drainer.slurm.nodes())

    @property
    def last(self) -> tuple[str, str]:
        status = common_pb2.ReconciliationStatus.Name(self.said[-1].status).removeprefix("RECONCILIATION_STATUS_")
        reason = common_pb2.ReconciliationReason.Name(self.said[-1].reason).removeprefix("RECONCILIATION_REASON_")
        return status, reason


@pytest.fixture
def world(tmp_path: Path) -> World:
    config = decode(
        {
            "cluster": "c",
            "mode": "act",
            "stop_file": str(tmp_path / "stop"),
            "isolation": {"mode": "act", "percent_max": 50.0},
        },
        {},
    )
    slurm, clock, said = Nodes(), Clock(), list[agent_pb2.ReportNodeReconciliationRequest]()
    return World(slurm, Drainer(config=config, slurm=Slurm(run=slurm), clock=clock, put=said.append), clock, said)


async def test_drained_once_verified_and_put_back(world: World) -> None:
    """However often it is heard: one drain, one report; and one undrain when it is over."""
    for _ in range(3):
        world.hear()
        await world.look()
    assert world.slurm.verbs == [("update", "NodeName=n1", "State=DRAIN", f"Reason={OURS}")]
    assert (world.last, len(world.said)) == (("VERIFIED", "OBSERVED"), 1)
    assert world.slurm.looks == 3 + 2  # once per pass by us, and around the one step; nothing more while all is well
    for _ in range(3):
        world.hear(generation=2, drained=False)
        await world.look()
    assert world.slurm.verbs[1:] == [("update", "NodeName=n1", "State=UNDRAIN")]
    assert (world.last, len(world.said), world.said[-1].generation) == (("VERIFIED", "OBSERVED"), 2, 2)


async def test_put_back_by_hand_before_the_advisor_heard_of_the_drain(world: World) -> None:
    """The agent itself has seen it drained: it does not drain it again."""
    world.hear()
    await world.look()
    world.slurm.shown["n1"] = ("idle", "none")
    world.hear()
    await world.look()
    assert world.last == ("ALREADY_SATISFIED", "REPAIR_SEEN")
    assert len(world.slurm.verbs) == 1


async def test_a_restored_store_is_told_again(world: World) -> None:
    """It no longer knows what came of it; the node is not drained a second time."""
    world.hear()
    await world.look()
    world.drainer.told_nothing()
    await world.look()
    assert (world.last, len(world.said)) == (("VERIFIED", "OBSERVED"), 2)
    assert len(world.slurm.verbs) == 1


async def test_an_old_listing_is_no_repair(world: World) -> None:
    """A listing from before the drain still shows the node in service: nothing is concluded from it."""
    world.hear()
    before = world.drainer.slurm.nodes()
    await world.drainer.reconcile(before)
    await world.drainer.reconcile(before)
    assert (world.last, len(world.said)) == (("VERIFIED", "OBSERVED"), 1)


async def test_the_stop_file_and_silence_of_the_advisor_keep_it_from_acting(world: World, tmp_path: Path) -> None:
    """Nothing while the file is there; and nothing on words that were last heard half a minute ago."""
    (tmp_path / "stop").touch()
    world.hear()
    await world.look()
    assert world.last == ("PENDING", "STOP_FILE")
    (tmp_path / "stop").unlink()
    world.clock.at += 31
    await world.look()
    assert world.last == ("PENDING", "TIME_TO_LIVE")
    assert world.slurm.verbs == []
    world.hear()
    await world.look()
    assert world.last == ("VERIFIED", "OBSERVED")


async def test_many_wishes_cost_one_look_and_no_more_steps_than_a_pass_may_take(world: World) -> None:
    """Jobs wait for the end of the pass: neither a hundred nodes that nobody has, nor many to put back, hold it up."""
    ids = [f"{ID[:-3]}{number:03x}" for number in range(300)]
    advice = [
        agent_pb2.NodeAdvice(
            isolation_id=one,
            node=f"n{number}",
            generation=1,
            desired=agent_pb2.NODE_DESIRE_NOT_DRAINED,
            category="gpu_hardware",
            time_to_live=wire.duration(30),
        )
        for number, one in enumerate(ids)
    ]
    for number in range(100):
        world.slurm.shown[f"n{number}"] = ("drained", f"advisor: {ids[number]} gpu_hardware")
    world.drainer.heard(advice)
    await world.look()
    assert len(world.slurm.verbs) == STEPS_MAX
    assert world.slurm.looks == 1 + 1 + STEPS_MAX
    for _ in range(100 // STEPS_MAX):
        await world.look()
    assert (len(world.slurm.verbs), len(world.said)) == (100, 300)


async def test_what_is_taken_back_while_it_looks_is_not_done(world: World) -> None:
    """A pause, a stop, an end: planned is with what was heard last."""

    def nothing() -> None:
        world.drainer.heard([])

    def put_back() -> None:
        world.hear(generation=2, drained=False)

    for change in (nothing, put_back):
        world.slurm.meanwhile = lambda: None
        world.hear()
        nodes = world.drainer.slurm.nodes()
        world.slurm.meanwhile = change
        await world.drainer.reconcile(nodes)
        assert world.slurm.verbs == []


async def test_what_was_seen_before_a_freeze_is_not_acted_on(world: World) -> None:
    """The agent was stopped between look and step: somebody else may have drained the node since."""

    def froze() -> None:
        world.clock.at += 10

    world.hear()
    nodes = world.drainer.slurm.nodes()
    world.slurm.meanwhile = froze
    await world.drainer.reconcile(nodes)
    assert world.slurm.verbs == []
    world.slurm.meanwhile = lambda: None
    await world.look()
    assert len(world.slurm.verbs) == 1


async def test_a_slurm_that_does_not_answer_is_no_answer(world: World) -> None:
    """Told as such, tried again later, and then done."""
    world.hear()
    nodes = world.drainer.slurm.nodes()
    world.slurm.silent = True
    await world.drainer.reconcile(nodes)
    assert world.last == ("PENDING", "SCHEDULER_UNAVAILABLE")
    world.slurm.silent = False
    await world.look()
    assert world.slurm.verbs == []
    world.clock.at += 6
    world.hear()
    await world.look()
    assert world.last == ("VERIFIED", "OBSERVED")


@pytest.mark.parametrize(
    ("mode", "isolation", "said"),
    [
        ("act", "off", "[isolation] mode is off in agent.toml"),
        ("observe", "act", "mode is observe in agent.toml"),
        ("observe", "off", "mode is observe in agent.toml"),
    ],
)
async def test_who_drains_nothing_says_which_key_keeps_it(world: World, mode: str, isolation: str, said: str) -> None:
    """People who asked for the drain are told what to change."""
    given = {"cluster": "c", "mode": mode, "isolation": {"mode": isolation}}
    world.drainer.config = decode(given, {})
    world.hear()
    await world.look()
    assert (world.last, world.said[-1].detail) == (("WITHHELD", "AGENT_OBSERVES"), said)
    assert not world.slurm.verbs
