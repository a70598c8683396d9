"""OpenAI's client, in each of its dialects."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai

from tests.llm.clients.values import PROMPT, TIMEOUT_SECONDS, RefusedError, TextRequest, TextResult, gathered, words
from tests.support.child import Child


@contextmanager
def connected(gateway: Child) -> Iterator[openai.OpenAI]:
    """The client; an error reply is raised as a RefusedError."""
    base_url = f"{gateway.http_url}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS) as client:
        try:
            yield client
        except openai.APIStatusError as error:
            raise RefusedError(error.status_code, words(error.body), error.response.json()) from error


def ask_chat(gateway: Child, asked: TextRequest) -> TextResult:
    with connected(gateway) as client:
        given: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": asked.max_tokens}
        create = client.chat.completions.with_raw_response.create
        if asked.streams:
            return _streamed(create, asked, given, lambda choice: choice.delta)
        raw = create(model=asked.model, **given | dict(asked.options))
        reply = raw.parse()
        message = reply.choices[0].message
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
        thoughts = getattr(message, "reasoning_content", None) or ""
        return _told([message.content or ""], reply.choices[0].finish_reason, reply, reply.usage, raw, calls, thoughts)


def ask_completions(gateway: Child, asked: TextRequest) -> TextResult:
    with connected(gateway) as client:
        given: dict[str, Any] = {"prompt": PROMPT, "max_tokens": asked.max_tokens}
        create = client.completions.with_raw_response.create
        if asked.streams:
            return _streamed(create, asked, given, lambda choice: choice)
        raw = create(model=asked.model, **given | dict(asked.options))
        reply = raw.parse()
        choice = reply.choices[0]
        thoughts = getattr(choice, "reasoning_content", None) or ""
        return _told([choice.text], choice.finish_reason, reply, reply.usage, raw, (), thoughts)


def _streamed(create: Any, asked: TextRequest, given: dict[str, Any], delta_of: Callable[[Any], Any]) -> TextResult:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    raw = create(model=asked.model, **given | more | dict(asked.options))

    def text_of(chunk: Any) -> str:
        delta = delta_of(chunk.choices[0]) if chunk.choices else None
        return getattr(delta, "content", getattr(delta, "text", None)) or ""

    with raw.parse() as stream:
        chunks = gathered(stream, text_of, asked)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    pieces = [text for text in map(text_of, chunks) if text]
    reason = next((choice.finish_reason for choice in choices if choice.finish_reason), "")
    usage = next((chunk.usage for chunk in chunks if chunk.usage), None)
    deltas = [delta_of(choice) for choice in choices]
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    parts = [call for delta in deltas for call in getattr(delta, "tool_calls", None) or ()]
    names = [call.function.name for call in parts if call.function.name]
    arguments = "".join(call.function.arguments or "" for call in parts)
    assert len(names) < 2, "which arguments are whose is not told apart here"
    calls = [(name, json.loads(arguments)) for name in names]
    return _told(pieces, reason, chunks[0], usage, raw, calls, thoughts)


def _told(
    pieces: Sequence[str],
    reason: str,
    reply: Any,
    usage: Any,
    raw: Any,
    calls: Sequence[tuple[str, Any]] = (),
    thoughts: str = "",
) -> TextResult:
    counts = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
    is_estimated = getattr(usage, "estimated", False)
    return TextResult(pieces, reason, *counts, reply.model, reply.id, dict(raw.headers), calls, thoughts, is_estimated)


def ask_responses(gateway: Child, asked: TextRequest) -> TextResult:
    with connected(gateway) as client:
        given = {"input": PROMPT, "max_output_tokens": asked.max_tokens, **asked.options}
        raw = client.responses.with_raw_response.create(model=asked.model, stream=asked.streams, **given)
        if asked.streams:
            with raw.parse() as stream:
                events = gathered(stream, _delta, asked)
            reply = events[-1].response
            pieces = [_delta(event) for event in events if _delta(event)]
            assert reply.output_text == "".join(pieces), "its last event tells all of the text again"
        else:
            reply = raw.parse()
            pieces = [reply.output_text]
        cut = reply.incomplete_details
        calls = [(item.name, json.loads(item.arguments)) for item in reply.output if item.type == "function_call"]
        reason = "length" if cut and cut.reason == "max_output_tokens" else "tool_calls" if calls else "stop"
        thoughts = "".join(
            part.text
            for item in reply.output
            if item.type == "reasoning"
            for part in [*item.summary, *(item.content or ())]
        )
        usage = reply.usage
        counts = (usage.input_tokens, usage.output_tokens) if usage else (None, None)
        is_estimated = getattr(usage, "estimated", False)
        names = reply.model, reply.id, dict(raw.headers)
        return TextResult(pieces, reason, *counts, *names, calls, thoughts, is_estimated)


def _delta(event: Any) -> str:
    return event.delta if event.type == "response.output_text.delta" else ""


def embed(gateway: Child, model: str, texts: Sequence[str]) -> tuple[list[list[float]], int]:
    """The texts' vectors, and their number of tokens."""
    with connected(gateway) as client:
        reply = client.embeddings.create(model=model, input=list(texts))
        assert reply.usage.prompt_tokens == reply.usage.total_tokens
        return [each.embedding for each in reply.data], reply.usage.prompt_tokens
