"""Pages under the hand: keys, visible focus, the theme, parts that renew themselves; and all without a script."""

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from playwright.sync_api import Page, Route, expect
from playwright.sync_api import TimeoutError as TookTooLong

from advisor.core.words import Action, AttemptState, Category, Reason
from tests.browser.conftest import Visit
from tests.browser.served import Site
from tests.browser.writing import Told, decide, job, observe

pytestmark = [pytest.mark.browser, pytest.mark.postgres]

OpenPage = Callable[..., Visit]

FOCUSED = "document.activeElement"


def focused_text(page: Page) -> str:
    text: str = page.evaluate(f"{FOCUSED}.innerText || {FOCUSED}.value || ''")
    return text


def has_visible_focus(page: Page) -> bool:
    style = f"getComputedStyle({FOCUSED})"
    seen: bool = page.evaluate(f"{style}.outlineStyle !== 'none' && parseFloat({style}.outlineWidth) >= 2")
    return seen


def test_the_first_tab_skips_to_the_content(visit: OpenPage) -> None:
    """The first stop of the Tab key is a visible link past the head of the page, and it works."""
    shown = visit()
    shown.go("/")
    shown.page.keyboard.press("Tab")
    assert focused_text(shown.page) == "Skip to the content"
    assert has_visible_focus(shown.page)
    shown.page.keyboard.press("Enter")
    assert shown.page.evaluate(f"{FOCUSED}.id") == "main"


def test_letters_walk_a_list_and_open_a_row(visit: OpenPage) -> None:
    """j and k move a visible focus from row to row, Enter opens the one it is on, n turns the page."""
    shown = visit()
    shown.go("/decisions")
    rows = shown.page.locator("[data-item] a.row")
    shown.page.keyboard.press("j")
    shown.page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    assert has_visible_focus(shown.page)
    shown.page.keyboard.press("k")
    expect(rows.nth(0)).to_be_focused()
    target = rows.nth(0).get_attribute("href")
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_url(f"**{target}")


def test_letters_reach_the_filter_the_help_and_other_pages(visit: OpenPage) -> None:
    """/ goes to the filter, Escape leaves it, ? shows the keys, g and a letter go to a page; a switch ends it all."""
    shown = visit()
    shown.go("/decisions")
    page = shown.page
    page.keyboard.press("/")
    expect(page.locator("[data-filter]")).to_be_focused()
    page.keyboard.type("j?")  # letters are letters there
    assert page.locator("[data-filter]").input_value() == "j?"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    for _ in range(5):  # the second letter counts for a moment only, which may pass on a busy machine
        page.keyboard.press("g")
        page.keyboard.press("m")
        with suppress(TookTooLong):
            page.wait_for_url("**/nodes", timeout=3000)
            break
    page.wait_for_url("**/nodes")
    page.keyboard.press("?")
    page.get_by_label("Switch single-letter keys off").check()
    page.keyboard.press("Escape")
    page.reload()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_hidden()


def test_the_map_is_one_stop_and_arrows_move_on_it(visit: OpenPage) -> None:
    """Tab enters the map once; arrows go from node to node and to the next row, with a visible focus."""
    shown = visit()
    shown.go("/nodes")
    page = shown.page
    tiles = page.locator("[data-map] a.tile")
    assert page.locator("[data-map] a.tile[tabindex='0']").count() == 1
    tiles.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(tiles.nth(11)).to_be_focused()
    assert has_visible_focus(page)
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.closest('[data-map]') === null")
    page.keyboard.press("Shift+Tab")
    expect(tiles.nth(11)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/alps/gpu0012")


def test_the_theme_is_chosen_and_stays(visit: OpenPage) -> None:
    """The button goes from the system's theme to light to dark, at once, and the next page has it from the server."""
    shown = visit(color_scheme="light")
    shown.go("/")
    page = shown.page
    html = page.locator("html")
    button = page.locator("#theme-button")
    button.click()
    expect(html).to_have_attribute("data-theme", "light")
    button.click()
    expect(html).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    page.goto(shown.site.base + "/help")
    expect(html).to_have_attribute("data-theme", "dark")


def test_what_happens_appears_without_a_reload(visit: OpenPage, served: Site) -> None:
    """A decision that is made while somebody looks appears on the page; the focus stays where it was."""
    shown = visit()
    page = shown.page
    page.clock.install()
    shown.go("/")
    page.keyboard.press("j")
    before = page.evaluate(f"{FOCUSED}.getAttribute('href')")
    told = Told(
        category=Category.NUMERICS,
        cause="The loss is NaN since step 911",
        action=Action.STOP,
        reason=Reason.SAME_FAILURE_SAME_PROGRESS,
    )
    failed = job("7001", "zoe", "sft", state=AttemptState.FAILED, since=900, until=30, nodes=["gpu0001"])

    async def happen() -> None:
        await decide(served.store, await observe(served.store, failed), told, at=30)

    assert page.get_by_text("The loss is NaN since step 911").count() == 0
    served.run(happen())
    page.clock.run_for(6_000)
    page.get_by_text("The loss is NaN since step 911").wait_for()
    assert page.evaluate(f"{FOCUSED}.getAttribute('href')") == before
    page.get_by_text(re.compile(r"^Updated")).wait_for()


def test_a_lost_connection_is_said_and_asking_slows_down(visit: OpenPage) -> None:
    """Two questions without an answer: the page says that it gets old, asks less and less often, and recovers."""
    shown = visit()
    page = shown.page
    page.clock.install()
    shown.go("/")
    asked: list[str] = []

    def lose(route: Route) -> None:
        if "/static/" in route.request.url:
            route.continue_()  # the browser fetches its icon when it likes
            return
        asked.append(route.request.url)
        route.abort()

    page.route("**/*", lose)
    for _ in range(2):
        with page.expect_event("requestfailed"):
            page.clock.run_for(12_000)
    page.locator("#live.lost").wait_for()
    page.get_by_text("Connection lost: what is shown gets old.").wait_for(state="attached")
    few = len(asked)
    page.clock.run_for(15_000)  # the third would have come within ten seconds, were it not for the back-off
    assert len(asked) - few <= 1
    page.unroute("**/*")
    with page.expect_response("**/"):
        page.clock.run_for(60_000)
    page.get_by_text("Connected again.").wait_for(state="attached")
    expect(page.locator("#live")).not_to_have_class(re.compile("lost"))
    shown.complaints[:] = [text for text in shown.complaints if "ERR_FAILED" not in text]


def test_nobody_asks_for_a_page_that_is_hidden(visit: OpenPage) -> None:
    """While the page is hidden it asks nothing; shown again it asks at once."""
    shown = visit()
    page = shown.page
    page.clock.install()
    shown.go("/")
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(30_000)
    assert [url for url in asked if "/static/" not in url] == []  # the browser itself may still fetch the icon
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    with page.expect_request("**/"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_everything_can_be_read_without_a_script(visit: OpenPage, served: Site) -> None:
    """Without JavaScript lists, filters, pages, the map and the theme work, and nothing promises what cannot happen."""
    shown = visit(java_script_enabled=False)
    page = shown.page
    shown.go("/decisions")
    page.get_by_label("User").fill("alice")
    page.get_by_role("button", name="Filter").click()
    assert "user=alice" in page.url
    people = page.locator("[data-item] td:nth-child(2) .dim")
    assert {text.split(" · ")[0].strip() for text in people.all_inner_texts()} == {"#0", "alice"}
    page.locator("[data-item] a.row").first.click()
    page.get_by_role("heading", name=re.compile("^(restart|stop) job")).wait_for()
    shown.go("/nodes")
    page.locator("[data-map] a.tile").nth(3).click()
    page.get_by_role("heading", name="gpu0004").wait_for()
    assert page.locator("#live").is_hidden()
    page.locator("#theme-button").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.url.endswith("/nodes/alps/gpu0004")
    page.get_by_role("link", name="Help").click()
    page.get_by_text("next and previous row of a list").first.wait_for()


def test_pages_of_a_list_hold_together_without_a_script(visit: OpenPage, served: Site) -> None:
    """Older pages of a filtered list show other rows of the same filter, and lead back to the newest."""

    async def crowd() -> None:
        jobs = [
            job(str(90_000 + more), "crowd", "many", state=AttemptState.RUNNING, since=500 + more, nodes=["gpu0002"])
            for more in range(60)
        ]
        await served.store.record_observations("alps", jobs, (), complete=False, now=jobs[0].observed_at)

    served.run(crowd())
    shown = visit(java_script_enabled=False)
    page = shown.page
    shown.go("/jobs?user=crowd&since=1d")
    first = page.locator("[data-item]").all_inner_texts()
    assert len(first) == 50
    page.get_by_role("link", name="Older").click()
    expect(page.locator("[data-item]")).to_have_count(10)
    second = page.locator("[data-item]").all_inner_texts()
    assert not set(first) & set(second)
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("[data-item]")).to_have_count(50)
    assert page.locator("[data-item]").all_inner_texts() == first
