"""Experiments on the page: a ramp is started, held, stepped and rolled back, with its evidence over time."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PHONE
from tests.browser.fleet import Fleet
from tests.support import plain_http

NAME = "ranker-migration"


def told(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = plain_http.get(f"{fleet.gateway.admin_url}/experiments/{NAME}").json()
    return found


def command(page: Any, name: str, reason: str, *, exact: bool = True) -> None:
    page.get_by_role("button", name=name, exact=exact).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=name, exact=exact).click()
    expect(dialog).to_have_count(0)


def share(fleet: Fleet) -> float:
    return float(next(arm["share"] for arm in told(fleet)["arms"] if arm["name"] == "candidate"))


def test_a_ramp_is_started_held_stepped_and_rolled_back(page: Any, fleet: Fleet, shot: Any) -> None:
    """Each command takes a reason for the record and changes the shares at once; the evidence is drawn as it
    arrives."""
    page.goto("/#/experiments")
    page.get_by_role("link", name=NAME).click()
    status = page.locator("main [role=status].badge")
    expect(status).to_have_text("idle")
    command(page, "Start", "it is cheaper")
    expect(status).to_have_text("running")
    expect(page.locator(".ramp .now")).to_contain_text("5 %")
    assert share(fleet) == pytest.approx(0.05)
    expect(page.locator("main")).to_contain_text(re.compile("Next: .*more requests of 'candidate'"))
    command(page, "Hold", "lunch")
    expect(status).to_have_text("held")
    command(page, "Go on", "back")
    expect(status).to_have_text("running")
    page.get_by_role("button", name="Go to step").click()
    page.get_by_label("Step", exact=True).fill("2")
    page.get_by_label("Reason").fill("it looks well")
    page.get_by_role("dialog").get_by_role("button", name="Go to step").click()
    expect(page.locator(".ramp .now")).to_contain_text("25 %")
    assert share(fleet) == pytest.approx(0.25)
    expect(page.locator(".chart canvas")).to_be_visible(timeout=15_000)
    expect(page.get_by_role("row", name=re.compile("candidate.*error_rate"))).not_to_have_count(0)
    page.get_by_label("Shown as").select_option("Each arm by itself")
    expect(page.locator(".legend")).to_contain_text("control")
    shot("an experiment that runs")
    command(page, "Roll back", "it is late")
    expect(status).to_have_text("rolled back")
    assert share(fleet) == 0
    reasons = [decision["reason"] for decision in told(fleet)["decisions"]]
    assert reasons[:5] == ["it is late", "it looks well", "back", "lunch", "it is cheaper"]
    log = page.get_by_role("region", name="Decisions")
    expect(log.get_by_role("row").nth(1)).to_contain_text(re.compile("rolled back.*it is late"))


def test_a_promotion_is_written_into_the_rules(page: Any, fleet: Fleet) -> None:
    """A promotion gives the arm all traffic in the rules; a rollback restores the version before."""
    page.goto(f"/#/experiments/{NAME}")
    page.get_by_role("button", name="Promote").click()
    page.get_by_label("Arm", exact=True).select_option("candidate")
    page.get_by_label("Reason").fill("it is better")
    page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    expect(page.locator("main [role=status].badge")).to_have_text("finished")
    assert share(fleet) == 1
    expect(page.get_by_role("region", name="Arms").get_by_role("row").last).to_contain_text("100 %")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    command(page, "Roll back", "the test is over")
    assert share(fleet) == 0


@pytest.mark.parametrize("page", [{"viewport": PHONE, "color_scheme": "dark"}], indirect=True)
def test_a_phone_shows_an_experiment_whole(page: Any) -> None:
    """On a phone tables scroll sideways and the page does not."""
    page.goto(f"/#/experiments/{NAME}")
    expect(page.get_by_role("heading", name="Arms")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
