"""Thousands of requests that arrive, end, are cancelled and preempt each other."""

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path

import psutil

from engines.paged.base.types import FinishReason
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import Answer, answer_of, finish, send
from tests.engines.paged.scheduling.invariants import check_scheduler

# POINTSMAN_LONG_RUN=10000 runs all 10,000; each thousand takes about half a minute.
NUM_REQUESTS = int(os.environ.get("POINTSMAN_LONG_RUN", "400"))
NUM_KINDS = 24
AT_ONCE = 40


def test_nothing_is_lost_or_changed(engine_of: Callable[..., PagedEngine], llama: Path) -> None:
    """Random requests with cancellations and preemptions run in a cache that is far too small: each request that
    completes has the text that it has alone, no block leaks, and memory does not grow."""
    dice = random.Random(7)
    kinds = []
    for number in range(NUM_KINDS):
        prompt = [dice.randrange(250) for _ in range(dice.choice((2, 20, 50)))]
        prompt = prompt if number % 3 else list(range(40)) + prompt
        fields = dice.choice(
            ({}, {"temperature": 1.0, "seed": number}, {"temperature": 0.8, "seed": number, "top_p": 0.8, "n": 2})
        )
        kinds.append((prompt, {"max_tokens": dice.randrange(1, 16), **fields}))
    quiet = engine_of(llama, prefix_cache=False)
    expected = []
    for prompt, fields in kinds:
        answer = answer_of(quiet, prompt, **fields)
        expected.append([answer.tokens(choice) for choice in range(int(fields.get("n", 1)))])
    engine = engine_of(
        llama, max_context=112, block_size=4, num_blocks=40, max_batch_tokens=48, max_sequences=12, run_ahead=True
    )
    waiting: list[tuple[int, Answer]] = []
    num_whole = num_cancelled = 0
    memory = 0
    for number in range(NUM_REQUESTS):
        kind = dice.randrange(NUM_KINDS)
        prompt, fields = kinds[kind]
        waiting.append((kind, send(engine, prompt, priority=dice.choice((0, 0, 1)), **fields)))
        if dice.random() < 0.15:
            engine.cancel(dice.choice(waiting)[1].request.id)
        if len(waiting) < AT_ONCE and number < NUM_REQUESTS - 1:
            continue
        finish(*(answer for _, answer in waiting))
        for each, answer in waiting:
            for choice, tokens in enumerate(expected[each]):
                if answer.reason(choice) is FinishReason.CANCELLED:
                    num_cancelled += 1
                    assert answer.tokens(choice) == tokens[: len(answer.tokens(choice))]
                else:
                    num_whole += 1
                    assert answer.tokens(choice) == tokens
        waiting.clear()
        assert engine.stats()["kv_cache_blocks_used"] == 0
        if number > NUM_REQUESTS // 3 and not memory:
            gc.collect()
            memory = psutil.Process().memory_info().rss
    gc.collect()
    assert psutil.Process().memory_info().rss - memory < 16 << 20
    assert num_whole > NUM_REQUESTS / 2 and num_cancelled > NUM_REQUESTS / 50
    assert engine.stats()["num_preemptions_total"] > NUM_REQUESTS / 50
    check_scheduler(engine._scheduler)
