"""Daily operations on the page: models, sessions, limits, active requests, the audit."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import BODY
from tests.browser.engines import TensorEngine
from tests.browser.fleet import Fleet
from tests.support import plain_http
from tests.support.chromium import Mishaps

# A model or session name that would run a script if the page treated it as markup.
EVIL = '<img src=x onerror="window.hurt=1">'


def ask(fleet: Fleet, path: str, **fields: str) -> httpx.Response:
    return plain_http.post(f"{fleet.gateway.http_url}{path}", json=BODY, headers=fields)


@contextmanager
def under_way(fleet: Fleet, model: str) -> Iterator[list[httpx.Response]]:
    """A slow request in flight. Yields the list that gets its reply."""
    answers: list[httpx.Response] = []
    path = f"/v2/models/{model}/infer"
    asking = threading.Thread(target=lambda: answers.append(ask(fleet, path, **{"x-sleep": "20"})))
    asking.start()
    yield answers
    asking.join(120)


def is_unhurt(page: Any) -> bool:
    return bool(page.evaluate("window.hurt === undefined && !document.querySelector('img[src=x]')"))


def test_a_model_is_loaded_and_unloaded_on_all_replicas(page: Any, fleet: Fleet) -> None:
    """The page shows where a model is ready, loads and unloads it with a quorum, and lists each endpoint's result if
    too few succeed."""
    page.goto("/#/models")
    row = page.get_by_role("row", name=re.compile("^plain "))
    expect(row).to_contain_text("3 of 3")
    page.get_by_role("button", name="Unload plain").click()
    page.get_by_label("Engine").fill("mac")
    page.get_by_label("Reason").fill("maintenance")
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    expect(row).to_contain_text("2 of 3")
    page.get_by_role("button", name="Load plain", exact=True).click()
    page.get_by_label("Engine").fill("mac")
    page.get_by_role("dialog").get_by_role("button", name="Load").click()
    expect(row).to_contain_text("3 of 3")
    assert fleet.engines[2].loaded == {"plain", "ranker"}


def test_too_few_replicas_are_told_one_by_one(page: Any, fleet: Fleet, mishaps: Mishaps) -> None:
    """When too few endpoints succeed, a dialog shows the failed one and its error."""
    mishaps.expected.add(409)
    fleet.engines[1].refuses = True
    page.goto("/#/models")
    page.get_by_role("button", name="Load plain", exact=True).click()
    page.get_by_label("Engine").fill("cuda")
    page.get_by_role("dialog").get_by_role("button", name="Load").click()
    dialog = page.get_by_role("dialog", name="Too few have done it")
    expect(dialog).to_contain_text("1 of 2 endpoints have done it; 2 were needed")
    expect(dialog.get_by_role("row", name=re.compile("failed"))).to_contain_text("no room")
    fleet.engines[1].refuses = False


def test_a_session_is_found_moved_and_forgotten(page: Any, fleet: Fleet, mishaps: Mishaps) -> None:
    """A session is found by its name, whatever characters that has, then moved and deleted."""
    mishaps.expected.add(404)
    ask(fleet, "/v2/models/ranker/infer", **{"x-session-id": EVIL})
    page.goto("/#/sessions")
    page.get_by_label("Session").fill("never heard of")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("no session 'never heard of' is remembered")).to_be_visible()
    page.get_by_label("Session").fill(EVIL)
    found = page.get_by_role("heading", name=EVIL)
    for _ in range(20):  # sessions are stored asynchronously
        page.get_by_role("button", name="Find").click()
        page.wait_for_timeout(250)
        if found.count():
            break
    expect(page.locator(".pairs")).to_contain_text("ranker-migration: control")
    page.get_by_role("button", name="Move").click()
    page.get_by_label("Endpoint").select_option(index=1)
    page.get_by_label("Reason").fill("closer")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(page.locator(".pairs")).to_contain_text("cuda: http://127.0.0.1")
    page.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.get_by_text("is remembered")).to_be_visible()
    assert is_unhurt(page)


def test_a_request_under_way_is_shown_and_cancelled(page: Any, fleet: Fleet) -> None:
    """A request is shown with engine, stage and age; cancelled, its client gets the reason. Names are never treated as
    markup."""
    page.goto("/#/requests")
    with under_way(fleet, "%3Cimg%20src=x%20onerror=%22window.hurt=1%22%3E") as answers:
        row = page.get_by_role("row", name=re.compile("onerror"))
        expect(row).to_contain_text("everything-else")
        row.get_by_role("button", name=re.compile("^Cancel")).click()
        expect(row).to_have_count(0)
    assert answers[0].status_code == 499
    assert is_unhurt(page)


def test_a_limit_is_changed_by_a_version_of_the_rules(page: Any, fleet: Fleet) -> None:
    """A limit is changed by a version of the rules, and its numbers are shown."""
    page.goto("/#/limits")
    row = page.get_by_role("row", name=re.compile("^per-key"))
    expect(row).to_contain_text("1,000 requests per second")
    row.get_by_role("button", name="Change").click()
    page.get_by_label("Requests per second").fill("800")
    page.get_by_label("Reason").fill("calmer")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(row).to_contain_text("800 requests per second")
    latest = plain_http.get(f"{fleet.gateway.admin_url}/rules/versions").json()["versions"][0]
    assert (latest["reason"], latest["source"]) == ("calmer", "api")
    assert plain_http.post(f"{fleet.gateway.admin_url}/rules/rollback", json={}).status_code == 200


def test_a_budget_is_shown_and_reset(page: Any, fleet: Fleet) -> None:
    """A tenant's use of a budget is shown with a bar, and a reset starts it over."""
    infer = f"{fleet.gateway.http_url}/v2/models/plain/infer"
    for _ in range(2):
        plain_http.post(infer, json={"inputs": []}, headers={"x-tenant": "acme", "x-tier": "premium"})
    page.goto("/#/limits")
    row = page.get_by_role("row", name=re.compile("^monthly"))
    expect(row).to_contain_text("2 of 4 requests")
    expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.5")
    row.get_by_role("button", name="Reset").click()
    page.get_by_label("Reason").fill("paid")
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(row).to_contain_text("0 of 4 requests")


def test_an_endpoint_is_weighed(page: Any, fleet: Fleet) -> None:
    """A weight set on the map is in the rules."""
    page.goto("/")
    page.locator("[data-key^='endpoint cuda'] .card").first.click()
    page.get_by_role("button", name="Set weight").click()
    page.get_by_label("Weight", exact=True).fill("2.5")
    page.get_by_label("Reason").fill("it is faster")
    page.get_by_role("dialog").last.get_by_role("button", name="Set").click()
    expect(page.locator(".pairs")).to_contain_text("2.5")
    page.keyboard.press("Escape")
    expect(page.locator("[data-key^='endpoint cuda'] .card").first).to_contain_text("weight 2.5")
    files = plain_http.get(f"{fleet.gateway.admin_url}/rules/export").json()["files"]
    assert "weight: 2.5" in json.dumps(files)
    assert plain_http.post(f"{fleet.gateway.admin_url}/rules/rollback", json={}).status_code == 200


def test_an_endpoint_comes_and_goes(page: Any, fleet: Fleet) -> None:
    """An endpoint added by the engine's card is in the rules, and one removed by its own card is not."""
    with TensorEngine() as another:
        page.goto("/")
        page.locator("[data-key='engine mac'] .card").click()
        page.get_by_role("button", name="Add endpoint").click()
        page.get_by_label("URL").fill(another.url)
        page.get_by_label("Reason").fill("more room")
        page.get_by_role("dialog").last.get_by_role("button", name="Add").click()
        card = page.locator(f"[data-key='endpoint mac {another.url}'] .card")
        expect(card).to_contain_text("ready")
        page.keyboard.press("Escape")
        card.click()
        page.get_by_role("button", name="Remove").click()
        page.get_by_role("dialog").last.get_by_role("button", name="Remove").click()
        expect(card).to_have_count(0)
        expect(page.get_by_text("The rules no longer name this endpoint.")).to_be_visible()
    latest = plain_http.get(f"{fleet.gateway.admin_url}/rules/versions").json()["versions"]
    assert latest[1]["reason"] == "more room"


def test_a_session_is_forced_into_an_arm(page: Any, fleet: Fleet) -> None:
    """A session forced into an arm is in the experiment's record."""
    page.goto("/#/experiments/ranker-migration")
    page.get_by_role("button", name="Force a session").click()
    page.get_by_label("Session", exact=True).fill("mine")
    page.get_by_label("Arm", exact=True).select_option("candidate")
    page.get_by_role("dialog").get_by_role("button", name="Force").click()
    expect(page.get_by_role("region", name="Decisions")).to_contain_text("mine: candidate")


def test_the_audit_tells_who_did_what(page: Any, fleet: Fleet) -> None:
    """The audit lists calls with their parameters, newest first; the log level is changed beside it."""
    reason = f"because {EVIL}"
    where = f"{fleet.gateway.admin_url}/engines/cuda/endpoints/undrain"
    plain_http.post(where, json={"url": fleet.engines[0].url, "reason": reason})
    page.goto("/#/audit")
    row = page.get_by_role("row", name=re.compile("undrain")).first
    expect(row).to_contain_text("local (admin)")
    expect(row).to_contain_text("because <img")
    level = page.get_by_label("The gateway logs from")
    before = level.input_value()
    level.select_option("error")
    expect(page.locator("#toasts")).to_contain_text("logs from error on")
    assert plain_http.get(f"{fleet.gateway.admin_url}/log-level").json()["level"] == "error"
    level.select_option(before)
    expect(page.locator("#toasts")).to_contain_text(f"logs from {before} on")
    assert is_unhurt(page)


def test_a_shadows_report_tells_how_far_engines_agree(page: Any) -> None:
    """The report shows the known difference, in the table and in the file with plots."""
    page.goto("/#/shadows")
    page.get_by_role("link", name="everything-else").click()
    expect(page.get_by_role("heading", name="SCORES")).to_be_visible()
    row = page.get_by_role("row", name=re.compile("^max absolute"))
    expect(row).to_contain_text("0.25")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download the report").click()
    assert "Shadow report of everything-else" in saved.value.path().read_text()


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}], indirect=True)
def test_every_view_is_drawn_within_its_width(page: Any, fleet: Fleet, screenshots: Any, request: Any) -> None:
    """Every view has its heading and title and fits the width, in the dark theme and on a phone, without an error."""
    foreign: list[str] = []
    own = (fleet.gateway.page_url, "data:", "blob:")
    page.on("request", lambda sent: sent.url.startswith(own) or foreign.append(sent.url))
    page.goto("/")
    read = "links => links.map(link => [link.getAttribute('href'), link.textContent])"
    views = page.locator("nav a").evaluate_all(read)
    assert len(views) == 13
    views += [["#/experiments/ranker-migration", "ranker-migration"], ["#/shadows/everything-else", "everything-else"]]
    for href, label in views:
        page.goto(f"/{href}")
        expect(page.get_by_role("heading", level=1)).to_have_text(label)
        expect(page).to_have_title(f"{label} · Pointsman")
        page.wait_for_timeout(250)  # for its requests
        assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"], href
        assert not page.locator("main .problem:visible").count(), href
        assert not foreign, "something is loaded from elsewhere"
        page.screenshot(path=screenshots / f"{request.node.name} {href.replace('/', '_')}.png", full_page=True)
