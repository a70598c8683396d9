"""How a request is written for an engine: one adapter for each protocol that engines speak."""

from __future__ import annotations

from gateway.config.specs import EngineProtocol
from gateway.upstream.adapters.base import Adapter
from gateway.upstream.adapters.kserve import KServeAdapter

_ADAPTERS: dict[EngineProtocol, Adapter] = {EngineProtocol.KSERVE: KServeAdapter()}


def adapter_for(protocol: EngineProtocol) -> Adapter:
    """The adapter of a protocol; adapters hold no state, so all engines share one."""
    return _ADAPTERS[protocol]


__all__ = ["Adapter", "adapter_for"]
