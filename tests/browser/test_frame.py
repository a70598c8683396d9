"""The frame of every view: themes, connection state, keys and roles."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from gateway.admin.api_keys import Role, entry_fields, make_key
from tests.browser.conftest import DESKTOP, sign_in
from tests.browser.fleet import Fleet
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.chromium import Mishaps
from tests.support.servers import GatewayProcess

DARK, LIGHT = "rgb(16, 20, 24)", "rgb(245, 246, 248)"


def ground(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
def test_dark_is_taken_from_the_system_and_can_be_switched(page: Any) -> None:
    """The switch cycles through auto, dark, light and auto, and the choice is stored."""
    page.goto("/")
    assert ground(page) == DARK
    switch = page.locator("#theme")
    switch.click()
    expect(switch).to_have_text("Dark")
    switch.click()
    expect(switch).to_have_text("Light")
    assert ground(page) == LIGHT
    page.reload()
    assert ground(page) == LIGHT
    expect(switch).to_have_text("Light")
    switch.click()
    assert ground(page) == DARK


def test_a_lost_connection_is_told_and_made_anew(chromium: Any, start_gateway: Callable[..., GatewayProcess]) -> None:
    """The bar says that the connection is lost; once the gateway is back, updates continue."""
    with CannedEngine("one") as engine:
        first = start_gateway(rules_of_one(engine))
        page = chromium.new_page(base_url=first.page_url)
        sign_in(page, first)
        page.goto("/")
        expect(page.locator("#live")).to_have_text("live")
        first.stop()
        expect(page.locator("#live")).to_have_text("reconnecting")
        again = ["--admin-port", str(first.admin_port)]
        second = start_gateway(rules_of_one(engine), workers=2, data_dir=first.data_dir, extra_args=again)
        assert second.admin_port == first.admin_port
        expect(page.locator("#live")).to_have_text("live", timeout=15_000)
        expect(page.locator(".stat", has_text="Workers")).to_contain_text("2")
        page.close()


def test_a_link_signs_the_browser_in(chromium: Any, fleet: Fleet, mishaps: Mishaps) -> None:
    """A sign-in link shows the fleet without a key typed, and leaves no token in the address; used again, it asks."""
    mishaps.expected |= {401, 410}
    made = plain_http.post(f"{fleet.gateway.admin_url}/sign-in-tokens").json()
    for caller, live in (("local · admin", "live"), ("Enter a key", "no key")):
        page = chromium.new_page(base_url=fleet.gateway.page_url)
        mishaps.watch(page)
        page.goto(f"/#token={made['token']}")
        if live == "no key":
            page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#caller")).to_have_text(caller)
        expect(page.locator("#live")).to_have_text(live)
        assert made["token"] not in page.url
        page.close()
    assert not mishaps.found, mishaps.found


def rules_of_one(engine: CannedEngine) -> str:
    return f"version: 1\nengines: {{one: {{endpoints: ['{engine.url}']}}}}\nroutes: [{{name: all, engine: one}}]\n"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, dict[str, str]]]:
    """A gateway that requires keys, and a key of each role."""
    directory = tmp_path_factory.mktemp("locked")
    made = {role.name: make_key(f"a-{role.name}", role) for role in Role}
    (directory / "keys.yaml").write_text(json.dumps([dict(entry_fields(entry)) for _, entry in made.values()]))
    keys = {role: key for role, (key, _) in made.items()}
    with CannedEngine("one") as engine:
        options = ["--admin-keys", str(directory / "keys.yaml")]
        server = GatewayProcess.start(rules_of_one(engine), directory / "gateway", extra_args=options).wait_ready()
        yield server, keys
        server.stop()


@pytest.fixture
def locked_page(chromium: Any, locked: tuple[GatewayProcess, dict[str, str]], mishaps: Mishaps) -> Iterator[Any]:
    context = chromium.new_context(base_url=locked[0].page_url, viewport=DESKTOP)
    context.set_default_timeout(10_000)
    page = context.new_page()
    mishaps.expected.add(401)
    mishaps.watch(page)
    yield page
    context.close()
    assert not mishaps.found, "\n".join(mishaps.found)


def test_a_key_is_asked_for_and_says_who_one_is(
    locked_page: Any, locked: tuple[GatewayProcess, dict[str, str]]
) -> None:
    """A wrong key is refused in the dialog; the right one is stored for the tab and appears in no URL."""
    page, keys = locked_page, locked[1]
    page.goto("/")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("not a key")
    dialog.get_by_role("button", name="Use it").click()
    expect(dialog.get_by_role("alert")).to_have_text("this key is not known here")
    dialog.get_by_label("Key", exact=True).fill(keys["admin"])
    dialog.get_by_role("button", name="Use it").click()
    expect(page.locator("#caller")).to_have_text("a-admin · admin")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator(".card", has_text="all")).to_be_visible()
    page.reload()
    expect(page.locator("#caller")).to_have_text("a-admin · admin")
    assert keys["admin"] not in page.url
    assert page.evaluate("JSON.stringify(localStorage)").find(keys["admin"]) < 0


def test_what_a_role_may_not_do_says_so(locked_page: Any, locked: tuple[GatewayProcess, dict[str, str]]) -> None:
    """A viewer sees the buttons disabled, with the role that they need."""
    page, keys = locked_page, locked[1]
    page.goto("/")
    page.get_by_label("Key", exact=True).fill(keys["viewer"])
    page.keyboard.press("Enter")
    expect(page.locator("#caller")).to_have_text("a-viewer · viewer")
    page.locator("[data-key^='endpoint one'] .card").click()
    drain = page.get_by_role("button", name="Drain", exact=True)
    expect(drain).to_have_attribute("aria-disabled", "true")
    expect(drain).to_have_attribute("title", "needs the role operator; you are viewer")
    drain.click(force=True)
    expect(page.locator("#toasts")).to_contain_text("needs the role operator")
    expect(page.get_by_label("Reason")).to_have_count(0)


def test_who_gives_no_key_is_asked_once(locked_page: Any, locked: tuple[GatewayProcess, dict[str, str]]) -> None:
    """After a cancel the dialog returns for another view or on request, but not for background updates."""
    page, keys = locked_page, locked[1]
    page.goto("/")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#live")).to_have_text("no key")
    expect(page.locator("main .problem")).to_contain_text("this needs a key")
    page.wait_for_timeout(1500)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("link", name="Limits").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Enter a key").click()
    page.get_by_label("Key", exact=True).fill(keys["operator"])
    page.keyboard.press("Enter")
    expect(page.locator("#caller")).to_have_text("a-operator · operator")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.get_by_text("The rules declare no limits.")).to_be_visible()
