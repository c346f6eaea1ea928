"""What others write never becomes more than text, forms come from our pages only, and a gone database is said."""

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from advisor.service.callers import NOBODY, Caller, Proof, Role, granted
from advisor.store.embedded import EmbeddedPostgres
from tests.browser.conftest import Visit
from tests.browser.seeded import HOSTILE
from tests.browser.served import OPERATOR, PAGES, VIEWER, Site, path_of
from tests.integration.store.conftest import execute

pytestmark = [pytest.mark.browser, pytest.mark.postgres]

OpenPage = Callable[..., Visit]

INVISIBLE = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200f\x1b\x07"


@pytest.mark.parametrize(
    "path", ["/decisions/{decision}", "/jobs/{job}", "/jobs?user=mallory", "/incidents?user=mallory", "/"]
)
def test_log_text_stays_text(path: str, visit: OpenPage, served: Site) -> None:
    """Markup, template syntax, direction overrides and terminal escapes in stored text are shown and do nothing."""
    shown = visit()
    names = served.names
    assert shown.go(path.format(decision=names.hostile_decision_id, job=names.hostile_job_key)) == 200
    page = shown.page
    page.evaluate("for (const item of document.querySelectorAll('details')) item.open = true")
    assert "taken" not in page.title()
    text = page.evaluate("document.body.innerText + [...document.querySelectorAll('[title]')].map((e) => e.title)")
    assert not set(INVISIBLE) & set(text)
    assert "\n49\n" not in text
    assert (
        page.locator("main script, main img, [onerror], [onload], [onmouseover], [onfocus], [autofocus]").count() == 0
    )
    assert page.locator("a[href^='javascript']").count() == 0
    assert page.evaluate("[...document.scripts].every((item) => item.src.startsWith(location.origin + '/static/'))")


def test_hostile_lines_are_shown_whole_and_marked(visit: OpenPage, served: Site) -> None:
    """Each hostile line can be read on its decision's page, escapes spelled out, and the 64 KiB one is folded."""
    shown = visit()
    shown.go(f"/decisions/{served.names.hostile_decision_id}")
    logs = shown.page.locator("pre.log").all_inner_texts()
    assert HOSTILE[0] in logs
    assert HOSTILE[2] in logs
    assert any("\\u202egnp.exe \\u2066hidden" in line for line in logs)
    assert any(line.startswith("\\x1b]0;owned\\x07") for line in logs)
    shown.page.get_by_text("The whole text, 65").click()
    whole = shown.page.locator("details[open] pre.log").inner_text()
    assert len(whole) > 65_000
    assert whole.endswith(HOSTILE[0])
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    "query", ["job=<script>alert(1)</script>", "user=%22%3E%3Cimg src=x onerror=alert(1)%3E", "cursor=%00", "from=x"]
)
def test_hostile_questions_are_answered_in_words(query: str, visit: OpenPage) -> None:
    """What stands in an address is text on the page that answers, or refused in a sentence; never a fault of ours."""
    shown = visit()
    assert shown.go(f"/decisions?{query}") in {200, 400}
    assert shown.page.locator("main script, main img").count() == 0
    shown.complaints[:] = [text for text in shown.complaints if "status of 400" not in text]


def test_a_pause_and_its_end(visit: OpenPage, served: Site) -> None:
    """An operator pauses with a reason and resumes, by forms without a script; every page says so meanwhile."""
    shown = visit(java_script_enabled=False)
    page = shown.page
    shown.go("/controls")
    panel = page.locator("section", has=page.get_by_role("heading", name="Pause"))
    panel.get_by_label("Where").select_option("alps")
    panel.get_by_role("button", name="Pause").click()
    assert page.url.endswith("/controls"), "without a reason the browser does not even send it"
    assert page.get_by_text("Nothing is paused.").count() == 1
    panel.get_by_label("Reason").fill("moving <b>racks</b>")
    panel.get_by_role("button", name="Pause").click()
    page.locator(".notice.good", has_text="Paused alps.").wait_for()
    shown.go("/decisions")
    page.get_by_text("paused until").wait_for()
    assert page.locator(".notice").count() == 0, "a notice is told once"
    shown.go("/audit")
    page.get_by_text("moving <b>racks</b>").wait_for()
    shown.go("/controls")
    panel.get_by_label("Reason").first.fill("done")
    panel.get_by_role("button", name="Resume alps").click()
    page.locator(".notice.good", has_text="Resumed alps.").wait_for()
    page.get_by_text("Nothing is paused.").wait_for()


def test_a_verdict_is_corrected_and_a_node_reinstated(visit: OpenPage, served: Site) -> None:
    """Verbs on a decision's and a node's page do what they say, and what they did is then on that page."""
    shown = visit()
    page = shown.page
    shown.go(f"/decisions/{served.names.decision_id}")
    page.get_by_text("Correct the verdict").click()
    page.get_by_label("Category").select_option("interconnect")
    page.get_by_label("Nodes at fault").fill("none")
    form = page.locator("form[action='/do/correct']")
    form.get_by_label("Reason").fill("the switch was rebooted")
    form.get_by_role("button", name="Correct").click()
    page.locator(".notice.good").wait_for()
    page.get_by_text("Interconnect and not GPU hardware; no node and not gpu0417").wait_for()
    page.get_by_text("Record what was done").click()
    form = page.locator("form[action='/do/record-shadow']")
    form.get_by_label("Done").select_option("resubmitted")
    form.get_by_label("Reason").fill("by hand")
    form.get_by_role("button", name="Record").click()
    page.locator(".notice.good", has_text="Recorded: resubmitted.").wait_for()
    shown.go(f"/nodes/alps/{served.names.node}")
    form = page.locator("form[action='/do/probe']")
    form.get_by_label("It", exact=True).select_option("no")
    form.get_by_label("Reason").fill("diag failed")
    form.get_by_role("button", name="Report the test").click()
    page.locator(".notice.good", has_text="failed: its time begins anew").wait_for()
    page.locator("form[action='/do/reinstate']").get_by_label("Reason").fill("board replaced")
    page.get_by_role("button", name=f"Reinstate {served.names.node}").click()
    page.locator(".notice.good", has_text="has ended").wait_for()
    page.get_by_text("operator: board replaced").first.wait_for()


def test_a_veto_and_its_end_and_the_stop_of_everything(visit: OpenPage, served: Site) -> None:
    """A veto shows on its decision and under Controls until it is lifted there; one button ends all acting."""
    shown = visit()
    page = shown.page
    shown.go("/decisions?job=4790")
    page.locator("[data-item] a.row").first.click()
    page.locator("summary", has_text="Veto").click()
    form = page.locator("form[action='/do/veto']")
    form.get_by_label("Reason").fill("the user looks into it")
    form.get_by_role("button", name="Veto").click()
    page.locator(".notice").wait_for()
    page.get_by_role("heading", name="Orders about this job").wait_for()
    shown.go("/controls")
    page.get_by_text("the user looks into it").wait_for()
    page.get_by_text("Lift it").click()
    form = page.locator("form[action='/do/lift']")
    form.get_by_label("Reason").fill("done")
    form.get_by_role("button", name="Lift").click()
    page.locator(".notice").wait_for()
    page.get_by_text("Nobody ordered anything").wait_for()
    form = page.locator("form[action='/do/monitor']")
    form.get_by_label("Reason").fill("enough")
    form.get_by_role("button", name="Stop acting").click()
    page.locator(".notice.good", has_text="Monitor mode everywhere: 1 autonomous setting removed.").wait_for()
    page.locator(".top").get_by_text("monitor mode").wait_for()


def test_what_cannot_be_done_is_said_where_it_was_asked(visit: OpenPage, served: Site) -> None:
    """A verb that the service refuses comes back to the page with the reason, as a warning."""
    shown = visit()
    page = shown.page
    shown.go(f"/decisions/{served.names.decision_id}")
    page.get_by_text("Spare a node").click()
    form = page.locator("form[action='/do/spare']")
    form.get_by_label("Node").fill("no such node!")
    form.get_by_label("Reason").fill("try")
    form.get_by_role("button", name="Spare").click()
    expect(page.locator(".notice.warn")).to_contain_text("Not done: ")
    assert page.url.endswith(served.names.decision_id)


def test_a_form_that_is_not_ours_does_nothing(visit: OpenPage, served: Site) -> None:
    """Without our token, from another site's page, or by somebody who may only look, a form is refused."""
    page = visit().page
    page.goto(f"{served.base}/controls")
    token = page.locator("input[name=csrf]").first.get_attribute("value")
    assert token
    form = {"cluster": "", "minutes": "60", "why": "not me", "back": "/"}
    with httpx.Client(base_url=served.base) as client:
        assert client.post("/do/pause", data=form).status_code == 403
        assert client.post("/do/pause", data={**form, "csrf": token[:-1] + "x"}).status_code == 403
        elsewhere = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert client.post("/do/pause", data={**form, "csrf": token}, headers=elsewhere).status_code == 403
        with served.seen_by(VIEWER):
            mine = client.get("/controls").text.split('name="csrf" value="')[1].split('"')[0]
            assert client.post("/do/pause", data={**form, "csrf": mine}).status_code == 403
            assert client.post("/do/pause", data={**form, "csrf": token}).status_code == 403
        assert client.get("/do/pause", params={**form, "csrf": token}).status_code == 405
    assert served.run(served.store.pauses(served.clock.now())) == ()


def test_no_page_fails_whoever_looks(served: Site) -> None:
    """For every role each page is shown or refused in a sentence; a user of jobs sees his own and nobody else's."""
    user = Caller(name="alice", roles=granted(Role.USER), proof=Proof.OIDC)
    agent = Caller(name="agent", roles=granted(Role.AGENT), proof=Proof.TOKEN)
    refused: dict[str, set[str]] = {}
    with httpx.Client(base_url=served.base, headers={"Accept": "text/html"}) as client:
        for caller in (OPERATOR, VIEWER, user, agent, NOBODY):
            with served.seen_by(caller):
                for name in PAGES:
                    answer = client.get(path_of(name, served))
                    assert answer.status_code in {200, 401, 403, 404}, (caller.name, name)
                    assert "<h1" in answer.text
                    if answer.status_code != 200:
                        refused.setdefault(caller.name, set()).add(name)
        with served.seen_by(user):
            assert "fallen off the bus" in client.get(f"/decisions/{served.names.decision_id}").text
            assert "mallory" not in client.get("/decisions").text
            assert client.get(f"/decisions/{served.names.hostile_decision_id}").status_code == 404
    assert "ops-kim" not in refused
    assert refused["visitor"] == {"audit"}
    assert refused["alice"] >= {"nodes", "node", "audit", "controls", "hostile decision", "hostile job"}
    assert refused["nobody"] == set(PAGES) - {"help"}


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_no_form_leads_elsewhere(back: str, served: Site) -> None:
    """Whatever a form says about where it was, the answer leads to a page of ours."""
    with httpx.Client(base_url=served.base) as client:
        token = client.get("/").text.split('name="csrf" value="')[1].split('"')[0]
        answer = client.post("/theme", data={"theme": "dark", "back": back, "csrf": token})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/")
    assert not answer.headers["location"].startswith(("//", "/\\"))


def test_a_gone_database_is_said(visit: OpenPage, served: Site, database: str, postgres: EmbeddedPostgres) -> None:
    """While the database does not answer every page says so with 503, and comes back by itself when it does."""
    shown = visit()
    page = shown.page
    page.clock.install()
    name = database.split("@/")[1].split("?")[0]
    execute(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        execute(postgres, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        assert shown.go("/nodes") == 503
        page.get_by_role("heading", name="The database does not answer").wait_for()
        page.get_by_text("Jobs do not wait for us").wait_for()
        assert shown.go("/help") == 200
        assert shown.go("/") == 503
    finally:
        execute(postgres, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    page.clock.run_for(10_000)
    page.get_by_role("heading", name="Open incidents").wait_for()
    shown.complaints[:] = [text for text in shown.complaints if "status of 503" not in text]
