"""What every metrics source promises: each GPU's own values whatever the exporter calls things, absence as a value, and
a server, a network or credentials that fail.
"""

import asyncio
from pathlib import Path

import pytest

from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import MetricsBatch
from connectors.metrics.names import NOT_ANSWERING
from tests.contract.metrics.exporter import DEFAULTS, XID
from tests.contract.metrics.world import MetricsWorld, newest
from tests.contract.stores.front import (
    Asked,
    Behind,
    Fault,
    Told,
    cuts,
    garbles,
    hangs_up,
    never_answers,
    says,
)

POWER = "DCGM_FI_DEV_POWER_USAGE"
DBE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
PENDING = "DCGM_FI_DEV_ROW_REMAP_PENDING"
LINK_DOWN = "node_infiniband_link_downed_total"
PAUSE = 0.11  # the breaker's


# Names and values


@pytest.mark.parametrize(("label", "domain"), [("Hostname", ""), ("hostname", ""), ("Hostname", ".cluster.example")])
async def test_every_gpu_has_its_own_values(measured: MetricsWorld, label: str, domain: str) -> None:
    """Whatever this release calls the node's label, and with or without a domain: short names and indices."""
    shown = measured.shown
    for at, node in enumerate(measured.nodes):
        shown.labels[node] = (label, domain)
        for index, gpu in enumerate(shown.nodes[node]):
            gpu.values[POWER] = 100.0 + 10 * at + index
    measured.shows()
    source = measured.make()
    assert source.trust is Trust.TELEMETRY
    answer = await measured.batch(source)
    values = newest(answer.samples)
    assert {(s.node, s.gpu) for s in answer.samples} == {(node, gpu) for node in measured.nodes for gpu in (0, 1)}
    assert {field for _, _, field in values} == set(DEFAULTS)
    for at, node in enumerate(measured.nodes):
        assert [values[node, gpu, POWER] for gpu in (0, 1)] == [100.0 + 10 * at, 101.0 + 10 * at]
    assert answer.silent == ()


async def test_a_gpu_of_several_jobs_is_one_gpu(measured: MetricsWorld) -> None:
    """The site maps jobs to GPUs: N jobs are N series alike, and neither their sum nor N samples."""
    node, gpu = measured.nodes[0], measured.shown.nodes[measured.nodes[0]][1]
    gpu.values[POWER], gpu.jobs = 612.3, ("9001", "9002")
    measured.shows()
    answer = await measured.batch(measured.make())
    mine = [s for s in answer.samples if (s.node, s.gpu, s.field) == (node, 1, POWER)]
    assert {s.value for s in mine} == {612.3}
    assert len({s.at for s in mine}) == len(mine)


async def test_an_xid_is_a_change_of_one_series(measured: MetricsWorld) -> None:
    """The code is also a label, so that a new one is a new series: the GPU's value goes from the old one to the new."""
    source, node = measured.make(), measured.nodes[1]
    measured.shown.xid(node, 0, 31)
    measured.shows()
    before = await measured.batch(source)
    assert newest(before.samples)[node, 0, XID] == 31
    measured.shown.xid(node, 0, 79)
    measured.shows()
    after = await measured.batch(source)
    assert newest(after.samples)[node, 0, XID] == 79
    assert newest(after.samples)[node, 1, XID] == 0


async def test_a_job_that_ends_on_a_gpu_changes_the_series_and_not_the_gpu(measured: MetricsWorld) -> None:
    """The label of the job comes and goes; the counter goes on."""
    source, node = measured.make(), measured.nodes[0]
    gpu = measured.shown.nodes[node][0]
    seen = []
    for jobs, value in ((("1",), 5.0), ((), 6.0), (("2", "3"), 7.0)):
        gpu.jobs, gpu.values["DCGM_FI_DEV_PCIE_REPLAY_COUNTER"] = jobs, value
        measured.shows()
        seen.append(newest((await measured.batch(source)).samples)[node, 0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"])
    assert seen == [5.0, 6.0, 7.0]


async def test_fields_that_are_not_exported_are_not_zero(measured: MetricsWorld) -> None:
    """Several fields that matter are off by default: they have no sample, for absent is not healthy."""
    answer = await measured.batch(measured.make())
    assert not {s.field for s in answer.samples} & {DBE, PENDING}


async def test_what_a_node_counts_is_the_nodes(measured: MetricsWorld) -> None:
    """node_exporter's counters of several devices are added up, so that one does not hide another."""
    node = measured.nodes[2]
    measured.shown.host[node] = {
        f'{LINK_DOWN}{{device="mlx5_0",port="1"}}': 7.0,
        f'{LINK_DOWN}{{device="mlx5_1",port="1"}}': 2.0,
        "node_vmstat_oom_kill": 1.0,
        "node_boot_time_seconds": 1.7e9,
    }
    measured.shows()
    values = newest((await measured.batch(measured.make())).samples)
    assert (values[node, -1, LINK_DOWN], values[node, -1, "node_vmstat_oom_kill"]) == (9.0, 1.0)
    assert (measured.nodes[0], -1, LINK_DOWN) not in values


async def test_an_exporter_that_starts_anew_counts_anew(measured: MetricsWorld) -> None:
    """Counters fall and the sticky gauge is empty: told as it is, the reset is the reader's to know."""
    source, node = measured.make(), measured.nodes[0]
    measured.shown.xid(node, 0, 79)
    measured.shows()
    await measured.batch(source)
    gpu = measured.shown.nodes[node][0]
    gpu.values[XID], gpu.xid_text = 0.0, ""
    measured.shows()
    assert newest((await measured.batch(source)).samples)[node, 0, XID] == 0


# Absence


async def test_a_gpu_that_vanishes_has_no_samples(measured: MetricsWorld) -> None:
    """A sick GPU has no values and is left out of the exporter's text: nothing repeats its last ones."""
    source, node = measured.make(), measured.nodes[0]
    assert (node, 1, POWER) in newest((await measured.batch(source)).samples)
    measured.shown.nodes[node][1].gone = True

    def without(answer: MetricsBatch | Unavailable) -> bool:
        return isinstance(answer, MetricsBatch) and (node, 1, POWER) not in newest(answer.samples)

    answer = await measured.until(source, without)
    assert isinstance(answer, MetricsBatch)
    assert (node, 0, POWER) in newest(answer.samples)


async def test_a_node_that_is_silent_is_named(measured: MetricsWorld) -> None:
    """Its exporter stopped: the node is told as silent, the others go on, and it comes back."""
    source, node = measured.make(), measured.nodes[3]
    assert (await measured.batch(source)).silent == ()
    measured.shown.down.add(node)

    def silent(answer: MetricsBatch | Unavailable) -> bool:
        return isinstance(answer, MetricsBatch) and answer.silent == (node,)

    answer = await measured.until(source, silent)
    assert isinstance(answer, MetricsBatch)
    assert answer.silent_why == {node: NOT_ANSWERING}
    measured.shown.down.discard(node)
    await asyncio.sleep(PAUSE)
    await measured.until(source, lambda answer: isinstance(answer, MetricsBatch) and not answer.silent)


async def test_nodes_that_nobody_measures_are_absent(measured: MetricsWorld) -> None:
    """All of an attempt's nodes without any sample is no empty answer, and says what to look at."""
    answer = await measured.ask(measured.make(), nodes=("gone1", "gone2"))
    assert isinstance(answer, Unavailable)
    assert answer.reason in {UnavailableReason.MISSING, UnavailableReason.REFUSED}
    assert answer.detail


async def test_a_name_that_is_no_host_name_asks_nothing_else(measured: MetricsWorld) -> None:
    """Node names come from the scheduler; what could be read as a pattern or a path is not sent."""
    source = measured.make()
    answer = await measured.batch(source, nodes=(measured.nodes[0], '.*"} or vector(1) #', "../x", "a b"))
    assert answer.silent == ('.*"} or vector(1) #', "../x", "a b")
    assert {s.node for s in answer.samples} == {measured.nodes[0]}
    assert measured.front is not None
    assert not any("vector" in asked.form.get("query", "") or ".." in asked.path for asked in measured.front.asked)


PROMETHEUS_FAULTS: dict[str, tuple[Fault, UnavailableReason]] = {
    "429": (says(429, "too many requests"), UnavailableReason.LIMIT),
    "500": (says(500, "oops"), UnavailableReason.REFUSED),
    "503": (says(503, '{"status":"error","errorType":"timeout","error":"query timed out"}'), UnavailableReason.REFUSED),
    "504": (says(504), UnavailableReason.TIMEOUT),
    "401": (says(401, "Unauthorized"), UnavailableReason.PERMISSION),
    "403": (says(403), UnavailableReason.PERMISSION),
    "404": (says(404, "page not found"), UnavailableReason.NOT_CONFIGURED),
    "400": (says(400, '{"status":"error","errorType":"bad_data"}'), UnavailableReason.REFUSED),
    "422": (says(422, '{"status":"error","errorType":"execution"}'), UnavailableReason.REFUSED),
    "redirect": (says(302, Location="http://127.0.0.1:1/"), UnavailableReason.REFUSED),
    "hang up": (hangs_up, UnavailableReason.GARBLED),
    "cut": (cuts(0.6), UnavailableReason.GARBLED),
}
BODIES: dict[str, bytes] = {
    "no json": b"<html>proxy</html>\n",
    "other json": b'[1, 2, "x"]\n',
    "error": b'{"status":"error"}',
    "half": b'{"status":"success","data":{"resultType":"matrix","result":[{"me',
    "vector": b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"1"]}]}}',
    "odd": b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":'
    b'"DCGM_FI_DEV_XID_ERRORS","Hostname":"a","gpu":"0"},"values":[["x","y"]]}]}}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", PROMETHEUS_FAULTS)
async def test_a_failure_is_absence_with_its_reason(measured: MetricsWorld, name: str) -> None:
    """Whatever a server does wrong is told with a reason, and when it is well again so is the source."""
    fault, reason = PROMETHEUS_FAULTS[name]
    assert measured.front is not None
    source = measured.make()
    measured.front.always = fault
    answer = await measured.ask(source)
    assert isinstance(answer, Unavailable), answer
    assert (answer.source, answer.reason) == ("metrics", reason)
    assert answer.detail
    measured.front.always = None
    await asyncio.sleep(PAUSE)
    assert (await measured.batch(source)).silent == ()


@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_that_is_something_else_is_no_answer(measured: MetricsWorld, name: str) -> None:
    """A proxy's page, another API, half of an answer: absence, and no exception."""
    assert measured.front is not None
    measured.front.always = garbles(BODIES[name])
    answer = await measured.ask(measured.make())
    assert isinstance(answer, Unavailable)
    assert answer.reason in {UnavailableReason.GARBLED, UnavailableReason.MISSING}


async def test_a_server_that_never_answers_is_a_time_out(measured: MetricsWorld) -> None:
    """After the time that was configured, and not before the tick has gone on: the caller does not wait for it."""
    assert measured.front is not None
    measured.front.always = never_answers
    answer = await measured.ask(measured.make(timeout_seconds=0.2))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.TIMEOUT


async def test_no_server_there(measured: MetricsWorld) -> None:
    """A refused connection is absence with the connection's own error; the next look finds the server."""
    assert measured.front is not None
    port = measured.front.port
    await measured.front.stop()
    source = measured.make()
    answer = await measured.ask(source)
    assert isinstance(answer, Unavailable)
    assert (answer.reason, "cannot connect" in answer.detail) == (UnavailableReason.REFUSED, True)
    await measured.front.start(port)
    await asyncio.sleep(PAUSE)
    assert (await measured.batch(source)).silent == ()


async def test_a_server_that_fails_is_left_alone(measured: MetricsWorld) -> None:
    """While the breaker is open nothing is asked, and the answer says for how long."""
    assert measured.front is not None
    source = measured.make()
    measured.front.always = says(503)
    await measured.ask(source)
    before = len(measured.front.asked)
    answer = await measured.ask(source)
    assert isinstance(answer, Unavailable)
    assert "not asked again" in answer.detail
    assert len(measured.front.asked) == before


async def test_a_read_that_is_cancelled_leaves_the_source_well(measured: MetricsWorld) -> None:
    """The service stops, or loses patience; the next read is as if there had been none."""
    assert measured.front is not None
    source = measured.make()
    measured.front.always = never_answers
    reading = asyncio.create_task(measured.ask(source))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    measured.front.always = None
    assert (await measured.batch(source)).silent == ()


# Credentials


def _only(authorization: str) -> Fault:
    async def fault(asked: Asked, behind: Behind) -> Told:
        if asked.headers.get("authorization") != authorization:
            return Told(status=401, body=b"unauthorized", kind="text/plain")
        return await behind(asked)

    return fault


async def test_basic_authentication_and_a_password_that_changes(measured: MetricsWorld, tmp_path: Path) -> None:
    """The password comes from a file, which is read again when it changes."""
    assert measured.front is not None
    password = tmp_path / "password"
    password.write_text("first\n")
    measured.front.always = _only("Basic YWR2aXNvcjpmaXJzdA==")
    source = measured.make(user="advisor", password_file=password)
    await measured.batch(source)
    measured.front.always = _only("Basic YWR2aXNvcjpzZWNvbmQtb25l")
    refused = await measured.ask(source)
    assert isinstance(refused, Unavailable)
    assert refused.reason is UnavailableReason.PERMISSION
    password.write_text("second-one\n")
    await asyncio.sleep(PAUSE)
    await measured.batch(source)


async def test_a_token_file_is_read_again_when_it_changes(measured: MetricsWorld, tmp_path: Path) -> None:
    """Tokens are rotated while we run; one that is missing is absence, and none is ever shown."""
    assert measured.front is not None
    token = tmp_path / "token"
    source = measured.make(token_file=token)
    answer = await measured.ask(source)
    assert isinstance(answer, Unavailable)
    assert (answer.reason, str(token) in answer.detail) == (UnavailableReason.PERMISSION, True)
    for text in ("one", "another"):
        token.write_text(text)
        measured.front.always = _only(f"Bearer {text}")
        await asyncio.sleep(PAUSE)
        await measured.batch(source)
    token.write_text("two\nlines")
    answer = await measured.ask(source)
    assert isinstance(answer, Unavailable)
    assert "lines" not in answer.detail


async def test_the_address_of_a_gpu_has_an_index(measured: MetricsWorld) -> None:
    """Kernel lines know a GPU by bus and device only; what the exporter shows of both is told."""
    answer = await measured.batch(measured.make(), nodes=measured.nodes[:2])
    first, second = measured.nodes[:2]
    assert dict(answer.gpus) == {f"{node}/4{index}:00": index for node in (first, second) for index in (0, 1)}
