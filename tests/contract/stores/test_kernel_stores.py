"""Kernel logs in a store: trusted by the transport that a label proves, fakes and real servers alike."""

import asyncio
import json
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from advisor.clock import SystemClock
from advisor.core.words import Trust
from advisor.ports import LogBatch
from connectors.kernel.stores import NO_PROOF, KernelStoreLogs, proof_of
from connectors.logs.store import Labels
from connectors.logs.store_reader import StoreLimits
from slurm_plugin.kmsg.forwarder import Device
from slurm_plugin.kmsg.receivers import LokiStore, Receiver, StoreAccess, VictoriaLogsStore
from slurm_plugin.kmsg.records import Cap
from slurm_plugin.kmsg.spool import Spool
from tests.contract.stores.fake_loki import FakeLoki
from tests.contract.stores.fake_victorialogs import FakeVictoriaLogs
from tests.contract.stores.front import Asked, Behind, Told
from tests.contract.stores.world import Reader, Unavailable, UnavailableReason, World, Written, ask, batch
from tests.unit.slurm_plugin.kmsg_device import kernel_log

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
KERNEL = {"transport": "kernel"}
LABELS = Labels(job="", node="host", proof=("transport", "kernel"))


def kernel(text: str, **changes: Any) -> Written:
    return Written(text=text, metadata=KERNEL, **changes)


def make(world: World, **server: Any) -> KernelStoreLogs:
    store = world.store(world.server(**server), labels=LABELS)
    limits = StoreLimits(patience_seconds=100.0)
    source = KernelStoreLogs("kernel", store, clock=world.clock, limits=limits, patience=100.0)
    world.sources.append(source)
    return source


def lines(answer: LogBatch) -> list[tuple[str | None, str]]:
    """Node and text of each line, without its time."""
    return [
        (chunk.node, line.partition(" ")[2])
        for chunk in sorted(answer.chunks, key=lambda chunk: chunk.node or "")
        for line in chunk.data.decode().splitlines()
    ]


async def test_lines_come_with_time_and_node_of_the_collector(stored: World) -> None:
    """The text names another node; the line is the one's that the collector's label names, whole name or short."""
    await stored.write(kernel(f"node2 {XID}", at=-2.5), kernel("link up", node="node2.cluster.example.com", at=-2))
    source = make(stored)
    answer = await batch(source, stored.request())
    assert source.trust is Trust.KERNEL
    assert lines(answer) == [
        ("node1", f"node1 kernel: node2 {XID}"),
        ("node2.cluster.example.com", "node2 kernel: link up"),
    ]
    first = next(chunk.data for chunk in answer.chunks if chunk.node == "node1").decode()
    assert first.startswith(f"{stored.clock.now().year}-")
    assert "+00:00 node1 kernel: " in first


async def test_what_does_not_come_by_the_kernels_transport_is_no_kernel_line(stored: World) -> None:
    """`logger -t kernel` arrives with the same text, tag and node, but by another transport, or by one not told."""
    await stored.write(
        kernel("true"),
        Written(text=XID, metadata={"transport": "syslog", "syslog_identifier": "kernel"}),
        Written(text=f"{XID} again"),
        Written(text='{"transport":"kernel","_msg":"NVRM: Xid (PCI:0000:3b:00): 79"}'),
        Written(text='transport="kernel" NVRM: Xid (PCI:0000:3b:00): 79'),
    )
    assert lines(await batch(make(stored), stored.request())) == [("node1", "node1 kernel: true")]


async def test_a_store_that_gives_what_was_not_asked_for_is_not_believed(stored: World) -> None:
    """An answer with a line that lacks the proof is no answer: nothing of it counts."""
    if stored.real:
        pytest.skip("a real server keeps to its filters")
    await stored.write(kernel("true"), Written(text=XID))
    assert stored.front is not None
    stored.front.always = _without_the_proof
    answer = await ask(make(stored), stored.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.GARBLED
    assert "transport" in answer.detail


async def _without_the_proof(asked: Asked, behind: Behind) -> Told:
    query = asked.form["query"].replace(' | transport="kernel"', "").replace(' "transport":="kernel"', "")
    return await behind(replace(asked, form={**asked.form, "query": query}))


async def test_a_node_is_not_blamed_for_another_clusters_of_its_name(stored: World) -> None:
    """Two clusters in one store and no selector: whose line it is cannot be told: it is not given, and that is said."""
    await stored.write(
        kernel("link up", node="node1.a.example.com", at=-20),
        kernel(XID, node="node1.b.example.com", at=-2),
        kernel("well", node="node2.a.example.com"),
        kernel("well, too", node="node2"),
    )
    source = make(stored)
    answer = await batch(source, stored.request())
    assert [text for _, text in lines(answer)] == ["node2 kernel: well, too", "node2 kernel: well"]
    assert [(item.reason, "node1: name one" in item.detail) for item in answer.unavailable] == [
        (UnavailableReason.MISSING, True)
    ]


async def test_lines_of_other_nodes_are_not_the_attempts(stored: World) -> None:
    """Each attempt gets the lines of its own nodes, all from one question."""
    await stored.write(*(kernel(f"of {n}", node=f"node{n}") for n in range(1, 5)))
    source = make(stored)
    requests = [
        stored.request(job_id=job, nodes=nodes) for job, nodes in (("1", ("node1", "node3")), ("2", ("node4",)))
    ]
    answers = await source.read(requests)
    found = {key: lines(answer) for key, answer in answers.items() if isinstance(answer, LogBatch)}
    assert found == {
        "1/0": [("node1", "node1 kernel: of 1"), ("node3", "node3 kernel: of 3")],
        "2/0": [("node4", "node4 kernel: of 4")],
    }


async def test_each_line_once_over_restarts(stored: World) -> None:
    """The cursor is all that another process needs."""
    await stored.write(kernel("of the other", node="node2"))
    reader = Reader(stored, make(stored))
    for turn in range(4):
        await stored.write(*(kernel(f"line {turn}.{n}", at=-1 + n * 0.001) for n in range(20)))
        await reader.read()
        stored.clock.advance(3)
        await reader.restart(make(stored))
    await reader.read()
    of_one = [text.rpartition(": ")[2] for text in reader.texts if " node1 " in text]
    assert of_one == [f"line {turn}.{n}" for turn in range(4) for n in range(20)]


async def test_a_quiet_kernel_is_not_missing(stored: World) -> None:
    """A kernel may say nothing for days: that its node was heard before is enough."""
    await stored.write(kernel("booted", at=-7_000), kernel("booted", at=-7_000, node="node2"))
    answer = await batch(make(stored), stored.request())
    assert (answer.chunks, answer.unavailable) == ((), ())


async def test_a_node_that_was_never_heard_is_told(stored: World) -> None:
    """Silence of a node that nobody collects from is not health."""
    await stored.write(kernel("booted", at=-7_000))
    source = make(stored)
    answer = await batch(source, stored.request())
    assert [(part.reason, part.detail) for part in answer.unavailable] == [
        (UnavailableReason.MISSING, "no kernel line for 7 days of node2: are they collected?")
    ]
    alone = await ask(source, stored.request(nodes=("node2",), job_id="8"))
    assert isinstance(alone, Unavailable)


async def test_a_wrong_selector_or_tenant_is_told(stored: World) -> None:
    """Success and nothing: no stream was ever seen."""
    answer = await ask(make(stored), stored.request())
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING
    assert "was ever seen" in answer.detail


async def test_an_unknown_allocation_has_no_kernels(stored: World) -> None:
    """No node is guessed."""
    await stored.write(kernel("true"))
    answer = await ask(make(stored), stored.request(nodes=()))
    assert isinstance(answer, Unavailable)


async def test_one_line_of_text_stays_one_line(stored: World) -> None:
    """A message with a newline cannot make a second line that looks like the kernel's."""
    await stored.write(kernel(f"usb 1-1: Product: x\n2026-01-01T00:00:00+00:00 node1 kernel: {XID}"))
    (only,) = lines(await batch(make(stored), stored.request()))
    assert only[1].startswith("node1 kernel: usb 1-1: Product: x\\n2026")


@pytest.mark.parametrize("name", sorted(NO_PROOF))
def test_what_a_sender_chooses_proves_nothing(name: str) -> None:
    """Tags, identifiers, facilities and the text itself, in any spelling."""
    for spelled in (name, name.upper(), f"_{name}", f"__{name}__"):
        with pytest.raises(ValueError, match="proves nothing"):
            proof_of(f"{spelled}=kernel")


@pytest.mark.parametrize("text", ["", "kernel", "=kernel", "transport="])
def test_a_proof_has_a_name_and_a_value(text: str) -> None:
    """The one without the other is none."""
    with pytest.raises(ValueError, match="_TRANSPORT=kernel"):
        proof_of(text)
    assert proof_of("_TRANSPORT=kernel") == ("_TRANSPORT", "kernel")


async def test_what_our_forwarder_pushes_is_kernel_evidence(stored: World, tmp_path: Path) -> None:
    """From a record of the device to a trusted line, once, though the store's answer was lost and it is sent again."""
    with kernel_log() as log:
        path = tmp_path / "spool.sqlite"
        access = StoreAccess(url=_push_address(stored), headers={})
        labels = {"source": stored.tag, "transport": "kernel", "host": "node1"}
        receiver = (LokiStore if stored.kind == "loki" else VictoriaLogsStore)(access, labels)
        spool = Spool(path)
        spool.register([receiver.name])
        device = Device(log.reading.fileno(), boot="b1", spool=spool, cap=Cap(10, 10))
        device.turn(0)
        log.say(XID, uptime_us=time.monotonic_ns() // 1_000)
        log.say(XID, uptime_us=time.monotonic_ns() // 1_000)
        device.turn(0)
        rows = spool.waiting(receiver.name, 10)
        spool.close()
        for _ in range(2):
            await asyncio.to_thread(_delivered, receiver, path)
            forgets = Spool(path)
            forgets.delivered(receiver.name, 0)
            forgets.close()
    if stored.direct is not None and stored.kind == "victorialogs":
        await stored.direct.get("/internal/force_flush")
    stored.clock.at = SystemClock().now() + timedelta(seconds=1)
    answer = await batch(make(stored), stored.request(nodes=("node1",)))
    texts = [text for _, text in lines(answer)]
    assert texts == ["node1 kernel: advisor-kmsg: boot b1", f"node1 kernel: {XID}", f"node1 kernel: {XID}"]
    assert len(rows) == 3


def _delivered(receiver: Receiver, path: Path) -> None:
    spool = Spool(path)
    while receiver.deliver(spool):
        pass
    spool.close()


def _push_address(world: World) -> str:
    """The server itself, or the front, which then hands what is pushed to the fake."""
    assert world.front is not None
    if world.direct is not None:
        return str(world.direct.base_url)

    async def takes(asked: Asked, behind: Behind) -> Told:
        if asked.path == "/loki/api/v1/push" and isinstance(world.fake, FakeLoki):
            (stream,) = json.loads(asked.raw)["streams"]
            world.fake.push(stream["stream"], [(int(ns), text, meta) for ns, text, meta in stream["values"]], "")
            return Told(status=204)
        if asked.path == "/insert/jsonline" and isinstance(world.fake, FakeVictoriaLogs):
            fields = asked.form["_stream_fields"].split(",")
            world.fake.push([json.loads(row) for row in asked.raw.splitlines()], fields)
            return Told()
        return await behind(asked)

    world.front.always = takes
    return world.front.url
