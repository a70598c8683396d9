"""Stores of the response cache: in this process, or in Redis, which several hosts may share."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

from engines.core.messages import InferResponse, TensorData
from engines.scheduling.interfaces import Clock
from gateway.protocol.conversion.tensors import split_elements
from gateway.protocol.datatypes import DATATYPES, data_bytes

# The overhead of an entry: a few objects.
ENTRY_BYTES = 512

# Concurrent writes to Redis; further responses are dropped.
MAX_WRITES = 64

# The time for a reply of Redis, and the pause after a failure.
DEADLINE_NS, PAUSE_NS = 50_000_000, 1_000_000_000
PREFIX = "pointsman:response:1:"


# Called once, at once or later, with the response or with None.
LookupCallback = Callable[[InferResponse | None], None]


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Usage of a store; `share` is the used part of its capacity, from 0 to 1."""

    num_entries: int
    num_evicted: int
    share: float


class LocalStore:
    """Stores at most `max_bytes` of the most recently used responses."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[InferResponse, int]] = OrderedDict()
        self.num_bytes = 0
        self.num_evicted = 0

    def get(self, key: str, callback: LookupCallback) -> None:
        entry = self._entries.get(key)
        if entry is None:
            callback(None)
        else:
            self._entries.move_to_end(key)
            callback(entry[0])

    @property
    def usage(self) -> CacheUsage:
        share = self.num_bytes / self._max_bytes if self._max_bytes else 0.0
        return CacheUsage(len(self._entries), self.num_evicted, share)

    def put(self, key: str, response: InferResponse) -> None:
        size = _size(response)
        if size > self._max_bytes:
            return
        if (before := self._entries.pop(key, None)) is not None:
            self.num_bytes -= before[1]
        self._entries[key] = response, size
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.num_bytes -= freed
            self.num_evicted += 1


class RedisStore:
    """A Redis that fails or is slow costs a miss, never a request: it has 50 ms to reply, and a second without
    calls after a failure. Responses expire after `ttl_seconds`; with 0 Redis decides. `client` is a
    `redis.asyncio.Redis`, `spawn` runs a coroutine (`asyncio.create_task`, with a reference to the task)."""

    usage = None  # only the server knows it

    def __init__(
        self,
        client: Any,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        *,
        ttl_seconds: int = 24 * 3600,
    ) -> None:
        self._client = client
        self._clock = clock
        self._spawn = spawn
        self._expires_in = ttl_seconds or None
        self._paused_until_ns = 0
        self._num_writes = 0

    def get(self, key: str, callback: LookupCallback) -> None:
        if self._is_paused:
            callback(None)
            return
        is_over = False

        def end(response: InferResponse | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                timer.cancel()
                callback(response)

        def fail() -> None:
            self._failed()
            end(None)

        timer = self._clock.call_at(self._clock.now_ns() + DEADLINE_NS, fail)
        self._spawn(self._read(key, end))

    def put(self, key: str, response: InferResponse) -> None:
        if self._num_writes < MAX_WRITES and not self._is_paused:
            self._num_writes += 1
            self._spawn(self._write(key, encode(response)))

    def _failed(self) -> None:
        self._paused_until_ns = self._clock.now_ns() + PAUSE_NS

    @property
    def _is_paused(self) -> bool:
        return self._clock.now_ns() < self._paused_until_ns

    async def _read(self, key: str, end: LookupCallback) -> None:
        response = None
        try:
            value = await self._client.get(PREFIX + key)
            if value is not None:
                with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):  # another writer's
                    response = decode(value)
        except Exception:  # any error of a client
            self._failed()
        end(response)

    async def _write(self, key: str, value: bytes) -> None:
        try:
            await self._client.set(PREFIX + key, value, ex=self._expires_in)
        except Exception:
            self._failed()
        finally:
            self._num_writes -= 1


def encode(response: InferResponse) -> bytes:
    """A response as bytes: the length of a JSON head as four bytes, the head, and the data of its outputs."""
    blobs = [bytes(tensor.data) for tensor in response.outputs if isinstance(tensor.data, bytes | memoryview)]
    head = {
        "outputs": [
            [tensor.name, tensor.datatype, list(tensor.shape), len(blob)]
            for tensor, blob in zip(response.outputs, blobs, strict=True)
        ],
        "parameters": dict(response.parameters),
    }
    text = json.dumps(head).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, *blobs))


def decode(value: bytes) -> InferResponse:
    """Raises: ValueError, KeyError, TypeError or AttributeError for other bytes than `encode` writes."""
    start = 4 + int.from_bytes(value[:4], "little")
    head = json.loads(value[4:start])
    outputs = []
    for name, datatype, shape, size in head["outputs"]:
        if not (_are(str, name, datatype) and _are(int, size, *shape) and min(size, *shape, 0) >= 0):
            raise ValueError(f"{name!r} is no tensor")
        if datatype not in DATATYPES or data_bytes(datatype, tuple(shape)) not in (size, None):
            raise ValueError(f"{size} bytes are no {datatype} of shape {shape}")
        data = value[start : start + size]
        if datatype == "BYTES":
            split_elements(data, prod(shape))  # as many as its shape has, and no longer than what is there
        outputs.append(TensorData(name, datatype, tuple(shape), data))
        start += size
    if start != len(value):
        raise ValueError(f"a response of {start} bytes is stored as {len(value)}")
    parameters = head["parameters"]
    if not all(isinstance(each, bool | int | float | str) for each in parameters.values()):
        raise ValueError("a parameter of a stored response is no scalar")
    return InferResponse(tuple(outputs), dict(parameters))


def _are(kind: type, *values: object) -> bool:
    return all(type(value) is kind for value in values)


def _size(response: InferResponse) -> int:
    return ENTRY_BYTES + sum(len(tensor.data) for tensor in response.outputs if isinstance(tensor.data, bytes))
