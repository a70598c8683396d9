"""Events of KV caches: vLLM's and SGLang's messages, and MessagePack."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored, read_batch, write_batch
from gateway.protocol.msgpack import packed, unpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_survives_messagepack(value: Any) -> None:
    """What is packed is unpacked to the same value."""
    assert unpack(packed(value)) == value


@given(st.binary(max_size=60))
def test_bytes_that_are_no_messagepack_are_refused(data: bytes) -> None:
    """Any bytes are a value, or a ValueError: nothing else, and no memory for lengths that are not there."""
    with suppress(ValueError):
        unpack(data)


SHORT = [
    # the specification's examples of short forms, which msgspec writes
    (b"\x07", 7),
    (b"\xff", -1),
    (b"\xcc\xff", 255),
    (b"\xd1\xff\x00", -256),
    (b"\xa3abc", "abc"),
    (b"\xd9\x03abc", "abc"),
    (b"\xc4\x02\x00\x01", b"\x00\x01"),
    (b"\x92\x01\xc0", [1, None]),
    (b"\xdc\x00\x01\xc3", [True]),
    (b"\x81\xa1a\xc2", {"a": False}),
    (b"\xde\x00\x01\xa1a\xca\x3f\x80\x00\x00", {"a": 1.0}),
]


@pytest.mark.parametrize(("data", "value"), SHORT)
def test_short_forms_are_read(data: bytes, value: Any) -> None:
    """Writers choose the shortest form of a value."""
    assert unpack(data) == value


def test_deep_nesting_is_refused() -> None:
    """A message cannot exhaust the stack."""
    with pytest.raises(ValueError, match="deep"):
        unpack(b"\x91" * 100_000 + b"\xc0")


STORED = BlocksStored([11, 12], None, [1, 2, 3, 4], 2, None, "GPU", "sql")


def test_batches_of_arrays_are_read() -> None:
    """vLLM with `array_like` structs, and SGLang: the event's name comes first, left-out fields are the last."""
    events: list[Any] = [
        ["BlockStored", [11, 12], None, [1, 2, 3, 4], 2, None, "GPU", "sql"],
        ["BlockStored", [13], 12, [5, 6], 2, None],
        ["BlockRemoved", [b"\x0b"]],
        ["AllBlocksCleared"],
    ]
    expected = [STORED, BlocksStored([13], 12, [5, 6], 2), BlocksRemoved([b"\x0b"]), AllBlocksCleared()]
    assert read_batch(packed([1.5, events, 0])) == expected


def test_batches_of_maps_are_read() -> None:
    """Newer vLLM: maps with the name under "type"; fields and types that are not known are left out."""
    stored = {"type": "BlockStored", **STORED._asdict(), "kv_cache_spec_kind": "full"}
    events = [stored, {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"}, {"type": "Other"}]
    assert read_batch(packed({"ts": 1.5, "events": events})) == [STORED, BlocksRemoved([1], "CPU")]


def test_a_written_batch_is_read() -> None:
    """The engine's batches are read by the same reader."""
    events = [STORED, BlocksRemoved([b"\x0b"], "GPU"), AllBlocksCleared()]
    assert read_batch(write_batch(2.0, events)) == events


WRONG = [
    ([1.5], "a batch"),
    ({"events": 1}, "a batch"),
    ([1.5, [7]], "begins with its name"),
    ([1.5, [["BlockStored", [1]]]], "lacks fields"),
    ([1.5, [["BlockStored", [1], None, ["a"], 16]]], "'token_ids'"),
    ([1.5, [["BlockStored", [1], None, [1], 0]]], "'block_size'"),
    ([1.5, [["BlockStored", [1], [], [1], 1]]], "'parent_block_hash'"),
    ([1.5, [["BlockRemoved", "abc"]]], "'block_hashes'"),
    ([1.5, [["BlockRemoved", [1], ["GPU"]]]], "'medium'"),
    ([1.5, [["BlockStored", [1], None, [1], 1, None, "GPU", "x" * 1025]]], "'lora_name'"),
    ([1.5, [["BlockStored", [1], None, [1], 1, None, "GPU", None, None, {}]]], "'group_idx'"),
]


@pytest.mark.parametrize(("batch", "message"), WRONG)
def test_malformed_batches_name_what_is_wrong(batch: Any, message: str) -> None:
    """A ValueError says what must stand there."""
    with pytest.raises(ValueError, match=message):
        read_batch(packed(batch))


def test_events_of_unknown_types_are_left_out() -> None:
    """Whatever their type is written as."""
    assert read_batch(packed({"events": [{"type": ["BlockStored"]}, {}, ["New", 1]]})) == []
