"""What only a server of metrics has: questions over all jobs, a past, selectors, tenants, and its own limits."""

import shutil
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import MetricsBatch
from connectors.metrics.names import NOT_ANSWERING, NOT_SCRAPED, NOTHING_SHOWN
from connectors.metrics.prometheus import QUESTIONS_MAX, STEPS_MAX, PrometheusMetrics
from connectors.web.access import Access
from connectors.web.pacing import Pace
from connectors.web.server import Server
from tests.contract.metrics.exporter import XID
from tests.contract.metrics.world import INTERVAL_SECONDS, MetricsWorld, newest
from tests.contract.stores.front import Asked, Behind, Front, Told, says
from tests.contract.stores.test_certificates import Authority


def asked_of(world: MetricsWorld) -> list[Asked]:
    assert world.front is not None
    return world.front.asked


def moment(text: str) -> float:
    return float(text)


async def test_questions_do_not_grow_with_jobs(queried: MetricsWorld) -> None:
    """A thousand attempts that were read up to about the same moment are two questions: GPUs and hosts. Once, one more
    about the GPUs' addresses.
    """
    source = queried.make()
    requests = [queried.request(key=f"{n}/0", nodes=(queried.nodes[n % 4],)) for n in range(1_000)]
    answers = await source.read(requests)
    assert [asked.path.rpartition("/")[2] for asked in asked_of(queried)] == ["query_range", "query_range", "query"]
    await source.read(requests)
    assert len(asked_of(queried)) == 5
    assert all(isinstance(answer, MetricsBatch) and answer.samples for answer in answers.values())
    for request in requests:
        answer = answers[request.key]
        assert isinstance(answer, MetricsBatch)
        assert {sample.node for sample in answer.samples} == set(request.nodes)


async def test_the_past_of_many_is_read_in_turns(queried: MetricsWorld) -> None:
    """Attempts with pasts of their own cost questions of their own; a bounded number at a time, nobody left out."""
    source = queried.make()
    now = queried.clock.now()
    wanted = {
        f"{n}/0": queried.request(key=f"{n}/0", since=now - timedelta(seconds=10 * (n + 1)), until=now)
        for n in range(20)
    }
    served: set[str] = set()
    for _ in range(10):
        before = len(asked_of(queried))
        answers = await source.read([request for key, request in wanted.items() if key not in served])
        assert len(asked_of(queried)) - before <= QUESTIONS_MAX + 1
        for key, answer in answers.items():
            assert isinstance(answer, MetricsBatch), answer
            if answer.until >= wanted[key].until:
                served.add(key)
            else:
                assert answer.until == wanted[key].since
        if len(served) == len(wanted):
            return
    raise AssertionError(sorted(wanted.keys() - served))


async def test_the_pace_holds(queried: MetricsWorld) -> None:
    """Never more than the configured number of questions per second over time, whatever is wanted."""
    source = queried.make(pace=Pace(queried.clock, per_second=5.0, burst=1.0))
    began = queried.clock.monotonic()
    for _ in range(3):
        await queried.batch(source)
    assert len(asked_of(queried)) == 7
    assert queried.clock.monotonic() - began >= 6 / 5.0 * 0.95


async def test_a_long_past_comes_in_longer_steps(queried: MetricsWorld) -> None:
    """A first look at ten minutes is as many points as any other, and the value before them is known."""
    source = queried.make()
    now = queried.clock.now()
    await queried.batch(source, since=now - timedelta(minutes=10), until=now)
    form = next(asked.form for asked in asked_of(queried) if asked.path.endswith("query_range"))
    step, start, end = (moment(form[name]) for name in ("step", "start", "end"))
    assert (end - start) / step <= STEPS_MAX
    assert step * STEPS_MAX == pytest.approx(600, abs=1)


async def test_reads_in_a_row_leave_no_time_between_and_tell_nothing_twice(queried: MetricsWorld) -> None:
    """Each begins where the last one ended, and a change in between is seen once."""
    source, node = queried.make(), queried.nodes[0]
    since = queried.clock.now() - timedelta(seconds=INTERVAL_SECONDS)
    seen: list[tuple[datetime, float]] = []
    for turn in range(6):
        if turn == 3:
            queried.shown.xid(node, 0, 48)
        queried.shows()
        until = queried.clock.now()
        answer = await queried.batch(source, since=since, until=until)
        seen += [(s.at, s.value) for s in answer.samples if (s.node, s.gpu, s.field) == (node, 0, XID)]
        since = answer.until
    times = [at for at, _ in seen]
    assert len(set(times)) == len(times)
    assert times == sorted(times)
    values = [value for _, value in seen]
    assert values == sorted(values)
    assert set(values) == {0.0, 48.0}


async def test_a_node_with_a_past_and_no_present_is_silent(queried: MetricsWorld) -> None:
    """Samples of before its exporter stopped are told, and do not make it well."""
    source, node = queried.make(), queried.nodes[1]
    queried.server.scraped(7)  # more than one step long
    before = queried.clock.now()
    queried.shown.down.add(node)
    while node in {sample.node for sample in (await queried.batch(source)).samples}:
        queried.shows()
    now = queried.clock.now()
    answer = await queried.batch(source, since=before - timedelta(seconds=3), until=now)
    assert node in {sample.node for sample in answer.samples}
    assert answer.silent == (node,)


async def test_a_selector_holds_for_every_series(queried: MetricsWorld) -> None:
    """One server often has several clusters with nodes of the same names."""
    chosen = await queried.batch(queried.make(selector='{job="node2"}'))
    assert {s.node for s in chosen.samples} == {"node2"}
    assert set(chosen.silent) == set(queried.nodes) - {"node2"}


async def test_a_selector_that_fits_nothing_is_not_a_quiet_cluster(queried: MetricsWorld) -> None:
    """As with a wrong tenant: the server answers 200 and nothing, which is no answer about any node."""
    answer = await queried.ask(queried.make(selector='cluster="other"'))
    assert isinstance(answer, Unavailable)
    assert answer.reason is UnavailableReason.MISSING
    assert "tenant" in answer.detail


async def test_the_tenant_is_sent(queried: MetricsWorld) -> None:
    """Mimir, Cortex and Thanos tell their tenants apart by a header."""
    await queried.batch(queried.make(headers={"X-Scope-OrgID": "team-a"}))
    assert {asked.headers.get("x-scope-orgid") for asked in asked_of(queried)} == {"team-a"}


async def test_too_much_at_once_makes_the_next_question_smaller(queried: MetricsWorld) -> None:
    """The server has limits of its own; its refusal is absence once, and then fewer nodes are asked for at a time."""
    assert queried.front is not None
    source = queried.make()
    now = queried.clock.now()
    many = tuple(f"node{n}" for n in range(1, 1_400))
    await queried.batch(source, nodes=many, since=now - timedelta(seconds=20), until=now)
    usual = len(asked_of(queried))
    queried.front.always = says(422, '{"error":"query processing would load too many samples into memory"}')
    for _ in range(6):
        answer = await queried.ask(source, nodes=many, since=now - timedelta(seconds=20), until=now)
        assert isinstance(answer, Unavailable)
    queried.front.always = None
    before = len(asked_of(queried))
    await queried.batch(source, nodes=many, since=now - timedelta(seconds=20), until=now)
    assert len(asked_of(queried)) - before > usual


async def test_warnings_of_the_server_are_problems(queried: MetricsWorld) -> None:
    """A store in front of many may answer without some of them: told, for what is missing is not known."""
    assert queried.front is not None

    async def warns(asked: Asked, behind: Behind) -> Told:
        told = await behind(asked)
        assert isinstance(told.body, bytes)
        told.body = told.body[:-1].rstrip(b"}") + b'},"warnings":["some store gateways failed"]}'
        return told

    queried.front.always = warns
    answer = await queried.batch(queried.make())
    assert "some store gateways failed" in answer.problems[0]


async def test_a_node_of_another_name_is_nobodys(queried: MetricsWorld) -> None:
    """node1 is not node11, and a label that ends alike is not it either."""
    answer = await queried.ask(queried.make(), nodes=("node", "ode1", "node11"))
    assert isinstance(answer, Unavailable)


async def test_both_sides_show_certificates(queried: MetricsWorld, tmp_path: Path) -> None:
    """Mutual TLS, with a renewed certificate used at once."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificates with openssl")
    assert queried.front is not None
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.issue("server"))
    context.load_verify_locations(ours.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    secured = Front(queried.front.behind, tls=context)
    await secured.start()
    certificate, key = tmp_path / "mine.crt", tmp_path / "mine.key"

    def install(authority: Authority) -> None:
        for made, path in zip(authority.issue("client"), (certificate, key), strict=True):
            shutil.copy(made, path)

    install(others)
    files: dict[str, Any] = {"ca_file": ours.certificate, "certificate_file": certificate, "key_file": key}
    source = queried.make(url=secured.url, **files)
    assert isinstance(await queried.ask(source), Unavailable)
    install(ours)
    await queried.clock.sleep(0.11)
    assert newest((await queried.batch(source)).samples)
    await source.close()
    await secured.stop()


async def test_a_node_label_of_the_sites_own(queried: MetricsWorld) -> None:
    """With --no-hostname, or other names: the label that the site says, without the port."""
    assert queried.front is not None
    for node in queried.nodes:
        queried.shown.labels[node] = ("", "")
    queried.shows()
    server = Server(Access(url=queried.front.url), clock=queried.clock)
    source = PrometheusMetrics("metrics", server, interval_seconds=1.0, node_label="instance")
    queried.sources.append(source)
    answer = await queried.batch(source)
    assert {sample.node for sample in answer.samples} == set(queried.nodes)


async def test_no_request_is_no_question(queried: MetricsWorld) -> None:
    """And an attempt without a known allocation is asked about nothing."""
    source = queried.make()
    assert await source.read([]) == {}
    answer = await queried.batch(source, nodes=())
    assert answer.samples == ()
    assert asked_of(queried) == []


async def test_a_target_that_is_down_is_told_from_series_that_vanished(queried: MetricsWorld) -> None:
    """By `up`: an exporter that does not answer, one that shows nothing any more, and a node that nobody scrapes."""
    source = queried.make()
    down, empty, *_ = queried.nodes
    queried.shown.down.add(down)
    for gpu in queried.shown.nodes[empty]:
        gpu.gone = True
    wanted = {down: NOT_ANSWERING, empty: NOTHING_SHOWN, "node99": NOT_SCRAPED}
    deadline = queried.clock.monotonic() + 15
    while True:
        answer = await queried.batch(source, nodes=(*queried.nodes, "node99"))
        if answer.silent_why == wanted:
            break
        assert queried.clock.monotonic() < deadline, answer.silent_why
        queried.shows()
    assert set(answer.silent) == set(wanted)


async def test_where_no_target_is_called_after_its_node_nothing_is_said_of_targets(queried: MetricsWorld) -> None:
    """Silent nodes are named without a reason rather than with a wrong one."""
    source = queried.make(selector='DCGM_FI_DRIVER_VERSION="570.86.15"')  # `up` has no such label
    answer = await queried.batch(source, nodes=(*queried.nodes, "node99"))
    assert (answer.silent, answer.silent_why) == (("node99",), {})


async def test_what_is_only_good_to_know_costs_no_samples(queried: MetricsWorld) -> None:
    """The server refuses the question about silent nodes and addresses: told, and asked again at the next read."""
    assert queried.front is not None
    queried.front.always = _no_instant_queries
    source = queried.make()
    answer = await queried.batch(source)
    assert answer.samples
    assert (answer.gpus, "addresses not looked up" in answer.problems[0]) == ({}, True)
    queried.front.always = None
    assert (await queried.batch(source)).gpus


async def _no_instant_queries(asked: Asked, behind: Behind) -> Told:
    return Told(status=422, body=b"no") if asked.path.endswith("/query") else await behind(asked)
