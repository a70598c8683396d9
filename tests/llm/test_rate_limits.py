"""Limits as OpenAI's, Anthropic's and Triton's client libraries report them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_of
from tests.support.servers import GatewayProcess

TURNS: list[Any] = [{"role": "user", "content": "hi"}]


def limited(canned: CannedLLM, **limit: Any) -> str:
    engines = {"it": {"protocol": "openai", "endpoints": [canned.http_url], "dialects": ["chat", "messages"]}}
    return rules_of(engines, [{"name": "all", "engine": "it"}], limits=[{"name": "few", "per": "key", **limit}])


def test_clients_read_a_limit_as_their_libraries_tell_it(
    start_gateway: Callable[..., GatewayProcess], canned: CannedLLM
) -> None:
    """Beyond a limit OpenAI's and Anthropic's libraries raise RateLimitError, and tritonclient RESOURCE_EXHAUSTED; each
    key has its own allowance."""
    gateway = start_gateway(limited(canned, requests_per_second=0.001, burst=1))
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="a", max_retries=0) as client:
        assert client.chat.completions.create(model=MODEL, messages=TURNS).choices
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model=MODEL, messages=TURNS)
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.response.headers["x-ratelimit-limit-requests"] == "1"
        with pytest.raises(openai.RateLimitError):
            list(client.chat.completions.create(model=MODEL, messages=TURNS, stream=True))
    with anthropic.Anthropic(base_url=gateway.http_url, api_key="b", max_retries=0) as other:
        assert other.messages.create(model=MODEL, messages=TURNS, max_tokens=9).content
        with pytest.raises(anthropic.RateLimitError, match="limit 'few' is reached"):
            other.messages.create(model=MODEL, messages=TURNS, max_tokens=9)
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"hi"], dtype=np.object_))
    with triton.InferenceServerClient(gateway.grpc_url) as third:
        assert third.infer(MODEL, [text]).as_numpy("text_output") is not None
        with pytest.raises(InferenceServerException) as exhausted:
            third.infer(MODEL, [text])
    assert exhausted.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def test_a_client_that_tries_again_comes_when_it_was_told(
    start_gateway: Callable[..., GatewayProcess], canned: CannedLLM
) -> None:
    """OpenAI's library waits for `retry-after-ms`, so all its requests succeed in the end."""
    gateway = start_gateway(limited(canned, requests_per_second=4, burst=1))
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="a", max_retries=3) as client:
        for _ in range(4):
            assert client.chat.completions.create(model=MODEL, messages=TURNS).choices


def test_tokens_are_what_the_engine_has_counted(
    start_gateway: Callable[..., GatewayProcess], canned: CannedLLM
) -> None:
    """A reply's usage replaces the tokens reserved for its request."""
    gateway = start_gateway(limited(canned, tokens_per_minute=10_000))
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="a", max_retries=0) as client:
        for _ in range(3):  # each reserves more than half of a minute's tokens
            assert client.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=6000).usage
        assert list(client.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=6000, stream=True))
        with pytest.raises(openai.RateLimitError, match="10000 tokens per minute"):  # some of which are used
            client.chat.completions.create(model=MODEL, messages=TURNS, max_tokens=10_000)
