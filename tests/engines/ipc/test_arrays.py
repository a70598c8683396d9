"""Tensors of messages are arrays for models, and back."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core.errors import EngineError
from engines.ipc.arena import Arena, Mapping, open_shared_file
from engines.ipc.arrays import ArrayStore, decode_bytes, encode_bytes
from engines.ipc.protocol import INLINE_BYTES


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    """Each element stands behind its length."""
    array = np.empty(len(elements), object)
    array[:] = elements
    data = encode_bytes(array)
    assert data == b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    assert decode_bytes(data, (len(elements),)).tolist() == elements


@pytest.mark.parametrize(
    ("data", "shape", "message"),
    [
        (b"\5\0\0\0abc", (1,), "incomplete string data"),
        (b"\1\0", (1,), "incomplete string data"),
        (b"\1\0\0\0a", (2,), "expected a shape of 1 strings"),
    ],
)
def test_bytes_that_are_none(data: bytes, shape: tuple[int, ...], message: str) -> None:
    """The request is told what is wrong."""
    with pytest.raises(EngineError, match=message):
        decode_bytes(data, shape)


@pytest.fixture
def ends() -> Iterator[tuple[ArrayStore, ArrayStore]]:
    """One that writes, one that reads."""
    there, back = open_shared_file(), open_shared_file()
    yield ArrayStore(Arena(there), Mapping(back)), ArrayStore(Arena(back), Mapping(there))


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES // 4 - 1, INLINE_BYTES // 4, 300_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_size_and_order(ends: tuple[ArrayStore, ArrayStore], size: int, order: str) -> None:
    """Arrive row by row and writable; large ones give their block back when the last array over it is gone."""
    writer, reader = ends
    array = np.asarray(np.arange(2 * size, dtype=np.int32).reshape(2, size), order="F" if order == "F" else "C")
    read = reader.read(writer.write("x", "INT32", array))
    assert (read == array).all() and read.flags.writeable
    part = read[:1]
    del read
    assert not reader.take_freed()
    del part
    writer.free(reader.take_freed())
    assert writer._sent.used_bytes == 0


@pytest.mark.parametrize("shape", [(0, 2**62), (0, 2**63 - 1), (2**64 - 1, 0), (-2, -2), (4,)])
@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
def test_shapes_of_no_array(ends: tuple[ArrayStore, ArrayStore], shape: tuple[int, ...], datatype: str) -> None:
    """However a client gets them past the host's checks, its request is told, and the instance lives."""
    with pytest.raises(EngineError):
        ends[1].read(("x", datatype, shape, b""))
