"""Blocks of shared memory: allocated, viewed and freed."""

import _posixshmem
import ctypes
import gc
import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from engines.ipc import arena as arenas
from engines.ipc.arena import (
    DEFAULT_LIMIT_BYTES,
    GROWTH_BYTES,
    KEPT_BYTES,
    Arena,
    ArenaFullError,
    Mapping,
    open_shared_file,
)

LIMIT = 256 << 20


@pytest.fixture(autouse=True, params=["a file that grows", "POSIX shared memory"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Shared files are tested in Linux's form and in macOS's."""
    monkeypatch.setattr(arenas, "USES_POSIX_SHM", request.param == "POSIX shared memory")
    return str(request.param)


@pytest.fixture
def pair() -> Iterator[tuple[Arena, Mapping]]:
    """Both ends of one shared file."""
    descriptor = open_shared_file(LIMIT)
    arena, mapping = Arena(descriptor, LIMIT), Mapping(os.dup(descriptor))
    yield arena, mapping
    arena.close()
    mapping.close()


def test_a_block_lives_as_long_as_its_last_view(pair: tuple[Arena, Mapping]) -> None:
    """A block is freed when its last view is gone, views of views included."""
    arena, mapping = pair
    offset, size = arena.put(b"0123456789" * 10)
    view = memoryview(mapping.view(offset, size)).cast("B")
    part = view[10:20]
    del view
    gc.collect()
    assert bytes(part) == b"0123456789" and mapping.has_views and not mapping.take_freed()
    part[0:1] = b"x"  # the receiver may write
    del part
    assert mapping.take_freed() == (offset,) and not mapping.has_views
    assert mapping.take_freed() == ()


def test_views_stay_valid_while_the_file_grows_and_after_it_is_closed() -> None:
    """Each sees the same memory through its own mapping."""
    descriptor = open_shared_file(LIMIT)
    arena, mapping = Arena(descriptor, LIMIT), Mapping(os.dup(descriptor))
    first = memoryview(mapping.view(*arena.put(b"a" * 100)))
    second = memoryview(mapping.view(*arena.put(b"b" * (3 * GROWTH_BYTES))))
    mapping.close()
    arena.close()
    assert bytes(first) == b"a" * 100 and bytes(second[-3:]) == b"bbb"


def test_there_is_a_limit() -> None:
    """The error of a full arena names the used bytes; freed blocks are used again."""
    arena = Arena(open_shared_file(2 * GROWTH_BYTES), 2 * GROWTH_BYTES)
    offset, _ = arena.put(b"x" * GROWTH_BYTES)
    with pytest.raises(ArenaFullError, match=f"{GROWTH_BYTES} of {2 * GROWTH_BYTES} bytes are used"):
        arena.put(b"x" * (GROWTH_BYTES + 1))
    arena.free(offset)
    arena.put(b"x" * (2 * GROWTH_BYTES))
    arena.close()


def taken(descriptor: int) -> int:
    """The bytes of memory that a file occupies."""
    return os.fstat(descriptor).st_blocks * 512


def test_an_arena_gives_memory_back() -> None:
    """The memory of an arena is given back when no block of it is used."""
    descriptor = open_shared_file(LIMIT)
    arena = Arena(descriptor, LIMIT)
    offsets = [arena.put(bytes(KEPT_BYTES))[0] for _ in range(2)]
    assert taken(descriptor) >= 2 * KEPT_BYTES
    for offset in offsets:
        arena.free(offset)
    assert taken(descriptor) == KEPT_BYTES
    assert arena.put(b"x" * KEPT_BYTES)[0] == 0
    arena.close()


def test_shared_memory_without_a_name_has_its_size_set_once_and_is_mapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS allows one ftruncate, and names of 31 characters; unused memory below the limit is not occupied."""
    names: list[str] = []
    sizes: list[int] = []
    mapped: list[int] = []

    def shm_open(name: str, flags: int, mode: int) -> int:
        names.append(name)
        return int(real_open(name, flags, mode))

    def ftruncate(descriptor: int, size: int) -> None:
        sizes.append(size)
        real_truncate(descriptor, size)

    class Mmap(mmap.mmap):
        def __new__(cls, descriptor: int, size: int) -> Self:
            mapped.append(size)
            return super().__new__(cls, descriptor, size)

    monkeypatch.setattr(arenas, "USES_POSIX_SHM", True)
    real_open, real_truncate = _posixshmem.shm_open, os.ftruncate
    monkeypatch.setattr(_posixshmem, "shm_open", shm_open)
    monkeypatch.setattr(os, "ftruncate", ftruncate)
    monkeypatch.setattr(arenas.mmap, "mmap", Mmap)
    descriptor = open_shared_file()
    arena, mapping = Arena(descriptor), Mapping(os.dup(descriptor))
    (name,) = names
    assert len(name) <= 31 and not Path("/dev/shm", name[1:]).exists()
    for _ in range(2):  # larger than the size that stays allocated: the file grows, shrinks and grows again
        offset, size = arena.put(bytes(2 * KEPT_BYTES))
        assert ctypes.sizeof(mapping.view(offset, size)) == size
        for freed in mapping.take_freed():
            arena.free(freed)
    assert sizes == [DEFAULT_LIMIT_BYTES] and mapped == [DEFAULT_LIMIT_BYTES] * 2
    assert taken(descriptor) <= KEPT_BYTES  # the pages that were written, not the limit
    arena.close()
    mapping.close()


def test_a_random_walk(pair: tuple[Arena, Mapping]) -> None:
    """Blocks never overlap and keep their contents. All memory is free at the end."""
    arena, mapping = pair
    dice = random.Random(7)
    held: dict[int, tuple[bytes, memoryview]] = {}
    for _ in range(3000):
        if held and dice.random() < 0.5:
            offset = dice.choice(list(held))
            data, view = held.pop(offset)
            assert bytes(view) == data
            del view
            for freed in mapping.take_freed():
                arena.free(freed)
        else:
            data = dice.randbytes(dice.choice([1, 63, 64, 65, 5000, 70000]))
            offset, size = arena.put(data)
            assert size == len(data) and offset % 64 == 0
            assert not any(offset < other + len(held) and other < offset + size for other, (held, _) in held.items())
            held[offset] = data, memoryview(mapping.view(offset, size))
    assert all(bytes(view) == data for data, view in held.values())
    held.clear()
    data, view = b"", memoryview(b"")
    for freed in mapping.take_freed():
        arena.free(freed)
    assert arena.used_bytes == 0 and len(arena._holes) == 1
