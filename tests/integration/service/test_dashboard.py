"""The dashboard as the whole service serves it, on its own HTTP socket."""

import re
from html import unescape

import httpx
import pytest

from tests.integration.service.world import CLUSTER, configuration, short_folder, world_of

pytestmark = pytest.mark.postgres

HTML = {"Accept": "text/html,*/*"}


async def test_the_service_serves_its_pages() -> None:
    """Pages, their files and their errors come from a running service; a job that an agent reported is on them."""
    with short_folder() as folder:
        config = configuration(folder)
        async with world_of(folder, config) as world:
            await world.register()
            await world.report(world.job("RUNNING", name="<b>llama</b>"))
            transport = httpx.AsyncHTTPTransport(uds=str(config.service.http_path))
            async with httpx.AsyncClient(transport=transport, base_url="http://advisor", headers=HTML) as client:
                now = await client.get("/")
                assert now.status_code == 200
                assert "No incident is open" in now.text
                assert CLUSTER in now.text
                jobs = await client.get("/jobs")
                assert "&lt;b&gt;llama&lt;/b&gt;" in jobs.text
                link = re.search(r'href="(/jobs/[0-9a-f-]+)"', jobs.text)
                assert link is not None
                assert (await client.get(link[1])).status_code == 200
                assert "node1" in (await client.get("/nodes")).text
                for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', now.text):
                    found = await client.get(unescape(address))
                    assert found.status_code == 200
                    assert "immutable" in found.headers["cache-control"]
                missing = await client.get("/incidents/00000000-0000-0000-0000-000000000000")
                assert missing.status_code == 404
                assert "There is no such page" in missing.text
