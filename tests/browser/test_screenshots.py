"""The pictures of the README: taken of the pages that these tests show, small enough to be kept.

`make screenshots` sets ADVISOR_SCREENSHOTS to the folder that is to hold them; otherwise they are looked at and gone.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.served import Site, site

pytestmark = [pytest.mark.browser, pytest.mark.postgres]

BYTES_MAX = 150_000
WIDTH, HEIGHT = 1240, 740
PICTURES = {
    "now-dark": ("/", "dark"),
    "incident-light": ("/incidents/{incident_id}", "light"),
    "decision-dark": ("/decisions/{decision_id}", "dark"),
    "nodes-light": ("/nodes", "light"),
    "shadow-light": ("/shadow", "light"),
}


@pytest.fixture(scope="module")
def full(database: str) -> Iterator[Site]:
    """A site with a thousand nodes and a month behind it."""
    with site(database, nodes=1024, history=70) as running:
        yield running


@pytest.mark.parametrize("name", PICTURES)
def test_the_readmes_pictures_are_taken(name: str, full: Site, chromium: Browser, tmp_path: Path) -> None:
    """Each picture shows a page as it is now, and is small."""
    address, scheme = PICTURES[name]
    names = full.names
    path = address.format(incident_id=names.incident_id, decision_id=names.decision_id)
    context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type] # a literal of two
    page = context.new_page()
    answer = page.goto(full.base + path)
    assert answer is not None
    assert answer.status == 200
    page.locator("h1").wait_for()
    picture = page.screenshot()
    context.close()
    folder = Path(os.environ.get("ADVISOR_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(picture)
    assert struct.unpack(">II", picture[16:24]) == (WIDTH, HEIGHT)
    assert 10_000 < len(picture) < BYTES_MAX


def test_every_picture_is_taken_here_and_shown() -> None:
    """The folder holds the pictures of this list and no other; each is shown in the README or the documentation."""
    root = Path(__file__).parents[2]
    assert {path.name for path in (root / "docs/images").iterdir()} == {f"{name}.png" for name in PICTURES}
    texts = (root / "README.md").read_text() + (root / "docs/dashboard.md").read_text()
    assert [name for name in PICTURES if f"images/{name}.png" not in texts] == []
