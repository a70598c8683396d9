"""V2's generate and generate_stream as a client speaks them whose engine speaks another API.

Source: Triton's generate extension; `http_server.cc` (GenerateRequestClass): the members of a reply are sorted, a
stream ends without a last event of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.protocol.conversion import rest_bodies
from gateway.protocol.conversion.errors import error_json, refusing
from gateway.protocol.conversion.sse import event_of
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import EngineFailed, Event, Generation, TextDelta
from gateway.protocol.llm.v2_text import TextReply, TextRequest, text_request


def read_request(body: bytes, *, model: str, stream: bool = False) -> TextRequest:
    """The request of a generate body; `stream`: whether it came to generate_stream.

    Options stand beside `text_input`, in `parameters`, or in `sampling_parameters`, and count in that order.
    Raises: GatewayError, BAD_REQUEST where it is malformed, UNSUPPORTED for a guide that no other engine knows.
    """
    with refusing(ErrorKind.BAD_REQUEST):
        content = rest_bodies.read_object(body)
        id = rest_bodies.string(content, "id") if "id" in content else ""
        fields = rest_bodies.parameters(content) | content
        fields.pop("parameters", None)
        fields.pop("id", None)
        request = text_request(fields, model=model, stream=stream, id=id)
        for text in (request.prompt or "", request.before, request.id):
            if isinstance(text, str) and not text.isascii():
                text.encode()  # raises ValueError where it cannot be sent on as UTF-8
        return request


class GenerateReplyWriter:
    """Writes one reply, as events of a stream (`feed`, `end`) or whole.

    Each TextDelta is an event; reasoning is left out. A last event has the outputs beside the text, and an empty text.
    """

    head_bytes = None

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        """`id` and `created` are told in other APIs: V2 tells the request's own id."""
        self._reply = TextReply(generation)
        self._num_choices = self._reply.num_choices
        self._head = {"id": generation.id} if generation.id else {}
        self._head |= {"model_name": model, "model_version": "1"}
        first = self._head | ({"finish_reason": "None"} if "finish_reason" in self._reply.names else {})
        written = orjson.dumps(dict(sorted(first.items())))
        self._prefix = b"data: " + written[:-1] + b',"text_output":'
        self._has_more_outputs = bool(self._reply.names - {"text_output"})
        self._failed = False

    def feed(self, events: Sequence[Event]) -> bytes:
        """An event for each piece of text."""
        pieces: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                written: Any = self._reply.add_text(event)
                if self._num_choices > 1:
                    written = [written if event.index == each else "" for each in range(self._num_choices)]
                pieces += (self._prefix, _json(written), b"}\n\n")
            elif type(event) is EngineFailed:
                self._failed = True
                pieces.append(event_of(error_json(event.message)))
            else:
                self._reply.add(event)
        return b"".join(pieces)

    def end(self) -> bytes:
        """The event that tells what was asked for beside the text, if anything was."""
        if self._failed or not self._has_more_outputs:
            return b""
        values = self._head | self._reply.values() | {"text_output": self._texts([""] * self._num_choices)}
        return event_of(orjson.dumps(dict(sorted(values.items()))))

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        """HTTP status and JSON body."""
        for event in events:
            if type(event) is EngineFailed:
                return event.status, error_json(event.message)
            self._reply.add(event)
        values = self._head | self._reply.values() | {"text_output": self._texts(self._reply.texts)}
        return 200, _json(dict(sorted(values.items())))

    def _texts(self, texts: list[str]) -> str | list[str]:
        return texts[0] if self._num_choices == 1 else texts


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:  # half of a surrogate pair
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's text is not Unicode: {error}") from error
