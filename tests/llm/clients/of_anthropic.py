"""Anthropic's client."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic

from tests.llm.clients.values import PROMPT, TIMEOUT_SECONDS, RefusedError, TextRequest, TextResult, gathered, words
from tests.support.child import Child

_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


@contextmanager
def connected(gateway: Child) -> Iterator[anthropic.Anthropic]:
    """The client; an error reply is raised as a RefusedError."""
    with anthropic.Anthropic(
        base_url=gateway.http_url, api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS
    ) as client:
        try:
            yield client
        except anthropic.APIStatusError as error:
            raise RefusedError(error.status_code, words(error.body), error.response.json()) from error


def ask_messages(gateway: Child, asked: TextRequest) -> TextResult:
    with connected(gateway) as client:
        given: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": asked.max_tokens}
        given |= asked.options
        if asked.streams:
            with client.messages.stream(model=asked.model, **given) as stream:
                events = gathered(stream, _text, asked)
                reply, headers = stream.get_final_message(), stream.response.headers
            pieces = [_text(event) for event in events if _text(event)]
            usages = [event.usage for event in events if event.type == "message_delta"]
        else:
            raw = client.messages.with_raw_response.create(model=asked.model, **given)
            reply, headers = raw.parse(), raw.headers
            pieces = [block.text for block in reply.content if block.type == "text"]
            usages = [reply.usage]
    used = reply.usage
    return TextResult(
        pieces,
        _REASONS[reply.stop_reason],
        used.input_tokens + (used.cache_read_input_tokens or 0),
        used.output_tokens,
        reply.model,
        reply.id,
        dict(headers),
        [(block.name, block.input) for block in reply.content if block.type == "tool_use"],
        "".join(block.thinking for block in reply.content if block.type == "thinking"),
        any(getattr(usage, "estimated", False) for usage in usages),
    )


def _text(event: Any) -> str:
    return event.text if event.type == "text" else ""
