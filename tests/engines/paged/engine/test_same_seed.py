"""A seed determines the text, regardless of other requests, prompt chunks, caching, speculation and preemption."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.paged.base.options import Speculation
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import answer_of, finish, send
from tests.engines.paged.support.tiny_models import tiny_model

PROMPTS = [[(7 * i * j + i) % 200 for j in range(1, 3 + 5 * i)] for i in range(1, 9)]
FIELDS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.7, "seed": 2**63 + 5, "top_k": 40},
    {"temperature": 1.3, "seed": 12, "top_p": 0.9},
    {"temperature": 1.0, "seed": 13, "min_p": 0.02, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 14, "logit_bias": {3: 2.0, 9: -50.0}},
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 15, "n": 3},
]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def alone(engine_of: Callable[..., PagedEngine], llama: Path) -> list[list[list[int]]]:
    """The reply to each request when it runs alone."""
    engine = engine_of(llama, prefix_cache=False)
    answers = [
        answer_of(engine, prompt, max_tokens=NUM_TOKENS, **fields)
        for prompt, fields in zip(PROMPTS, FIELDS, strict=True)
    ]
    return [[each.tokens(choice) for choice in range(each.request.params.n)] for each in answers]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_sequences": 3},
        {"max_batch_tokens": 16},
        {"max_batch_tokens": 16, "block_size": 8},
        {"run_ahead": True},
        {"run_ahead": True, "max_batch_tokens": 32},
        {"num_blocks": 14},
        {"num_blocks": 14, "run_ahead": True},
        {"speculation": Speculation("ngram", num_tokens=3, ngram_min=1)},
        {"speculation": Speculation("ngram", num_tokens=3, ngram_min=1), "num_blocks": 14, "run_ahead": True},
        {"speculation": Speculation("draft", num_tokens=3)},
        {"speculation": Speculation("draft", num_tokens=3), "run_ahead": True, "max_batch_tokens": 24},
        {"deterministic": True},
    ],
    ids=str,
)
def test_together_as_alone(
    options: dict[str, Any], alone: list[list[list[int]]], engine_of: Callable[..., PagedEngine], llama: Path
) -> None:
    """Eight concurrent requests, sent twice (the second time with a warm cache), have the replies that they have
    alone."""
    speculation = options.get("speculation")
    if speculation is not None and speculation.method == "draft":
        options = {**options, "speculation": replace(speculation, draft=llama)}
    engine = engine_of(llama, **options)
    for _ in range(2):
        answers = [
            send(engine, prompt, max_tokens=NUM_TOKENS, **fields)
            for prompt, fields in zip(PROMPTS, FIELDS, strict=True)
        ]
        finish(*answers)
        for answer, texts in zip(answers, alone, strict=True):
            assert [answer.tokens(choice) for choice in range(answer.request.params.n)] == texts
    stats = engine.stats()
    assert stats["kv_cache_blocks_used"] == 0
    if "num_blocks" in options:
        assert stats["num_preemptions_total"] > 0
    if speculation is not None:
        assert stats["spec_decode_num_accepted_tokens_total"] > 0


def test_a_draft_model_of_shorter_texts_guesses_on(engine_of: Callable[..., PagedEngine], llama: Path) -> None:
    """Beyond the draft model's maximum positions its drafts may be poor, but the text is the same."""
    short = tiny_model("llama", max_position_embeddings=32)
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 40}
    alone = answer_of(engine_of(llama), PROMPTS[3], **fields).tokens()
    engine = engine_of(llama, speculation=Speculation("draft", draft=short))
    assert answer_of(engine, PROMPTS[3], **fields).tokens() == alone


def test_another_seed_is_another_text(engine_of: Callable[..., PagedEngine], llama: Path) -> None:
    """Different seeds yield different texts, as do requests without a seed and the choices of one request."""
    engine = engine_of(llama)
    results = [
        answer_of(engine, PROMPTS[3], temperature=1.0, max_tokens=20, seed=seed).tokens() for seed in (1, 2, None, None)
    ]
    assert len({tuple(each) for each in results}) == 4
    several = answer_of(engine, PROMPTS[3], temperature=1.0, max_tokens=20, seed=1, n=3)
    assert several.tokens(0) == results[0]
    assert len({tuple(several.tokens(choice)) for choice in range(3)}) == 3
