"""`advisor dashboard` before a real service: its page in a real Chromium, for whoever ran it."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import WAIT_MS
from tests.integration.service.world import configuration, short_folder

pytestmark = [pytest.mark.browser, pytest.mark.postgres]

PROJECT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A command of ours with its own log; ended as a person ends it."""
    log = folder / f"{words[0]}.log"
    with log.open("wb") as output:
        line = [sys.executable, "-m", "advisor", *words, "--config", str(folder / "advisor.toml")]
        process = subprocess.Popen(line, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def said(process: "subprocess.Popen[bytes]", log: Path, pattern: str) -> str:
    """What the command printed, once it has."""
    deadline = time.monotonic() + START_SECONDS
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found[0]


def test_the_commands_page_is_the_dashboard(chromium: Browser) -> None:
    """Its address opens the pages once, what they remember and forms work there, and another browser sees nothing."""
    with short_folder() as folder:
        configuration(folder)
        with running(folder, "serve") as service:
            said(*service, "service_ready")
            with running(folder, "dashboard", "--no-browser") as command:
                url = said(*command, r"http://127\.0\.0\.1:\S+")
                context = chromium.new_context(java_script_enabled=False)
                context.set_default_timeout(WAIT_MS)
                page = context.new_page()
                page.goto(url)
                page.get_by_text("No agent has ever reported").wait_for()
                page.locator("#theme-button").click()
                expect(page.locator("html")).to_have_attribute("data-theme", "light")
                page.get_by_role("link", name="Controls").first.click()
                panel = page.locator("section", has=page.get_by_role("heading", name="Pause"))
                panel.get_by_label("Reason").fill("a look")
                panel.get_by_role("button", name="Pause").click()
                page.locator(".notice.good", has_text="Paused everywhere.").wait_for()
                expect(page.locator("html")).to_have_attribute("data-theme", "light")
                page.get_by_role("link", name="Audit").click()
                page.get_by_text("a look").wait_for()
                other = chromium.new_context()
                answer = other.new_page().goto(url)
                assert answer is not None
                assert answer.status == 403
                other.close()
                context.close()
