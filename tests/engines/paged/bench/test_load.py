"""The load generator, with fake engines that return fixed token counts."""

import pytest

from engines.core.errors import EngineError
from engines.paged.base.types import FinishReason, GenerateRequest, Listener, Output
from engines.paged.bench.load import BenchLoad, run_round

LOAD = BenchLoad(prompt_tokens=5, output_tokens=3, vocabulary=50)


class Answering:
    """Replies immediately, with these token counts in its outputs."""

    def __init__(self, *pieces: int, error: str = "") -> None:
        self.pieces = pieces
        self.error = error
        self.requested: list[GenerateRequest] = []

    def submit(self, request: GenerateRequest, listener: Listener) -> None:
        self.requested.append(request)
        for number, piece in enumerate(self.pieces):
            is_last = number == len(self.pieces) - 1
            error = self.error if is_last else ""
            reason = FinishReason.LENGTH if is_last else None
            listener(Output(0, token_ids=(7,) * piece, finish_reason=reason, is_final=is_last, error=error))


def test_a_round_has_every_tokens_time() -> None:
    """A round records a time for every token; tokens of one output share a time, which is never before the request."""
    engine = Answering(1, 2)
    measured = run_round(engine, LOAD, 4, 0)
    assert (measured.batch, len(measured.requests)) == (4, 4)
    for received in measured.requests:
        assert len(received.token_times) == 3
        assert received.submitted <= received.token_times[0] <= received.token_times[1] == received.token_times[2]


def test_requests_are_greedy_and_of_one_length() -> None:
    """Each request has its own random prompt of valid tokens, decodes greedily and ignores the end of text."""
    engine = Answering(3)
    run_round(engine, LOAD, 4, 0)
    assert len({request.prompt for request in engine.requested}) == 4
    for request in engine.requested:
        assert len(request.prompt) == 5 and set(request.prompt) < set(range(50))
        params = request.params
        assert (params.max_tokens, params.temperature, params.ignore_eos) == (3, 0.0, True)


def test_prompts_never_repeat() -> None:
    """Another round or batch size uses other prompts; the same round uses the same prompts on every machine."""
    assert LOAD.prompts(2, 0) == LOAD.prompts(2, 0)
    different = {prompt for batch in (1, 2) for seed in (-1, 0, 1) for prompt in LOAD.prompts(batch, seed)}
    assert len(different) == 9


@pytest.mark.parametrize(
    "engine, why",
    [
        (Answering(1, error="out of memory"), "failed in the middle of a round: out of memory"),
        (Answering(2), "2 tokens came where 3 were requested"),
    ],
)
def test_a_wrong_answer_makes_no_figure(engine: Answering, why: str) -> None:
    """An engine that fails or ends early raises an error instead of giving figures."""
    with pytest.raises(EngineError, match=why):
        run_round(engine, LOAD, 1, 0)
