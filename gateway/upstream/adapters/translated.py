"""Engines that nobody asks in their own protocol: each request is translated."""

from __future__ import annotations

from gateway.protocol.operations import Call


class TranslatedAdapter:
    """Nothing passes."""

    def passes(self, call: Call) -> bool:
        return False

    def target(self, call: Call, target: bytes, model: str | None) -> bytes:
        return target
