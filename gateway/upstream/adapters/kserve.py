"""Engines that speak the V2 protocol, as Triton does: everything passes through, a rename splices the path."""

from __future__ import annotations

from gateway.protocol.llm.canonical import LlmApi
from gateway.protocol.operations import ApiCall, path_segment


class KServeAdapter:
    """The identity, but for the model's name."""

    def passes(self, call: ApiCall) -> bool:
        return call.api is None or call.api in (LlmApi.GENERATE, LlmApi.INFER)

    def target(self, call: ApiCall, target: bytes, model: str | None) -> bytes:
        if model is None or call.model_span is None:
            return target
        start, end = call.model_span
        return target[:start] + path_segment(model).encode("ascii") + target[end:]
