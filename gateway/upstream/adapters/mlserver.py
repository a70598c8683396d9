"""MLServer: V2 in a dialect of its own, where generation and streams are infer's JSON."""

from __future__ import annotations

from gateway.protocol.llm.canonical import Dialect
from gateway.protocol.operations import ApiCall
from gateway.upstream.adapters.kserve import KServeAdapter


class MLServerAdapter(KServeAdapter):
    """V2, but for Triton's generate; MLServer's own infer_stream passes."""

    def passes(self, call: ApiCall) -> bool:
        return call.dialect is None or call.dialect in (Dialect.INFER, Dialect.INFER_STREAM)
