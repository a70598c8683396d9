"""OpenAI's client and the request fields that it sends to a language model."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from tests.engines.paged.front.llm_process import NAME, LLMProcess
from tests.support.waiting import eventually

USER: Any = [{"role": "user", "content": "Tell me of the sea"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": {"type": "object", "properties": {}}},
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(llm: LLMProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{llm.http_url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def test_models_are_listed(client: openai.OpenAI) -> None:
    """The list has the model under its name with its context length."""
    (model,) = client.models.list()
    assert (model.id, model.owned_by, model.model_dump()["max_model_len"]) == (NAME, "pointsman", 256)
    assert client.models.retrieve(NAME) == model
    with pytest.raises(openai.NotFoundError) as failure:
        client.models.retrieve("other")
    assert failure.value.body == {
        "message": "The model 'other' does not exist",
        "type": "not_found_error",
        "param": None,
        "code": "model_not_found",
    }


def test_a_chat_without_a_limit_ends_with_the_context(client: openai.OpenAI) -> None:
    """Without max_tokens the reply ends when the model does or when the context is full."""
    reply = client.chat.completions.create(model=NAME, messages=USER, extra_body={"ignore_eos": True})
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 256


def test_a_stream_equals_a_whole_reply(client: openai.OpenAI) -> None:
    """A stream has the text of the whole reply, token by token, and ends with the usage if requested."""
    request: dict[str, Any] = {"model": NAME, "messages": USER, "max_tokens": 12}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert deltas[0].role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert len(deltas) > 6
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_concurrent_requests_get_the_same_text(llm: LLMProcess, client: openai.OpenAI) -> None:
    """Sixteen concurrent asynchronous clients read the text that one client reads alone."""
    request: dict[str, Any] = {"model": NAME, "max_tokens": 20}
    prompts = [f"{number} sailors " * (1 + number % 4) for number in range(16)]

    async def send_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{llm.http_url}/v1", api_key="none", timeout=120) as many:

            async def send(prompt: str) -> str:
                stream = await many.completions.create(**request, prompt=prompt, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

            return await asyncio.gather(*map(send, prompts))

    together = asyncio.run(send_all())
    assert together == [client.completions.create(**request, prompt=prompt).choices[0].text for prompt in prompts]


@pytest.mark.parametrize("stream", [False, True])
def test_choices_differ_and_are_had_again_by_the_seed(client: openai.OpenAI, stream: bool) -> None:
    """The `n` choices at a temperature differ; the same seed yields the same choices."""
    request: dict[str, Any] = {"model": NAME, "messages": USER, "max_tokens": 8, "n": 3, "temperature": 1.0, "seed": 7}

    def choices() -> list[str]:
        if not stream:
            return [choice.message.content or "" for choice in client.chat.completions.create(**request).choices]
        texts = ["", "", ""]
        for chunk in client.chat.completions.create(**request, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts

    first = choices()
    assert len(set(first)) == 3
    assert choices() == first
    request["stream"] = False
    assert [each.message.content for each in client.chat.completions.create(**request).choices] == first


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_chat(client: openai.OpenAI, stream: bool) -> None:
    """Each token has its log probability and the likeliest alternatives; greedy tokens are the likeliest."""
    request: dict[str, Any] = {"model": NAME, "messages": USER, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    request["extra_body"] = {"skip_special_tokens": False}
    if stream:
        chunks = list(client.chat.completions.create(**request, stream=True))
        results = [chunk.choices[0].logprobs for chunk in chunks]
        found = [each for logprobs in results if logprobs is not None for each in logprobs.content or ()]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        choice = client.chat.completions.create(**request).choices[0]
        assert choice.logprobs is not None
        found, text = choice.logprobs.content or [], choice.message.content or ""
    assert len(found) == 6
    data = b"".join(bytes(each.bytes or ()) for each in found)
    assert data.decode("utf-8", "replace").startswith(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    for each in found:
        assert len(each.top_logprobs) == 3
        assert each.logprob == each.top_logprobs[0].logprob <= 0
        assert each.token == each.top_logprobs[0].token


def test_log_probabilities_of_a_completion_and_its_prompt(client: openai.OpenAI) -> None:
    """`echo` adds the prompt and its log probabilities before the text; the first token has none."""
    prompt = "the end"
    request: dict[str, Any] = {"model": NAME, "max_tokens": 1, "logprobs": 1, "echo": True}
    choice = client.completions.create(**request, prompt=prompt).choices[0]
    results = choice.logprobs
    assert choice.text.startswith(prompt)
    assert results is not None
    assert results.tokens is not None
    assert results.token_logprobs is not None
    assert "".join(results.tokens[:-1]) == prompt
    assert results.token_logprobs[0] is None
    assert all(-50 < each <= 0 for each in results.token_logprobs[1:] if each is not None)
    # The last token of the prompt is as likely as when it is generated.
    before = (
        client.completions.create(**request | {"logprobs": 20}, prompt=prompt.removesuffix("d")).choices[0].logprobs
    )
    assert before is not None
    assert before.top_logprobs is not None
    likely = before.top_logprobs[-1]
    if "d" in likely:
        assert math.isclose(likely["d"], results.token_logprobs[-2] or 0, abs_tol=1e-4)


def test_several_prompts_of_one_request(client: openai.OpenAI, tiny: Path) -> None:
    """Choices are ordered by prompt; prompts may be token ids; the usage is summed over prompts."""
    request: dict[str, Any] = {"model": NAME, "max_tokens": 4}
    alone = [client.completions.create(**request, prompt=prompt) for prompt in ("one", "two")]
    both = client.completions.create(**request, prompt=["one", "two"])
    assert [(choice.index, choice.text) for choice in both.choices] == [
        (index, reply.choices[0].text) for index, reply in enumerate(alone)
    ]
    assert both.usage is not None
    assert both.usage.total_tokens == sum(reply.usage.total_tokens for reply in alone if reply.usage)
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    ids: Any = [tokenizer.encode(prompt).ids for prompt in ("one", "two")]
    echoed = client.completions.create(**request, prompt=ids, echo=True)
    assert [choice.text for choice in echoed.choices] == [f"one{both.choices[0].text}", f"two{both.choices[1].text}"]


def test_a_text_by_a_schema(client: openai.OpenAI) -> None:
    """`response_format` restricts the text to JSON of a schema."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    for seed in range(3):
        reply = client.chat.completions.create(
            model=NAME, messages=USER, response_format=form, temperature=1.0, seed=seed, max_tokens=150
        )
        results = json.loads(reply.choices[0].message.content or "")
        assert results.keys() == {"name", "age"}
        assert len(results["name"]) <= 5
        assert 0 <= results["age"] <= 99
        assert reply.choices[0].finish_reason == "stop"


GUIDES = [
    ({"guided_regex": "[a-c]{3}-[0-9]{2}"}, lambda text: text[3] == "-" and text[4:].isdecimal() and len(text) == 6),
    ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ({"structured_outputs": {"regex": "a{2}b"}}, lambda text: text == "aab"),
]


@pytest.mark.parametrize("guide, fits", GUIDES)
def test_a_text_by_vllms_guides(client: openai.OpenAI, guide: dict[str, Any], fits: Any) -> None:
    """vLLM's guided decoding fields have the same effect."""
    reply = client.completions.create(
        model=NAME, prompt="Say", max_tokens=100, temperature=0.7, seed=1, extra_body=guide
    )
    assert fits(reply.choices[0].text)


def test_stop_texts_end_a_text(client: openai.OpenAI) -> None:
    """A stop string ends the text before it and sets the finish reason."""
    request: dict[str, Any] = {"model": NAME, "prompt": "the sea", "max_tokens": 30}
    text = client.completions.create(**request).choices[0].text
    stop = text[5:8]
    choice = client.completions.create(**request, stop=[stop, "never there"]).choices[0]
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_tools_stand_in_the_prompt(client: openai.OpenAI) -> None:
    """The model's template receives the tools, unless tool_choice is none."""
    request: dict[str, Any] = {"model": NAME, "messages": USER, "max_tokens": 1}
    lengths = [
        reply.usage.prompt_tokens
        for fields in ({}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"})
        if (reply := client.chat.completions.create(**request, **fields)).usage
    ]
    assert lengths[1] > lengths[0] + len("weather")
    assert lengths[2] == lengths[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_an_event(client: openai.OpenAI, stream: bool) -> None:
    """Text between Hermes' tool call tags is returned as a tool call; the request allows no other text."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    request: dict[str, Any] = {"model": NAME, "messages": USER, "tools": [TOOL], "max_tokens": 100}
    request["extra_body"] = {"guided_choice": [call]}
    if stream:
        chunks = list(client.chat.completions.create(**request, stream=True))
        calls: Any = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**request).choices[0]
        calls, text, reason = choice.message.tool_calls, choice.message.content or "", choice.finish_reason
    assert [(each.function.name, json.loads(each.function.arguments)) for each in calls] == [
        ("weather", {"city": "Rome"})
    ]
    assert text == ""
    assert reason == "tool_calls"


def test_a_conversation_goes_on_where_it_was_left(client: openai.OpenAI) -> None:
    """vLLM's `continue_final_message` continues an unfinished assistant message."""
    request: dict[str, Any] = {"model": NAME, "max_tokens": 12}
    begun = "Well, the "
    messages = [*USER, {"role": "assistant", "content": begun}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    rest = client.chat.completions.create(**request, messages=messages, extra_body=more).choices[0].message.content
    prompt = f"<|im_start|>user\n{USER[0]['content']}<|im_end|>\n<|im_start|>assistant\n{begun}"
    assert rest == client.completions.create(**request, prompt=prompt).choices[0].text


def test_a_client_that_leaves_frees_its_blocks(llm: LLMProcess, client: openai.OpenAI) -> None:
    """When a client disconnects, the engine frees its blocks at once and keeps serving other requests."""
    # These choices take seconds on any machine, unless they are cancelled.
    request: dict[str, Any] = {"model": NAME, "prompt": "the sea", "max_tokens": 230, "n": 64, "temperature": 1.0}
    request["extra_body"] = {"ignore_eos": True}
    before = llm.metrics()
    cancelled = 'pointsman_llm_requests_total{outcome="cancelled"}'
    with client.completions.create(**request, stream=True) as stream:
        next(iter(stream))
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(**request, timeout=0.2)
    eventually(lambda: llm.is_idle() and llm.metrics()[cancelled] == before.get(cancelled, 0) + 2)
    after = llm.metrics()
    tokens = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert tokens < 64 * 230, "they were generated to their end"
