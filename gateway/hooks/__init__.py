"""Python hooks: code of the operator that requests of a route pass. What hooks need is named here; `testing` is their
test kit."""

from gateway.hooks.interfaces import ErrorHook, Hook, ReplyHook, RequestHook, StreamHook
from gateway.hooks.request import HookFacts, HookRequest
from gateway.hooks.results import Change, HookFailure, HookReply, Reject, ReplyChange, Respond

__all__ = [
    "Change",
    "ErrorHook",
    "Hook",
    "HookFacts",
    "HookFailure",
    "HookReply",
    "HookRequest",
    "Reject",
    "ReplyChange",
    "ReplyHook",
    "RequestHook",
    "Respond",
    "StreamHook",
]
