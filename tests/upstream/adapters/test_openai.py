"""Requests for engines that speak OpenAI's API."""

import pytest

from gateway.config.specs import EngineProtocol, EngineSpec
from gateway.protocol.operations import read_path
from gateway.upstream.adapters import adapter_for


@pytest.mark.parametrize(
    "base, target, there",
    [
        ("/v1", b"/v1/chat/completions", b"/v1/chat/completions"),
        ("/v1", b"/v1/chat/completions?api-version=1", b"/v1/chat/completions?api-version=1"),
        ("/openai/v1", b"/v1/embeddings", b"/openai/v1/embeddings"),
        ("", b"/v1/completions", b"/completions"),
    ],
)
def test_the_base_path_stands_before(base: str, target: bytes, there: bytes) -> None:
    """An engine's API may begin elsewhere than at /v1."""
    call = read_path(target.decode().partition("?")[0])
    assert call is not None
    adapter = adapter_for(EngineSpec("vllm", (), EngineProtocol.OPENAI, base_path=base))
    assert adapter.target(call, target, "renamed, which the body tells") == there


@pytest.mark.parametrize(
    "dialects, path, passes",
    [
        (("chat",), "/v1/chat/completions", True),
        (("chat",), "/v1/completions", False),
        (("chat", "messages"), "/v1/messages", True),
        (("chat",), "/v1/responses", False),
        (("embeddings",), "/v1/embeddings", True),
        (("chat",), "/v2/models/m/generate", False),
        (("chat",), "/v2/models/m", False),
    ],
)
def test_what_it_declares_passes(dialects: tuple[str, ...], path: str, passes: bool) -> None:
    """What an engine does not declare is translated to what it does."""
    call = read_path(path)
    assert call is not None
    assert adapter_for(EngineSpec("vllm", (), EngineProtocol.OPENAI, dialects=dialects)).passes(call) is passes
