"""Generation continues with the same text whatever Redis does; at worst all tokens are computed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from engines.paged.base.types import FinishReason
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import answer_of, finish, send
from tests.engines.paged.kv_store.conftest import EngineOf
from tests.engines.paged.kv_store.test_engines import PROMPT, SEEDED, cached, settle
from tests.engines.state.redis_server import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def expected(redis_server: RedisServer, engine_of: EngineOf) -> list[int]:
    """The reply to the prompt whose blocks are stored."""
    engine = engine_of(redis_server)
    answer = answer_of(engine, PROMPT, **SEEDED).tokens()
    settle(engine)
    return answer


def flip(server: RedisServer) -> None:
    for key in server.names():
        if value := bytearray(server.client.get(key) or b""):
            value[-1] ^= 1
            server.client.set(key, bytes(value))


def cut(server: RedisServer) -> None:
    for key in server.names():
        server.client.set(key, (server.client.get(key) or b"?")[:-1])


def swap(server: RedisServer) -> None:
    """Swap the values of blocks."""
    keys = server.names()
    values = server.client.mget(keys)
    for key, value in zip(keys, values[1:] + values[:1], strict=True):
        server.client.set(key, value)


def fill_up(server: RedisServer) -> None:
    server.client.config_set("maxmemory-policy", "noeviction")
    server.client.config_set("maxmemory", "1")


def another_type(server: RedisServer) -> None:
    for key in server.names():
        server.client.delete(key)
        server.client.rpush(key, "x")


def larger(server: RedisServer) -> None:
    """Store a value much larger than a block; the engine does not read it."""
    for key in server.names():
        server.client.append(key, bytes(100_000))


def emptied(server: RedisServer) -> None:
    server.client.flushall()


FAULTS: list[tuple[Callable[[RedisServer], None], int]] = [
    (RedisServer.kill, 0),
    (flip, 0),
    (cut, 0),
    (swap, 0),
    (larger, 0),
    (another_type, 0),
    (emptied, 0),
    (fill_up, 192),  # the present blocks are read
]


@pytest.mark.parametrize("fault, num_cached", FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_the_text_is_the_same(
    fault: Callable[[RedisServer], None],
    num_cached: int,
    expected: list[int],
    redis_server: RedisServer,
    engine_of: EngineOf,
) -> None:
    """A store that is killed, full, corrupt, of another type or empty causes a cache miss without an error."""
    fault(redis_server)
    engine = engine_of(redis_server)
    answer = answer_of(engine, PROMPT, **SEEDED)
    assert (answer.tokens(), cached(answer)) == (expected, num_cached)
    assert answer.reason() is FinishReason.LENGTH and not answer.error
    other = answer_of(engine, [5, *PROMPT], max_tokens=3)
    assert len(other.tokens()) == 3


@pytest.mark.parametrize("spoil", [flip, larger, another_type])
def test_a_spoilt_block_is_replaced(
    spoil: Callable[[RedisServer], None], expected: list[int], redis_server: RedisServer, engine_of: EngineOf
) -> None:
    """The engine that finds a corrupt block deletes it, and the one that computes it writes it again."""
    spoil(redis_server)
    engine = engine_of(redis_server)
    assert answer_of(engine, PROMPT, **SEEDED).tokens() == expected
    settle(engine)
    fresh = engine_of(redis_server)
    first = answer_of(fresh, PROMPT, **SEEDED)
    assert first.tokens() == expected and cached(first) > 0


def test_a_frozen_redis_delays_a_few_requests_by_its_deadline(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf
) -> None:
    """After some timeouts calls to the store pause for a while, and decoding never waits for it."""
    engine = engine_of(redis_server, kv_deadline=0.2)
    redis_server.freeze()
    for place in range(6):
        answer = answer_of(engine, [place, *PROMPT], max_tokens=2)
        assert cached(answer) == 0
    stats = engine.stats()
    assert stats["kv_store_values_failures_total"] >= 3
    assert stats["kv_store_values_skipped_total"] > 0
    redis_server.thaw()

    def finds() -> bool:
        engine._scheduler.pool.forget()
        return cached(answer_of(engine, PROMPT, **SEEDED)) > 0

    eventually(finds)


def test_steps_go_on_while_one_waits(expected: list[int], redis_server: RedisServer, engine_of: EngineOf) -> None:
    """A request that waits for a frozen Redis does not delay others; it can be cancelled at once and holds no
    blocks."""
    engine = engine_of(redis_server, kv_deadline=60.0)
    block_store = engine._parts.block_store
    assert block_store is not None
    found = threading.Event()
    find = block_store.find

    def slow(*arguments: object) -> int:
        found.wait(120)
        return find(*arguments)  # type: ignore[arg-type]

    block_store.find = slow  # type: ignore[method-assign]
    waits = send(engine, PROMPT, **SEEDED)
    eventually(lambda: engine.stats()["num_requests_fetching"])
    block_store.find = find  # type: ignore[method-assign]
    other = answer_of(engine, [1, 2, 3], max_tokens=20)
    assert len(other.tokens()) == 20
    assert not waits.outputs and engine.stats()["kv_cache_blocks_used"] == 0
    engine.cancel(waits.request.id)
    finish(waits)
    assert waits.reason() is FinishReason.CANCELLED
    found.set()
    assert answer_of(engine, PROMPT, **SEEDED).tokens() == expected


def test_an_expired_request_fails_while_it_fetches(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf
) -> None:
    """A request's own deadline also holds while it waits for stored blocks."""
    engine = engine_of(redis_server, kv_deadline=60.0)
    block_store = engine._parts.block_store
    assert block_store is not None
    over = threading.Event()
    block_store.find = lambda *arguments: over.wait(120) and 0  # type: ignore[method-assign,assignment]
    late = send(engine, PROMPT, deadline=monotonic() + 0.2, **SEEDED)
    finish(late)
    over.set()
    assert late.reason() is FinishReason.DEADLINE


def test_blocks_that_cannot_be_loaded_are_computed(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf
) -> None:
    """If the device has no room for loaded blocks, they are computed; no unfilled block is found by its name."""
    engine = engine_of(redis_server)
    block_store = engine._parts.block_store
    assert block_store is not None
    copy_in = block_store.memory.copy_in

    def fails(*arguments: object) -> None:
        block_store.memory.copy_in = copy_in  # type: ignore[method-assign]
        raise RuntimeError("no room")

    block_store.memory.copy_in = fails  # type: ignore[method-assign]
    answer = answer_of(engine, PROMPT, **SEEDED)
    assert (answer.tokens(), cached(answer)) == (expected, 0)


def test_a_long_text_is_read_as_fast_as_it_is_loaded(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads wait for the engine, so that a text of any length takes little memory outside the cache."""
    monkeypatch.setattr("engines.paged.kv_store.block_store.READ_BYTES", 1)  # one block per read
    monkeypatch.setattr("engines.paged.kv_store.kv_transfer._MAX_AHEAD", 1)
    answer = answer_of(engine_of(redis_server), PROMPT, **SEEDED)
    assert (answer.tokens(), cached(answer)) == (expected, 192)


def test_a_cache_that_is_full_takes_what_it_can(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf
) -> None:
    """If other requests hold nearly the whole cache, blocks without room are computed later."""
    engine = engine_of(redis_server, num_blocks=20, max_context=240)
    others = [send(engine, [place, *range(60)], max_tokens=40) for place in range(3)]
    eventually(lambda: engine.stats()["num_requests_running"] >= 2 or all(each.done.is_set() for each in others))
    answer = answer_of(engine, PROMPT, **SEEDED)
    finish(*others)
    assert answer.tokens() == expected


@contextmanager
def slow_proxy(target: Path, bytes_per_second: float, directory: Path) -> Iterator[Path]:
    """A proxy in front of Redis that delays its replies."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "slow"))
    listener.listen()

    def pump(source: socket.socket, sink: socket.socket, pause: float) -> None:
        try:
            while data := source.recv(4096):
                sink.sendall(data)
                if pause:
                    sleep(len(data) * pause)
        except OSError:
            pass
        finally:
            sink.close()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(target))
            for source, sink, pause in ((client, server, 0.0), (server, client, 1 / bytes_per_second)):
                threading.Thread(target=pump, args=(source, sink, pause), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield directory / "slow"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_slow_redis_delays_a_request_up_to_its_deadline(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that arrive by the deadline are used; the rest is computed."""
    monkeypatch.setattr("engines.paged.kv_store.block_store.READ_BYTES", 1)  # one block per read
    with slow_proxy(redis_server.socket, 50_000, redis_server.socket.parent) as path:
        engine = engine_of(redis_server, kv_store=f"unix://{path}", kv_deadline=1.5)
        answer = answer_of(engine, PROMPT, **SEEDED)
        assert answer.tokens() == expected
        assert 0 < cached(answer) < 192
        assert engine.stats()["kv_store_given_up_total"] == 1


def test_what_comes_slowly_and_would_be_computed_more_slowly_is_waited_for(
    expected: list[int], redis_server: RedisServer, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline does not apply to requests for which computing would take longer than the read."""
    monkeypatch.setattr("engines.paged.kv_store.block_store.READ_BYTES", 1)  # one block per read
    with slow_proxy(redis_server.socket, 100_000, redis_server.socket.parent) as path:
        engine = engine_of(redis_server, kv_store=f"unix://{path}", kv_deadline=1.0)
        engine._pacing.row_seconds = 0.1
        answer = answer_of(engine, PROMPT, **SEEDED)
        assert (answer.tokens(), cached(answer)) == (expected, 192)
        assert engine.stats()["kv_store_given_up_total"] == 0


def test_a_step_that_fails_stores_nothing_wrong(
    redis_server: RedisServer, engine_of: EngineOf, expected: list[int]
) -> None:
    """Blocks that a failed step named but did not compute are neither stored nor found."""
    engine = engine_of(redis_server)
    runner = engine._parts.runner
    launch = runner.launch
    prompt = [3, *PROMPT]

    def fails(plan: object) -> None:
        runner.launch = launch  # type: ignore[method-assign]
        raise RuntimeError("the device is gone")

    runner.launch = fails  # type: ignore[method-assign,assignment]
    keys = redis_server.names()
    assert answer_of(engine, prompt, max_tokens=2).reason() is FinishReason.ERROR
    settle(engine)
    assert redis_server.names() == keys
    assert answer_of(engine, PROMPT, **SEEDED).tokens() == expected


def test_numbers_that_are_none_are_not_stored(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """NaN results of a broken model are not stored."""
    import torch

    engine: PagedEngine = engine_of(redis_server)
    layer = engine._parts.loaded.decoder.weights.layers[1]
    with torch.inference_mode():
        layer.input_norm.fill_(float("nan"))
    assert answer_of(engine, PROMPT, max_tokens=2).reason() is FinishReason.ERROR
    settle(engine)
    assert redis_server.names() == []
