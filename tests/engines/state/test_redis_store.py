"""A Redis that is gone, frozen or full, or holds foreign values: each time a miss within the deadline, never an
error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.state.factory import open_store
from engines.state.interfaces import Part, State, ValueKind
from engines.state.redis_store import RedisStateStore
from gateway.redis.address import read_address
from tests.engines.state.redis_server import RedisServer
from tests.support.redis_server import free_port
from tests.support.waiting import eventually

DEADLINE = 0.2


def value(text: bytes) -> State:
    return State(ValueKind.BLOCK, (Part("uint8", (len(text),), text),))


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[RedisStateStore]:
    store = RedisStateStore(read_address(redis_server.url), deadline_seconds=DEADLINE)
    yield store
    store.close()


def test_a_frozen_redis_costs_its_deadline_a_few_times(redis_server: RedisServer, store: RedisStateStore) -> None:
    """After some timeouts calls are suspended for a while. When Redis responds again, they resume."""
    store.write("a", value(b"one"))
    redis_server.freeze()
    assert [store.get(["a"]) for _ in range(20)] == [[None]] * 20
    assert store.counts.failures + store.counts.skipped == 20
    assert store.counts.failures >= 3 and store.counts.skipped >= 10
    assert store.is_paused
    redis_server.thaw()
    eventually(lambda: store.get(["a"]) != [None])
    assert not store.is_paused


def test_a_redis_that_is_gone_costs_nothing(redis_server: RedisServer, store: RedisStateStore) -> None:
    """Values put while Redis is gone are dropped and counted. A new Redis is used at once."""
    redis_server.kill()
    assert store.get(["a"]) == [None] and store.sizes(["a", "b"]) == [0, 0]
    assert not store.write("a", value(b"one"))
    store.put("b", 3, lambda: value(b"two"))
    assert store.flush(5)
    assert store.counts.dropped == 1
    redis_server.start()
    assert eventually(lambda: store.write("a", value(b"one")))
    assert store.put("b", 3, lambda: value(b"two")), "what was not written may be put again"
    assert store.flush(5)
    assert redis_server.names() == ["a", "b"]


def test_a_full_redis_is_not_pressed(store: RedisStateStore, redis_server: RedisServer) -> None:
    """A full Redis without eviction refuses writes: stored values are still found, and no writes are sent for a
    while."""
    store.write("a", value(b"one"))
    redis_server.client.config_set("maxmemory", "1")
    redis_server.client.config_set("maxmemory-policy", "noeviction")
    assert not store.write("b", value(b"two"))
    assert store.counts.refused == 1
    assert not store.wants("c", 3) and not store.put("c", 3, lambda: value(b"three"))
    assert store.get(["a"])[0] is not None
    assert not store.is_paused, "it answers"


@pytest.mark.parametrize("spoil", ["flip", "cut", "list"])
def test_what_is_not_ours_is_deleted(spoil: str, store: RedisStateStore, redis_server: RedisServer) -> None:
    """A flipped byte, a cut value or another type is a counted miss, and the key is deleted."""
    store.write("a", value(b"one"))
    client = redis_server.client
    stored = client.get("a")
    client.delete("a")
    if spoil == "list":
        client.rpush("a", stored)
    else:
        client.set("a", stored[:-1] if spoil == "cut" else stored[:-1] + b"?")
    assert store.get(["a"]) == [None]
    assert store.counts.corrupt == 1
    assert redis_server.names() == []


def test_another_type_has_no_size(store: RedisStateStore, redis_server: RedisServer) -> None:
    """A key of another type is deleted when it is found."""
    redis_server.client.rpush("a", "x")
    store.write("b", value(b"two"))
    assert [size > 0 for size in store.sizes(["a", "b"])] == [False, True]
    assert redis_server.names() == ["b"]


def test_a_queue_that_is_full_drops(redis_server: RedisServer) -> None:
    """The queue has a bound in bytes; `put` does not wait for Redis."""
    store = RedisStateStore(read_address(redis_server.url), deadline_seconds=5.0, max_queued_bytes=100)
    redis_server.freeze()
    assert store.put("a", 60, lambda: value(b"one"))
    assert not store.put("b", 60, lambda: value(b"two"))
    assert (store.counts.dropped, store.counts.failures) == (1, 0)  # Redis has not exceeded its deadline yet
    redis_server.thaw()
    assert store.flush(10)
    assert redis_server.names() == ["a"]
    store.close()


def test_what_is_there_is_not_written_again(redis_server: RedisServer, store: RedisStateStore) -> None:
    """A value that another writer has stored is not created again; only its time to live restarts."""
    store.put("a", 3, lambda: value(b"one"))
    store.flush(5)
    other = open_store(redis_server.url, deadline_seconds=5.0)
    assert other.put("a", 3, lambda: pytest.fail("made"))
    assert other.flush(5)
    assert (other.counts.written, other.counts.known) == (0, 1)
    other.close()


def test_what_redis_has_evicted_is_wanted_again(
    redis_server: RedisServer, store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that was written a while ago and is used again is looked up: a stored one gets a new time to live, an
    evicted one is written again."""
    monkeypatch.setattr("engines.state.write_behind._RECENT_SECONDS", -1.0)
    for key in "ab":
        store.put(key, 3, lambda: value(b"one"))
    assert store.flush(5)
    redis_server.client.expire("a", 5)
    redis_server.client.delete("b")
    assert not store.wants("a", 3) and not store.wants("b", 3)
    assert store.flush(5)
    assert redis_server.client.ttl("a") > 1000
    assert not store.wants("a", 3) and store.wants("b", 3)


def test_what_is_found_spoilt_or_gone_is_wanted_again(redis_server: RedisServer, store: RedisStateStore) -> None:
    """A corrupt or missing value can be written again, also by the process that has just written it."""
    for key in "ab":
        store.put(key, 3, lambda: value(b"one"))
    assert store.flush(5)
    assert not store.wants("a", 3) and not store.wants("b", 3)
    redis_server.client.append("a", b"?")
    redis_server.client.delete("b")
    assert store.get(["a"]) == [None] and store.sizes(["b"]) == [0]
    assert store.wants("a", 3) and store.wants("b", 3)


def test_few_rights_are_enough(redis_server: RedisServer) -> None:
    """The rights that the README names are enough, on keys with the prefix; without them calls are misses."""
    rights = ("GET", "SET", "STRLEN", "PEXPIRE", "UNLINK")
    allowed = [f"+{right.lower()}" for right in rights]
    redis_server.client.execute_command("ACL", "SETUSER", "few", "on", ">word", "~pointsman:1:*", *allowed)
    redis_server.client.execute_command("ACL", "SETUSER", "none", "on", ">word", "~other:*", *allowed)
    store, stranger = (
        open_store(redis_server.url.replace("unix://", f"unix://{user}:word@"), deadline_seconds=5.0)
        for user in ("few", "none")
    )
    key = "pointsman:1:kv:a"
    assert store.write(key, value(b"one")) and store.put(key + "b", 3, lambda: value(b"two")) and store.flush(5)
    assert store.sizes([key])[0] > 0
    assert stranger.get([key]) == [None] and stranger.sizes([key]) == [0] and not stranger.write(key, value(b"two"))
    assert (stranger.counts.refused, stranger.counts.corrupt) == (3, 0)
    assert [state is None for state in store.get([key, key + "b"])] == [False, False]
    store.delete([key])
    assert store.get([key]) == [None]
    store.close()
    stranger.close()


def test_a_value_that_cannot_be_made_is_not_kept(store: RedisStateStore) -> None:
    """If a value's function raises, the value is skipped and later ones are written."""

    def broken() -> State:
        raise RuntimeError("no device")

    store.put("a", 3, broken)
    store.put("b", 3, lambda: value(b"two"))
    assert store.flush(5)
    assert [state is None for state in store.get(["a", "b"])] == [True, False]


def test_a_cluster_keeps_values_too() -> None:
    """Keys of different slots can be read in one call. A cluster that is down when the store is opened is used once it
    is up."""
    port = free_port()
    store = RedisStateStore(read_address(f"redis+cluster://127.0.0.1:{port}"), deadline_seconds=5.0)
    keys = [f"pointsman:1:kv:{place}" for place in range(20)]
    assert store.get(keys) == [None] * 20
    assert store.counts.failures == 1
    with RedisServer("--port", str(port), "--cluster-enabled", "yes") as node:
        node.client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        eventually(lambda: b"cluster_state:ok" in node.client.execute_command("CLUSTER", "INFO"))
        assert eventually(lambda: store.write(keys[0], value(b"0")))
        for place, key in enumerate(keys[1:], 1):
            store.put(key, 2, lambda place=place: value(str(place).encode()))  # type: ignore[misc]
        assert store.flush(5)
        assert [state is not None and bytes(state.parts[0].data) for state in store.get(keys)] == [
            str(place).encode() for place in range(20)
        ]
        store.delete(keys)
        assert store.sizes(keys) == [0] * 20
    store.close()
