"""Hooks that do nothing, for hooks.py beside this file."""

from gateway.hooks import HookRequest


class Inline:
    inline = True

    def on_request(self, request: HookRequest) -> None:
        """Nothing."""


class Coroutine:
    async def on_request(self, request: HookRequest) -> None:
        """Nothing."""


class Thread:
    def on_request(self, request: HookRequest) -> None:
        """Nothing."""
