"""The canned engine's answer, which is fixed when the request is read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.counting import ENDLESS, FIRST, FIRST_ENDLESS, NEXT, WORDS, word_after

CONTEXT_TOKENS = 4096
CACHE_BLOCK_TOKENS = 16
THOUGHTS = ["let", " me", " count"]


class RefusedError(Exception):
    """The request gets an error; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.message = message
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One choice: its tokens, each a text, and its finish reason in OpenAI's terms."""

    tokens: Sequence[str]
    finish: str
    stopped_by: str | None = None
    thoughts: Sequence[str] = ()
    calls: Sequence[Call] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + len(self.thoughts) + len(self.calls)


class PromptCache:
    """The prefixes of prompts seen so far, in blocks of 16 words."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, words: Sequence[str]) -> int:
        """Store a prompt. Returns the number of its leading words that were stored before."""
        cached = 0
        for end in range(CACHE_BLOCK_TOKENS, len(words) + 1, CACHE_BLOCK_TOKENS):
            block = hash(tuple(words[:end]))
            if block in self._seen:
                cached = end
            self._seen.add(block)
        return cached


def plan_text(
    beginning: str | None,
    *,
    endless: bool = False,
    prompt: str,
    cache: PromptCache,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    thinks: bool = False,
    ignore_eos: bool = False,
) -> Plan:
    """The text that continues `beginning`, where None stands for a chat's first word. `prompt` is the whole prompt, for
    counting."""
    if max_tokens is not None and max_tokens < 1:
        raise RefusedError(f"max_tokens must be at least 1, got {max_tokens}.")
    words = prompt.split()
    limit = CONTEXT_TOKENS - len(words)
    if limit < 1:
        raise RefusedError(
            f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your request has {len(words)} "
            "input tokens. Please reduce the length of the input messages."
        )
    limit = min(limit, max_tokens or limit)
    first = (FIRST_ENDLESS if endless else FIRST) if beginning is None else word_after(beginning)
    tokens, finish = _count(first, limit, ignore_eos, starts=beginning is None or beginning == "")
    tokens, stopped_by = _stopped(tokens, stop)
    thoughts = THOUGHTS if thinks else ()
    if stopped_by:
        finish = "stop"
    return Plan(tokens, finish, stopped_by, thoughts, (), len(words), cache.add(words))


def _count(word: str | None, limit: int, ignore_eos: bool, *, starts: bool) -> tuple[list[str], str]:
    tokens: list[str] = []
    while word is not None:
        if len(tokens) == limit:
            return tokens, "length"
        tokens.append(word if starts and not tokens else " " + word)
        word = NEXT[word] or (FIRST if ignore_eos else None)
    return tokens, "stop"


def _stopped(tokens: list[str], stop: Sequence[str]) -> tuple[list[str], str | None]:
    """The tokens before the first stop text; the last token may be cut."""
    text = "".join(tokens)
    found = [(place, wanted) for wanted in stop if wanted and (place := text.find(wanted)) >= 0]
    if not found:
        return tokens, None
    place, wanted = min(found)
    kept: list[str] = []
    for token in tokens:
        if place <= 0:
            break
        kept.append(token[:place])
        place -= len(token)
    return kept, wanted


def plan_json(schema: Mapping[str, Any], prompt: str, cache: PromptCache) -> Plan:
    """A JSON object that fits a schema, in pieces of 8 characters."""
    text = example(schema)
    words = prompt.split()
    pieces = [text[start : start + 8] for start in range(0, len(text), 8)]
    return Plan(pieces, "stop", prompt_tokens=len(words), cached_tokens=cache.add(words))


def plan_calls(tools: Mapping[str, Mapping[str, Any]], names: Sequence[str], prompt: str, cache: PromptCache) -> Plan:
    """Calls of the named tools; `tools` maps a name to the schema of its parameters."""
    words = prompt.split()
    calls = [Call(name, example(tools[name])) for name in names]
    return Plan((), "tool_calls", calls=calls, prompt_tokens=len(words), cached_tokens=cache.add(words))


def called(tools: Mapping[str, Any], choice: Any, last_text: str, last_role: str) -> list[str]:
    """The names of the tools to call: the chosen one, those that the user names, or the first where one is required.
    `choice` is auto, none, required or a tool's name."""
    if choice == "none" or last_role != "user":
        return []
    if choice in tools:
        return [choice]
    named = [name for name in tools if name in last_text]
    return named or (list(tools)[:1] if choice == "required" else [])


def example(schema: Mapping[str, Any]) -> str:
    """A JSON object with the required properties of a schema: the first value of an enum, 1, `one`, true, or empty."""
    by_type = {"integer": 1, "number": 1, "string": "one", "boolean": True, "array": [], "object": {}}
    properties = schema.get("properties") or {}
    required = schema.get("required") or list(properties)
    found = {
        name: (properties[name].get("enum") or [by_type.get(properties[name].get("type", "string"))])[0]
        for name in required
        if name in properties
    }
    return json.dumps(found)


def is_endless(text: str) -> bool:
    return ENDLESS in text


def words_of(tokens: Sequence[int]) -> str:
    """The prompt of token ids: the numbers' words, where 1 is `one`."""
    return " ".join(WORDS[(token - 1) % len(WORDS)] for token in tokens)
