"""Bodies that no honest caller sends: each is refused with a sentence, and none is a fault of ours."""

import asyncio

import pytest
from starlette.types import Message

from gateway.admin import server
from gateway.admin.app import make_app
from tests.admin.test_app import State


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says that he sends one, and does not, is told so."""
    monkeypatch.setattr(server, "_BODY_SECONDS", 0.01)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    scope = {"type": "http", "method": "PUT", "path": "/log-level", "query_string": b"", "headers": headers}
    asyncio.run(make_app(State())(scope, receive, send))
    assert sent[0]["status"] == 408
