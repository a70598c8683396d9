"""How a request is written for an engine that understands it; what its protocol does so stands in its traits."""

from __future__ import annotations

from gateway.config.specs import EngineSpec
from gateway.protocol.operations import ApiCall, LlmApi


class Adapter:
    """Writes requests for one engine; it has no state."""

    def __init__(self, spec: EngineSpec) -> None:
        passes = spec.protocol.traits.passes
        self._apis = frozenset(map(LlmApi, spec.dialects)) if passes is None else passes
        self._write_target = spec.protocol.traits.write_target
        self._base_path = spec.base_path.encode("ascii")

    def passes(self, call: ApiCall) -> bool:
        """Whether the engine understands the request as the client wrote it; else it is translated, or refused."""
        return call.api in self._apis

    def target(self, call: ApiCall, target: bytes, model: str | None) -> bytes:
        """The path and query at the engine of a request that passes.

        `target` is the client's own; `model` is the model's name at the engine, None where it is the same.
        """
        return target if self._write_target is None else self._write_target(call, target, model, self._base_path)
