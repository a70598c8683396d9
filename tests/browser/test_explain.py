"""Explain on the page: a request's route, by the rules in force or by a candidate."""

import re
from typing import Any

from playwright.sync_api import expect

from tests.support.chromium import Mishaps


def explain(page: Any) -> None:
    page.get_by_role("button", name="Explain").click()


def test_a_request_is_explained_route_by_route(page: Any) -> None:
    """Each condition is shown with the request's value; routes after the match are marked as not evaluated."""
    page.goto("/#/explain")
    page.get_by_label("Model").fill("plain")
    page.get_by_label("Headers").fill("x-tier: basic")
    explain(page)
    decision = page.locator("section", has=page.get_by_role("heading", name="Decision"))
    expect(decision).to_contain_text("everything-else")
    premium = page.locator(".steps li", has_text="premium").first
    expect(premium).to_contain_text("does not match")
    expect(premium.locator(".fails")).to_contain_text(re.compile("x-tier.*premium.*basic"))
    page.get_by_label("Headers").fill("x-tier: premium")
    explain(page)
    expect(decision).to_contain_text("mac")
    expect(page.locator(".steps li", has_text="everything-else")).to_contain_text("not asked")


def test_an_arm_is_shown_with_where_its_unit_stands(page: Any) -> None:
    """A picture shows the experiment's intervals with the unit's position."""
    page.goto("/#/explain?model=ranker")
    page.get_by_label("Session").fill("s1")
    explain(page)
    expect(page.get_by_role("heading", name="Experiment ranker-migration")).to_be_visible()
    expect(page.locator("dd", has_text="control")).not_to_have_count(0)
    expect(page.locator(".intervals .here")).to_be_attached()


def test_a_candidate_is_asked_and_nothing_is_activated(page: Any, mishaps: Mishaps) -> None:
    """A candidate's decision is shown without activating it; a mistake is marked at its line."""
    mishaps.expected.add(422)
    page.goto("/#/explain?model=plain")
    page.get_by_label("By a candidate").check()
    area = page.get_by_label("Candidate rules.yaml")
    text = area.input_value()
    area.fill(text.replace("name: everything-else\n    engine: cuda", "name: all-the-rest\n    engine: cuda"))
    explain(page)
    expect(page.locator(".steps li", has_text="all-the-rest")).to_contain_text("matched")
    area.fill(text.replace("engine: cuda", "engine: cudda"))
    explain(page)
    expect(page.get_by_role("alert")).to_contain_text("cudda")
    expect(page.locator(".under .error .said").first).to_contain_text("cudda")


def test_what_nobody_takes_is_said(page: Any) -> None:
    """An invalid field shows an error."""
    page.goto("/#/explain")
    page.get_by_label("Model").fill("x")
    page.get_by_label("Inputs").fill("no shape here")
    explain(page)
    expect(page.get_by_role("alert")).to_contain_text("is not “name: value”")
