"""Rules on the page: a copy is edited, refused with its line, activated with a reason, compared, rolled back."""

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.fleet import Fleet
from tests.support import plain_http
from tests.support.chromium import Mishaps


def in_force(fleet: Fleet) -> dict[str, Any]:
    reply: dict[str, Any] = plain_http.get(f"{fleet.gateway.admin_url}/rules/export").json()
    return reply


def edit(page: Any, before: str, after: str) -> None:
    """Replace a text in the copy, as typing does."""
    area = page.get_by_label(re.compile("^Copy of"))
    text = area.input_value()
    assert before in text
    area.fill(text.replace(before, after))


def test_secrets_are_masked_until_they_are_asked_for(page: Any) -> None:
    """Files are shown without their secrets, to admins, too, until a button shows them; a copy to edit has them."""
    page.goto("/#/rules")
    files = page.get_by_label("rules.yaml", exact=False).first
    expect(files).to_have_value(re.compile("x-old: {api_key: \\*\\*\\*"))
    assert "hunter2" not in page.content()
    page.get_by_role("button", name="Show secrets").click()
    expect(files).to_have_value(re.compile("hunter2"))
    expect(page.get_by_role("button", name="Show secrets")).to_have_count(0)


def test_a_bad_rule_is_refused_with_its_line_shown(page: Any, fleet: Fleet, mishaps: Mishaps, shot: Any) -> None:
    """Validation and activation refuse the mistake; its line is marked, and a button leads there."""
    mishaps.expected.add(422)
    before = in_force(fleet)
    line = next(
        number for number, text in enumerate(before["files"]["rules.yaml"].split("\n"), 1) if "engine: texts" in text
    )
    page.goto("/#/rules")
    page.get_by_role("button", name="Edit a copy").click()
    edit(page, "engine: texts", "engine: textz")
    page.get_by_role("button", name="Validate").click()
    problem = page.locator(".problems li.error")
    expect(problem).to_contain_text("textz")
    place = problem.get_by_role("button")
    expect(place).to_have_text(re.compile(rf"^rules\.yaml:{line}:\d+$"))
    expect(page.locator(".gutter .error")).to_have_text(str(line))
    expect(page.locator(".under .error .said")).to_contain_text("textz")
    shot("refused")
    place.click()
    cursor = page.get_by_label(re.compile("^Copy of")).evaluate(
        "area => area.value.slice(0, area.selectionStart).split('\\n').length"
    )
    assert cursor == line
    page.get_by_role("button", name="Activate", exact=True).first.click()
    page.get_by_label("Reason").fill("it will not do")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Activate").click()
    expect(dialog.get_by_role("alert")).to_contain_text("textz")
    page.keyboard.press("Escape")
    expect(page.locator(".gutter .error")).to_have_text(str(line))
    assert in_force(fleet) == before
    page.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("button", name="Edit a copy")).to_be_visible()


def test_a_change_is_put_in_force_compared_and_taken_back(page: Any, fleet: Fleet) -> None:
    """An activation creates a version with its reason and diff; a rollback restores the one before."""
    page.goto("/#/rules")
    page.get_by_role("button", name="Edit a copy").click()
    edit(page, "requests_per_second: 1000", "requests_per_second: 900")
    page.get_by_role("button", name="Validate").click()
    expect(page.get_by_text("These rules can be activated")).to_be_visible()
    expect(page.locator(".diff .added")).to_contain_text("requests_per_second: 900")
    page.get_by_role("button", name="Activate", exact=True).first.click()
    page.get_by_label("Reason").fill("less <b>load</b>")
    page.get_by_role("dialog").get_by_role("button", name="Activate").click()
    expect(page.locator("#toasts")).to_contain_text("is in force")
    number = plain_http.get(f"{fleet.gateway.admin_url}/rules/versions").json()["in_force"]
    row = page.get_by_role("row", name=re.compile(rf"^{number} in force"))
    expect(row).to_contain_text("less <b>load</b>")
    assert "requests_per_second: 900" in in_force(fleet)["files"]["rules.yaml"]
    row.get_by_role("button", name=f"Diff of version {number}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".removed", has_text="1000")).to_be_visible()
    expect(dialog.locator(".added", has_text="900")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Roll back").click()
    page.get_by_label("Reason").fill("as it was")
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("row", name=re.compile(rf"^{number + 1} in force"))).to_contain_text("as it was")
    assert "requests_per_second: 1000" in in_force(fleet)["files"]["rules.yaml"]
    expect(page.get_by_label("rules.yaml", exact=True)).to_have_value(re.compile("requests_per_second: 1000"))


def test_what_is_in_force_can_be_exported(page: Any) -> None:
    """The rules in force are exported as texts."""
    page.goto("/#/rules")
    page.get_by_role("button", name="Export").click()
    expect(page.get_by_role("dialog").locator("pre")).to_contain_text("ranker-migration")
