"""Chats as many different users send them: no head, no conversation and no length occurs twice, but by chance.

40 applications with a system prompt each, a third of them with tools; 500 API keys and 5,000 sessions; conversations of
one to six turns. Headers are those of the openai package for Python and for Node, and of a client on httpx alone.
"""

import random
import string
from typing import Any

from bench import openai_messages
from bench.messages import Exchange, compact_json

NUM_APPLICATIONS = 40
NUM_KEYS = 500
NUM_SESSIONS = 5_000
MAX_TURNS = 6
# Requests that are written before the load begins, and then sent in turn: far more than any cache of heads keeps.
NUM_REQUESTS = 10_000

_PYTHON = tuple(line for line in openai_messages.HEADERS if not line.startswith("Authorization:"))
_NODE = (
    "Accept: application/json",
    "Content-Type: application/json",
    "X-Stainless-Retry-Count: 0",
    "X-Stainless-Lang: js",
    "X-Stainless-Package-Version: 6.49.0",
    "X-Stainless-OS: Linux",
    "X-Stainless-Arch: x64",
    "X-Stainless-Runtime: node",
    "X-Stainless-Runtime-Version: v22.11.0",
    "Accept-Language: *",
    "Sec-Fetch-Mode: cors",
    "Accept-Encoding: br, gzip, deflate",
    "Connection: keep-alive",
)
_HTTPX = (
    "Accept: */*",
    "Accept-Encoding: gzip, deflate",
    "Connection: keep-alive",
    "Content-Type: application/json",
)
CLIENTS = (
    ("OpenAI/Python 1.98.0", _PYTHON),
    ("OpenAI/JS 6.49.0", _NODE),
    ("python-httpx/0.28.1", _HTTPX),
)

_WORDS = [
    "and",
    "the",
    "for",
    "that",
    "with",
    "this",
    "from",
    "have",
    "not",
    "are",
    "was",
    "which",
    "their",
    "there",
    "one",
    "all",
    "would",
    "when",
    "what",
    "will",
    "more",
    "if",
    "said",
    "out",
    "about",
    "up",
    "so",
    "them",
    "then",
    "some",
    "could",
    "time",
    "these",
    "two",
    "may",
    "first",
    "any",
    "people",
    "over",
    "only",
    "state",
    "such",
    "new",
    "like",
    "other",
    "man",
    "into",
    "year",
    "people",
    "city",
    "ticket",
    "travel",
    "museum",
    "train",
    "hotel",
    "child",
    "morning",
    "evening",
    "price",
    "question",
    "answer",
    "code",
    "function",
    "value",
]


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words)) + "."


def _tool(chance: random.Random, number: int) -> dict[str, Any]:
    properties = {f"field_{name}": {"type": "string", "description": _text(chance, 8)} for name in range(4)}
    schema = {"type": "object", "properties": properties, "required": ["field_0"]}
    function = {"name": f"tool_{number}", "description": _text(chance, 12), "parameters": schema}
    return {"type": "function", "function": function}


def requests(number: int = NUM_REQUESTS, seed: int | None = None) -> list[bytes]:
    """That many requests, each head and body in one piece."""
    chance = random.Random(seed)
    fixed = random.Random(1)  # the same applications and keys in every round
    letters = string.ascii_letters + string.digits
    keys = ["sk-" + "".join(fixed.choices(letters, k=48)) for _ in range(NUM_KEYS)]
    prompts = [_text(fixed, fixed.randrange(40, 240)) for _ in range(NUM_APPLICATIONS)]
    tools = [[_tool(fixed, each) for each in range(3)] if app % 3 == 0 else None for app in range(NUM_APPLICATIONS)]

    def request() -> bytes:
        agent, headers = chance.choice(CLIENTS)
        application = chance.randrange(NUM_APPLICATIONS)
        messages = [{"role": "system", "content": prompts[application]}]
        for _ in range(chance.randrange(MAX_TURNS)):
            messages.append({"role": "user", "content": _text(chance, chance.randrange(8, 40))})
            messages.append({"role": "assistant", "content": _text(chance, chance.randrange(20, 100))})
        messages.append({"role": "user", "content": _text(chance, chance.randrange(8, 40))})
        body: dict[str, Any] = {"messages": messages, "model": openai_messages.MODEL, "max_tokens": 256}
        body["temperature"] = chance.randrange(100) / 100
        if tools[application]:
            body["tools"] = tools[application]
        exchange = Exchange(
            path=openai_messages.CHAT_PATH,
            body=compact_json(body),
            answer_bytes=None,
            headers=(*headers, f"Authorization: Bearer {chance.choice(keys)}"),
            user_agent=agent,
        )
        request_id, trace, span = chance.getrandbits(128), chance.getrandbits(128), chance.getrandbits(64)
        own = (
            f"X-Session-Id: session-{chance.randrange(NUM_SESSIONS)}",
            f"X-Request-Id: {request_id:032x}",
            f"traceparent: 00-{trace:032x}-{span:016x}-01",
        )
        return b"".join(exchange.parts(*own))

    return [request() for _ in range(number)]
