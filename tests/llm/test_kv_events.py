"""`prefix.events` in a gateway: all workers send a prompt where the engine's events say that it is cached."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import zmq

from engines.paged.text.tokenizer import Tokenizer
from gateway.protocol.kv_events import BlocksRemoved, BlocksStored, KvEvent, write_batch
from tests.engines.paged.front.llm_process import tiny_folder
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_for
from tests.support.ports import free_port
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send


def test_workers_follow_the_engines_events(
    canned: CannedLLM, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """A prompt goes to the endpoint that has stored its tokens, by whichever worker, and elsewhere once it has evicted
    them and the other endpoint has them."""
    folder = tiny_folder(tmp_path)
    port = canned.http_port
    names = ["127.0.0.1", "localhost"]
    ports = {name: free_port() for name in names}
    endpoints = [{"url": f"http://{name}:{port}", "kv_events": f"127.0.0.1:{ports[name]}"} for name in names]
    prefix = {"block_bytes": 64, "events": {"tokenizer": str(folder)}}
    engine = {"endpoints": endpoints, "balance": "prefix", "prefix": prefix}
    gateway = start_gateway(rules_for(engine=engine), workers=2)
    prompt = "All routers of this house know the same beginning of a long prompt, word by word. " * 4
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1}).encode()

    def endpoint() -> str:
        """Where a request of a new connection goes."""
        fields = {"content-type": "application/json", "x-pointsman-timing": "1"}
        reply = send(gateway.http_port, "POST", "/v1/completions", body, fields)
        assert reply.status == 200, reply.body
        timing = reply.headers["server-timing"]
        return next(name for name in names if f"//{name}:" in timing)

    ids = Tokenizer.load(folder).encode(prompt)
    hashes = list(range(len(ids) // 16))
    stored = BlocksStored(hashes, None, ids[: 16 * len(hashes)], 16)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        publishers = {name: context.socket(zmq.PUB) for name in names}
        for name, publisher in publishers.items():
            publisher.bind(f"tcp://127.0.0.1:{ports[name]}")
        first = endpoint()
        second = next(name for name in names if name != first)
        numbers = count()

        def moved_to(there: str, elsewhere: str) -> bool:
            """One has the prompt and the other has evicted it: some requests in a row, of both workers."""
            events: dict[str, KvEvent] = {there: stored, elsewhere: BlocksRemoved(hashes)}
            number = next(numbers).to_bytes(8, "big")
            for name, event in events.items():
                batch = write_batch(0.0, [stored, event])  # what is removed was stored
                publishers[name].send_multipart((b"", number, batch))
            return all(endpoint() == there for _ in range(8))

        eventually(lambda: moved_to(second, first), 60)
        eventually(lambda: moved_to(first, second), 60)
    finally:
        context.destroy(linger=0)
