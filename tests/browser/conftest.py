"""One seeded site and one real Chromium per file of tests, one fresh browser context per test.

The browser ends with its file: Playwright's loop must not be there when asynchronous tests follow.
"""

import asyncio
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import structlog
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from tests.browser.served import Site, site
from tests.integration.store.conftest import execute, open_folder, postgres  # noqa: F401 -- fixtures

# The rich form prints local variables of every frame.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
WAIT_MS = 15_000  # a deadline, for busy machines; nothing waits for it
expect.set_options(timeout=WAIT_MS)
# A person's laptop.
WIDTH, HEIGHT = 1360, 850


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[str]:  # noqa: F811 -- the fixture above
    """An empty database of the file's own, migrated."""
    name = f"pages_{uuid.uuid1().hex}"
    execute(postgres, f"CREATE DATABASE {name}")
    with ThreadPoolExecutor(1) as thread:  # Playwright's loop may run in this one
        thread.submit(asyncio.run, migrate(postgres.url_of(name))).result()
    yield postgres.url_of(name)
    execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def served(database: str) -> Iterator[Site]:
    """A site whose data nobody but this file's tests change."""
    with site(database, nodes=130, history=12) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's, without its sandbox: that refuses root, and the namespaces around the tests are one."""
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: make test installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@dataclass(slots=True, kw_only=True)
class Visit:
    """A page in a browser, and what it complained about."""

    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> int:
        """Returns the status."""
        answer = self.page.goto(self.site.base + path)
        assert answer is not None
        return answer.status


@pytest.fixture
def visit(chromium: Browser, served: Site) -> Iterator[Callable[..., Visit]]:
    """Opens browser contexts; at the end none of their pages may have complained (errors, violated policy)."""
    opened: list[tuple[BrowserContext, Visit]] = []

    def open_page(**options: object) -> Visit:
        context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}, **options)  # type: ignore[arg-type] # as Playwright's own
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));"
        )
        made = Visit(page=context.new_page(), site=served)
        made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.page.on("console", lambda said: made.complaints.extend([said.text] if said.type == "error" else []))
        made.page.on("dialog", lambda dialog: made.complaints.append(f"dialog {dialog.message}"))
        opened.append((context, made))
        return made

    yield open_page
    complaints = [text for _, made in opened for text in made.complaints]
    for context, _ in opened:
        context.close()
    assert complaints == []
