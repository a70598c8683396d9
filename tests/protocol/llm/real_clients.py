"""Real client libraries connected to the reply writers in memory, without a socket or a server."""

from collections.abc import Sequence

import anthropic
import httpx2
import openai

from gateway.protocol.llm import (
    messages_reply,
    messages_request,
    responses_reply,
    responses_request,
)
from gateway.protocol.llm.canonical import Event, Generation


class Answering:
    """An HTTP transport that answers each request with the given events; `asked` is the last request it read."""

    def __init__(self, dialect, events: Sequence[Event]) -> None:
        self._read, self._writer = dialect
        self._events = events
        self.requested: Generation | None = None
        self.bodies: list[bytes] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(request.content)
        self.requested = self._read(request.content)
        writer = self._writer(self.requested, id="the-id", created=1700000000, model="the-model")
        if self.requested.stream:
            body = b"".join(writer.feed([event]) for event in self._events) + writer.end()
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
        status, body = writer.whole(self._events)
        return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)

    @property
    def transport(self) -> httpx2.Client:
        return httpx2.Client(transport=httpx2.MockTransport(self))


MESSAGES = (messages_request.read_request, messages_reply.MessagesReplyWriter)
RESPONSES = (responses_request.read_request, responses_reply.ResponsesReplyWriter)


def anthropic_client(events: Sequence[Event]) -> tuple[anthropic.Anthropic, Answering]:
    answering = Answering(MESSAGES, events)
    return anthropic.Anthropic(api_key="k", max_retries=0, http_client=answering.transport), answering


def openai_client(events: Sequence[Event]) -> tuple[openai.OpenAI, Answering]:
    answering = Answering(RESPONSES, events)
    return openai.OpenAI(api_key="k", max_retries=0, http_client=answering.transport), answering
