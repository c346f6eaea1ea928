"""`/metrics` while the database is away, and for whom it is."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import httpx
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from advisor.board import Board
from advisor.clock import SystemClock
from advisor.instruments import Instruments
from advisor.service.callers import Caller, Role, granted
from advisor.service.http import metrics
from advisor.service.http.application import compose
from advisor.store.store import Store


class AwayStore:
    async def open_incident_count(self) -> int:
        raise OperationalError("SELECT", {}, Exception("gone"))


@asynccontextmanager
async def asking(role: Role) -> AsyncIterator[httpx.AsyncClient]:
    clock, store = SystemClock(), cast(Store, AwayStore())
    instruments = Instruments(clock, version="1", build="b")
    instruments.agent_seen.labels("alps", "ctl").set(1.0)

    async def identify(_scope: object) -> Caller:
        return Caller(name="prometheus", roles=granted(role))

    routes = metrics.routes(instruments, store, Board(store, clock), list)
    app = compose([routes], identify=identify, body_bytes_max=1000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://advisor") as client:
        yield client


async def test_what_the_database_would_tell_is_missing_while_it_is_away() -> None:
    """The scrape succeeds all the same: store_up is 0, and what cannot be known is no zero and no old value."""
    async with asking(Role.VIEWER) as client:
        text = (await client.get("/metrics")).text
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["recovery_advisor_store_up"] == 0
    assert math.isnan(values["recovery_advisor_open_incidents"])
    assert "recovery_advisor_agent_last_seen_timestamp_seconds" not in values


async def test_a_user_of_jobs_may_not_see_the_whole_site() -> None:
    """Figures of the service are for viewers; a user sees his own jobs."""
    async with asking(Role.USER) as client:
        assert (await client.get("/metrics")).status_code == 403


def test_what_agents_ask_of_the_scheduler_is_counted_from_when_we_hear_of_it() -> None:
    """An agent tells its total: a new session, or one that began anew, adds nothing by itself."""
    instruments = Instruments(SystemClock(), version="1", build="b")

    def total() -> float | None:
        return instruments.registry.get_sample_value("recovery_advisor_scheduler_rpcs_total", {"cluster": "alps"})

    for session, sent in (("one", 500), ("one", 620), ("two", 640), ("two", 700), ("two", 5), ("two", 25)):
        instruments.scheduler_asked("alps", session, sent)
    assert total() == 120 + 60 + 20
