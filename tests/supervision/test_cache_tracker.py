"""Prefix caches followed by events: the real paged engine publishes, the gateway's follower knows what is cached."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import zmq

from engines.core.errors import EngineError
from engines.paged.base.options import EngineOptions
from engines.paged.base.types import GenerateRequest, SamplingParams
from engines.paged.cache.block_pool import BlockPool
from engines.paged.cache.event_publisher import CacheEvents, EventPublisher
from engines.paged.engine import PagedEngine
from engines.paged.text.tokenizer import Tokenizer
from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec, KvEventsSpec, PrefixSpec
from gateway.protocol.kv_events import BlocksRemoved, BlocksStored, write_batch
from gateway.protocol.msgpack import packed
from gateway.supervision.cache_tracker import CacheFollower, Subscription, address_of
from gateway.upstream.cached_blocks import BlockChanges, CachedBlocks
from gateway.upstream.prefix_index import checksums_of
from gateway.upstream.tracked_prefix_index import SeenPrompt
from tests.engines.paged.front.llm_process import tiny_folder
from tests.support.ports import free_port
from tests.support.waiting import eventually

BLOCK_BYTES = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@contextmanager
def running(folder: Path, port: int, **options: Any) -> Iterator[PagedEngine]:
    """An engine with room for one context."""
    settings = {"threads": 1, "max_context": 192, "max_sequences": 1, "num_blocks": 24, "block_size": 8}
    settings |= {"dtype": "float32", "kv_events": f"tcp://127.0.0.1:{port}", **options}
    engine = PagedEngine.load(folder, EngineOptions(**settings))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def generate(engine: PagedEngine, ids: list[int]) -> None:
    done = threading.Event()
    request = GenerateRequest("1", tuple(ids), SamplingParams(max_tokens=1, ignore_eos=True))
    engine.submit(request, lambda output: done.set() if output.is_final else None)
    assert done.wait(120)


class Believed:
    """The byte blocks that are believed to be at each endpoint, as in a worker."""

    def __init__(self) -> None:
        self.cached: dict[str, set[int]] = {}
        self.num_cleared = 0

    def update(self, changes: Mapping[str, BlockChanges]) -> None:
        for url, change in changes.items():
            known = self.cached.setdefault(url, set())
            if change.is_cleared:
                known.clear()
                self.num_cleared += 1
            for checksum, is_cached in change.cached.items():
                (known.add if is_cached else known.discard)(checksum)

    def depth(self, url: str, body: bytes) -> int:
        checksums = checksums_of(body, BLOCK_BYTES, 1 << 16)
        return sum(checksum in self.cached.get(url, ()) for checksum in checksums)


@contextmanager
def following(folder: Path, *ports: int, replay: int | None = None) -> Iterator[tuple[CacheFollower, Believed]]:
    """A follower of endpoints with these ports of events; their URLs are http://PORT."""
    events = KvEventsSpec(str(folder), ports[0], replay)
    endpoints = tuple(EndpointSpec(f"http://{port}", kv_events=f"127.0.0.1:{port}") for port in ports)
    spec = EngineSpec("llm", endpoints, balance=Balance.PREFIX, prefix=PrefixSpec(BLOCK_BYTES, events=events))
    believed = Believed()
    follower = CacheFollower(spec, believed.update)
    follower.start()
    follower.use(endpoints)
    try:
        yield follower, believed
    finally:
        follower.close()
        follower.join(120)
        assert not follower.is_alive()


def chat(text: str) -> bytes:
    messages = [{"role": "system", "content": "You are a careful assistant."}, {"role": "user", "content": text}]
    return json.dumps({"messages": messages, "model": "tiny", "max_tokens": 1}).encode()


# Bodies of clients that are not followed; those behind them are.
STRANGE = [
    b"",
    b"[]",
    b'{"prompt": 7}',
    b'{"model": "tiny", "prompt": ""}',
    b'{"model": "tiny", "prompt": ["one", "two"]}',
    b'{"model": "tiny", "prompt": [99999999999999999999, -1]}',
    b'{"model": "tiny", "prompt": "' + rb"\ud800" * 20 + b'"}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}',
    b'{"model": "tiny", "messages": ' + b"[" * 100_000,
    json.dumps({"model": "tiny", "messages": 3, "system": []}).encode(),
]


def test_an_evicted_prompt_is_no_longer_believed_in(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The gateway's tokens of a chat and of a prompt are the engine's; what the engine evicts, the gateway forgets."""
    port, replay = free_port(), free_port()
    with running(folder, port, kv_events_replay=f"tcp://127.0.0.1:{replay}") as engine:
        text = "What does a router know of its engines?"
        tokens = engine.tokenizer
        body = chat(text)
        messages = json.loads(body)["messages"]
        generate(engine, tokens.encode(tokens.render_chat(messages), add_special_tokens=False))
        with following(folder, port, replay=replay) as (follower, believed):  # what was stored before is replayed
            url = f"http://{port}"
            follower.add_prompts([SeenPrompt(each, 0) for each in STRANGE] + [SeenPrompt(body, 0)])
            eventually(lambda: believed.depth(url, body) >= len(body) // BLOCK_BYTES - 1)
            prompt = json.dumps({"prompt": "Once there was \n a block \u00e9 of keys. " * 2, "model": "tiny"}).encode()
            follower.add_prompts([SeenPrompt(prompt, 0)])
            generate(engine, tokens.encode(json.loads(prompt)["prompt"]))
            eventually(lambda: believed.depth(url, prompt) >= len(prompt) // BLOCK_BYTES - 1)
            for number in range(4):  # longer than the cache
                generate(engine, tokens.encode(f"{number} " * 150)[:180])
            eventually(lambda: believed.depth(url, body) == 0 and believed.depth(url, prompt) == 0)
            counts = follower.counts
            assert counts.events > 0 and counts.blocks > 0 and counts.prompts >= 2 and counts.gaps == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_what_one_endpoint_sends_stops_no_other(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Messages of another form, and an endpoint whose address is none: the follower goes on, and the log is not
    flooded."""
    port = free_port()
    url = f"http://{port}"
    prompt = b'{"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9], "model": "tiny"}'
    good = write_batch(0.0, [BlocksStored([1], None, list(range(1, 9)), 8)])
    strange = [
        b"junk",
        packed([0.0, [{"type": ["BlockStored"]}]]),
        packed([0.0, [["BlockRemoved", [1], ["GPU"]]]]),
        packed([0.0, [["BlockStored", [1], None, [1], 1, None, "GPU", ["adapter"]]]]),
    ]
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.linger = 0
        publisher.bind(f"tcp://127.0.0.1:{port}")
        with following(folder, port) as (follower, believed):
            endpoints = EndpointSpec("http://b", kv_events="a b:5557"), EndpointSpec(url, kv_events=f"127.0.0.1:{port}")
            follower.use(endpoints)
            follower.add_prompts([SeenPrompt(prompt, 0)])
            assert publisher.poll(60_000) and publisher.recv() == b"\x01"
            publisher.send_multipart([b"", b"short", good])
            for number in range(100):
                publisher.send_multipart([b"", number.to_bytes(8, "big"), strange[number % 4]])
            publisher.send_multipart([b"", (100).to_bytes(8, "big"), good])
            eventually(lambda: believed.depth(url, prompt) > 0)
    assert "the KV events of http://b of engine 'llm' cannot be followed" in caplog.text
    assert 0 < caplog.text.count("cannot be read") < 10


def test_an_engine_that_starts_again_is_empty(folder: Path) -> None:
    """Its entries go when the connection is lost, and those of others stay."""
    port, other = free_port(), free_port()
    body = chat("Two engines have this, and one ends.")
    payload = stored_chat(folder, body)
    context: Any = zmq.Context()
    try:
        publishers = {each: context.socket(zmq.PUB) for each in (port, other)}
        for each, publisher in publishers.items():
            publisher.bind(f"tcp://127.0.0.1:{each}")
        with following(folder, port, other) as (follower, believed):
            follower.add_prompts([SeenPrompt(body, 0)])
            numbers = count()

            def both() -> bool:
                """A publisher drops what comes before its subscribers."""
                number = next(numbers).to_bytes(8, "big")
                for publisher in publishers.values():
                    publisher.send_multipart((b"", number, payload))
                return all(believed.depth(f"http://{each}", body) for each in (port, other))

            eventually(both)
            publishers[port].close(linger=0)
            eventually(lambda: believed.depth(f"http://{port}", body) == 0)
            assert believed.depth(f"http://{other}", body)
    finally:
        context.destroy(linger=0)


def test_what_came_by_a_lost_connection_is_not_believed() -> None:
    """The last batches and the loss of the connection are found together; the batches of the next connection count."""
    port = free_port()
    endpoint = EndpointSpec("http://a", kv_events=f"127.0.0.1:{port}")
    blocks = CachedBlocks(1000)
    with zmq.Context() as context:
        subscription = Subscription(context, endpoint, KvEventsSpec("", port, None), blocks)
        poller = zmq.Poller()
        for each in (subscription.socket, subscription.monitor):
            poller.register(each, zmq.POLLIN)

        @contextmanager
        def publishing(num_batches: int) -> Iterator[None]:
            """An engine that has published so many batches; it ends when all are sent."""
            with context.socket(zmq.XPUB) as publisher:
                publisher.linger = 60_000
                publisher.bind(f"tcp://127.0.0.1:{port}")
                assert publisher.poll(60_000) and publisher.recv() == b"\x01"
                subscription.read(dict(poller.poll(60_000)))  # it is connected
                for number in range(num_batches):
                    batch = write_batch(0.0, [BlocksStored([number + 1], None, [number, 2], 2)])
                    publisher.send_multipart([b"", number.to_bytes(8, "big"), batch])
                yield

        with publishing(200):
            pass
        eventually(lambda: len(poller.poll(0)) == 2)
        while ready := dict(poller.poll(0)):
            subscription.read(ready)
        assert len(blocks) == 0
        with publishing(1):
            eventually(lambda: subscription.read(dict(poller.poll(0))) or len(blocks) == 1)
        subscription.close()


def stored_chat(folder: Path, body: bytes) -> bytes:
    """A batch with the tokens of a chat, as vLLM stores them."""
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode(tokenizer.render_chat(json.loads(body)["messages"]), add_special_tokens=False)
    names = list(range(1, len(ids) // 16 + 1))
    return write_batch(1.0, [BlocksStored(names, None, ids[: 16 * len(names)], 16)])


def test_events_are_vllms() -> None:
    """Blocks are published once, with their tokens in a chain from nil, and removed when they are evicted."""
    batches: list[list[Any]] = []
    events = CacheEvents(2, lambda batch: batches.append(list(batch)))
    pool = BlockPool(3)
    pool.on_evicted = events.evicted
    sequence = Named([1, 2, 3, 4, 5])
    blocks = pool.allocate(2)
    for block, name in zip(blocks, sequence.names(2), strict=True):
        pool.name(block, name)
    events.named(sequence, 0, 1)
    events.named(sequence, 1, 2)
    events.named(sequence, 0, 2)
    events.flush()
    pool.free(blocks)
    pool.allocate(2)
    events.flush()
    events.flush()
    first, second = b"1,2", b"1,2,3,4"
    assert batches == [
        [
            BlocksStored([first], None, [1, 2], 2, None, "GPU", "sql"),
            BlocksStored([second], first, [3, 4], 2, None, "GPU", "sql"),
        ],
        [BlocksRemoved([second, first], "GPU")],
    ]


class Named:
    """A sequence whose blocks have readable names."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.request = type("Request", (), {"adapter": "sql"})

    def names(self, num_blocks: int) -> list[bytes]:
        return [",".join(map(str, self.tokens[: 2 * end])).encode() for end in range(1, num_blocks + 1)]


def test_an_address_that_is_taken_names_the_option() -> None:
    """The engine does not start, and says which option it is."""
    port = free_port()
    publisher = EventPublisher(f"tcp://127.0.0.1:{port}")
    try:
        with pytest.raises(EngineError, match=f"kv_events: tcp://127.0.0.1:{port} cannot be bound"):
            EventPublisher(f"tcp://127.0.0.1:{port}")
    finally:
        publisher.close()


ADDRESSES: list[tuple[EndpointSpec, tuple[str, int]]] = [
    (EndpointSpec("http://gpu1:8000"), ("gpu1", 5557)),
    (EndpointSpec("https://[::1]:8000"), ("[::1]", 5557)),
    (EndpointSpec("http://gpu1:8000", kv_events="other:1"), ("other", 1)),
]


@pytest.mark.parametrize(("endpoint", "address"), ADDRESSES)
def test_events_come_from_the_endpoints_host(endpoint: EndpointSpec, address: tuple[str, int]) -> None:
    """An endpoint's own address of events comes first."""
    assert address_of(endpoint, KvEventsSpec("model")) == address
