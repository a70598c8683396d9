"""Tensors of messages are arrays for models, and back."""

import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as Region
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core.errors import EngineError
from engines.core.messages import SharedMemory
from engines.ipc.arena import Arena, Mapping, open_shared_file
from engines.ipc.arrays import ArrayStore, ClientMemory, decode_bytes, encode_bytes
from engines.ipc.protocol import INLINE_BYTES

NAME = "pointsman_test_region"


@pytest.fixture
def region() -> Iterator[Region]:
    region = Region(NAME, create=True, size=4096)
    yield region
    region.close()
    region.unlink()


def test_both_see_the_same_bytes(region: Region) -> None:
    """A region's name is valid with and without POSIX's leading slash."""
    memory = ClientMemory()
    for key in (NAME, f"/{NAME}"):
        view = memory.view(SharedMemory(key, 100, 4))
        region.buf[100:104] = b"abcd"
        assert bytes(view) == b"abcd"
        view[:] = b"efgh"
        assert bytes(region.buf[100:104]) == b"efgh"


def test_a_region_created_again_is_mapped_again(region: Region) -> None:
    """A region that is created again under its name is mapped again."""
    memory = ClientMemory()
    memory.view(SharedMemory(NAME, 0, 4))
    region.unlink()
    again = Region(NAME, create=True, size=8192)
    again.buf[5000:5002] = b"hi"
    assert bytes(memory.view(SharedMemory(NAME, 5000, 2))) == b"hi"
    again.close()


def test_a_region_of_the_same_name_and_size_is_mapped_again(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region is mapped again even if fstat identifies no object, as on macOS. Arrays that were read before stay
    readable."""

    def fstat(descriptor: int) -> SimpleNamespace:
        return SimpleNamespace(st_dev=0, st_ino=0, st_size=real(descriptor).st_size)

    real = os.fstat
    monkeypatch.setattr(os, "fstat", fstat)
    memory = ClientMemory()
    region.buf[:3] = b"one"
    first = memory.view(SharedMemory(NAME, 0, 3))
    region.unlink()
    again = Region(NAME, create=True, size=4096)
    again.buf[:3] = b"two"
    assert bytes(memory.view(SharedMemory(NAME, 0, 3))) == b"two"
    assert bytes(first) == b"one"
    again.close()


@pytest.mark.parametrize(
    ("key", "offset", "size", "message"),
    [
        (NAME, 4000, 97, "has 4096 bytes, bytes 4000 to 4097 are asked for"),
        (NAME, -1, 4, "bytes -1 to 3 are asked for"),
        ("no_such_region", 0, 1, "Unable to open shared memory region: 'no_such_region'"),
    ],
)
def test_what_is_not_there_is_refused(region: Region, key: str, offset: int, size: int, message: str) -> None:
    """The error names the region's size."""
    with pytest.raises(EngineError, match=message):
        ClientMemory().view(SharedMemory(key, offset, size))


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    """Each element has a length prefix."""
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
    """Invalid data fails with the reason."""
    with pytest.raises(EngineError, match=message):
        decode_bytes(data, shape)


@pytest.fixture
def ends() -> Iterator[tuple[ArrayStore, ArrayStore]]:
    """A writing and a reading end."""
    there, back = open_shared_file(), open_shared_file()
    yield ArrayStore(Arena(there), Mapping(back)), ArrayStore(Arena(back), Mapping(there))


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES // 4 - 1, INLINE_BYTES // 4, 300_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_size_and_order(ends: tuple[ArrayStore, ArrayStore], size: int, order: str) -> None:
    """Arrays arrive in row order and writable. The block of a large array is freed with the last array that views
    it."""
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
    """A shape that does not fit the data is an error of the request."""
    with pytest.raises(EngineError):
        ends[1].read(("x", datatype, shape, b""))
