"""The canned engine's reading of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.canned_llm.plan import (
    Plan,
    PromptCache,
    RefusedError,
    called,
    is_endless,
    plan_calls,
    plan_json,
    plan_text,
)


@dataclass(frozen=True, slots=True)
class Job:
    """A request in progress: its choices, each a plan, and fields that its dialect needs."""

    body: Mapping[str, Any]
    model: str
    plans: Sequence[Plan]
    id: str
    created: int = 1_700_000_000
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def prompt_tokens(self) -> int:
        return sum(plan.prompt_tokens for plan in self.plans[:: self.detail.get("n", 1)])

    @property
    def cached_tokens(self) -> int:
        return max(plan.cached_tokens for plan in self.plans)

    @property
    def completion_tokens(self) -> int:
        return sum(plan.num_tokens for plan in self.plans)


@dataclass(frozen=True, slots=True)
class Turn:
    """A message's role and its whole text."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Some bytes of a stream. `is_token`: they carry a token; `is_last`: they are the dialect's final event."""

    data: bytes
    is_token: bool = False
    is_last: bool = False


def read_turns(messages: Any) -> list[Turn]:
    """The turns of a chat; a part other than text counts as one word, its type."""
    if not isinstance(messages, list) or not messages:
        raise RefusedError("'messages' must be a list with at least one message")
    turns = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RefusedError("each of 'messages' needs a 'role'")
        turns.append(Turn(message["role"], text_of(message.get("content"))))
    return turns


def text_of(content: Any) -> str:
    """The text of a message's content, which is a text, a list of parts, or missing."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RefusedError("'content' must be a text or a list of parts")
    texts = []
    for part in content:
        nested = part.get("content") if part.get("type") == "tool_result" else part.get("text")
        texts.append(text_of(nested) if nested is not None else f"<{part.get('type')}>")
    return " ".join(texts)


def plan_chat(
    turns: Sequence[Turn],
    cache: PromptCache,
    *,
    goes_on: bool,
    tools: Mapping[str, Mapping[str, Any]],
    tool_choice: Any,
    schema: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """The answer to a chat. With `goes_on`, a last turn of the assistant is the start of the answer."""
    prompt = " ".join(turn.text for turn in turns)
    last = turns[-1]
    if names := called(tools, tool_choice, last.text, last.role):
        return plan_calls(tools, names, prompt, cache)
    if schema is not None:
        return plan_json(schema, prompt, cache)
    beginning = last.text if goes_on and last.role == "assistant" and last.text else None
    users = [turn.text for turn in turns if turn.role == "user"]
    endless = bool(users) and is_endless(users[-1]) and beginning is None
    return plan_text(beginning, endless=endless, prompt=prompt, cache=cache, **options)


def number(body: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is present. Raises: RefusedError if it is not an integer."""
    for name in names:
        value = body.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise RefusedError(f"'{name}' must be a whole number, not {value!r}")
            return value
    return None


def stops(value: Any) -> list[str]:
    """The stop texts of a request: none, one or a list."""
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise RefusedError("'stop' must be a text or a list of texts")
    return found
