"""MLServer: V2 in a dialect of its own, where generation and streams are infer's JSON."""

from __future__ import annotations

from gateway.protocol.llm.canonical import LlmApi
from gateway.protocol.operations import ApiCall
from gateway.upstream.adapters.kserve import KServeAdapter


class MLServerAdapter(KServeAdapter):
    """V2, but for Triton's generate; MLServer's own infer_stream passes."""

    def passes(self, call: ApiCall) -> bool:
        return call.api is None or call.api in (LlmApi.INFER, LlmApi.INFER_STREAM)
