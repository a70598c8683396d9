"""The playground: a request from the page, its route, and its phases."""

import re
from typing import Any

from playwright.sync_api import expect

from tests.support.chromium import Mishaps


def test_a_model_tells_its_own_inputs(page: Any) -> None:
    """The body of an inference is prefilled from the model's metadata."""
    page.goto("/#/playground")
    page.get_by_label("Model").fill("vllm_model")
    page.get_by_label("Model").press("Tab")
    expect(page.get_by_label("Path")).to_have_value("/v2/models/vllm_model/infer")
    expect(page.get_by_label("Body", exact=True)).to_have_value(re.compile('"text_input"'))


def test_a_generation_tells_its_way_and_its_phases(page: Any) -> None:
    """The reply shows route, engine and endpoint, and the phases beside the total."""
    page.goto("/#/playground")
    page.get_by_label("Model").fill("vllm_model")
    page.get_by_label("What").select_option("V2 generate")
    page.get_by_role("button", name="Send").click()
    reply = page.locator("section", has=page.get_by_role("heading", name="Reply"))
    expect(reply.get_by_text("200")).to_be_visible()
    expect(reply.locator("dd", has_text=re.compile("^generate$"))).to_be_visible()
    expect(reply.locator("dd", has_text=re.compile(r"^http://127\.0\.0\.1:\d+$"))).to_be_visible()
    expect(reply.get_by_role("row", name=re.compile("^engine"))).to_contain_text("s")
    expect(reply.get_by_role("row", name=re.compile("^total"))).to_contain_text("ms")
    expect(reply.get_by_label("The reply's body")).to_contain_text("text_output")


def test_a_chat_comes_word_by_word_and_can_be_cancelled(page: Any) -> None:
    """A stream's texts appear as they arrive."""
    page.goto("/#/playground")
    page.get_by_label("Model").fill("canned")
    page.get_by_label("What").select_option("Chat, streamed")
    page.get_by_role("button", name="Send").click()
    body = page.get_by_label("The reply's body")
    expect(body).to_contain_text("data: ")
    expect(page.get_by_text("Ended after")).to_be_visible()
    expect(body).to_contain_text("[DONE]")


def test_what_the_playground_does_not_send_is_told(page: Any, mishaps: Mishaps) -> None:
    """A refused path shows the reason in place of the reply."""
    mishaps.expected.add(422)
    page.goto("/#/playground")
    page.get_by_label("Path").fill("/v2/models/plain/unload")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("the playground does not send to")
