"""A run of the benchmark of prefix routing: engines with small caches, one gateway for each policy, conversations."""

import json
import random
import re
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.progress import Progress

from bench.llm_model import SHAPES, Words, model_folder
from bench.processes import BenchError, free_port
from bench.programs import Running, Site, start_pointsman, wait_until

POLICIES = ("power_of_two", "session", "prefix", "prefix, events")
CONVERSATIONS_OF_A_DOCUMENT = 4
DOCUMENT_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 480, 64, 16
CONTEXT_TOKENS = 2048
START_SECONDS = 240.0
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Setup:
    engines: int
    conversations: int
    turns: int
    blocks: int
    clients: int
    workers: int
    rounds: int


@dataclass(slots=True)
class Measured:
    """By policy: the hit rate of each round, and the seconds of each request."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in POLICIES})
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in POLICIES})
    most: float = 0.0  # the share of tokens that an earlier request has sent or received

    def rate(self, policy: str) -> float:
        return statistics.median(self.rates[policy])

    def latency(self, policy: str, share: float) -> float:
        ordered = sorted(self.seconds[policy])
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Server:
    http: int
    metrics: int
    events: int

    def counts(self) -> tuple[float, float]:
        """Prompt tokens looked up in the cache, and found there."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics").text
        return _value(text, "vllm:prefix_cache_queries_total"), _value(text, "vllm:prefix_cache_hits_total")


def _value(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def carry_out(setup: Setup, site: Site, progress: Progress) -> Measured:
    """Raises: BenchError."""
    model = model_folder(SHAPES[MODEL], "float32")
    task = progress.add_task("engines", total=setup.rounds * len(POLICIES))
    servers = [start_engine(site, f"engine-{number}", model, setup) for number in range(setup.engines)]
    measured = Measured()
    for number in range(setup.rounds):
        for policy in POLICIES:
            progress.update(task, description=f"round {number + 1}: {policy}")
            gateway = start_gateway(site, policy, servers, model, setup)
            before = [server.counts() for server in servers]
            seconds, most = converse(setup, gateway.ports["http"], (number, POLICIES.index(policy)))
            time.sleep(1.0)  # the engines' metrics are of four times a second
            after = [server.counts() for server in servers]
            site.children.stop(gateway.process)
            queries, hits = (sum(b[at] - a[at] for a, b in zip(before, after, strict=True)) for at in (0, 1))
            measured.rates[policy].append(hits / queries)
            measured.seconds[policy] += seconds
            measured.most = most
            progress.advance(task)
    return measured


def start_engine(site: Site, name: str, model: Path, setup: Setup) -> Server:
    folder = site.folder / name / MODEL
    (folder / "1").mkdir(parents=True)
    events = two_ports()
    parameters = {
        "MODEL": model,
        "DEVICE": "cpu",
        "DTYPE": "float32",
        "THREADS": 1,
        "NUM_BLOCKS": setup.blocks,
        "MAX_CONTEXT": CONTEXT_TOKENS,
        "MAX_SEQUENCES": 16,
        "KV_EVENTS": f"tcp://127.0.0.1:{events}",
        "KV_EVENTS_REPLAY": f"tcp://127.0.0.1:{events + 1}",
    }
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    config = f'name: "{MODEL}"\nbackend: "paged"\ninstance_group {{ count: 1 kind: KIND_MODEL }}\n'
    (folder / "config.pbtxt").write_text(config + "\n".join(lines) + "\n")
    ready = site.folder / f"{name}-ready.json"
    argv: list[Any] = [sys.executable, "-m", "engines", "host", "--model-repository", folder.parent]
    argv += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--ready-file", ready]
    process = site.children.spawn(name, argv)
    wait_until(lambda: ready.exists() and ready.stat().st_size > 0, site, process, name, START_SECONDS)
    ports = json.loads(ready.read_text())
    return Server(ports["http"], ports["metrics"], events)


def two_ports() -> int:
    """A free port before another one."""
    while True:
        port = free_port()
        with socket.socket() as second:
            if second.connect_ex(("127.0.0.1", port + 1)):
                return port


def start_gateway(site: Site, policy: str, servers: list[Server], model: Path, setup: Setup) -> Running:
    balance, _, events = policy.partition(", ")
    engine: dict[str, Any] = {"protocol": "openai", "balance": balance}
    engine["endpoints"] = [{"url": f"http://127.0.0.1:{server.http}"} for server in servers]
    if events:
        engine["prefix"] = {"events": {"tokenizer": str(model), "port": 5557, "replay_port": 5558}}
        for endpoint, server in zip(engine["endpoints"], servers, strict=True):
            endpoint["kv_events"] = f"127.0.0.1:{server.events}"
    rules = {
        "version": 1,
        "identity": {"session_header": "x-session"},
        "engines": {"llm": engine},
        "routes": [{"name": "all", "engine": "llm"}],
    }
    options = ["--workers", str(setup.workers), "--redis", "off"]
    return start_pointsman(site, json.dumps(rules), dict, policy.replace(", ", "-"), options)


def converse(setup: Setup, port: int, seed: tuple[int, int]) -> tuple[list[float], float]:
    """Carry out all turns of all conversations, each behind the one before; the seconds of each, and the share of
    their tokens that were there before."""
    words = Words(SHAPES[MODEL].vocabulary)
    salt = (*seed, time.time_ns() & 0xFFFFFFFF)
    order = random.Random(str(seed))
    texts: dict[int, str] = {}
    for number in range(setup.conversations):
        document = words.prompt(DOCUMENT_TOKENS, (1, *salt, number // CONVERSATIONS_OF_A_DOCUMENT))
        texts[number] = words.text(document)
    seconds: list[float] = []

    def turn(number: int, index: int) -> None:
        texts[number] += words.text(words.prompt(TURN_TOKENS, (2, *salt, number, index)))
        body = {"model": MODEL, "prompt": texts[number], "max_tokens": ANSWER_TOKENS, "temperature": 0}
        began = time.perf_counter()
        url = f"http://127.0.0.1:{port}/v1/completions"  # a new connection: any worker may take it
        reply = httpx.post(url, json=body, headers={"x-session": f"{salt}-{number}"}, timeout=300.0)
        if reply.status_code != 200:
            raise BenchError(f"a turn was answered with {reply.status_code}: {reply.text[:200]}")
        seconds.append(time.perf_counter() - began)
        texts[number] += reply.json()["choices"][0]["text"]

    with ThreadPoolExecutor(setup.clients) as clients:
        for index in range(setup.turns):
            numbers = list(texts)
            order.shuffle(numbers)
            for done in [clients.submit(turn, number, index) for number in numbers]:
                done.result()
    grown = TURN_TOKENS + ANSWER_TOKENS
    total = sum(setup.conversations * (DOCUMENT_TOKENS + TURN_TOKENS + index * grown) for index in range(setup.turns))
    documents = -(-setup.conversations // CONVERSATIONS_OF_A_DOCUMENT)
    new = documents * DOCUMENT_TOKENS + setup.conversations * TURN_TOKENS * setup.turns
    return seconds, 1 - new / total
