"""Clients' shared memory is found by its name, as it is now."""

import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as Region
from types import SimpleNamespace

import pytest

from engines.core.errors import EngineError
from engines.core.messages import SharedMemory
from engines.ipc.client_memory import ClientMemory

NAME = "pointsman_test_region"


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region(NAME, create=True, size=4096)
    yield made
    made.close()
    made.unlink()


def test_both_see_the_same_bytes(region: Region) -> None:
    """With and without the slash that POSIX wants."""
    memory = ClientMemory()
    for key in (NAME, f"/{NAME}"):
        view = memory.view(SharedMemory(key, 100, 4))
        region.buf[100:104] = b"abcd"
        assert bytes(view) == b"abcd"
        view[:] = b"efgh"
        assert bytes(region.buf[100:104]) == b"efgh"


def test_a_region_made_anew_is_mapped_anew(region: Region) -> None:
    """Its old memory is not what the client sees any more."""
    memory = ClientMemory()
    memory.view(SharedMemory(NAME, 0, 4))
    region.unlink()
    again = Region(NAME, create=True, size=8192)
    again.buf[5000:5002] = b"hi"
    assert bytes(memory.view(SharedMemory(NAME, 5000, 2))) == b"hi"
    again.close()


def test_a_region_of_the_same_name_and_size_is_mapped_again(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where fstat tells no object from another, as on macOS; what was read before stays readable."""

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
    """The text says what there is."""
    with pytest.raises(EngineError, match=message):
        ClientMemory().view(SharedMemory(key, offset, size))
