"""Traffic on the page: live decisions, recordings, and their replay against candidate rules."""

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.conftest import BODY
from tests.browser.fleet import Fleet
from tests.browser.test_rules import edit
from tests.support import plain_http


def test_the_live_tail_shows_decisions_as_they_are_made(page: Any, fleet: Fleet, shot: Any) -> None:
    """The tail shows route, arm, engine and status, can be filtered and paused, and shows clients' names as text."""
    page.goto("/#/tail")
    rows = page.locator("tbody tr")
    expect(rows.filter(has_text="everything-else").first).to_contain_text("200")
    expect(rows.filter(has_text="ranking").first).to_contain_text("control")
    evil = "%3Cimg%20src=x%20onerror=%22window.hurt=1%22%3E"
    page.get_by_label("Filter").fill("onerror")
    for _ in range(40):  # only a sample arrives
        plain_http.post(f"{fleet.gateway.http_url}/v2/models/{evil}/infer", json=BODY)
        if rows.count():
            break
    expect(rows.first).to_contain_text('<img src=x onerror="window.hurt=1">')
    assert page.evaluate("window.hurt === undefined")
    page.get_by_label("Filter").fill("")
    page.get_by_role("button", name="Pause").click()
    first = rows.first.inner_text()
    page.wait_for_timeout(800)
    assert rows.first.inner_text() == first
    shot("paused")
    page.get_by_role("button", name="Go on").click()
    expect(rows.first).not_to_have_text(first)


def test_who_leaves_the_tail_is_told_no_decisions(page: Any) -> None:
    """Another view subscribes without decisions, which cost the gateway work."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "/events" in request.url else None)
    page.goto("/#/tail")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_role("link", name="Fleet", exact=True).click()
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator(".card", has_text="everything-else")).to_be_visible()
    page.wait_for_timeout(300)
    assert [url.endswith("decisions=true") for url in requests][-2:] == [True, False]


def test_a_copy_of_the_rules_is_tried_by_recorded_traffic(page: Any, fleet: Fleet) -> None:
    """A recording is replayed against a candidate before its activation."""
    page.goto("/#/recordings")
    page.get_by_role("button", name="Record").click()
    page.get_by_label("Name").fill("ordinary")
    page.get_by_label("Sample").fill("100")
    page.get_by_role("dialog").get_by_role("button", name="Record").click()
    row = page.get_by_role("row", name=re.compile("^ordinary"))
    expect(row).to_contain_text("records")
    expect(row).to_contain_text(re.compile(r"[1-9]\d* of 10,000"))
    page.get_by_role("button", name="Stop ordinary").click()
    expect(page.get_by_role("button", name="Delete ordinary")).to_be_visible()
    page.goto("/#/rules")
    page.get_by_role("button", name="Edit a copy").click()
    edit(page, "name: everything-else\n    engine: cuda", "name: everything-else\n    engine: mac")
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    report = page.get_by_role("dialog", name="What would change")
    engines = report.get_by_role("region", name="Changes of engine")
    expect(engines.get_by_role("row").nth(1)).to_contain_text(re.compile(r"cuda\s*mac"))
    page.goto("/#/recordings")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download ordinary").click()
    assert saved.value.suggested_filename == "ordinary.jsonl"
    page.get_by_role("button", name="Delete ordinary").click()
    expect(row).to_have_count(0)
