"""Canned engines that refuse, fail or fall silent, behind every front."""

from typing import Any

import pytest

from tests.llm.clients import ASK
from tests.llm.clients.values import LeftError, RefusedError, TextRequest
from tests.llm.fleet import CANNED_V2, Fleet
from tests.llm.pairs import ENGINE
from tests.support.canned_llm import CannedLLM
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)

ENGINES = ("chat", "completions", "messages", "responses", *CANNED_V2)
OPENAI, ANTHROPIC = ("chat", "completions", "responses"), ("messages",)
BY_GRPC = ("model_infer", "model_stream_infer")
STREAMING = (*OPENAI, *ANTHROPIC, "generate_stream", "infer_stream", "model_stream_infer")
TENSORED = ("infer", "infer_binary", "model_infer", "model_stream_infer")
TENSORS = {"seen_trtllm": "trtllm"}

GRPC = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 500: "INTERNAL"}
ANTHROPIC_TYPES = {400: "invalid_request_error", 404: "not_found_error", 500: "api_error"}


def canned_of(fleet: Fleet, engine: str) -> CannedLLM:
    """The engine, without recorded requests or faults."""
    canned = fleet.canned_v2 if engine in CANNED_V2 else fleet.canned
    canned.forget()
    return canned


# OpenAI's engines do not support MLServer's infer_stream.
ALL = [(front, engine) for front in ASK for engine in ENGINES if front != "infer_stream" or engine in CANNED_V2]
# The canned V2 engine does not accept binary tensors.
PAIRS = [(front, engine) for front, engine in ALL if engine not in CANNED_V2 or front not in TENSORED]


@pytest.mark.parametrize("status", GRPC)
@pytest.mark.parametrize(("front", "engine"), ALL)
def test_refusal(fleet: Fleet, front: str, engine: str, status: int) -> None:
    """An engine's error keeps its status and message, and has the form of the client's dialect, streamed or not."""
    canned = canned_of(fleet, engine)
    for streams in (False, True) if front in (*OPENAI, *ANTHROPIC) else (front in STREAMING,):
        canned.break_down(f"status={status}", times=1)
        with pytest.raises(RefusedError) as raised:
            ASK[front](fleet.gateway, TextRequest(engine, streams=streams, tensors=TENSORS.get(engine, "vllm")))
        reply = raised.value
        assert f"the fault says {status}" in reply.message
        if front in BY_GRPC:
            assert reply.status == (None if front == "model_stream_infer" else GRPC[status])
        else:
            assert reply.status == status
        check_dialect(front, reply.body, passes=front == engine, status=status)


def check_dialect(front: str, body: Any, *, passes: bool, status: int) -> None:
    """An error that passes through has the engine's own form."""
    if front in OPENAI:
        assert body["error"].keys() >= {"message", "type", "code"}
        assert passes or body["error"]["type"]
    elif front in ANTHROPIC:
        assert body["type"] == "error"
        assert body["error"]["type"] == ANTHROPIC_TYPES[status]
    elif body is not None:  # tritonclient has no body
        assert body.keys() == {"error"}


@pytest.mark.parametrize(("front", "engine"), [pair for pair in PAIRS if pair[0] in STREAMING])
def test_stream_comes_as_it_is_made(fleet: Fleet, front: str, engine: str) -> None:
    """Each token reaches the client before the next one is generated, and an engine whose client leaves is stopped."""
    canned = canned_of(fleet, engine)
    canned.break_down("stall=2", times=1)
    sent = TextRequest(engine, max_tokens=8, streams=True, tensors=TENSORS.get(engine, "vllm"), leave_after=2)
    with pytest.raises(LeftError) as left:
        ASK[front](fleet.gateway, sent)
    assert len(left.value.pieces) == 2
    eventually(lambda: [sight["state"] for sight in canned.seen()] == ["cancelled"])


@pytest.mark.parametrize(("front", "engine"), PAIRS)
def test_wrong_limit(fleet: Fleet, front: str, engine: str) -> None:
    """The engine's message about an invalid request reaches the client."""
    canned_of(fleet, engine)
    streams = front in ("generate_stream", "infer_stream", "model_stream_infer")
    with pytest.raises(RefusedError, match="max_tokens must be at least 1") as raised:
        ASK[front](fleet.gateway, TextRequest(engine, -1, streams=streams, tensors=TENSORS.get(engine, "vllm")))
    assert raised.value.status in (400, "INVALID_ARGUMENT", None)


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["vllm", "vllm_by_grpc", "trtllm", "trtllm_by_grpc"])
@pytest.mark.parametrize("front", STREAMING)
def test_wrong_limit_at_triton(fleet: Fleet, front: str, engine: str) -> None:
    """For a decoupled model the first response is the error, which reaches the client, streamed or not."""
    fleet.need(ENGINE[engine])
    for streams in (False, True) if front in (*OPENAI, *ANTHROPIC) else (True,):
        with pytest.raises(RefusedError, match="max_tokens must be at least 1") as raised:
            ASK[front](fleet.gateway, TextRequest(engine, -1, streams=streams, tensors=ENGINE[engine].tensors))
        assert raised.value.status in (400, None)
