"""A conversation outlives its engine: two gateways of two workers, two language-model engines, one Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.paged.front.llm_process import LLMProcess
from tests.support import plain_http
from tests.support.child import REPOSITORY
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

STORYTELLER = REPOSITORY / "engines" / "samples" / "models" / "storyteller" / "1"
MODEL = "storyteller"
TURNS = 10
KILLED_BEFORE = 5
BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def start_engine(folder: Path, redis: RedisServer) -> LLMProcess:
    stored = ["--kv-store", redis.url, "--kv-fetch", "always", "--kv-deadline", "20s", "--name", MODEL]
    return LLMProcess.start(STORYTELLER, folder, extra_args=["--memory-gb", "0.3", *stored])


@pytest.fixture(scope="module")
def engines(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LLMProcess]]:
    folder = tmp_path_factory.mktemp("engines")
    started = [start_engine(folder / str(number), redis) for number in range(2)]
    for engine in started:
        engine.wait_ready()
    yield started
    for engine in started:
        if engine.process.poll() is None:
            engine.stop()


@pytest.fixture(scope="module")
def gateways(
    redis: RedisServer, engines: list[LLMProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[GatewayProcess]]:
    folder = tmp_path_factory.mktemp("gateways")
    urls = ", ".join(f"'{engine.http_url}'" for engine in engines)
    rules = f"""\
version: 1
engines:
  llm: {{protocol: openai, endpoints: [{urls}], balance: session, health: {{interval: 200ms, timeout: 60s}}}}
identity: {{trust_header: true}}
routes:
  - {{name: chat, engine: llm, session: {{history: {{required: true, patience: 5s}}}}}}
"""
    started = [GatewayProcess.start(rules, folder / str(n), workers=2, redis=redis.url) for n in range(2)]
    yield [gateway.wait_ready() for gateway in started]
    for gateway in started:
        gateway.stop()


class Chat:
    """One conversation that sends only its new message, alternating between the gateways."""

    def __init__(self, name: str, gateways: list[GatewayProcess]) -> None:
        self.name = name
        self.gateways = gateways
        self.texts: list[str] = []
        self.usages: list[dict[str, Any]] = []

    def say(self, turn: int) -> None:
        requested = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Tell me about day {turn} of the fox."}],
            "seed": 100 + turn,
            "temperature": 0.8,
            "max_tokens": 24,
        }
        url = self.gateways[turn % len(self.gateways)].http_url
        # A connection per request, so that any worker may accept it.
        reply = plain_http.post(
            f"{url}/v1/chat/completions", json=requested, headers={"x-session-id": self.name}, timeout=120
        )
        assert reply.status_code == 200, reply.text
        report = reply.json()
        self.texts.append(report["choices"][0]["message"]["content"])
        self.usages.append(report["usage"])


def prefilled(engine: LLMProcess) -> float:
    return engine.metrics()["pointsman_llm_prefill_tokens_total"]


def test_a_chat_goes_on_where_another_engine_died(
    gateways: list[GatewayProcess], engines: list[LLMProcess], redis: RedisServer
) -> None:
    """One engine is killed in the middle of ten turns. The text equals that of an undisturbed chat, and the other
    engine computes only what the store does not hold."""
    chat = Chat("disturbed", gateways)
    for turn in range(KILLED_BEFORE):
        chat.say(turn)
    for engine in engines:
        eventually(engine.is_idle)
    served = [prefilled(engine) > 0 for engine in engines]
    assert sorted(served) == [False, True], "a session has one endpoint"
    other = engines[served.index(False)]
    engines[served.index(True)].kill()
    chat.say(KILLED_BEFORE)

    # Everything computed before is stored, except a block that is not full. When the text is tokenized again, the last
    # generated token may differ, and its block with it.
    reply, before = chat.usages[KILLED_BEFORE], chat.usages[KILLED_BEFORE - 1]
    cached = reply["prompt_tokens_details"]["cached_tokens"]
    assert cached >= before["total_tokens"] - 2 * BLOCK_TOKENS
    assert cached > reply["prompt_tokens"] / 2
    eventually(lambda: prefilled(other) == reply["prompt_tokens"] - cached)

    for turn in range(KILLED_BEFORE + 1, TURNS):
        chat.say(turn)
    redis.client.flushall()  # the other chat shares no prefix with this one
    undisturbed = Chat("undisturbed", gateways)
    for turn in range(TURNS):
        undisturbed.say(turn)
    assert chat.texts == undisturbed.texts
    assert len(set(chat.texts)) > 1
