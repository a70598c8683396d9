"""Requests to engines that understand them without translation."""

import pytest

from gateway.config.engine_specs import EngineSpec
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.protocol.operations import read_path
from gateway.upstream.engine import Engine


@pytest.mark.parametrize(
    "target, model, there",
    [
        (b"/v2/models/m/infer", None, b"/v2/models/m/infer"),
        (b"/v2/models/m/infer", "other", b"/v2/models/other/infer"),
        (b"/v2/models/m/versions/3/infer", "other", b"/v2/models/other/versions/3/infer"),
        (b"/v2/models/m", "other", b"/v2/models/other"),
        (b"/v2/models/m/infer?m=m", "other", b"/v2/models/other/infer?m=m"),
        (b"/v2/models/models/infer", "m", b"/v2/models/m/infer"),
        (b"/v2/models/a%20b/infer", None, b"/v2/models/a%20b/infer"),
        (b"/v2/models/a%20b/infer", "c", b"/v2/models/c/infer"),
        (b"/v2/models/m/infer", "meta-llama/Llama 3.1", b"/v2/models/meta-llama%2FLlama%203.1/infer"),
        (b"/v2/models/m/infer", "a?b#c%d", b"/v2/models/a%3Fb%23c%25d/infer"),
        (b"/v2/models/m/infer", "жук", b"/v2/models/%D0%B6%D1%83%D0%BA/infer"),
        (b"/v2/models/m/infer", "a\r\nx: b", b"/v2/models/a%0D%0Ax:%20b/infer"),
        (b"/v2/models/m/infer", "a+b:1@c", b"/v2/models/a+b:1@c/infer"),
        (b"/v2/repository/models/m/load", "other", b"/v2/repository/models/other/load"),
        (b"/v2/repository/r/models/m/unload", "other", b"/v2/repository/r/models/other/unload"),
        (b"/v2/logging", "other", b"/v2/logging"),
    ],
)
def test_a_rename_changes_the_name_alone(target: bytes, model: str | None, there: bytes) -> None:
    """A request target is unchanged except for a renamed model, which is replaced as one segment."""
    call = read_path(target.decode().partition("?")[0])
    assert call is not None
    assert Engine(EngineSpec("triton", ())).target(call, target, model) == there


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/models/m", "/v2/health/ready"])
def test_v2_passes(path: str) -> None:
    """A V2 engine gets every V2 request untranslated."""
    call = read_path(path)
    assert call is not None and Engine(EngineSpec("triton", ())).passes(call)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"])
def test_nothing_else_passes(path: str) -> None:
    """Requests of other APIs must be translated."""
    call = read_path(path)
    assert call is not None and not Engine(EngineSpec("triton", ())).passes(call)


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
    """The base path precedes the API's paths."""
    call = read_path(target.decode().partition("?")[0])
    assert call is not None
    engine = Engine(EngineSpec("vllm", (), EngineProtocol.OPENAI, base_path=base))
    assert engine.target(call, target, "renamed, which the body tells") == there


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
    """An engine gets the dialects that it declares untranslated; others are translated."""
    call = read_path(path)
    assert call is not None
    assert Engine(EngineSpec("vllm", (), EngineProtocol.OPENAI, dialects=dialects)).passes(call) is passes
