"""Tests that every state store passes: one in this process and one in Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.core.errors import EngineError
from engines.state.factory import open_store, read_seconds, read_secret
from engines.state.interfaces import Part, State, StateStore, ValueKind
from engines.state.local_store import LocalStateStore
from tests.engines.state.redis_server import RedisServer

SECRET = b"0123456789abcdef"


def value(text: bytes) -> State:
    return State(ValueKind.SEQUENCE, (Part("uint8", (len(text),), text),))


def text_of(state: State | None) -> bytes | None:
    return None if state is None else bytes(state.parts[0].data)


Opened = Callable[..., StateStore]


@pytest.fixture(params=["local", "redis"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """opened(**options): a store; several of one test see the same values where that is Redis."""
    stores: list[StateStore] = []
    url = "local" if request.param == "local" else request.getfixturevalue("redis_server").url

    def make(**options: object) -> StateStore:
        stores.append(open_store(url, **{"deadline_seconds": 5.0, **options}))  # type: ignore[arg-type]
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_what_is_written_is_found(opened: Opened) -> None:
    """A written value is found at once by its key, and a new one replaces it."""
    store = opened()
    assert store.write("a", value(b"one")) and store.write("b", value(b"two")) and store.write("a", value(b"three"))
    assert [text_of(state) for state in store.get(["a", "c", "b"])] == [b"three", None, b"two"]
    assert [size > 5 for size in store.sizes(["a", "c", "b"])] == [True, False, True]
    assert (store.counts.hits, store.counts.misses, store.counts.written) == (2, 1, 3)
    assert store.counts.bytes_out > store.counts.bytes_in > 0
    assert 0 < store.counts.read.at(0.5) <= store.counts.read.at(0.99)


def test_what_is_put_comes_some_time(opened: Opened) -> None:
    """A value is created once, when it is written: the same key again means the same value."""
    store = opened()
    created = []

    def make() -> State:
        created.append(1)
        return value(b"one")

    assert store.put("a", 3, make)
    assert store.flush(5)
    assert not store.put("a", 3, make) and not store.wants("a", 3)
    assert text_of(store.get(["a"])[0]) == b"one"
    assert created == [1]


def test_what_was_read_need_not_be_put(opened: Opened) -> None:
    """A value that the store has read needs no `put`."""
    store = opened()
    store.write("a", value(b"one"))
    assert store.get(["a"]) != [None]
    assert not store.wants("a", 3)
    assert not store.put("a", 3, lambda: pytest.fail("made"))


def test_what_is_not_worth_keeping_is_not_kept(opened: Opened) -> None:
    """A function that returns None skips the write."""
    store = opened()
    store.put("a", 3, lambda: None)
    assert store.flush(5)
    assert store.get(["a"]) == [None]


def test_what_is_deleted_is_gone(opened: Opened) -> None:
    """A deleted value reads as missing."""
    store = opened()
    store.write("a", value(b"one"))
    store.delete(["a", "never there"])
    assert store.get(["a"]) == [None] and store.sizes(["a"]) == [0]


def test_tenants_open_their_own(opened: Opened) -> None:
    """Another tenant's value is a miss, and is kept."""
    store = opened(secret=SECRET)
    store.write("a", value(b"one"), "x")
    assert store.get(["a"], "y") == [None]
    assert store.counts.foreign == 1
    assert text_of(store.get(["a"], "x")[0]) == b"one"


def test_a_value_has_its_time() -> None:
    """Each use restarts the time to live; an expired value is gone."""
    now = 0.0
    store = LocalStateStore(ttl_seconds=10, clock=lambda: now)
    store.write("a", value(b"one"))
    store.write("b", value(b"two"))
    now = 8.0
    assert text_of(store.get(["a"])[0]) == b"one"
    now = 12.0
    assert [text_of(state) for state in store.get(["a", "b"])] == [b"one", None]


def test_redis_gets_the_time_to_live(redis_server: RedisServer) -> None:
    """Each key has the time to live in milliseconds, restarted by each use."""
    store = open_store(redis_server.url, ttl_seconds=100, deadline_seconds=5.0)
    store.write("a", value(b"one"))
    store.put("b", 3, lambda: value(b"two"))
    store.flush(5)
    assert all(90_000 < redis_server.client.pttl(key) <= 100_000 for key in "ab")
    redis_server.client.expire("a", 5)
    store.get(["a"])
    assert redis_server.client.pttl("a") > 90_000
    store.close()


def test_there_is_so_much_room() -> None:
    """A store in this process keeps the most recently used values."""
    store = LocalStateStore(max_bytes=300)
    for key in "abc":
        store.write(key, value(b"x" * 60))
    assert [size > 0 for size in store.sizes("abc")] == [False, True, True]
    assert not store.write("d", value(b"x" * 400)) and not store.wants("d", 400)
    assert (store.counts.refused, store.counts.dropped) == (1, 1)


TIMES = [("90", 90), ("90s", 90), ("500ms", 0.5), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("1.5h", 5400)]


@pytest.mark.parametrize("text, seconds", TIMES)
def test_times_are_read(text: str, seconds: float) -> None:
    """Durations have units, such as 24h."""
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "soon", "-1s", "1w", "1h30m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """The error shows a valid duration."""
    with pytest.raises(ValueError, match="24h"):
        read_seconds(text)


def test_a_secret_is_a_file_of_enough_bytes(tmp_path: Path) -> None:
    """Whitespace around the secret is ignored."""
    path = tmp_path / "secret"
    with pytest.raises(EngineError, match="cannot be read"):
        read_secret(path)
    path.write_text("short\n")
    with pytest.raises(EngineError, match="has 5 bytes, and needs 16"):
        read_secret(path)
    path.write_bytes(SECRET + b"\n")
    assert read_secret(path) == SECRET


def test_a_store_that_is_none_is_refused() -> None:
    """The error shows the valid URLs, and no password."""
    with pytest.raises(EngineError, match="begins with one of redis://") as failure:
        open_store("http://user:password@host")
    assert "password" not in failure.value.message
