"""Many requests that arrive, end and preempt each other while Redis is killed, frozen, emptied and corrupted."""

from __future__ import annotations

import random

from engines.paged.base.types import FinishReason
from tests.engines.paged.engine.answers import Answer, answer_of, finish, send
from tests.engines.paged.kv_store.conftest import EngineOf
from tests.engines.paged.kv_store.test_faults import cut, emptied, flip
from tests.engines.state.redis_server import RedisServer

NUM_REQUESTS = 240
NUM_KINDS = 16
AT_ONCE = 20


def test_nothing_is_lost_or_changed(redis_server: RedisServer, engine_of: EngineOf) -> None:
    """Each request that completes has the text that it has alone, on either of two engines, and no block leaks."""
    dice = random.Random(11)
    kinds = []
    for number in range(NUM_KINDS):
        prompt = [number % 3, *range(dice.choice((20, 40, 90))), *(dice.randrange(250) for _ in range(12))]
        fields = dice.choice(({}, {"temperature": 1.0, "seed": number}, {"temperature": 0.9, "seed": number, "n": 2}))
        kinds.append((prompt, {"max_tokens": dice.randrange(1, 24), **fields}))
    quiet = engine_of(prefix_cache=False)
    expected = []
    for prompt, fields in kinds:
        answer = answer_of(quiet, prompt, **fields)
        expected.append([answer.tokens(choice) for choice in range(int(fields.get("n", 1)))])
    settings = {"max_context": 160, "block_size": 8, "max_batch_tokens": 64, "max_sequences": 12, "kv_deadline": 0.8}
    engines = [
        engine_of(redis_server, num_blocks=30, **settings),
        engine_of(redis_server, num_blocks=30, run_ahead=True, **settings),
    ]
    changes = [flip, cut, emptied, RedisServer.freeze, RedisServer.thaw, RedisServer.kill, RedisServer.start]
    state = "up"
    waiting: list[tuple[int, Answer]] = []
    num_whole = 0
    for number in range(NUM_REQUESTS):
        kind = dice.randrange(NUM_KINDS)
        prompt, fields = kinds[kind]
        engine = engines[number % 2]
        waiting.append((kind, send(engine, prompt, priority=dice.choice((0, 0, 1)), **fields)))
        if dice.random() < 0.1:
            engine.cancel(dice.choice(waiting)[1].request.id)
        if dice.random() < 0.15:
            change = dice.choice(changes)
            if change is RedisServer.thaw and state == "frozen":
                redis_server.thaw()
                state = "up"
            elif change is RedisServer.start and state == "gone":
                redis_server.start()
                state = "up"
            elif state == "up" and change not in (RedisServer.thaw, RedisServer.start):
                change(redis_server)
                state = {RedisServer.freeze: "frozen", RedisServer.kill: "gone"}.get(change, "up")
        if len(waiting) < AT_ONCE and number < NUM_REQUESTS - 1:
            continue
        finish(*(answer for _, answer in waiting))
        for each, answer in waiting:
            for choice, tokens in enumerate(expected[each]):
                if answer.reason(choice) is FinishReason.CANCELLED:
                    assert answer.tokens(choice) == tokens[: len(answer.tokens(choice))]
                else:
                    num_whole += 1
                    assert answer.tokens(choice) == tokens and not answer.error
        waiting.clear()
        assert all(each.stats()["kv_cache_blocks_used"] == 0 for each in engines)
    assert num_whole > NUM_REQUESTS / 2
    stats = [engine.stats() for engine in engines]
    assert all(each["kv_store_hits_total"] > 0 and each["num_preemptions_total"] > 0 for each in stats)
    assert sum(each["kv_store_values_failures_total"] for each in stats) > 0
    assert sum(each["kv_store_values_corrupt_total"] for each in stats) > 0
