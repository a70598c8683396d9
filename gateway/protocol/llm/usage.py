"""Tokens that a reply says it used, read from its bytes as they pass by untouched.

Sources: OpenAI API, "usage" of chat, completions, embeddings and responses; Anthropic API, "Create a Message".
SGLang tells `reasoning_tokens`, DeepSeek `prompt_cache_hit_tokens` and Moonshot `cached_tokens` beside the rest.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gateway.protocol.llm.canonical import TokenUsage

# Ends the name of every count; `"usage":null`, which some streams say in each event, has none.
_COUNT = b'_tokens"'
# Longest line of a stream that is read; the last event of a response repeats all of it.
_MAX_LINE_BYTES = 4 * 1024 * 1024
_USAGE = re.compile(rb'"usage"\s{0,4}+:\s{0,4}+(?=\{)')
_BRACKETS = re.compile(rb"[{}]")
# An object of counts, with objects of counts in it: about 200 bytes, written over many lines 1,000.
_MAX_USAGE_BYTES = 4096
_KEY_BYTES = len(b'"usage"    :    ')
_KEY = b'"usage"'
# The counts of an object that tells no more.
_PLAIN = frozenset(
    {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
)
_NONE = (None, None)


def read_usage(usage: Any) -> TokenUsage | None:
    """The counts in a `usage` object; None where there are none. Anthropic's input leaves out what was cached, Used's
    prompt does not."""
    if type(usage) is not dict:
        return None
    details = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    if details == _NONE and usage.keys() <= _PLAIN:  # as most replies tell it
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
        if type(prompt) is int and type(completion) is int:
            return TokenUsage(prompt, completion)
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    prompt_details = details[0] or usage.get("input_tokens_details")
    completion_details = details[1] or usage.get("output_tokens_details")
    reasoning = _count(completion_details, "reasoning_tokens", "thinking_tokens") or _count(usage, "reasoning_tokens")
    cached = _count(prompt_details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens", "cached_tokens") or 0
    read, created = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    if read is not None or created is not None:
        cached = read or 0
        prompt = (prompt or 0) + cached + (created or 0)
    return TokenUsage(prompt or 0, completion or 0, cached, reasoning or 0)


def _count(counts: Any, *names: str) -> int | None:
    """The first of these that is told."""
    if type(counts) is dict:
        for name in names:
            if type(found := counts.get(name)) is int:
                return found
    return None


class StreamUsage:
    """Reads the usage of a stream of events, cut anywhere, in any API; what comes later counts."""

    __slots__ = ("_counts", "_rest", "num_events")

    def __init__(self) -> None:
        self._rest = b""  # of a line whose end has not come
        self._counts: dict[str, Any] = {}
        self.num_events = 0  # that have come, `[DONE]` too

    @property
    def used(self) -> TokenUsage | None:
        """What has been told so far."""
        return read_usage(self._counts)

    def scan(self, data: bytes) -> None:
        """The next bytes of the stream."""
        if self._rest or data[-1:] != b"\n":
            data = self._lines(data)
        self.num_events += data.count(b"\ndata:") + (data[:5] == b"data:")
        if data.rfind(_COUNT) >= 0:  # finds in half of the time that `in` takes
            self._read(data)

    def _lines(self, data: bytes) -> bytes:
        """The lines that these bytes end."""
        data = self._rest + data
        stop = data.rfind(b"\n") + 1
        self._rest = data[stop:]
        if len(self._rest) > _MAX_LINE_BYTES:
            self._rest = b" "  # whatever it is, its end is read as no event
        return data[:stop]

    def _read(self, lines: bytes) -> None:
        for line in lines.split(b"\n"):
            if _COUNT in line and line.startswith(b"data:"):
                try:
                    event = orjson.loads(line[5:])
                except orjson.JSONDecodeError:
                    continue
                self._take(event)

    def _take(self, event: Any) -> None:
        """Where usage stands: OpenAI's chunks and Anthropic's `message_delta`, Anthropic's `message_start`, OpenAI's
        `response.completed`."""
        if not isinstance(event, dict):
            return
        for holder in (event, event.get("message"), event.get("response")):
            usage = holder.get("usage") if isinstance(holder, dict) else None
            if isinstance(usage, dict):
                self._counts.update({name: count for name, count in usage.items() if count is not None})


class ReplyUsage:
    """Reads the usage of a whole reply, which comes in pieces and may be long: nothing but its counts is kept.

    Inside a text the quotes of such a key are escaped. Of a tool's input, which is an object, it may be read; the
    reply's own usage stands behind that, and counts.
    """

    __slots__ = ("_rest", "used")

    def __init__(self) -> None:
        self._rest = b""  # where a usage may have begun
        self.used: TokenUsage | None = None  # what has been told so far

    def scan(self, data: bytes) -> None:
        """The next bytes of the body."""
        data = self._rest + data if self._rest else data
        at = 0
        while (found := _USAGE.search(data, at)) is not None:
            at = found.end()
            usage = _leading_object(data[at : at + _MAX_USAGE_BYTES])
            if usage is not None:
                self.used = read_usage(usage) or self.used
            elif len(data) - at < _MAX_USAGE_BYTES:
                self._rest = data[found.start() :]
                return
        self._rest = data[max(at, len(data) - _KEY_BYTES) :]


def whole_usage(body: bytes) -> TokenUsage | None:
    """What a whole reply tells; the same as a `ReplyUsage` that has read it."""
    at = body.rfind(_KEY)
    at = body.find(b"{", at, at + _KEY_BYTES) if at >= 0 else -1
    if at >= 0:  # the last that there is counts, and holds no object mostly
        stop = body.find(b"}", at) + 1
        if stop and body.find(b"{", at + 1, stop) < 0:
            try:
                used = read_usage(orjson.loads(body[at:stop]))
            except orjson.JSONDecodeError:
                used = None
            if used is not None:
                return used
    usage = ReplyUsage()
    usage.scan(body)
    return usage.used


def _leading_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object that these bytes begin with; None where its end has not come. No text in it holds a brace."""
    depth = stop = 0
    for bracket in _BRACKETS.finditer(data):
        depth += 1 if bracket[0] == b"{" else -1
        if not depth:
            stop = bracket.end()
            break
    try:
        found: dict[str, Any] = orjson.loads(data[:stop])
    except orjson.JSONDecodeError:
        return None
    return found
