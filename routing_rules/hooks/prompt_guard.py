"""A prompt guard: prompts that ask a model to leave its instructions are refused, or sent to a smaller model without
tools. Phrases catch the usual ones and no determined attacker: put a classifier in place of `is_suspicious`.
"""

import re
from typing import Any

from gateway.hooks import Change, HookRequest, Reject

PHRASES = re.compile(
    r"ignore (?:all |any |the )*(?:previous|prior|above) (?:instructions|prompts|rules)"
    r"|disregard (?:your|all|the) (?:system prompt|instructions|guidelines)"
    r"|(?:reveal|print|show|repeat) (?:me )?(?:your|the) (?:system prompt|hidden instructions)"
    r"|you are (?:now )?(?:dan|in developer mode|jailbroken)",
    re.IGNORECASE,
)


class Guard:
    """`quarantine` names a model that gets suspicious prompts, without tools; empty: they are refused."""

    def __init__(self, quarantine: str = "", max_characters: str = "100000") -> None:
        self._quarantine = quarantine
        self._max_characters = int(max_characters)

    def on_request(self, request: HookRequest) -> Change | Reject | None:
        text = "\n".join(texts_of(request.json))
        if len(text) > self._max_characters:
            return Reject(413, f"the prompt has more than {self._max_characters} characters")
        if not self.is_suspicious(text):
            return None
        if not self._quarantine:
            return Reject(400, "the prompt asks the model to leave its instructions")
        headers = {"x-guard": "suspicious"}
        return Change(headers=headers, remove=("tools", "tool_choice"), model=self._quarantine)

    def is_suspicious(self, text: str) -> bool:
        return PHRASES.search(text) is not None


def texts_of(document: Any) -> list[str]:
    """The texts of a client's messages, or its prompt; instructions of the system are the application's."""
    if not isinstance(document, dict):
        return []
    messages = document.get("messages") or document.get("input") or document.get("prompt") or []
    if isinstance(messages, str):
        return [messages]
    found: list[str] = []
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, str):
            found.append(message)
        elif isinstance(message, dict) and message.get("role") not in ("system", "developer", "assistant"):
            content = message.get("content", "")
            parts = content if isinstance(content, list) else [{"text": content}]
            found += [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return found
