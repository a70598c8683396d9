"""The messages in the benchmark of language models: requests as the openai package writes them, and a canned engine's
answers.

An answer is checked by what a client reads from it, because proxies may format JSON differently; so the text of each
token has its send time and its place in the stream.
"""

import json
import platform
import re
import time
from collections.abc import Mapping
from typing import Any

from bench.messages import TOKENS_PER_STREAM, Exchange, compact_json

CHAT_PATH = "/v1/chat/completions"
MODEL = "llama-3.1-8b-instruct"
OTHER_NAME = "gpt-4o-mini"  # the name that clients use if a proxy renames the model
ON_TRITON = "llama-on-triton"  # the same behind V2's generate extension
GENERATE_PATH = f"/v2/models/{ON_TRITON}/generate_stream"

LONG_PROMPT_BYTES = 220_000
PROMPT_TOKENS = 87

_CREATED = 1_763_000_000
_ID = "chatcmpl-8f14e45fceea167a5a36dedd4bea2543"
_SYSTEM = "You are a helpful assistant of a travel agency. Answer in short, plain sentences."
_QUESTION = (
    "We are two adults and a child of six, and we would like to see Lisbon for four days in May. Which part of town "
    "is best to stay in without a car, what should we book before we go, and is there a beach that we can reach by "
    "train? We would rather not change trains with a tired child, and we do not mind a short walk. Please keep "
    "it to one paragraph."
)
_ANSWER = "Stay in Baixa or Chiado: both are flat enough for a child, and trains to Cascais leave from Cais do Sodre."

HEADERS = (
    "Accept-Encoding: gzip, deflate, br",
    "Connection: keep-alive",
    "Authorization: Bearer sk-local",
    "Accept: application/json",
    "Content-Type: application/json",
    "X-Stainless-Lang: python",
    "X-Stainless-Package-Version: 1.98.0",
    "X-Stainless-OS: Linux",
    "X-Stainless-Arch: x64",
    "X-Stainless-Runtime: CPython",
    f"X-Stainless-Runtime-Version: {platform.python_version()}",
    "X-Stainless-Async: false",
    "x-stainless-retry-count: 0",
    "x-stainless-read-timeout: 600",
)


def _body(model: str, question: str = _QUESTION, **more: Any) -> bytes:
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
    options = {"max_tokens": TOKENS_PER_STREAM, "temperature": 0.7, "top_p": 0.95}
    return compact_json({"messages": messages, "model": model} | options | more)


def _usage(completion_tokens: int) -> dict[str, int]:
    total = PROMPT_TOKENS + completion_tokens
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": completion_tokens, "total_tokens": total}


def chat_answer(model: str = MODEL) -> bytes:
    """A whole answer of an engine."""
    message = {"role": "assistant", "content": _ANSWER, "tool_calls": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = {"id": _ID, "object": "chat.completion", "created": _CREATED, "model": model}
    tail = {"usage": _usage(27), "service_tier": None, "system_fingerprint": "fp_44709d6fcb"}
    return compact_json(head | {"choices": [choice]} | tail)


def _chunk(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
    head = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": MODEL}
    return b"data: " + compact_json(head | {"choices": choices, "usage": usage}) + b"\n\n"


def _delta(delta: dict[str, str], finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]


# A token's text: the microsecond at which it was sent and its place in the stream, from 1 on.
_TEXT = "0000000000000000-000"
_CHAT_TOKEN = _chunk(_delta({"content": _TEXT})).replace(_TEXT.encode(), b"%016d-%03d")
_GENERATE_TOKEN = (
    b"data: " + compact_json({"model_name": ON_TRITON, "model_version": "1", "text_output": _TEXT}) + b"\n\n"
).replace(_TEXT.encode(), b"%016d-%03d")

STREAM_BEGIN = _chunk(_delta({"role": "assistant", "content": ""}))
STREAM_END = _chunk(_delta({}, "stop")) + _chunk([], _usage(TOKENS_PER_STREAM)) + b"data: [DONE]\n\n"

TOKEN = re.compile(rb'"content": ?"(\d{16})-(\d{3})"')
FINISHED = re.compile(rb'"finish_reason": ?"stop"')
DONE = b"data: [DONE]\n\n"


def chat_token(serial: int) -> bytes:
    """A token as an engine of OpenAI's API sends it."""
    return _CHAT_TOKEN % (time.monotonic_ns() // 1000, serial)


def generate_token(serial: int) -> bytes:
    """The same for Triton's generate_stream."""
    return _GENERATE_TOKEN % (time.monotonic_ns() // 1000, serial)


# The model's metadata as Triton's vLLM backend reports it.
GENERATE_METADATA = {
    "name": ON_TRITON,
    "versions": ["1"],
    "platform": "vllm",
    "inputs": [
        {"name": "text_input", "datatype": "BYTES", "shape": [1]},
        {"name": "stream", "datatype": "BOOL", "shape": [1]},
        {"name": "sampling_parameters", "datatype": "BYTES", "shape": [1]},
        {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1]},
    ],
    "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _exchange(model: str, question: str = _QUESTION, **more: Any) -> Exchange:
    return Exchange(
        path=CHAT_PATH,
        body=_body(model, question, **more),
        answer_bytes=None,  # proxies may format it differently
        headers=HEADERS,
        user_agent="OpenAI/Python 1.98.0",
    )


_STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

# Its requests are those of `mixed_chats`; the exchange of this name is for the check before the load.
MIXED = "mixed"

EXCHANGES = {
    "chat": _exchange(MODEL),
    MIXED: _exchange(MODEL),
    "chat-rename": _exchange(OTHER_NAME),
    "chat-long": _exchange(MODEL, (_QUESTION + "\n") * (LONG_PROMPT_BYTES // len(_QUESTION + "\n"))),
    "tokens": _exchange(MODEL, **_STREAMED),
    "translated": _exchange(ON_TRITON, **_STREAMED),
}


def why_wrong(body: bytes) -> str | None:
    """Why this is not the engine's answer to a chat, as a client reads it; None if it is."""
    try:
        found, right = (json.loads(each) for each in (body, chat_answer()))
        choice = found["choices"][0]
        told = (choice["message"]["content"], choice["finish_reason"])
        counted = {name: found["usage"][name] for name in right["usage"]}
    except (ValueError, LookupError, TypeError) as error:
        return f"it cannot be read: {error!r}"
    if told != (_ANSWER, "stop") or len(found["choices"]) != 1:
        return f"it says {told}"
    return None if counted == right["usage"] else f"it counts {counted}"
