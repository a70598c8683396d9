"""Anthropic's count of tokens, by its own client."""

import json
from typing import Any

import anthropic
import pytest

from tests.llm.fleet import Fleet
from tests.llm.pairs import ENGINE
from tests.support.servers import GatewayProcess

TURNS: list[Any] = [{"role": "user", "content": "one two three"}]
TOOLS: list[Any] = [{"name": "look", "description": "Looks", "input_schema": {"type": "object", "properties": {}}}]
PATH = "/v1/messages/count_tokens"


def count(gateway: GatewayProcess, model: str, **more: Any) -> Any:
    with anthropic.Anthropic(base_url=gateway.http_url, api_key="none", max_retries=0) as client:
        return client.messages.count_tokens(model=model, messages=TURNS, **more)


ASKED = {"messages": PATH, "chat": "/tokenize", "responses": "/v1/responses/input_tokens"}


@pytest.mark.parametrize("engine", ASKED)
def test_engines_that_count(fleet: Fleet, engine: str) -> None:
    """A count of tokens is the engine's own: by its messages API, at vLLM's /tokenize, or by OpenAI's input_tokens."""
    fleet.canned.forget()
    reply = count(fleet.gateway, engine, system="four", tools=TOOLS)
    assert reply.input_tokens == 4
    assert not hasattr(reply, "estimated")
    (sight,) = fleet.canned.seen()
    assert (sight["path"], sight["body"]["model"]) == (ASKED[engine], "canned")
    assert "look" in json.dumps(sight["body"]["tools"])


def test_an_engine_that_does_not_count(fleet: Fleet) -> None:
    """For an engine that knows no such request, the reply is an estimate, and says so."""
    fleet.canned.forget()
    fleet.canned.break_down("status=404", times=1)
    reply = count(fleet.gateway, "chat")
    assert (reply.input_tokens, reply.estimated) == (4, True)


@pytest.mark.triton
def test_an_engine_that_speaks_v2(fleet: Fleet) -> None:
    """V2 has no request for it: the reply is an estimate."""
    fleet.need(ENGINE["vllm"])
    reply = count(fleet.gateway, "vllm", system="x" * 400)
    assert (reply.input_tokens, reply.estimated) == (104, True)


def test_an_engine_without_text(fleet: Fleet) -> None:
    """An engine without language models refuses a count."""
    with pytest.raises(anthropic.BadRequestError, match="speaks tfserving, which has no language models"):
        count(fleet.gateway, "tfserving")
