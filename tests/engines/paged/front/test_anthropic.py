"""Anthropic's client: exact counts of tokens, errors in its form; and the ids of requests, in every API."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.engines.paged.front.llm_process import NAME, LLMProcess
from tests.support.wire import send

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER: Any = [{"role": "user", "content": "Tell me of the sea"}]
TOOLS: Any = [{"name": "look", "description": "Looks out", "input_schema": {"type": "object", "properties": {}}}]
LONG = "sea " * 300


@pytest.fixture
def client(llm: LLMProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=llm.http_url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.mark.parametrize("more", [{}, {"system": "Be brief"}, {"tools": TOOLS}], ids=["turns", "system", "tools"])
def test_a_count_is_the_one_of_the_message(client: anthropic.Anthropic, more: Any) -> None:
    """The tokens counted are those that the same message uses."""
    counted = client.messages.count_tokens(model=NAME, messages=USER, **more)
    used = client.messages.create(model=NAME, messages=USER, max_tokens=1, **more).usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_a_count_beyond_the_context(client: anthropic.Anthropic) -> None:
    """A conversation that the context does not hold is counted: that is what clients ask for. Options of the answer
    have no effect."""
    thinking: Any = {"type": "enabled", "budget_tokens": 2048}
    turns: Any = [{"role": "user", "content": LONG}]
    counted = client.messages.count_tokens(
        model=NAME, messages=turns, thinking=thinking, tools=TOOLS, tool_choice={"type": "any"}
    )
    assert counted.input_tokens > 256


HARMLESS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "name": "ann", "content": "Hi"}],
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "verbosity": "medium",
        "safety_identifier": "u",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    },
    "/v1/responses": {
        "input": "Hi",
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "truncation": "auto",
        "safety_identifier": "u",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    },
    MESSAGES: {
        "messages": USER,
        "max_tokens": 2,
        "metadata": {"user_id": "u"},
        "mcp_servers": [],
        "service_tier": "auto",
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    },
}


@pytest.mark.parametrize("path", HARMLESS)
def test_fields_without_effect(llm: LLMProcess, path: str) -> None:
    """Fields that change no answer are taken."""
    reply = llm.post(path, {"model": NAME, **HARMLESS[path]})
    assert reply.status == 200, reply.body


ERRORS: dict[str, tuple[str, str, Any, int, str]] = {
    "bad JSON": ("POST", COUNT, b"{", 400, "invalid_request_error"),
    "no messages": ("POST", COUNT, {"model": NAME}, 400, "invalid_request_error"),
    "an unknown model": ("POST", COUNT, {"model": "other", "messages": USER}, 404, "not_found_error"),
    "an unknown path": ("POST", "/v1/messages/batches", {}, 404, "not_found_error"),
    "another method": ("GET", MESSAGES, None, 405, "invalid_request_error"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_anthropics(llm: LLMProcess, case: str) -> None:
    """Errors under Anthropic's paths have its form, and the id of the request."""
    method, path, body, status, kind = ERRORS[case]
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    reply = send(llm.http_port, method, path, data, {"x-request-id": "mine"})
    error = json.loads(reply.body)
    assert (reply.status, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["request_id"] == reply.headers["x-request-id"] == reply.headers["request-id"] == "mine"


def test_replies_have_the_id_of_their_request(llm: LLMProcess) -> None:
    """Clients read the request's id, whole, streamed, refused, or in a list: their own, or one of the host's."""
    turns: Any = USER
    with openai.OpenAI(base_url=f"{llm.http_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        create = client.chat.completions.create
        reply = create(model=NAME, messages=turns, max_tokens=1)
        assert reply._request_id
        assert reply._request_id != create(model=NAME, messages=turns, max_tokens=1)._request_id
        assert create(model=NAME, messages=turns, max_tokens=1, extra_headers={"x-request-id": "a"})._request_id == "a"
        with client.chat.completions.with_streaming_response.create(
            model=NAME, messages=turns, max_tokens=1, stream=True, extra_headers={"x-request-id": "b"}
        ) as stream:
            assert stream.headers["x-request-id"] == "b"
            stream.read()
        assert client.models.list()._request_id  # type: ignore[attr-defined]
        assert client.completions.create(model=NAME, prompt="Hi", max_tokens=1)._request_id
        with pytest.raises(openai.NotFoundError) as refused:
            create(model="other", messages=turns)
        assert refused.value.request_id
        with pytest.raises(openai.NotFoundError, match="Not Found"):
            client.get("/nothing", cast_to=object)
    with anthropic.Anthropic(base_url=llm.http_url, api_key="none", max_retries=0, timeout=120) as other:
        assert other.messages.create(model=NAME, messages=turns, max_tokens=1)._request_id
        assert other.messages.count_tokens(model=NAME, messages=turns)._request_id
