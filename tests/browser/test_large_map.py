"""A cluster of thousands of nodes on one page."""

from time import perf_counter

import httpx
import pytest

from tests.browser.served import site

pytestmark = [pytest.mark.browser, pytest.mark.postgres]

NODES = 3000
SECONDS_MAX = 1.0


def test_a_map_of_thousands_of_nodes_is_quick(database: str) -> None:
    """A page with 3,000 nodes takes the server less than a second, the database's part included."""
    with site(database, nodes=NODES, history=12) as large, httpx.Client(base_url=large.base) as client:
        took = []
        for _ in range(3):
            began = perf_counter()
            answer = client.get("/nodes")
            took.append(perf_counter() - began)
    assert answer.status_code == 200
    assert answer.text.count('<a class="tile ') == NODES
    assert min(took) < SECONDS_MAX, took
