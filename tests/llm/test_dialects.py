"""Anthropic's messages and OpenAI's responses, sent to engines directly with the public clients."""

from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.support.canned_llm import CannedLLM
from tests.support.child import Child
from tests.support.llm import MODEL, NAME, get_real_llm
from tests.support.real_llm import RealLLM

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}

Engine = tuple[Child, str]


@pytest.fixture
def engine(request: pytest.FixtureRequest, canned: CannedLLM, real_llms: dict[str, RealLLM]) -> Engine:
    """The engine that a test names, and its model."""
    if request.param == "canned":
        return canned, MODEL
    return get_real_llm(request.param, real_llms), NAME


def anthropic(process: Child) -> Anthropic:
    return Anthropic(base_url=process.http_url, api_key="none", max_retries=0, timeout=120)


def openai(process: Child) -> OpenAI:
    return OpenAI(base_url=f"{process.http_url}/v1", api_key="none", max_retries=0, timeout=120)


speak_messages = pytest.mark.parametrize("engine", ["canned", "llama_cpp"], indirect=True)
speak_responses = pytest.mark.parametrize("engine", ["canned", "llama_cpp", "transformers"], indirect=True)


@speak_messages
def test_message(engine: Engine) -> None:
    """A message's reply stops at its token limit."""
    process, model = engine
    with anthropic(process) as client:
        reply = client.messages.create(model=model, max_tokens=3, messages=HI, system="count")
    assert [block.text for block in reply.content] == ["one two three"]
    assert reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 3
    assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > 0


@speak_messages
def test_message_goes_on(engine: Engine) -> None:
    """A last message of the assistant begins the reply; llama.cpp repeats it."""
    process, model = engine
    beginning = [*HI, {"role": "assistant", "content": "one two three"}]
    with anthropic(process) as client:
        reply = client.messages.create(model=model, max_tokens=2, messages=beginning)
    repeated = "" if model == MODEL else "one two three"
    assert reply.content[0].text == f"{repeated} four five"


@speak_messages
def test_streamed_message(engine: Engine) -> None:
    """A streamed message comes token by token, between the events of its block."""
    process, model = engine
    with anthropic(process) as client, client.messages.stream(model=model, max_tokens=3, messages=HI) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert [event.text for event in events if event.type == "text"] == ["one", " two", " three"]
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 3)
    raw = [event.type for event in events if event.type not in ("text", "ping")]
    assert [raw[0], raw[1], *raw[-3:]] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@speak_messages
def test_counted_message(engine: Engine) -> None:
    """Tokens are counted without generating a reply."""
    process, model = engine
    with anthropic(process) as client:
        assert client.messages.count_tokens(model=model, messages=HI).input_tokens > 0


@speak_responses
def test_response(engine: Engine) -> None:
    """A response holds one message. The request sets `stream`, since transformers streams by default."""
    process, model = engine
    with openai(process) as client:
        reply = client.responses.create(model=model, input="hi", max_output_tokens=3, stream=False)
    assert reply.output_text == "one two three"
    assert reply.usage is not None
    assert reply.usage.output_tokens == 3


@speak_responses
def test_streamed_response(engine: Engine) -> None:
    """A streamed response opens an item and a part, brings each token, closes both and repeats the whole text."""
    process, model = engine
    with openai(process) as client:
        events = list(client.responses.create(model=model, input="hi", max_output_tokens=3, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[4:7] == ["output_text.delta"] * 3
    assert kinds[7:10] == ["output_text.done", "content_part.done", "output_item.done"]
    assert kinds[10] in ("completed", "incomplete")  # only the canned engine reports that the limit was reached
    assert [event.delta for event in events[4:7]] == ["one", " two", " three"]
    assert events[-1].response.output_text == "one two three"


def test_canned_tool_call(canned: CannedLLM) -> None:
    """The canned engine calls the tool that the user names, in each dialect; the call is the same with and without
    streaming."""
    requests = [{"role": "user", "content": "use add"}]
    with openai(canned) as client:
        tools: Any = [{"type": "function", "function": {"name": "add", "parameters": TOOL}}]
        whole = client.chat.completions.create(model=MODEL, messages=requests, tools=tools)
        with client.chat.completions.stream(model=MODEL, messages=requests, tools=tools) as stream:
            streamed = stream.get_final_completion()
        for reply in (whole, streamed):
            call = reply.choices[0].message.tool_calls[0]
            assert (call.function.name, call.function.arguments) == ("add", '{"count": 1}')
            assert reply.choices[0].finish_reason == "tool_calls"
        flat: Any = [{"type": "function", "name": "add", "parameters": TOOL}]
        response = client.responses.create(model=MODEL, input="use add", tools=flat)
        assert (response.output[0].name, response.output[0].arguments) == ("add", '{"count": 1}')
        with client.responses.stream(model=MODEL, input="use add", tools=flat) as stream:
            assert stream.get_final_response().output[0].arguments == '{"count": 1}'
    with anthropic(canned) as client:
        tools = [{"name": "add", "input_schema": TOOL}]
        message = client.messages.create(model=MODEL, max_tokens=9, messages=requests, tools=tools)
        with client.messages.stream(model=MODEL, max_tokens=9, messages=requests, tools=tools) as stream:
            for reply in (message, stream.get_final_message()):
                assert (reply.content[0].name, reply.content[0].input) == ("add", {"count": 1})
                assert reply.stop_reason == "tool_use"


def test_canned_thoughts(canned: CannedLLM) -> None:
    """The canned engine returns reasoning before its answer on request."""
    with openai(canned) as client:
        chat = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=1, reasoning_effort="low")
        assert chat.choices[0].message.reasoning_content == "let me count"
        assert chat.usage.completion_tokens_details.reasoning_tokens == 3
        with client.responses.stream(model=MODEL, input="hi", reasoning={"effort": "low"}) as stream:
            assert [item.type for item in stream.get_final_response().output] == ["reasoning", "message"]
    with anthropic(canned) as client:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        with client.messages.stream(model=MODEL, max_tokens=2048, messages=HI, thinking=thinking) as stream:
            content = stream.get_final_message().content
        assert [block.type for block in content] == ["thinking", "text"]
        assert (content[0].thinking, content[0].signature) == ("let me count", "proven")


def test_canned_choices_and_logprobs(canned: CannedLLM) -> None:
    """The canned engine returns the requested number of choices, with token log probabilities."""
    with openai(canned) as client:
        chat = client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=2, n=2, logprobs=True, top_logprobs=2
        )
        assert [choice.message.content for choice in chat.choices] == ["one two", "one two"]
        content = chat.choices[1].logprobs.content
        assert [(reply.token, len(reply.top_logprobs)) for reply in content] == [("one", 2), (" two", 2)]
        assert chat.usage.completion_tokens == 4
        assert chat.usage.prompt_tokens == 1
        chunks = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=2, n=2, stream=True)
        deltas = [(chunk.choices[0].index, chunk.choices[0].delta.content) for chunk in chunks]
        assert deltas[2:] == [(0, "one"), (1, "one"), (0, " two"), (1, " two")]
        completion = client.completions.create(model=MODEL, prompt=["one", "two three"], max_tokens=1, logprobs=1)
        assert [choice.text for choice in completion.choices] == [" two", " four"]
        assert completion.choices[0].logprobs.tokens == [" two"]


def test_canned_json(canned: CannedLLM) -> None:
    """The canned engine answers in the requested schema."""
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "count", "schema": TOOL}}
    with openai(canned) as client:
        chat = client.chat.completions.create(model=MODEL, messages=HI, response_format=wanted)
    assert chat.choices[0].message.content == '{"count": 1}'


def test_canned_embeddings(canned: CannedLLM) -> None:
    """The same text has the same embedding; the client requests base64 by default."""
    with openai(canned) as client:
        data = client.embeddings.create(model=MODEL, input=["one", "two", "one"]).data
        floats = client.embeddings.create(model=MODEL, input="one", encoding_format="float").data
    assert data[0].embedding == data[2].embedding == floats[0].embedding
    assert data[0].embedding != data[1].embedding


def test_canned_cache(canned: CannedLLM) -> None:
    """The canned engine reports a repeated prompt's tokens as cached, in blocks of 16 words."""
    prompt = " ".join(f"word{number}" for number in range(40))
    with openai(canned) as client:
        used = [client.completions.create(model=MODEL, prompt=prompt, max_tokens=1).usage for _ in range(2)]
    assert used[0].prompt_tokens_details is None
    assert used[1].prompt_tokens_details.cached_tokens == 32
