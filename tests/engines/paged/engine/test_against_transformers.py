"""The engine against transformers, on tiny random models of every family."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from engines.paged.base.types import FinishReason
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import answer_of, finish, send
from tests.engines.paged.support.tiny_models import FAMILIES, tiny_model, transformers_model

NUM_TOKENS = 200
CASES: dict[str, dict[str, Any]] = {
    **{family: {} for family in FAMILIES},
    "mistral windowed": {"sliding_window": 24},
}
PROMPTS = [[(i * 37 + j * 11) % 250 for j in range(1 + 7 * i)] for i in range(16)]


@cache
def model_of(case: str) -> Any:
    return transformers_model(tiny_model(case.split()[0], **CASES[case]))


def greedy(model: Any, prompt: list[int], num_tokens: int, **options: Any) -> list[int]:
    import torch

    with torch.inference_mode():
        ids = torch.tensor([prompt])
        results = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            **options,
        )
    return list(results[0, len(prompt) :].tolist())


@pytest.mark.parametrize("case", CASES)
def test_greedy_text_is_transformers_own(case: str, engine_of: Callable[..., PagedEngine]) -> None:
    """200 greedy tokens are those of transformers, alone and beside fifteen requests of other lengths."""
    engine = engine_of(tiny_model(case.split()[0], **CASES[case]), max_context=512, max_batch_tokens=64)
    expected = greedy(model_of(case), PROMPTS[3], NUM_TOKENS)
    assert answer_of(engine, PROMPTS[3], max_tokens=NUM_TOKENS).tokens() == expected
    answers = [send(engine, prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]
    finish(*answers)
    assert answers[3].tokens() == expected
    for index in (0, 15):
        assert answers[index].tokens()[:40] == greedy(model_of(case), PROMPTS[index], 40)


def test_log_probabilities_are_transformers_own(engine_of: Callable[..., PagedEngine]) -> None:
    """The log probabilities of tokens, of their alternatives and of the prompt are those of transformers."""
    import torch

    engine = engine_of(tiny_model("qwen3"), max_batch_tokens=16)
    prompt = PROMPTS[6]
    answer = answer_of(engine, prompt, max_tokens=12, logprobs=4, prompt_logprobs=2)
    tokens = prompt + answer.tokens()
    with torch.inference_mode():
        logprobs = model_of("qwen3")(torch.tensor([tokens])).logits[0].log_softmax(-1)
    for place, results in enumerate(answer.logprobs()):
        row = logprobs[len(prompt) + place - 1]
        assert results.token_id == answer.tokens()[place]
        assert results.logprob == pytest.approx(row[results.token_id].item(), abs=1e-4)
        values, ids = row.topk(4)
        assert [token for token, _ in results.top] == ids.tolist()
        assert [value for _, value in results.top] == pytest.approx(values.tolist(), abs=1e-4)
    assert answer.outputs[-1].cumulative_logprob == pytest.approx(sum(t.logprob for t in answer.logprobs()), abs=1e-5)
    scores = answer.outputs[0].prompt_logprobs
    assert scores[0] is None and len(scores) == len(prompt)
    for place, score in enumerate(scores[1:], 1):
        assert score is not None and score.token_id == prompt[place] and len(score.top) == 2
        assert score.logprob == pytest.approx(logprobs[place - 1][prompt[place]].item(), abs=1e-4)


@pytest.mark.parametrize("width, penalty, early", [(2, 1.0, False), (4, 1.0, True), (5, 0.3, False)])
def test_beams_are_transformers_own(
    width: int, penalty: float, early: bool, engine_of: Callable[..., PagedEngine]
) -> None:
    """The best reply of a beam search over 20 tokens is that of transformers, alone and beside other requests."""
    engine = engine_of(tiny_model("llama"), max_batch_tokens=48)
    prompts = PROMPTS[2:5]
    expected = [
        greedy(model_of("llama"), prompt, 20, num_beams=width, length_penalty=penalty, early_stopping=early)
        for prompt in prompts
    ]
    fields = {"beam_width": width, "length_penalty": penalty, "early_stopping": early, "max_tokens": 20}
    assert answer_of(engine, prompts[0], **fields).tokens() == expected[0]
    answers = [send(engine, prompt, **fields) for prompt in prompts]
    others = [send(engine, prompt, max_tokens=30) for prompt in PROMPTS[:6]]
    finish(*answers, *others)
    assert [answer.tokens() for answer in answers] == expected
    assert all(answer.reason() is FinishReason.LENGTH for answer in answers)


def test_beams_that_compete_for_seats_all_end(engine_of: Callable[..., PagedEngine]) -> None:
    """Three searches with four beams each, in six seats and a small cache, have the replies that they have alone."""
    engine = engine_of(tiny_model("llama"), max_sequences=6, num_blocks=30)
    alone = [answer_of(engine, prompt, beam_width=4, max_tokens=15).tokens() for prompt in PROMPTS[2:5]]
    answers = [send(engine, prompt, beam_width=4, max_tokens=15) for prompt in PROMPTS[2:5]]
    finish(*answers)
    assert [answer.tokens() for answer in answers] == alone


def test_beams_that_do_not_fit_together_all_end(engine_of: Callable[..., PagedEngine]) -> None:
    """A search completes even if the cache holds one beam at a time: each beam offers its candidates and then yields
    its blocks."""
    for width in (2, 4):
        fields = {"beam_width": width, "max_tokens": 40}
        wide = engine_of(tiny_model("llama"), max_context=64)
        tight = engine_of(tiny_model("llama"), max_context=64, block_size=4, num_blocks=16, prefix_cache=False)
        assert answer_of(tight, range(20), **fields).tokens() == answer_of(wide, range(20), **fields).tokens()


def test_beams_of_which_few_can_go_on(engine_of: Callable[..., PagedEngine]) -> None:
    """A search completes even if most candidate tokens end a hypothesis, which leaves fewer beams for a while."""
    engine = engine_of(tiny_model("llama"))
    fields = {"beam_width": 4, "n": 2, "max_tokens": 12, "stop_token_ids": tuple(range(0, 320, 2))}
    for prompt in PROMPTS[:6]:
        answer = answer_of(engine, prompt, **fields)
        assert answer.reason(0) is answer.reason(1) is FinishReason.STOP
