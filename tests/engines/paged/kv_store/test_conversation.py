"""A conversation of ten turns on two servers, the first of which is killed after the fifth turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines.paged.front.llm_process import NAME, LLMProcess, tiny_folder
from tests.engines.state.redis_server import RedisServer
from tests.support.waiting import eventually

TURNS, KILLED_AFTER = 10, 5
ANSWER_TOKENS, BLOCK = 20, 16
MAX_CONTEXT = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@contextmanager
def server(folder: Path, directory: Path, *options: str) -> Iterator[LLMProcess]:
    process = LLMProcess.start(folder, directory, extra_args=["--max-context", str(MAX_CONTEXT), *options])
    try:
        yield process.wait_ready()
    finally:
        process.kill()


def stored(url: str) -> list[str]:
    return ["--kv-store", url, "--kv-fetch", "always", "--kv-deadline", "10s", "--kv-ttl", "1h"]


def question(turn: int) -> list[int]:
    """A turn's question: 21 to 30 tokens."""
    return [(turn * 31 + place * 7) % 250 for place in range(21 + turn)]


def answer(llm: LLMProcess, prompt: list[int], turn: int) -> list[int]:
    fields: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "temperature": 1.0, "seed": turn, "ignore_eos": True}
    results = llm.generate(input_ids=prompt, return_token_ids=True, sampling_parameters=json.dumps(fields))
    ids: list[int] = json.loads(results["token_ids"])
    assert len(ids) == ANSWER_TOKENS
    return ids


def prefilled(llm: LLMProcess, num_prompt_tokens: int) -> float:
    """The number of computed prompt tokens, read once this many prompt tokens are reported."""
    eventually(lambda: llm.metrics()["vllm:prompt_tokens_total"] == num_prompt_tokens)
    return llm.metrics()["pointsman_llm_prefill_tokens_total"]


def test_a_conversation_goes_on_elsewhere(folder: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    """The text is that of the undisturbed run, token by token, and the second server computes only the tokens that are
    missing from the store or new in a turn."""
    text: list[int] = []
    lengths, message = [], []
    with server(folder, tmp_path / "undisturbed") as llm:
        for turn in range(TURNS):
            text += question(turn)
            lengths.append(len(text))
            message.append(answer(llm, text, turn))
            text += message[-1]

    text = []
    with server(folder, tmp_path / "first", *stored(redis_server.url)) as first:
        for turn in range(KILLED_AFTER):
            text += question(turn)
            assert answer(first, text, turn) == message[turn]
            text += message[turn]
        first.kill()  # without a shutdown: pending writes are lost
    num_stored = len(redis_server.names("pointsman:1:kv:*"))
    assert num_stored > 0

    computed = 0
    with server(folder, tmp_path / "second", *stored(redis_server.url)) as second:
        # All known tokens are one text: each turn's prompt begins with the earlier prompts and replies.
        num_known = num_stored * BLOCK
        for turn in range(KILLED_AFTER, TURNS):
            text += question(turn)
            assert answer(second, text, turn) == message[turn]
            computed += len(text) - min(num_known, len(text) - 1) // BLOCK * BLOCK
            text += message[turn]
            num_known = len(text) - 1  # the last token was sampled and never read
        assert prefilled(second, sum(lengths[KILLED_AFTER:])) == computed
        metrics = second.metrics()
        assert metrics["vllm:external_prefix_cache_hits_total"] == num_stored * BLOCK
        assert metrics["pointsman_llm_kv_store_values_hits_total"] == num_stored
        log = second.log()
    assert re.search(r"kv store +unix://\S+: 12 KiB a block \(raw\), kept 1 h after its last use; waits 10 s", log), log


def test_a_client_sees_what_was_stored(folder: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    """OpenAI's usage counts tokens from the store as cached; a tenant's salt separates its blocks, which are sealed
    with a secret; no client sees the store's address."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    body = {"model": NAME, "messages": [{"role": "user", "content": "once " * 40}], "max_tokens": 3, "seed": 1}
    texts, cached = [], []
    for name in ("first", "second"):
        with server(folder, tmp_path / name, *stored(redis_server.url), "--kv-secret-file", str(secret)) as llm:
            for salt in ("mine", "yours")[: 1 + (name == "second")]:
                reply = llm.post("/v1/chat/completions", {**body, "cache_salt": salt})
                assert reply.status == 200, reply.body
                results = json.loads(reply.body)
                texts.append(results["choices"][0]["message"]["content"])
                cached.append(results["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0))
            config = llm.get(f"/v2/models/{NAME}/config").body.decode()
            assert "env:POINTSMAN_KV_STORE" in config and f'{redis_server.socket}"' not in config
            llm.stop()
            assert "after its last use, sealed; waits" in llm.log()
    assert cached[0] == 0 and cached[1] > 100 and cached[2] == 0
    assert texts[0] == texts[1]


def test_a_missing_redis_stops_no_request(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can name the store. The server starts and replies without a reachable Redis, but refuses an
    invalid address at startup."""
    monkeypatch.setenv("POINTSMAN_KV_STORE", f"unix://{tmp_path}/nobody")
    with server(folder, tmp_path / "away") as llm:
        assert f"kv store  unix://{tmp_path}/nobody: " in llm.log()
        assert len(answer(llm, question(1), 1)) == ANSWER_TOKENS
        llm.stop()
    process = LLMProcess.start(folder, tmp_path / "wrong", extra_args=["--kv-store", "http://me:word@host"])
    assert process.process.wait(120) == 1
    assert "a Redis URL begins with one of redis://" in process.log() and "word" not in process.log()
