"""The fleet's map: live, and operated by mouse and by keyboard."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE
from tests.browser.fleet import Fleet
from tests.support import plain_http


def drained(fleet: Fleet) -> list[str]:
    engines = plain_http.get(f"{fleet.gateway.admin_url}/engines").json()["engines"]
    return [endpoint["url"] for engine in engines for endpoint in engine["endpoints"] if endpoint["draining"]]


def test_the_map_is_live(page: Any) -> None:
    """The map shows front, routes, engines and endpoints with their current traffic, connected by lines."""
    page.goto("/")
    expect(page.locator("#live")).to_have_text("live")
    for name in ("Front", "everything-else", "ranking", "cuda", "mac"):
        expect(page.locator(".card strong", has_text=re.compile(f"^{name}$"))).to_be_visible()
    busy = page.locator(".card", has_text="everything-else")
    expect(busy).to_contain_text(re.compile(r"[1-9][\d.]*/s · p50 [\d.]+\s[mµ]?s"))
    expect(page.locator(".card", has_text="ranking")).to_contain_text("experiment ranker-migration")
    expect(page.locator(".map path.used").first).to_be_attached()
    before = busy.inner_text()
    page.wait_for_function(
        "before => ![...document.querySelectorAll('.card')].some(c => c.innerText === before)", arg=before
    )


def test_a_large_fleet_can_be_narrowed(page: Any) -> None:
    """The filter keeps matching cards, the ones that lead to them, and the ones behind them."""
    page.goto("/")
    expect(page.locator("[data-key='route chat']")).to_be_visible()
    page.get_by_label("Filter").fill("chat")
    expect(page.locator("[data-key='route ranking']")).to_have_count(0)
    names = page.locator(".card strong").all_inner_texts()
    assert names[:3] == ["Front", "chat", "texts"] and len(names) == 4
    page.get_by_label("Filter").fill("mac")
    expect(page.locator("[data-key^='route ']")).to_have_count(2)
    page.get_by_label("Filter").fill("")
    expect(page.locator("[data-key='route ranking']")).to_be_visible()


def test_an_endpoint_is_drained_and_wanted_back(page: Any, fleet: Fleet) -> None:
    """An endpoint's card drains it with a reason; the map and the gateway show the drain."""
    page.goto("/")
    card = page.locator("[data-key^='endpoint cuda'] .card").last
    card.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("ready")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_label("Reason").fill("maintenance")
    page.get_by_role("dialog").last.get_by_role("button", name="Drain").click()
    expect(dialog.first.get_by_text("drained", exact=True)).to_be_visible()
    assert len(drained(fleet)) == 1
    dialog.get_by_role("button", name="Undrain").click()
    page.get_by_role("dialog").last.get_by_role("button", name="Undrain").click()
    expect(dialog.first.get_by_text("ready", exact=True)).to_be_visible()
    assert not drained(fleet)
    page.keyboard.press("Escape")
    expect(card).to_contain_text("ready")


def test_the_keyboard_alone_drains_an_endpoint(page: Any, fleet: Fleet) -> None:
    """The skip link comes first, cards follow the reading order, and a dialog holds the focus and returns it."""
    page.goto("/")
    expect(page.locator("#live")).to_have_text("live")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    card = page.locator("[data-key^='endpoint mac'] .card")
    expect(card).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Tab")
        if card.evaluate("card => card === document.activeElement"):
            break
    expect(card).to_be_focused()
    assert card.evaluate("card => getComputedStyle(card).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    drain = page.get_by_role("button", name="Drain", exact=True)
    expect(drain).to_be_visible()
    while not drain.evaluate("button => button === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    undrain = page.get_by_role("button", name="Undrain", exact=True)
    expect(undrain).to_be_visible()
    assert len(drained(fleet)) == 1
    while not undrain.evaluate("button => button === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # no reason
    expect(drain).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_focused()
    assert not drained(fleet)


def test_the_focus_stays_while_numbers_change(page: Any) -> None:
    """The update each second replaces no element."""
    page.goto("/")
    card = page.locator("[data-key='route ranking'] .card")
    card.focus()
    card.evaluate("card => (card.isTheSame = true)")
    page.wait_for_timeout(2200)
    expect(card).to_be_focused()
    assert card.evaluate("card => card.isTheSame")


@pytest.mark.parametrize("page", [{"viewport": PHONE}], indirect=True)
def test_a_phone_reads_the_map_from_top_to_bottom(page: Any) -> None:
    """On a phone the map is one column without lines or sideways scrolling; the views are in a menu."""
    page.goto("/")
    expect(page.locator(".card", has_text="everything-else")).to_be_visible()
    expect(page.locator(".map .lines")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    expect(page.get_by_role("link", name="Playground")).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Playground")
    expect(page.get_by_role("link", name="Audit")).to_be_hidden()
