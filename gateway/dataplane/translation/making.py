"""Which translator a request takes: by what it asks and what its engine speaks."""

from __future__ import annotations

from gateway.config.specs import EngineProtocol
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.translation.predict_translators import make_for_mlserver, make_infer_stream, make_prediction
from gateway.dataplane.translation.translation import Make
from gateway.dataplane.translation.translator_factory import make_embedding, make_generation
from gateway.protocol.llm.canonical import LlmApi
from gateway.protocol.operations import ApiCall


def maker_for(call: ApiCall, lane: Lane) -> Make:
    """Who translates a request for this lane."""
    protocol = lane.engine.spec.protocol
    if call.api is LlmApi.INFER_STREAM:
        return make_infer_stream
    if protocol in (EngineProtocol.TFSERVING, EngineProtocol.TORCHSERVE):
        return make_prediction
    if protocol is EngineProtocol.MLSERVER and call.api in (LlmApi.GENERATE, LlmApi.INFER):
        return make_for_mlserver
    if call.api is LlmApi.EMBEDDINGS:
        return make_embedding
    return make_generation
