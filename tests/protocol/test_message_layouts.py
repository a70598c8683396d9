"""Reading names through cached message layouts gives the same result as reading every field."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.errors import GatewayError
from gateway.protocol.infer_message_head import Names, read_names
from gateway.protocol.message_layouts import Layouts
from gateway.protocol.protobuf import message

PREFIX = b"\0\0\0\0\0"


def request(model: str = "adder", request_id: str = "1", version: str = "", raw: bytes = b"1234") -> bytes:
    made = message("inference.ModelInferRequest")(model_name=model, id=request_id, model_version=version)
    made.inputs.add(name="a", datatype="INT32", shape=[1])
    made.raw_input_contents.append(raw)
    return PREFIX + made.SerializeToString()


def read(layouts: Layouts, data: bytes) -> Names | str:
    try:
        return layouts.read_names(data, 5, len(data))
    except GatewayError as error:
        return error.message


def directly(data: bytes) -> Names | str:
    try:
        return read_names(data, 5, len(data))
    except GatewayError as error:
        return error.message


def warm(data: bytes) -> Layouts:
    """A cache that has seen the message often."""
    layouts = Layouts()
    for _ in range(40):
        assert read(layouts, data) == directly(data)
    assert "1 sizes" in repr(layouts)
    return layouts


def test_a_message_that_repeats_itself() -> None:
    """Contents and names may vary within a layout; a message of the same size with other fields is parsed in full."""
    layouts = warm(request())
    for other in (
        request(raw=b"\n\r\n\0"),
        request("vidur", "\n"),
        request(request_id="", version="1"),
        request(request_id="", raw=b"1234567"),
        request()[:-1] + b"\xff",
    ):
        assert read(layouts, other) == directly(other)


def test_names_that_come_twice_have_no_layout() -> None:
    """Messages with repeated names are never cached."""
    data = request() + b"\x0a\x05other"
    layouts = Layouts()
    for _ in range(40):
        names = layouts.read_names(data, 5, len(data))
        assert (names.model, len(names.spans)) == (b"other", 2)
    assert "0 sizes" in repr(layouts)


def test_a_message_longer_than_a_pattern_counts() -> None:
    """Tensors of any length are skipped."""
    layouts = warm(request(raw=bytes(700_000)))
    other = request("vidur", "2", raw=b"\n" * 700_000)
    assert read(layouts, other) == directly(other)


def test_memory_is_bounded() -> None:
    """Messages of many sizes do not grow the cache without bound."""
    layouts = Layouts()
    for size in range(400):
        data = request(raw=bytes(size))
        for _ in range(17):
            layouts.read_names(data, 5, len(data))
    assert len(layouts._known) <= 256
    for size in range(10_000):
        data = request(raw=bytes(size % 5000 + 1000))
        layouts.read_names(data, 5, len(data))
    assert len(layouts._seen) <= 4096


SAME_SIZE = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=4)
)


@settings(max_examples=300, deadline=None)
@given(SAME_SIZE, st.data())
def test_any_bytes(messages: list[bytes], data: st.DataObject) -> None:
    """For messages of one size, valid or malformed, the cached result equals that of a full parse."""
    layouts = Layouts()
    for index in data.draw(st.lists(st.integers(0, len(messages) - 1), max_size=3)):
        for _ in range(20):
            read(layouts, PREFIX + messages[index])
    for made in messages:
        assert read(layouts, PREFIX + made) == directly(PREFIX + made)


@pytest.mark.parametrize("flip", range(5, 40))
def test_a_changed_byte(flip: int) -> None:
    """After any bit flip the result equals that of a full parse."""
    data = bytearray(request())
    layouts = warm(bytes(data))
    data[flip % len(data)] ^= 0x01
    assert read(layouts, bytes(data)) == directly(bytes(data))
