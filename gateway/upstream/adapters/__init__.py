"""How a request is written for an engine: one adapter for each protocol that engines speak."""

from __future__ import annotations

from gateway.config.specs import EngineProtocol, EngineSpec
from gateway.upstream.adapters.base import Adapter
from gateway.upstream.adapters.kserve import KServeAdapter
from gateway.upstream.adapters.mlserver import MLServerAdapter
from gateway.upstream.adapters.openai import OpenAIAdapter
from gateway.upstream.adapters.translated import TranslatedAdapter


def adapter_for(spec: EngineSpec) -> Adapter:
    """The adapter of an engine; it holds no state."""
    match spec.protocol:
        case EngineProtocol.KSERVE:
            return KServeAdapter()
        case EngineProtocol.MLSERVER:
            return MLServerAdapter()
        case EngineProtocol.OPENAI:
            return OpenAIAdapter(spec.base_path, spec.dialects)
        case _:
            return TranslatedAdapter()


__all__ = ["Adapter", "adapter_for"]
