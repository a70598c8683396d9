"""What a hook may have: methods by these names, each plain or `async`. A plain function is an `on_request`.

Plain methods run in a thread, since they may block; with `inline = True` they run on the event loop, which is for code
that only computes, for microseconds. Each call has the `timeout` of its rule. One object serves all requests of a
worker: threads call it at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar, Union, runtime_checkable

from gateway.hooks.request import HookRequest
from gateway.hooks.results import Change, HookFailure, HookReply, Reject, ReplyChange, Respond

T = TypeVar("T")
# What a plain method returns, or one that is `async`.
Returned = Union[T, Awaitable[T]]  # noqa: UP007

RequestResult = Change | Reject | Respond | None


@runtime_checkable
class RequestHook(Protocol):
    """Sees requests before their engine does."""

    def on_request(self, request: HookRequest, /) -> Returned[RequestResult]:
        """None: the request goes on as it is. An exception is a failure: see `on_failure` of the rule."""


@runtime_checkable
class ReplyHook(Protocol):
    """Sees replies. `reads_reply = True`: with their bodies, before the client gets them, and may change them; else
    after their end, and what it returns is ignored."""

    def on_reply(self, request: HookRequest, reply: HookReply, /) -> Returned[ReplyChange | None]:
        """None: the reply stays as it is."""


@runtime_checkable
class StreamHook(Protocol):
    """Sees the pieces of replies that are streams of events, in their order."""

    def on_chunk(self, request: HookRequest, chunk: bytes, /) -> Returned[bytes | None]:
        """What goes to the client in place of a piece; None: the piece itself, b"": nothing."""


@runtime_checkable
class ErrorHook(Protocol):
    """Sees requests that the gateway refuses, or whose reply breaks off; what it returns is ignored."""

    def on_error(self, request: HookRequest, failure: HookFailure, /) -> Returned[None]: ...


Hook = RequestHook | ReplyHook | StreamHook | ErrorHook
