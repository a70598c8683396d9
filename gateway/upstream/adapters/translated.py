"""Engines that nobody asks in their own protocol: each request is translated."""

from __future__ import annotations

from gateway.protocol.operations import ApiCall


class TranslatedAdapter:
    """Nothing passes."""

    def passes(self, call: ApiCall) -> bool:
        return False

    def target(self, call: ApiCall, target: bytes, model: str | None) -> bytes:
        return target
