"""A captured request as reports describe it, and whether it may be repeated."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dataplane.context.capture import Capture
from gateway.protocol.errors import GatewayError
from gateway.protocol.infer_message_head import facts_or_error, read_names
from gateway.protocol.llm.model_name import find_model
from gateway.protocol.operations import OF_V2, ApiCall, LlmApi, Operation, read_path
from gateway.protocol.v2_facts import BodyFacts, InputFacts, read_body_facts
from gateway.shadow.comparison.reply import plain
from gateway.wire.http1.head import read_request_head

_JSON_LENGTH = b"inference-header-content-length"
_SHARED_MEMORY = b"shared_memory_region"
_CALL = ApiCall(Operation.INFER, ("POST",), api=LlmApi.INFER)
_MAX_TEXT_BYTES = 8000  # more than the longest excerpt


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """`refusal` is the reason not to repeat it; `text` is the beginning of its text."""

    call: ApiCall
    model: str = ""
    inputs: tuple[InputFacts, ...] = ()
    text: str = ""
    refusal: str = ""


def read_request(capture: Capture) -> CapturedRequest:
    """Parse a capture. A malformed request is repeated as well: both engines may refuse it."""
    body = capture.request
    if _SHARED_MEMORY in body:  # the candidate would overwrite the outputs that the client reads
        return CapturedRequest(_CALL, refusal="shared_memory")
    if capture.facts.is_call:
        facts = facts_or_error(body)
        return _repeatable(_CALL, _named(body), facts, "")
    head = read_request_head(capture.facts.head.encode("latin-1"))
    call = read_path(head.target.partition(b"?")[0].decode("latin-1"))
    if call is None:
        return CapturedRequest(_CALL, refusal="unknown_path")
    if call.api is LlmApi.INFER_STREAM:
        return CapturedRequest(call, refusal="stream")
    try:
        body = plain(body, dict(head.fields))
    except GatewayError:
        return _repeatable(call, call.model or "", BodyFacts(), "")
    length = head.value(_JSON_LENGTH) or b""
    text = body[: int(length)] if length.isdigit() and len(length) < 10 else body
    if call.api is not None and call.api not in OF_V2:
        model = find_model(text)
        return _repeatable(call, model.name if model is not None else "", BodyFacts(), _begin(text))
    try:
        facts = read_body_facts(call.operation, text)
    except GatewayError:
        facts = BodyFacts()
    return _repeatable(call, call.model or "", facts, _begin(text))


def _repeatable(call: ApiCall, model: str, facts: BodyFacts, text: str) -> CapturedRequest:
    # A candidate that gets only some requests of a sequence would be in an undefined state.
    refusal = "sequence" if facts.parameters.get("sequence_id") else ""
    return CapturedRequest(call, model, facts.inputs, text, refusal)


def _named(message: bytes) -> str:
    try:
        return read_names(message, 0, len(message)).model.decode("utf-8", "replace")
    except GatewayError:
        return ""


def _begin(body: bytes) -> str:
    return body[:_MAX_TEXT_BYTES].decode("utf-8", "replace")
