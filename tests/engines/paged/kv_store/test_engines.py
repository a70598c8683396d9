"""Engines that share stored blocks: one continues a text of another, with the same result, and computes only missing
tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import EngineError
from engines.paged.base.options import DETERMINISTIC_CHUNK, EngineOptions, Speculation
from engines.paged.base.types import FinishReason, GenerateRequest, SamplingParams
from engines.paged.engine import PagedEngine
from engines.paged.kv_store.block_store import BlockMemory
from engines.paged.kv_store.kv_transfer import KVTransfer
from engines.paged.scheduling.sequence import Sequence, SequenceStatus
from tests.engines.paged.engine.answers import Answer, answer_of, finish, send
from tests.engines.paged.front.llm_process import adapter_folder
from tests.engines.paged.kv_store.conftest import EngineOf
from tests.engines.state.redis_server import RedisServer
from tests.support.waiting import eventually

PROMPT = [(7 * place + place // 9) % 250 for place in range(200)]
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 24}
BLOCK = 16


def settle(engine: PagedEngine) -> None:
    """Wait until the engine has finished its writes to the store."""
    block_store = engine._parts.block_store
    assert block_store is not None and block_store.store.flush(10)


def cached(answer: Answer) -> int:
    return answer.outputs[-1].usage.cached


SETTINGS: list[dict[str, Any]] = [
    {},
    {"run_ahead": True},
    {"dtype": "bfloat16"},
    {"block_size": 8, "max_batch_tokens": 32},
    {"deterministic": True},
    {"speculation": Speculation("ngram", num_tokens=3, ngram_min=1)},
    {"speculation": "draft"},
    {"num_blocks": 34, "max_context": 256},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_a_second_engine_finds_what_the_first_has_computed(
    options: dict[str, Any], redis_server: RedisServer, engine_of: EngineOf, llama: Path
) -> None:
    """Prompt and reply of a text are not computed again, and the continuation equals the first engine's."""
    if options.get("speculation") == "draft":
        options = {**options, "speculation": Speculation("draft", num_tokens=3, draft=llama)}
    first = engine_of(redis_server, **options)
    message = answer_of(first, PROMPT, **SEEDED).tokens()
    follow_up = [*PROMPT, *message, 1, 2, 3]
    expected = answer_of(first, follow_up, **SEEDED)
    settle(first)
    second = engine_of(redis_server, **options)
    answer = answer_of(second, follow_up, **SEEDED)
    assert answer.tokens() == expected.tokens()
    granule = DETERMINISTIC_CHUNK if "deterministic" in options else options.get("block_size", BLOCK)
    assert cached(answer) == (len(follow_up) - 1) // granule * granule
    stats = second.stats()
    assert stats["kv_store_hits_total"] >= cached(answer)
    assert stats["prefill_tokens_total"] == len(follow_up) - cached(answer)


def test_a_store_changes_no_text(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """Sixteen concurrent requests, some with a common prefix or several choices, have the same texts without a store,
    with an empty one and with a full one."""
    prompts = [[place // 2, *PROMPT[: 30 + 11 * (place % 7)], place % 5] for place in range(16)]
    fields = [{**SEEDED, "seed": place, "n": 1 + (place % 5 == 0)} for place in range(16)]

    def texts(engine: PagedEngine) -> list[list[list[int]]]:
        answers = [send(engine, prompt, **each) for prompt, each in zip(prompts, fields, strict=True)]
        finish(*answers)
        return [[answer.tokens(choice) for choice in range(answer.request.params.n)] for answer in answers]

    expected = texts(engine_of())
    writer = engine_of(redis_server)
    assert texts(writer) == expected
    settle(writer)
    reader = engine_of(redis_server)
    assert texts(reader) == expected
    assert reader.stats()["kv_store_hits_total"] > 200
    assert texts(reader) == expected, "from its own cache"


def test_int8_changes_a_text_a_little(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """int8 blocks take little more than a fourth of float32's bytes; with these large weights the next token's log
    probabilities are off by tenths at most."""
    sizes, results = {}, {}
    for codec in ("raw", "int8"):
        writer = engine_of(redis_server, kv_codec=codec)
        answer_of(writer, PROMPT, max_tokens=1)
        settle(writer)
        sizes[codec] = writer.stats()["kv_store_values_bytes_out_total"]
        reader = engine_of(redis_server, kv_codec=codec)
        answer = answer_of(reader, PROMPT, max_tokens=1, logprobs=20)
        assert cached(answer) == 192, "those of another codec are not found"
        results[codec] = dict(answer.logprobs()[0].top)
    assert sizes["int8"] < 0.35 * sizes["raw"]
    both = results["raw"].keys() & results["int8"].keys()
    assert len(both) >= 18
    off = max(abs(results["raw"][token] - results["int8"][token]) for token in both)
    assert 0 < off < 0.5


@pytest.mark.parametrize("ahead", [False, True])
def test_a_device_that_copies_behind_loses_nothing(
    ahead: bool, redis_server: RedisServer, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, blocks are written once a later step was read, and the last ones when the engine is idle."""
    monkeypatch.setattr(BlockMemory, "is_asynchronous", True)
    engine = engine_of(redis_server, run_ahead=ahead)
    answer_of(engine, PROMPT, max_tokens=40)
    eventually(lambda: len(redis_server.names()) == (200 + 39) // BLOCK)
    transfer = engine._transfer
    assert isinstance(transfer, KVTransfer) and not transfer._copied and not transfer._filled


def test_a_prefetched_sequence_does_not_wait(redis_server: RedisServer, engine_of: EngineOf, llama: Path) -> None:
    """The look-up starts when a request arrives. If its result is known by the request's turn and empty, the request is
    admitted at once; otherwise it waits for the look-up."""
    settings = {"kv_store": redis_server.url, "kv_fetch": "always", "kv_deadline": 10.0, "threads": 1}
    engine = PagedEngine.load(llama, EngineOptions(max_context=256, dtype="float32", **settings))  # type: ignore[arg-type]
    transfer, scheduler = engine._transfer, engine._scheduler
    known, unknown = (
        Sequence(GenerateRequest(name, tuple(PROMPT), SamplingParams(), cache_salt=name), 0, 1, BLOCK) for name in "ab"
    )
    transfer.prefetch(known)
    assert known.prefetch.num_found.result(120) == 0
    scheduler.add(known)
    plan = scheduler.plan()
    assert plan is not None and [chunk.sequence for chunk in plan.chunks] == [known]
    scheduler.add(unknown)
    scheduler.plan()
    assert unknown.status is SequenceStatus.FETCHING
    scheduler.finish(known, FinishReason.CANCELLED)
    scheduler.finish(unknown, FinishReason.CANCELLED)
    engine.stop()


def test_requests_that_begin_alike_fetch_once(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """Concurrent requests with a common prefix wait for one fetch of it."""
    writer = engine_of(redis_server)
    answer_of(writer, PROMPT, max_tokens=1)
    settle(writer)
    reader = engine_of(redis_server)
    answers = [send(reader, [*PROMPT, place], max_tokens=2) for place in range(8)]
    finish(*answers)
    assert {cached(answer) for answer in answers} == {192}
    assert reader.stats()["kv_store_values_hits_total"] == 192 / BLOCK


def test_tenants_share_nothing(redis_server: RedisServer, engine_of: EngineOf, tmp_path: Path) -> None:
    """Another salt finds no blocks, nor does an engine without the secret; the right salt finds all."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    writer = engine_of(redis_server, kv_secret_file=secret)
    answer_of(writer, PROMPT, max_tokens=1, cache_salt="a")
    settle(writer)
    reader = engine_of(redis_server, kv_secret_file=secret)
    assert [cached(answer_of(reader, PROMPT, max_tokens=1, cache_salt=salt)) for salt in ("b", "", "a")] == [0, 0, 192]
    stranger = engine_of(redis_server)
    assert cached(answer_of(stranger, PROMPT, max_tokens=1, cache_salt="a")) == 0


def test_adapters_share_nothing(redis_server: RedisServer, engine_of: EngineOf, llama: Path, tmp_path: Path) -> None:
    """An adapter's blocks are not used for the base model, nor for another adapter of the same name."""
    folder = adapter_folder(llama, tmp_path / "sql")
    writer = engine_of(redis_server, adapters={"sql": folder})
    answer_of(writer, PROMPT, max_tokens=1, adapter="sql")
    settle(writer)
    reader = engine_of(redis_server, adapters={"sql": folder})
    assert [cached(answer_of(reader, PROMPT, max_tokens=1, adapter=name)) for name in (None, "sql")] == [0, 192]


def test_a_block_that_is_missing_ends_what_is_found(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """Blocks before a missing one are loaded; later ones are computed and stored again."""
    writer = engine_of(redis_server)
    expected = answer_of(writer, PROMPT, **SEEDED).tokens()
    settle(writer)
    block_store, keys = writer._parts.block_store, redis_server.names()
    assert block_store is not None
    request = GenerateRequest("x", tuple(PROMPT), SamplingParams())
    chain = Sequence(request, 0, 0, BLOCK).names(12)
    redis_server.client.delete(block_store._keys.of(request, chain[5]))
    reader = engine_of(redis_server)
    answer = answer_of(reader, PROMPT, **SEEDED)
    assert answer.tokens() == expected
    assert cached(answer) == 5 * BLOCK
    settle(reader)
    assert redis_server.names() == keys


def test_what_is_faster_computed_is_not_fetched(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """Once the costs of prefill and of a slow network are known, a short prompt is computed."""
    writer = engine_of(redis_server)
    answer_of(writer, PROMPT, max_tokens=1)
    settle(writer)
    reader = engine_of(redis_server, kv_fetch="auto")
    block_store = reader._parts.block_store
    assert block_store is not None
    reader._pacing.row_seconds = 1e-6
    block_store.cost.learn(0, 10.0)
    answer = answer_of(reader, PROMPT, max_tokens=1)
    assert cached(answer) == 0
    assert reader.stats()["kv_store_declined_total"] == 192
    settle(reader)  # its writes update the cost, too
    block_store.cost.round_trip_seconds = 0.0
    block_store.cost.seconds_per_byte = 0.0
    reader._pacing.row_seconds = 0.1  # longer than any round trip on a busy machine
    assert cached(answer_of(reader, [9, *PROMPT], max_tokens=1)) == 0, "another text"
    assert reader.stats()["kv_store_queries_total"] == 192


def test_store_problems_are_reported_at_the_start(llama: Path, tmp_path: Path) -> None:
    """The error names the option and its valid values."""
    for options, text in (
        ({"kv_store": "redis://"}, "names no host"),
        ({"kv_store": "redis://localhost", "prefix_cache": False}, "leave prefix_cache on"),
        ({"kv_store": "redis://localhost", "kv_secret_file": tmp_path / "none"}, "cannot be read"),
    ):
        with pytest.raises(EngineError, match=text):
            PagedEngine.load(llama, EngineOptions(threads=1, max_context=64, **options))  # type: ignore[arg-type]
