"""The seam between the data plane and an engine's protocol."""

from __future__ import annotations

from typing import Protocol

from gateway.protocol.operations import ApiCall


class Adapter(Protocol):
    """Writes requests for engines of one protocol."""

    def passes(self, call: ApiCall) -> bool:
        """Whether the engine understands the request as the client wrote it; else it is translated, or refused."""
        ...

    def target(self, call: ApiCall, target: bytes, model: str | None) -> bytes:
        """The path and query at the engine of a request that passes.

        `target` is the caller's own; `model` is the model's name there, None where it stays as the caller wrote it.
        """
        ...
