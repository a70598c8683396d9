"""Statistics count what Triton counts."""

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, internal, unavailable
from engines.core.messages import InferRequest, InferResponse
from engines.host.statistics import Statistics
from gateway.protocol.protobuf import message


class Clock:
    def __init__(self) -> None:
        self.ns = 1000

    def __call__(self) -> int:
        return self.ns


def call(batch_size: int = 1, error: EngineError | None = None, started_ns: int = 300) -> InferenceCall:
    """One that arrived at 100, was started at 300 and took 10, 20 and 30 ns."""
    result = InferenceCall(InferRequest("m"), lambda response, is_final: None, 100)
    result.batch_size = batch_size
    result.started_ns = started_ns
    result.compute_input_ns, result.compute_infer_ns, result.compute_output_ns = 10, 20, 30
    result.respond(InferResponse(error=error), is_final=True)
    return result


def written(statistics: Statistics) -> object:
    result = message("inference.ModelStatisticsResponse")().model_stats.add()
    statistics.write(result)
    return result


def test_successes() -> None:
    """Requests count once, inferences by their batch size, executions once a batch with all of its calls."""
    statistics = Statistics(Clock(), lambda: 1795282181914)
    statistics.call_ended(call(batch_size=1))
    statistics.call_ended(call(batch_size=3))
    statistics.batch_ended(4, call())
    result = written(statistics)
    assert " ".join(str(result).split()) == (
        "last_inference: 1795282181914 inference_count: 4 execution_count: 1 "
        "inference_stats { success { count: 2 ns: 1800 } fail { } queue { count: 2 ns: 400 } "
        "compute_input { count: 2 ns: 20 } compute_infer { count: 2 ns: 40 } compute_output { count: 2 ns: 60 } "
        "cache_hit { } cache_miss { } } "
        "batch_stats { batch_size: 4 compute_input { count: 1 ns: 10 } compute_infer { count: 1 ns: 20 } "
        "compute_output { count: 1 ns: 30 } }"
    )


FAILURES = [
    (internal("boom"), 300, "BACKEND"),
    (unavailable("Exceeds maximum queue size"), 0, "REJECTED"),
    (EngineError(ErrorCode.CANCELLED, ""), 300, "CANCELED"),
    (EngineError(ErrorCode.INVALID_ARG, ""), 0, "OTHER"),
]


@pytest.mark.parametrize("error, started_ns, reason", FAILURES)
def test_failures_have_a_reason(error: EngineError, started_ns: int, reason: str) -> None:
    """A failure counts no inference; its reason depends on how far the request got."""
    statistics = Statistics(Clock(), lambda: 0)
    statistics.call_ended(call(error=error, started_ns=started_ns))
    assert (statistics.fail.count, statistics.success.count, statistics.inference_count) == (1, 0, 0)
    assert {name for name, count in statistics.failures.items() if count} == {reason}


def test_cache_hits_are_successes_without_computation() -> None:
    """A cache hit counts no inference. The time of a cache miss is counted as the request's."""
    statistics = Statistics(Clock(), lambda: 0)
    matches = call()
    statistics.cache_hit(matches, 7)
    statistics.call_ended(matches)
    statistics.cache_miss(call(), 5)
    assert (statistics.success.count, statistics.success.ns, statistics.queue.count) == (1, 905, 1)
    assert (statistics.cache_hits.count, statistics.cache_hits.ns, statistics.cache_misses.count) == (1, 7, 1)
    assert (statistics.inference_count, statistics.compute_infer.count) == (0, 0)


def test_responses_of_streams_count_by_their_number() -> None:
    """Each answer of a decoupled model counts under its place in the stream."""
    statistics = Statistics(Clock(), lambda: 0, is_decoupled=True)
    statistics.response_sent(0, 5, is_error=False, is_empty=False)
    statistics.response_sent(0, 6, is_error=False, is_empty=False)
    statistics.response_sent(1, 7, is_error=True, is_empty=False)
    statistics.response_sent(2, 8, is_error=False, is_empty=True)
    result = written(statistics).response_stats  # type: ignore[attr-defined]
    assert {number: (result[number].success.count, result[number].fail.count, result[number].empty_response.count)
            for number in result} == {"0": (2, 0, 0), "1": (0, 1, 0), "2": (0, 0, 1)}  # fmt: skip


def test_a_decoupled_model_may_answer_with_errors() -> None:
    """An error after a response belongs to the stream: the request counts as a success."""
    statistics = Statistics(Clock(), lambda: 0, is_decoupled=True)
    streamed = InferenceCall(InferRequest("m"), lambda response, is_final: None, 100)
    streamed.respond(InferResponse(), is_final=False)
    streamed.fail(internal("after one"))
    statistics.call_ended(streamed)
    assert (statistics.success.count, statistics.fail.count) == (1, 0)
