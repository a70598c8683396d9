"""Calls of hooks: on the event loop, as coroutines, or in threads; each with its time limit."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Any

from gateway.config.hook_specs import HookSpec
from gateway.hooks.threads import HookThreads

_log = logging.getLogger("pointsman")

# A failing hook fails on each request: its log has one entry in this time.
_LOG_SECONDS = 10.0
_threads = HookThreads()


class CallMode(Enum):
    """Where a method runs."""

    INLINE = "on the event loop, without a pause"
    ASYNC = "on the event loop"
    THREAD = "in a thread"


class HookFailed(Exception):  # noqa: N818
    """A hook raised, took too long, or returned what it may not; the message names it, its cause is for the log."""


def mode_of(hook: object, method: Callable[..., Any]) -> CallMode:
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004
        return CallMode.ASYNC
    return CallMode.INLINE if getattr(hook, "inline", False) else CallMode.THREAD


class HookMethod:
    """One method of one hook of a route."""

    __slots__ = ("_function", "_logged_at", "_name", "_route", "fails_open", "mode", "timeout")

    def __init__(self, route: str, spec: HookSpec, hook: object, name: str) -> None:
        self._function: Callable[..., Any] = getattr(hook, name)
        self.mode = mode_of(hook, self._function)
        self.timeout = spec.timeout
        self.fails_open = spec.on_failure == "continue"
        self._route = route
        self._name = spec.use if name == "on_request" else f"{spec.use}, {name}"
        self._logged_at = float("-inf")

    def call_inline(self, *arguments: Any) -> Any:
        """Raises: HookFailed."""
        try:
            result = self._function(*arguments)
        except Exception as error:  # the operator's code
            raise self.failed(error) from error
        if inspect.iscoroutine(result):
            result.close()
            raise self.failed(TypeError("an inline method returned a coroutine: make it async"))
        return result

    async def call(self, *arguments: Any) -> Any:
        """Raises: HookFailed."""
        if self.mode is CallMode.INLINE:
            return self.call_inline(*arguments)
        try:
            async with asyncio.timeout(self.timeout) as limit:
                if self.mode is CallMode.ASYNC:
                    return await self._function(*arguments)
                return await _threads.call(self._function, arguments)
        except TimeoutError as error:
            slow = f"it takes longer than {self.timeout * 1000:g} ms (timeout)" if limit.expired() else str(error)
            raise self.failed(TimeoutError(slow)) from error
        except Exception as error:  # the operator's code
            raise self.failed(error) from error

    def failed(self, error: Exception) -> HookFailed:
        """The failure, logged unless it was lately."""
        now = monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            is_slow = isinstance(error, TimeoutError)
            _log.error(
                "route '%s': hook '%s' failed: %s: %s", self._route, self._name, type(error).__name__, error,
                exc_info=None if is_slow else error,
            )  # fmt: skip
        return HookFailed(f"a hook of the route failed ({type(error).__name__})")
