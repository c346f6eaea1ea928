"""Every page in a real browser: accessible in light and dark, and nothing that its policy forbids."""

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Visit
from tests.browser.served import PAGES, VIEWER, Site, path_of

pytestmark = [pytest.mark.browser, pytest.mark.postgres]

OpenPage = Callable[..., Visit]


def violations(visit: Visit, **options: object) -> list[str]:
    rules = options or {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}
    found = Axe().run(visit.page, options={**rules, "resultTypes": ["violations"]})
    return [
        f"{item['id']}: {item['help']}: {[node['html'][:160] for node in item['nodes'][:3]]}"
        for item in found.response["violations"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_in_light_and_dark(name: str, visit: OpenPage, served: Site) -> None:
    """axe finds nothing on the page in either theme, every form opened; no error and no violated policy on the way."""
    shown = visit(color_scheme="light")
    assert shown.go(path_of(name, served)) == 200
    shown.page.evaluate("for (const item of document.querySelectorAll('details')) item.open = true")
    assert violations(shown) == []
    assert shown.page.locator("h1").count() == 1
    shown.page.emulate_media(color_scheme="dark")
    assert shown.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert violations(shown, runOnly={"type": "rule", "values": ["color-contrast"]}) == []


def test_errors_are_accessible_sentences(visit: OpenPage) -> None:
    """A page that is not there says so in words, in a page that axe finds nothing on."""
    shown = visit()
    assert shown.go("/decisions/00000000-0000-0000-0000-000000000000") == 404
    shown.page.get_by_role("heading", name="There is no such page").wait_for()
    assert violations(shown) == []
    assert shown.go("/decisions?status=lost") == 400
    shown.page.get_by_text("'lost' is not one of pending").wait_for()
    shown.complaints[:] = [text for text in shown.complaints if "status of 40" not in text]


def test_whoever_may_only_look_sees_no_forms(visit: OpenPage, served: Site) -> None:
    """A viewer sees the pages without a form that changes anything, and without the text of other users' logs."""
    shown = visit()
    with served.seen_by(VIEWER):
        for name in ("now", "node", "job", "controls", "decision"):
            assert shown.go(path_of(name, served)) == 200
            assert shown.page.locator("form[action^='/do/']").count() == 0, name
        assert "fallen off the bus" not in shown.page.content()
        shown.page.get_by_text("[withheld: text of another user's job]").first.wait_for()
        assert violations(shown) == []


def test_policy_forbids_what_is_not_ours(visit: OpenPage, served: Site) -> None:
    """Every answer carries a policy without inline script or style and without any other origin."""
    shown = visit()
    answer = shown.page.goto(served.base)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "*" not in policy
    shown.page.evaluate(
        "document.head.append(Object.assign(document.createElement('script'), {src: 'https://example.org/x.js'}))"
    )
    shown.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p id=styled style=\"color: red\">x</p>')")
    assert shown.page.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    assert any("script-src" in text for text in shown.complaints), "a violation is noticed by these tests"
    shown.complaints.clear()
