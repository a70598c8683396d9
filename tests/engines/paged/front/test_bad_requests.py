"""Invalid requests: their errors name the field and the remedy."""

import json
from typing import Any

import pytest

from tests.engines.paged.front.llm_process import NAME, LLMProcess

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
GENERATE = f"/v2/models/{NAME}/generate"
USER = [{"role": "user", "content": "Hi"}]
LONG = "sea " * 300
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
TOO_LONG = (
    "the prompt has 1200 tokens, and the context holds 256, the answer included: shorten the prompt, or serve with a "
    "larger max_context"
)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": USER, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": "Hi", **fields}


OPENAI: list[tuple[str, Any, int, str]] = [
    (CHAT, b"{", 400, "the body is not JSON: "),
    (CHAT, b"[]", 400, "the body must be a JSON object"),
    (CHAT, {"messages": USER}, 400, "'model' is missing; it must be a string"),
    (CHAT, chat(model=5), 400, "'model' must be a string"),
    (CHAT, chat(model="other"), 404, "The model 'other' does not exist"),
    (CHAT, chat(messages=[]), 400, "'messages' is missing; it must be a list of at least one message"),
    (CHAT, chat(messages=[{"role": "king"}]), 400, "'messages[0].role' must be one of system, developer, user, "),
    (
        CHAT,
        chat(messages=IMAGE),
        400,
        "'messages' hold an image, a sound or a file, and this engine's models read text",
    ),
    (CHAT, chat(temperature="hot"), 400, "'temperature' must be a number"),
    (CHAT, chat(temperature=-1), 400, "temperature: "),
    (CHAT, chat(top_p=0), 400, "top_p: "),
    (CHAT, chat(max_tokens=0), 400, "max_tokens: "),
    (CHAT, chat(n=0), 400, "n: "),
    (CHAT, chat(top_logprobs=2), 400, "'top_logprobs' needs 'logprobs': true"),
    (CHAT, chat(logprobs=True, top_logprobs=1000), 400, "logprobs: "),
    (CHAT, chat(logit_bias={"100000": 1}), 400, "logit_bias: 100000 is no token of this model, whose ids are 0 .. "),
    (CHAT, chat(temprature=1), 400, "temprature: no such field; did you mean temperature?"),
    (CHAT, chat(reasoning_effort="high"), 400, "reasoning_effort: no such field; "),
    (CHAT, chat(tools=[TOOL], tool_choice="required"), 400, "'tool_choice' can be auto or none here"),
    (CHAT, chat(tools=[{"type": "browser"}]), 400, "'tools[0].type' is 'browser'; only functions can be told"),
    (CHAT, chat(response_format={"type": "yaml"}), 400, "response_format.type: "),
    (CHAT, chat(lora_name="none"), 400, "adapter 'none' is not loaded; loaded are: none"),
    (CHAT, chat(messages=[{"role": "user", "content": LONG}]), 400, "the prompt has "),
    (COMPLETIONS, completion(prompt=LONG * 100), 400, "the prompt has 120,000 characters, more than 512 tokens, and "),
    (CHAT, chat(messages=[{"role": "user", "content": LONG * 100}]), 400, "the prompt has 120,050 characters, more "),
    (CHAT, chat(seed=2**70), 400, "the request holds a number of more than 64 bits"),
    (COMPLETIONS, completion(max_tokens=10**30), 400, "the request holds a number of more than 64 bits"),
    (COMPLETIONS, completion(prompt=LONG), 400, TOO_LONG),
    (COMPLETIONS, completion(prompt=LONG, stream=True), 400, TOO_LONG),
    (COMPLETIONS, completion(prompt=""), 400, "the prompt is empty: it must have at least one token"),
    (COMPLETIONS, completion(prompt=[5, 100000]), 400, "prompt: 100000 is no token of this model, whose ids are 0 .. "),
    (COMPLETIONS, completion(prompt=None), 400, "'prompt' must be a string or a list of token ids"),
    (COMPLETIONS, completion(prompt=["a", "b"], stream=True), 400, "'prompt' holds 2 prompts, of which a stream"),
    (COMPLETIONS, completion(suffix="end"), 400, "suffix: no such field; "),
    (RESPONSES, {"model": NAME, "input": "Hi", "previous_response_id": "x"}, 400, "'previous_response_id' cannot be"),
    (MESSAGES, {"model": NAME, "messages": USER}, 400, "'max_tokens' is missing; Anthropic's messages require it"),
    ("/v1/embeddings", {"model": NAME, "input": "Hi"}, 400, "the language models of this host make no embeddings"),
]


@pytest.mark.parametrize("path, body, status, message", OPENAI)
def test_errors_of_the_openai_api(llm: LLMProcess, path: str, body: Any, status: int, message: str) -> None:
    """Each error has the format of its API, names the field, and comes before anything is generated."""
    reply = llm.post(path, body)
    results = json.loads(reply.body)
    assert results["error"]["message"].startswith(message)
    assert reply.status == status
    if path == MESSAGES:
        assert (results["type"], results["error"]["type"]) == ("error", "invalid_request_error")
    elif status == 404:
        assert results["error"]["code"] == "model_not_found"
    else:
        assert results["error"]["type"] == "invalid_request_error"


BAD_SCHEMAS: list[Any] = [{"type": "nothing"}, {"type": "object", "properties": 5}, {"$ref": "#/nowhere"}]


@pytest.mark.parametrize("schema", BAD_SCHEMAS)
def test_a_schema_that_is_none(llm: LLMProcess, schema: Any) -> None:
    """An invalid schema is refused before the request starts."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = llm.post(CHAT, chat(response_format=form))
    assert reply.status == 400, reply.body
    assert "schema" in json.loads(reply.body)["error"]["message"]


V2: list[tuple[Any, int, str]] = [
    ({"text_input": LONG}, 400, TOO_LONG),
    (
        {},
        400,
        "one of 'text_input' (the prompt as text), 'messages' (a chat, as JSON in OpenAI's form) and 'input_ids'",
    ),
    ({"text_input": "a", "messages": "[]"}, 400, "'text_input' and 'messages' are given; one of "),
    ({"text_input": "a", "sampling_parameters": "{"}, 400, "'sampling_parameters' is no JSON: "),
    ({"text_input": "a", "sampling_parameters": '{"top_k": "many"}'}, 400, "top_k: "),
    ({"text_input": "a", "max_tokens": -1}, 400, "max_tokens: "),
    ({"text_input": "a", "max_token": 5}, 400, "max_token: no such field; did you mean max_tokens?"),
    ({"messages": "[]"}, 400, "'messages' is missing; it must be a list of at least one message"),
    ({"text_input": "a", "lora_name": "sql"}, 400, "adapter 'sql' is not loaded; loaded are: none"),
    (
        {"text_input": "a", "stream": True},
        200,
        "generate expects model to produce exactly 1 response, use generate stream",
    ),
]


@pytest.mark.parametrize("body, status, message", V2)
def test_errors_of_v2(llm: LLMProcess, body: Any, status: int, message: str) -> None:
    """Each error has Triton's format and names the tensor or the field."""
    reply = llm.post(GENERATE, body)
    assert json.loads(reply.body)["error"].startswith(message)
    assert reply.status == status


PATHS: list[tuple[str, str, int, bytes]] = [
    ("POST", "/v2/nothing", 404, b'{"error":"Not Found"}'),
    ("GET", GENERATE, 405, b'{"error":"Method Not Allowed"}'),
    ("POST", "/v2/models/other/generate", 404, b'{"error":"Request for unknown model: \'other\' is not found"}'),
]


@pytest.mark.parametrize("method, path, status, body", PATHS)
def test_paths_that_lead_nowhere(llm: LLMProcess, method: str, path: str, status: int, body: bytes) -> None:
    """Unknown paths get Triton's replies."""
    reply = llm.get(path) if method == "GET" else llm.post(path, {})
    assert (reply.status, reply.body) == (status, body)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/v1/nothing", 404), ("GET", CHAT, 405)])
def test_paths_of_openai_that_lead_nowhere(llm: LLMProcess, method: str, path: str, status: int) -> None:
    """Beside OpenAI's paths the reply is OpenAI's error."""
    reply = llm.get(path) if method == "GET" else llm.post(path, {})
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["message"]) == (status, {404: "Not Found", 405: "Method Not Allowed"}[status])
