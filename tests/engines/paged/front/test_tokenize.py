"""vLLM's /tokenize: the tokens of a prompt and of a chat, and a gateway that counts by it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tokenizers import Tokenizer

from tests.engines.paged.front.llm_process import MAX_CONTEXT, NAME, TEMPLATE, LLMProcess
from tests.support.llm import rules_for
from tests.support.servers import GatewayProcess
from tests.support.wire import Wire

USER: Any = [{"role": "user", "content": "Tell me of the sea"}]
RENDERED = "<|im_start|>user\nTell me of the sea<|im_end|>\n<|im_start|>assistant\n"


def tokenize(llm: LLMProcess, **fields: Any) -> tuple[int, dict[str, Any]]:
    reply = llm.post("/tokenize", {"model": NAME} | fields)
    return reply.status, json.loads(reply.body)


def test_tokens_of_a_prompt_and_a_chat(llm: LLMProcess, tiny: Path) -> None:
    """The tokens are the tokenizer's, of a chat those of the template's text."""
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    status, found = tokenize(llm, prompt="Tell me", add_special_tokens=False)
    assert (status, found["tokens"]) == (200, tokenizer.encode("Tell me", add_special_tokens=False).ids)
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), MAX_CONTEXT)
    assert "add_generation_prompt" in TEMPLATE
    rendered = tokenizer.encode(RENDERED, add_special_tokens=False).ids
    assert tokenize(llm, messages=USER)[1]["tokens"] == rendered
    begun = tokenize(llm, messages=USER, add_generation_prompt=False)[1]["tokens"]
    assert begun == rendered[: len(begun)] != rendered
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert tokenize(llm, messages=USER, tools=tools)[1]["count"] > len(rendered)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other", "prompt": "a"}, 404, "The model 'other' does not exist"),
        ({"model": None, "prompt": "a"}, 400, "'model' is missing; it must be a string"),
        ({}, 400, "'messages' is missing; it must be a list of at least one message"),
        ({"prompt": 5}, 400, "'prompt' must be a string"),
        ({"prompt": "a", "return_token_strs": True}, 400, "'return_token_strs' cannot be true: "),
    ],
)
def test_what_is_wrong(llm: LLMProcess, fields: dict[str, Any], status: int, message: str) -> None:
    """Errors have OpenAI's form, and name the field."""
    found, reply = tokenize(llm, **fields)
    assert found == status
    assert reply["error"]["message"].startswith(message)


@pytest.fixture(scope="module")
def gateway(llm: LLMProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    rules = rules_for(llm.http_url, engine={"dialects": ["chat"]})
    server = GatewayProcess.start(rules, tmp_path_factory.mktemp("gateway"))
    yield server.wait_ready()
    server.stop()


def test_a_gateway_counts_by_it(llm: LLMProcess, gateway: GatewayProcess) -> None:
    """A gateway whose rules name chat alone counts an Anthropic client's tokens exactly."""
    counts = []
    for server in (llm, gateway):
        with anthropic.Anthropic(base_url=server.http_url, api_key="none", max_retries=0, timeout=120) as client:
            counted = client.messages.count_tokens(model=NAME, messages=USER, system="Be brief")
            assert not counted.model_extra
            counts.append(counted.input_tokens)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("path", "kind"), [("/v1/messages", "request_too_large"), ("/tokenize", None)])
def test_a_body_beyond_the_limit(llm: LLMProcess, path: str, kind: str | None) -> None:
    """A body that the host does not read is refused with 413, before it comes."""
    with Wire(llm.http_port) as wire:
        wire.send(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {1 << 40}\r\n\r\n".encode())
        reply = wire.read_reply()
    error = json.loads(reply.body)["error"]
    assert reply.status == 413
    assert kind is None or error["type"] == kind
    assert "--http-max-input-size" in error["message"]
