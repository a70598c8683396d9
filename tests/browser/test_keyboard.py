"""Journeys without a mouse: a ramp is started and rolled back, a rule is edited and refused, a request is sent."""

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.fleet import Fleet
from tests.support import plain_http
from tests.support.chromium import Mishaps

NAME = "ranker-migration"
# More Tab steps than any view needs.
_MOST_STEPS = 120


def tab_to(page: Any, locator: Any) -> None:
    """Press Tab until the element has the focus, and check that the focus is visible."""
    expect(locator).to_be_visible()
    for _ in range(_MOST_STEPS):
        if locator.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(locator).to_be_focused()
    assert locator.evaluate("element => getComputedStyle(element).outlineStyle") != "none"


def go_to(page: Any, view: str) -> None:
    """Open a view by the navigation."""
    tab_to(page, page.locator("nav").get_by_role("link", name=view, exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(view)
    expect(page.get_by_role("heading", level=1)).to_be_focused()


def press(page: Any, name: str) -> None:
    tab_to(page, page.get_by_role("button", name=name, exact=True).last)
    page.keyboard.press("Enter")


def test_a_ramp_is_started_and_rolled_back_by_keyboard(page: Any, fleet: Fleet) -> None:
    """A ramp is started and rolled back from the list of experiments, through dialogs that focus the reason first."""
    page.goto("/")
    go_to(page, "Experiments")
    tab_to(page, page.get_by_role("link", name=NAME))
    page.keyboard.press("Enter")
    status = page.locator("main [role=status].badge")
    for name, state in [("Start", "running"), ("Roll back", "rolled back")]:
        press(page, name)
        reason = page.get_by_label("Reason")
        expect(reason).to_be_focused()
        page.keyboard.type(f"{name}, by keyboard")
        page.keyboard.press("Enter")
        expect(status).to_have_text(state)
    decisions = plain_http.get(f"{fleet.gateway.admin_url}/experiments/{NAME}").json()["decisions"]
    assert [each["reason"] for each in decisions[:2]] == ["Roll back, by keyboard", "Start, by keyboard"]


def test_a_bad_rule_is_found_by_keyboard(page: Any, mishaps: Mishaps) -> None:
    """Tab leaves the editor, and a problem's button leads to its line."""
    mishaps.expected.add(422)
    page.goto("/")
    go_to(page, "Rules")
    press(page, "Edit a copy")
    area = page.get_by_label(re.compile("^Copy of"))
    expect(area).to_be_focused()
    page.keyboard.press("Control+Home")
    page.keyboard.type("engins: {}\n")
    for _ in range(5):
        page.keyboard.press("Shift+Tab")
        if page.get_by_role("button", name="Validate").evaluate("button => button === document.activeElement"):
            break
    page.keyboard.press("Enter")
    problem = page.locator(".problems li.error button").first
    expect(page.locator(".problems li.error").first).to_contain_text("engins")
    tab_to(page, problem)
    page.keyboard.press("Enter")
    expect(area).to_be_focused()
    assert area.evaluate("area => area.value.slice(0, area.selectionStart).split('\\n').length") == 1


def test_a_request_is_sent_by_keyboard(page: Any) -> None:
    """Model, kind and Send are reached by Tab, and the reply can be focused and scrolled."""
    page.goto("/")
    go_to(page, "Playground")
    tab_to(page, page.get_by_label("Model"))
    page.keyboard.type("plain")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Body", exact=True)).to_have_value(re.compile("INPUT0"))
    press(page, "Send")
    body = page.get_by_label("The reply's body")
    expect(body).to_contain_text("SCORES")
    tab_to(page, body)
