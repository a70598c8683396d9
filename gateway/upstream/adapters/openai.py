"""Engines that speak OpenAI's API: what they declare passes through, behind their base path."""

from __future__ import annotations

from collections.abc import Collection

from gateway.protocol.operations import ApiCall

_OURS = b"/v1"


class OpenAIAdapter:
    """Another base path; the model's name stands in the body."""

    def __init__(self, base_path: str, dialects: Collection[str]) -> None:
        self._base = base_path.encode("ascii")
        self._dialects = frozenset(dialects)

    def __repr__(self) -> str:
        return f"<OpenAIAdapter at {self._base!r}: {', '.join(sorted(self._dialects))}>"

    def passes(self, call: ApiCall) -> bool:
        return call.api is not None and call.api.value in self._dialects

    def target(self, call: ApiCall, target: bytes, model: str | None) -> bytes:
        return self._base + target.removeprefix(_OURS)
