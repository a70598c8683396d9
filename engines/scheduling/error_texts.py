"""Sentences of Triton's schedulers, word for word (core: scheduler_utils.cc, *_batch_scheduler.cc)."""

from __future__ import annotations

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, unavailable

TIMEOUT_EXPIRED = "Request timeout expired"
SEQUENCE_TIMEOUT_EXPIRED = "timeout of the corresponding sequence has been expired"
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def tag(call: InferenceCall) -> str:
    """How Triton's sentences name a request."""
    return f"[request id: {call.request.id or '<id_unknown>'}] "


def stopping(call: InferenceCall) -> EngineError:
    return unavailable(tag(call) + STOPPING)


def queue_full(call: InferenceCall) -> EngineError:
    return unavailable(tag(call) + "Exceeds maximum queue size")


def execution_failed(error: Exception) -> EngineError:
    return EngineError(ErrorCode.INTERNAL, f"failed to hand the request to the model instance: {error}")
