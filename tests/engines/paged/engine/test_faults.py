"""If the model or the device fails, requests fail with the reason, and the engine keeps serving."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engines.paged.base.types import FinishReason
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import answer_of, finish, send

PROMPT = list(range(40))


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 1}, {"logprobs": 2}, {"beam_width": 2}], ids=str)
def test_nan_scores_fail_their_request(
    fields: dict[str, object], engine_of: Callable[..., PagedEngine], llama: Path
) -> None:
    """A NaN in the logits fails the request with an error message, and none of its blocks stay in the cache."""
    engine = engine_of(llama)
    before = answer_of(engine, PROMPT, max_tokens=8).tokens()
    norm = engine._parts.loaded.decoder.weights.norm
    kept = norm.clone()
    with torch.inference_mode():
        norm.fill_(float("nan"))
    broken = answer_of(engine, [*PROMPT, 5], max_tokens=8, **fields)
    assert broken.reason() is FinishReason.ERROR
    assert "not numbers (NaN)" in broken.error and "dtype bfloat16" in broken.error
    with torch.inference_mode():
        norm.copy_(kept)
    again = answer_of(engine, PROMPT, max_tokens=8)
    assert again.tokens() == before and again.outputs[-1].usage.cached == 0


def test_a_step_that_fails_ends_those_in_it(engine_of: Callable[..., PagedEngine], llama: Path) -> None:
    """Every request of a failed step fails with the reason; the next request succeeds."""
    engine = engine_of(llama)
    before = answer_of(engine, PROMPT, max_tokens=8).tokens()
    runner = engine._parts.runner
    launch = runner.launch

    def fails(plan: object) -> None:
        runner.launch = launch  # type: ignore[method-assign]
        raise RuntimeError("the device is gone")

    runner.launch = fails  # type: ignore[method-assign,assignment]
    answers = [send(engine, PROMPT, max_tokens=8) for _ in range(3)]
    finish(*answers)
    results = [answer for answer in answers if answer.reason() is FinishReason.ERROR]
    assert results and all(answer.error == "the engine failed: RuntimeError: the device is gone" for answer in results)
    assert answer_of(engine, PROMPT, max_tokens=8).tokens() == before
    assert engine.stats()["requests_failed_total"] == len(results)
