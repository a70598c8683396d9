"""Replies of an engine that answers as OpenAI's completions do, read.

Source: OpenAI API reference, "The completion object".
"""

from __future__ import annotations

from gateway.protocol.llm.canonical import Event, TextDelta
from gateway.protocol.llm.completions_logprobs import from_completions
from gateway.protocol.llm.openai_reply_reader import OpenAIReplyReader, text_of
from gateway.protocol.llm.request_fields import Fields

__all__ = ["CompletionsReplyReader"]


class CompletionsReplyReader(OpenAIReplyReader):
    """Reads one reply."""

    def _more(self, index: int, told: Fields, choice: Fields, events: list[Event]) -> None:
        text = text_of(told.get("text"))
        logprobs = from_completions(told.get("logprobs"))
        if text or logprobs:
            events.append(TextDelta(text, index, logprobs))
