"""What the readers of engines' replies have in common in OpenAI's and Anthropic's APIs: JSON, whole or in events."""

from __future__ import annotations

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.conversion.sse import SseReader
from gateway.protocol.llm.canonical import EngineFailed, Event
from gateway.protocol.llm.json_fields import MALFORMED, Fields, misunderstood, read_reply_fields


class JsonReplyReader:
    """Reads one reply; a stream's events come out with the engine's own, one for one.

    Raises, wherever it reads: GatewayError(UPSTREAM_PROTOCOL) for what is no such reply.
    """

    def __init__(self) -> None:
        self._sse = SseReader()
        self._is_over = False

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes of a stream say."""
        events: list[Event] = []
        for message in self._sse.feed(data):
            if self._is_over:
                break
            try:
                if message == b"[DONE]":
                    self._done(events)
                elif message:
                    self._read(read_reply_fields(message), events)
            except MALFORMED as error:
                raise misunderstood(str(error)) from error
        return events

    def end(self) -> list[Event]:
        """What remains to be said once the stream has ended; no `Finished` where it was cut off."""
        return []

    def whole(self, status: int, body: bytes) -> list[Event]:
        """What a whole reply says."""
        if status >= 400:
            message, code = read_error(body)
            return [EngineFailed(message, status, code)]
        events: list[Event] = []
        try:
            self._read_whole(read_reply_fields(body), events)
        except MALFORMED as error:
            raise misunderstood(str(error)) from error
        return events

    def _read(self, fields: Fields, events: list[Event]) -> None:
        """Reads one event of a stream."""
        raise NotImplementedError

    def _done(self, events: list[Event]) -> None:
        """Reads OpenAI's end of a stream, which vLLM writes in all APIs."""

    def _read_whole(self, fields: Fields, events: list[Event]) -> None:
        raise NotImplementedError
