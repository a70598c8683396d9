"""What errors and error replies of engines may be a reason for a fallback."""

import pytest

from gateway.protocol.errors import ErrorKind
from gateway.protocol.fallback_reasons import FallbackReason, reasons_of_error, reasons_of_reply

TOO_LONG = {
    "openai": '{"error":{"message":"Too much.","type":"invalid_request_error","code":"context_length_exceeded"}}',
    "vllm": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
    "vllm engine": "The decoder prompt (length 8357) is longer than the maximum model length of 8192.",
    "sglang": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "sglang count": "Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "anthropic": '{"type":"error","error":{"message":"prompt is too long: 208310 tokens > 200000 maximum"}}',
    "llama.cpp": '{"error":{"code":400,"message":"request (13 tokens) exceeds the available context size (8 tokens)"}}',
    "llama.cpp type": '{"error":{"code":400,"type":"exceed_context_size_error"}}',
    "tgi": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    "tensorrt-llm": "Prompt length (600) exceeds maximum input length (512).",
    "gemini": "The input token count (9) exceeds the maximum number of tokens allowed (8).",
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    "ours": "the prompt has 900 tokens, and the context holds 512, the answer included: shorten the prompt",
}
FILTERED = {
    "azure": '{"error":{"code":"content_filter","message":"The response was filtered"}}',
    "azure's inner": '{"innererror":{"code":"ResponsibleAIPolicyViolation"}}',
    "openai": '{"error":{"code":"content_policy_violation"}}',
    "anthropic": "Output blocked by content filtering policy",
}
UNKNOWN = {
    "triton": '{"error":"Request for unknown model: \'m\' is not found"}',
    "openai": '{"error":{"code":"model_not_found"}}',
    "vllm": '{"message":"The model `m` does not exist."}',
}


@pytest.mark.parametrize(
    "reason, text",
    [
        *((FallbackReason.CONTEXT_LENGTH, text) for text in TOO_LONG.values()),
        *((FallbackReason.CONTENT_FILTER, text) for text in FILTERED.values()),
        *((FallbackReason.MODEL_NOT_FOUND, text) for text in UNKNOWN.values()),
    ],
    ids=[*TOO_LONG, *FILTERED, *UNKNOWN],
)
def test_engines_words_are_understood(reason: FallbackReason, text: str) -> None:
    """The wording of each engine's refusal is recognised in a 400, and in no reply that is none."""
    assert reasons_of_reply(400, text.encode(), is_idempotent=False) == (reason,)
    assert reasons_of_reply(200, text.encode(), is_idempotent=True) == ()
    assert reasons_of_reply(401, text.encode(), is_idempotent=True) == ()


def test_a_fault_of_the_request_is_no_reason() -> None:
    """A 400 about something else, such as a field of the wrong type, is the client's own."""
    for text in (b'{"error":"temperature must be a number"}', b"", b'{"error":"unexpected shape"}'):
        assert reasons_of_reply(400, text, is_idempotent=True) == ()


def test_statuses_are_reasons() -> None:
    """503, 429 and 404 promise that nothing was begun; other 5xx do not, so that only what may run twice goes on."""
    assert reasons_of_reply(503, b"", is_idempotent=False) == (FallbackReason.OVERLOADED, FallbackReason.SERVER_ERROR)
    assert reasons_of_reply(429, b"", is_idempotent=False) == (FallbackReason.RATE_LIMITED,)
    assert reasons_of_reply(404, b"", is_idempotent=False) == (FallbackReason.MODEL_NOT_FOUND,)
    for status in (500, 502, 504):
        assert reasons_of_reply(status, b"", is_idempotent=False) == ()
        assert reasons_of_reply(status, b"", is_idempotent=True) == (FallbackReason.SERVER_ERROR,)


def test_what_may_have_run_needs_leave() -> None:
    """A lost connection or a timeout is a reason only where the request does no harm twice; our own refusals, by
    limits, budgets or rules, are never one."""
    for kind, reason in (
        (ErrorKind.UPSTREAM_RESET, FallbackReason.DOWN),
        (ErrorKind.DEADLINE, FallbackReason.DEADLINE),
    ):
        assert reasons_of_error(kind, is_idempotent=False) == ()
        assert reasons_of_error(kind, is_idempotent=True) == (reason,)
    for kind in (ErrorKind.NO_HEALTHY_ENDPOINT, ErrorKind.UPSTREAM_CONNECT):
        assert reasons_of_error(kind, is_idempotent=False) == (FallbackReason.DOWN,)
    assert reasons_of_error(ErrorKind.OVERLOADED, is_idempotent=False) == (FallbackReason.OVERLOADED,)
    for kind in (ErrorKind.RATE_LIMITED, ErrorKind.BUDGET_EXHAUSTED, ErrorKind.FORBIDDEN, ErrorKind.SEQUENCE_LOST):
        assert reasons_of_error(kind, is_idempotent=True) == ()
