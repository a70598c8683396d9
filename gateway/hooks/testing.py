"""The test kit of hooks: they run as in a gateway, with their time limit, in threads or as coroutines, without one.

from gateway.hooks.testing import HookTester, make_request

def test_numbers_of_cards_are_hidden():
    outcome = HookTester(Redact()).request(make_request(json={"prompt": "4111 1111 1111 1111"}))
    assert outcome.request.json == {"prompt": "[CARD]"}
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from gateway.config.hook_specs import HookSpec
from gateway.hooks.loader import FunctionHook
from gateway.hooks.method import HookFailed, HookMethod
from gateway.hooks.request import HookFacts, HookRequest
from gateway.hooks.results import Change, HookFailure, HookReply, Reject, ReplyChange, Respond
from gateway.protocol.principal import Principal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """What becomes of a request: it goes on, as `request` is now, to `engine` and `model` where they are set; or it is
    rejected, or answered."""

    request: HookRequest
    engine: str | None = None
    model: str | None = None
    rejected: Reject | None = None
    response: Respond | None = None


def make_request(
    json: Any = None,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    tenant: str | None = None,
    session: str | None = None,
    json_bytes: int | None = None,
    **facts: Any,
) -> HookRequest:
    """A request of a chat; `facts` are further fields of `HookFacts`, `tenant` that of a verified caller."""
    content = body if body is not None else orjson.dumps(json if json is not None else {})
    known: dict[str, Any] = {
        "route": "route",
        "engine": "engine",
        "model": json.get("model", "model") if isinstance(json, dict) else "model",
        "method": "POST",
        "path": "/v1/chat/completions",
        "operation": "chat",
        "protocol": "openai",
        "api": "chat",
        "principal": Principal(tenant, "key") if tenant is not None else None,
    }
    fields = [(name.lower().encode("ascii"), value.encode()) for name, value in (headers or {}).items()]
    return HookRequest(HookFacts(**{**known, **facts}), content, fields, json_bytes, "test", session, "127.0.0.1")


def make_reply(
    json: Any = None,
    *,
    body: bytes | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    is_stream: bool = False,
    seconds: float = 0.1,
) -> HookReply:
    """A reply; without `json` and `body`, one whose body the hook does not read."""
    content = body if body is not None or json is None else orjson.dumps(json)
    return HookReply(status, dict(headers or {}), content, is_stream, len(content or b""), seconds)


class HookTester:
    """Calls one hook, an object or a function. A failure is a `HookFailed`, as with `on_failure: refuse`, caused by the
    exception of the hook itself. Its methods are called outside of an event loop."""

    def __init__(self, hook: Any, timeout: float = 5.0) -> None:
        """`timeout` is in seconds: a rule's default of 250 ms is short for a busy machine."""
        self._hook = FunctionHook(hook) if inspect.isfunction(hook) else hook
        self._spec = HookSpec("test:hook", timeout=timeout)

    def request(self, request: HookRequest) -> HookOutcome:
        """Raises: HookFailed."""
        result = self._call("on_request", request)
        if isinstance(result, Reject):
            return HookOutcome(request, rejected=result)
        if isinstance(result, Respond):
            return HookOutcome(request, response=result)
        if not isinstance(result, Change):
            return HookOutcome(request)
        return HookOutcome(request.changed(result), result.engine, result.model)

    def reply(self, request: HookRequest, reply: HookReply) -> ReplyChange | None:
        """Raises: HookFailed."""
        result: ReplyChange | None = self._call("on_reply", request, reply)
        return result

    def chunk(self, request: HookRequest, chunk: bytes) -> bytes:
        """What goes to the client. Raises: HookFailed."""
        result: bytes | None = self._call("on_chunk", request, chunk)
        return chunk if result is None else result

    def error(self, request: HookRequest, reason: str = "upstream_reset", status: int = 502) -> None:
        """Raises: HookFailed."""
        self._call("on_error", request, HookFailure(reason, "the engine broke its reply off", status))

    def _call(self, name: str, *arguments: Any) -> Any:
        method = HookMethod("test", self._spec, self._hook, name)
        result = _run(method.call(*arguments))
        expected = _RESULTS.get(name)
        if result is not None and expected is not None and not isinstance(result, expected):
            raise HookFailed(f"{name} returned {type(result).__name__}: {' or '.join(_names(expected))} is expected")
        return result


_RESULTS: Mapping[str, tuple[type, ...]] = {
    "on_request": (Change, Reject, Respond),
    "on_reply": (ReplyChange,),
    "on_chunk": (bytes,),
}


def _names(types: tuple[type, ...]) -> list[str]:
    return ["None", *(each.__name__ for each in types)]


def _run(steps: Awaitable[T]) -> T:
    async def run() -> T:
        return await steps

    return asyncio.run(run())
