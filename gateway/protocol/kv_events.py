"""Events of an engine's KV cache, as vLLM and SGLang publish them: blocks of tokens that were stored and removed.

A ZeroMQ message has three frames: the topic, a sequence number of 8 bytes (big-endian), and a batch in MessagePack.
Batches and events are arrays in the order of their fields, with the event's name first, or maps with the name under
"type" (newer vLLM). Fields that a writer left out have their defaults, further ones are ignored.

Source: vLLM, `vllm/distributed/kv_events.py`; SGLang, `sglang/srt/disaggregation/kv_events.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.protocol.msgpack import packed, unpack

SEQUENCE_BYTES = 8
# Of media and adapters, in characters
_MAX_NAME = 1024
END_OF_REPLAY = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)

BlockHash = int | bytes


class BlocksStored(NamedTuple):
    """Blocks that follow each other: block i has tokens [i * block_size, (i + 1) * block_size)."""

    block_hashes: Sequence[BlockHash]
    parent_block_hash: BlockHash | None  # None: they begin a text
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Any = None
    group_idx: int | None = None


class BlocksRemoved(NamedTuple):
    block_hashes: Sequence[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(NamedTuple):
    pass


KvEvent = BlocksStored | BlocksRemoved | AllBlocksCleared

_EVENTS: dict[str, type[KvEvent]] = {
    "BlockStored": BlocksStored,
    "BlockRemoved": BlocksRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
_NAMES = {event: name for name, event in _EVENTS.items()}


def read_batch(payload: bytes) -> list[KvEvent]:
    """The events of a batch; those of unknown types are left out.

    Raises: ValueError where it is no batch of events.
    """
    batch = unpack(payload)
    events = batch.get("events") if isinstance(batch, dict) else batch[1] if _is_array(batch, 2) else None
    if not isinstance(events, list):
        raise ValueError("a batch of KV events must be [timestamp, events], or a map with 'events'")
    return [event for each in events if (event := _read(each)) is not None]


def _read(written: Any) -> KvEvent | None:
    if isinstance(written, dict):
        name = written.get("type")
        kind = _EVENTS.get(name) if isinstance(name, str) else None
        fields = {name: written[name] for name in kind._fields if name in written} if kind is not None else {}
    elif _is_array(written, 1):
        kind = _EVENTS.get(written[0]) if isinstance(written[0], str) else None
        fields = dict(zip(kind._fields, written[1:], strict=False)) if kind is not None else {}
    else:
        raise ValueError("a KV event must be an array that begins with its name, or a map with 'type'")
    if kind is None:
        return None
    try:
        event = kind(**fields)
    except TypeError:
        raise ValueError(f"a KV event of type {_NAMES[kind]} lacks fields: it has {sorted(fields)}") from None
    _check(event)
    return event


def _check(event: KvEvent) -> None:
    """Raises: ValueError where fields that are used are of other types."""
    if isinstance(event, AllBlocksCleared):
        return
    if not (isinstance(event.block_hashes, list) and all(isinstance(each, int | bytes) for each in event.block_hashes)):
        raise ValueError("'block_hashes' of a KV event must be an array of integers or bytes")
    if not (_is_name(event.medium) and isinstance(event.group_idx, int | None)):
        raise ValueError("'medium' of a KV event must be a text or nil, and 'group_idx' an integer or nil")
    if isinstance(event, BlocksStored):
        tokens = event.token_ids
        if not (isinstance(tokens, list) and all(type(each) is int and 0 <= each < 1 << 31 for each in tokens)):
            raise ValueError("'token_ids' of a KV event must be an array of token ids")
        if not (type(event.block_size) is int and event.block_size > 0):
            raise ValueError("'block_size' of a KV event must be a positive integer")
        if not isinstance(event.parent_block_hash, int | bytes | None):
            raise ValueError("'parent_block_hash' of a KV event must be an integer, bytes or nil")
        if not _is_name(event.lora_name):
            raise ValueError("'lora_name' of a KV event must be a text or nil")


def _is_name(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= _MAX_NAME)


def _is_array(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) >= length


def write_batch(timestamp: float, events: Sequence[KvEvent]) -> bytes:
    """A batch in arrays, which all readers know; `timestamp` in seconds since 1970."""
    return packed([timestamp, [[_NAMES[type(event)], *event] for event in events]])
