"""A semantic cache over Redis: a prompt that is nearly one that was answered gets that answer.

Nearness is the cosine of hashed n-grams of letters (256 numbers, no model): it knows spelling, word order and small
changes, not meaning. Put an embedding of a model of yours in place of `embed` to know that, too. Only whole answers to
questions without tools, images and streams are kept, per tenant, model and instructions, and only where sampling is
nearly greedy; each scope has its newest `size` answers for `ttl` seconds.

Needs `pip install redis`. A Redis that does not answer in time is no failure: the engine answers (`on_failure:
continue` in the rules).
"""

import asyncio
import json
import math
import operator
import struct
import time
from hashlib import blake2b
from typing import Any

from gateway.hooks import HookReply, HookRequest, Respond

DIMENSIONS = 256
GRAM = 4
# Of an entry: when it expires, the vector; the answer follows.
LAYOUT = f"<d{DIMENSIONS}f"


class SemanticCache:
    """`similarity` from 0 to 1: what is as near is the same question; 1.0 takes the very same text alone."""

    reads_reply = True

    def __init__(
        self, redis: str, similarity: str = "0.95", ttl: str = "3600", size: str = "200", max_temperature: str = "0.3"
    ) -> None:
        self._address = redis
        self._similarity = float(similarity)
        self._ttl, self._size = int(ttl), int(size)
        self._max_temperature = float(max_temperature)
        self._client: Any = None  # connected by the first request, in its worker

    async def on_request(self, request: HookRequest) -> Respond | None:
        question = question_of(request.json, self._max_temperature)
        if question is None or request.api != "chat":
            return None
        scope, text = question
        key = f"pointsman-cache:{digest(request.tenant, request.model, scope)}"
        vector = embed(text)
        request.state["cache"] = key, vector
        entries = await self._redis().lrange(key, 0, self._size - 1)
        best, answer = await asyncio.to_thread(nearest, vector, entries)
        if best >= self._similarity - 1e-6:
            request.state["cache"] = None
            return Respond(answer, headers={"x-cache": f"hit; similarity={best:.3f}"})
        return None

    async def on_reply(self, request: HookRequest, reply: HookReply) -> None:
        if request.state.get("cache") is None or reply.status != 200 or reply.is_stream or not reply.body:
            return
        key, vector = request.state["cache"]
        entry = struct.pack(LAYOUT, time.time() + self._ttl, *vector) + reply.body
        pipeline = self._redis().pipeline(transaction=False)
        pipeline.lpush(key, entry)
        pipeline.ltrim(key, 0, self._size - 1)
        pipeline.expire(key, self._ttl)
        await pipeline.execute()

    def _redis(self) -> Any:
        if self._client is None:
            from redis.asyncio import Redis

            self._client = Redis.from_url(self._address, socket_timeout=1.0)
        return self._client


def question_of(document: Any, max_temperature: float) -> tuple[str, str] | None:
    """What the answer depends on beside the last message, and that message's text; None where an answer may not be
    kept."""
    if not isinstance(document, dict) or document.get("stream") or document.get("tools"):
        return None
    if document.get("n", 1) != 1 or document.get("temperature", 1.0) > max_temperature:
        return None
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return None
    text = messages[-1].get("content")
    if not isinstance(text, str) or messages[-1].get("role") != "user":
        return None
    others = {name: value for name, value in document.items() if name not in ("messages", "user", "metadata")}
    return json.dumps([others, messages[:-1]], sort_keys=True), text


def embed(text: str) -> list[float]:
    """Hashed n-grams of letters, of length 1."""
    letters = f" {' '.join(text.lower().split())} "
    vector = [0.0] * DIMENSIONS
    for at in range(max(1, len(letters) - GRAM + 1)):
        hashed = int.from_bytes(blake2b(letters[at : at + GRAM].encode(), digest_size=4).digest(), "big")
        vector[hashed % DIMENSIONS] += 1.0 if hashed & 0x80000000 else -1.0
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]


def nearest(vector: list[float], entries: list[bytes]) -> tuple[float, bytes]:
    """The cosine of the nearest entry that has not expired, and its answer."""
    best, answer, now = 0.0, b"", time.time()
    for entry in entries:
        expires, *other = struct.unpack_from(LAYOUT, entry)
        near = sum(map(operator.mul, vector, other))
        if near > best and expires > now:
            best, answer = near, entry[struct.calcsize(LAYOUT) :]
    return best, answer


def digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
