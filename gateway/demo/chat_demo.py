"""A conversation with the demo's language model, by OpenAI's API, shown token by token as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from gateway.demo.processes import DemoError

STORYTELLER = "storyteller"
_QUESTIONS = ("Tell me a story about a fox.", "What was the name of the fox?")
_LONGEST_TOKENS = 400  # its stories have about 250
_WAIT_SECONDS = 60.0  # for a token, on a machine that is busy


def hear_a_story(console: Console, base: str) -> None:
    """Ask for a story, and then about it; `base` is the gateway's URL.

    Raises: DemoError.
    """
    messages: list[dict[str, str]] = []
    for question in _QUESTIONS:
        messages.append({"role": "user", "content": question})
        console.print(f"\n[bold]chat with {STORYTELLER}[/]  {question!r}  (OpenAI's API, streamed)\n  ", end="")
        told = []
        for piece in _pieces(base, messages):
            told.append(piece)
            console.print(piece.replace("\n", "\n  "), end="", markup=False, soft_wrap=True)
        console.print()
        messages.append({"role": "assistant", "content": "".join(told)})


def _pieces(base: str, messages: list[dict[str, str]]) -> Iterator[str]:
    """The answer as it comes. The most likely token each time, so that everyone reads the same."""
    import httpx

    body = {"model": STORYTELLER, "messages": messages, "stream": True, "temperature": 0, "max_tokens": _LONGEST_TOKENS}
    url = f"{base}/v1/chat/completions"
    try:
        with httpx.stream("POST", url, json=body, timeout=_WAIT_SECONDS, trust_env=False) as reply:
            if not reply.is_success:
                raise DemoError(f"The language model does not answer: {reply.status_code} {reply.read().decode()}")
            for line in reply.iter_lines():
                data = line.removeprefix("data: ")
                if data != line and data != "[DONE]":
                    yield _text(json.loads(data))
    except httpx.HTTPError as error:
        raise DemoError(f"The language model's answer broke off: {error}") from error


def _text(event: dict[str, Any]) -> str:
    """Raises: DemoError where the event tells of an error."""
    if "error" in event:
        raise DemoError(f"The language model's answer broke off: {event['error']}")
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
