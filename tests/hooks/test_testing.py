"""The test kit: hooks are called as a gateway calls them."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.hooks import Change, HookReply, HookRequest, Reject, ReplyChange, RequestHook, Respond
from gateway.hooks.method import HookFailed
from gateway.hooks.testing import HookTester, make_reply, make_request


class Everything:
    """A hook with all methods."""

    reads_reply = True

    def __init__(self) -> None:
        self.failures: list[str] = []

    async def on_request(self, request: HookRequest) -> Change | Reject | Respond | None:
        match request.json.get("do"):
            case "reject":
                return Reject(403, "no")
            case "respond":
                return Respond({"a": 1})
            case "change":
                return Change(fields={"do": "it"}, headers={"X-A": "1"}, model="other")
        return None

    def on_reply(self, request: HookRequest, reply: HookReply) -> ReplyChange:
        return ReplyChange(body={"was": reply.json})

    def on_chunk(self, request: HookRequest, chunk: bytes) -> bytes | None:
        return chunk.upper() if chunk else None

    async def on_error(self, request: HookRequest, failure: object) -> None:
        self.failures.append(getattr(failure, "reason", ""))


def test_the_kit_says_what_becomes_of_a_request() -> None:
    """Changed, rejected, answered, or as it was; replies, chunks and failures too."""
    hook = Everything()
    tester = HookTester(hook)
    assert isinstance(hook, RequestHook)
    plain = make_request(json={"do": "nothing"}, headers={"X-Who": "ann"}, tenant="acme")
    assert (plain.tenant, plain.headers, plain.api) == ("acme", {"x-who": "ann"}, "chat")
    assert tester.request(plain).request is plain
    changed = tester.request(make_request(json={"do": "change", "model": "m"}))
    assert changed.request.json == {"do": "it", "model": "m"} and changed.request.headers["x-a"] == "1"
    assert (changed.model, changed.request.model) == ("other", "m")
    assert tester.request(make_request(json={"do": "reject"})).rejected == Reject(403, "no")
    assert tester.request(make_request(json={"do": "respond"})).response == Respond({"a": 1})
    assert tester.reply(plain, make_reply(json={"b": 2})) == ReplyChange(body={"was": {"b": 2}})
    assert (tester.chunk(plain, b"a"), tester.chunk(plain, b"")) == (b"A", b"")
    tester.error(plain)
    assert hook.failures == ["upstream_reset"]


def test_the_kit_fails_as_a_gateway_does() -> None:
    """An exception, a time limit, and a result that is none; the cause is the hook's own."""

    def raises(request: HookRequest) -> None:
        raise LookupError("inside")

    async def sleeps(request: HookRequest) -> None:
        await asyncio.sleep(600)

    def blocks(request: HookRequest) -> None:
        time.sleep(0.2)

    with pytest.raises(HookFailed) as failed:
        HookTester(raises).request(make_request())
    assert isinstance(failed.value.__cause__, LookupError)
    for slow in (sleeps, blocks):
        with pytest.raises(HookFailed, match="TimeoutError"):
            HookTester(slow, timeout=0.01).request(make_request())
    with pytest.raises(HookFailed, match="on_request returned int"):
        HookTester(lambda request: 3).request(make_request())
    with pytest.raises(HookFailed, match="ValueError"):
        HookTester(lambda request: Change(headers={"content-length": "1"})).request(make_request())
