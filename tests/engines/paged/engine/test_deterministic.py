"""--deterministic: results do not depend on other requests, to the last bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.paged.base.types import FinishReason
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import Answer, answer_of, finish, send
from tests.engines.paged.support.tiny_models import tiny_model

PROMPTS = [[(i * 37 + j * 11) % 250 for j in range(length)] for i, length in enumerate((3, 64, 65, 100, 130, 17, 128))]


def results(answer: Answer) -> list[tuple[int, float]]:
    return [(each.token_id, each.logprob) for each in answer.logprobs()]


@pytest.mark.parametrize("family, dtype", [("llama", "float32"), ("llama", "bfloat16"), ("qwen3_moe", "bfloat16")])
def test_log_probabilities_are_the_same_to_the_bit(
    family: str, dtype: str, engine_of: Callable[..., PagedEngine]
) -> None:
    """Log probabilities are the same alone, from the cache, beside others, in another order and with preemptions."""
    folder: Path = tiny_model(family)
    engine = engine_of(folder, deterministic=True, dtype=dtype)
    fields = {"max_tokens": 44, "logprobs": 0}
    alone = [results(answer_of(engine, prompt, **fields)) for prompt in PROMPTS]
    from_cache = [results(answer_of(engine, prompt, **fields)) for prompt in PROMPTS]
    assert from_cache == alone
    for options in (
        {},
        {"block_size": 4, "num_blocks": 49, "max_batch_tokens": 64},
        {"prefix_cache": False, "max_batch_tokens": 100},
    ):
        crowd = engine_of(folder, deterministic=True, dtype=dtype, **options)
        answers = [send(crowd, prompt, **fields) for prompt in reversed(PROMPTS)]
        finish(*answers)
        assert all(answer.reason() is FinishReason.LENGTH for answer in answers)
        assert [results(answer) for answer in reversed(answers)] == alone
        if "num_blocks" in options:
            assert crowd.stats()["num_preemptions_total"] > 0
