"""V2's generate and generate_stream at a TorchServe: a text, or an object with a `prompt`, and pieces of text back.

The pieces of a stream are what the handler sent, cut anywhere on the way.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.protocol.conversion import rest_bodies, triton_json
from gateway.protocol.conversion.errors import refusing, unsupported
from gateway.protocol.conversion.sse import event_of
from gateway.protocol.conversion.tensors import RawTensor, join_elements
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.torchserve.reply import error_of
from gateway.protocol.torchserve.request import (
    SEQUENCE,
    TEXT,
    Envelope,
    in_instances,
    in_kservev2,
    predictions_path,
    read_envelope,
    sequence_fields,
)
from gateway.protocol.translator import JSON, EngineRequest, Field, Reply, V2Request

# An object holds one piece of text, and what its handler tells beside it.
MAX_OBJECT_CHARACTERS = 1024 * 1024

_SPACE = " \t\r\n"


class ObjectReader:
    """Splits text into the JSON objects that follow each other in it; what begins otherwise is text as it is."""

    def __init__(self) -> None:
        self._left = ""
        self._is_text = False
        self._decode = json.JSONDecoder().raw_decode

    def feed(self, text: str) -> list[dict[str, Any] | str]:
        """The objects that are whole by now, or the text. Raises: GatewayError(UPSTREAM_PROTOCOL) where an object is
        longer than the limit."""
        if self._is_text:
            return [text] if text else []
        left = (self._left + text).lstrip(_SPACE)
        found: list[dict[str, Any] | str] = []
        while left:
            if left[0] != "{":
                self._is_text = not found
                found.append(left)
                left = ""
                break
            try:
                value, stop = self._decode(left)
            except (ValueError, RecursionError):
                break
            found.append(value)
            left = left[stop:].lstrip(_SPACE)
        if len(left) > MAX_OBJECT_CHARACTERS:
            raise GatewayError(
                ErrorKind.UPSTREAM_PROTOCOL, f"an object is longer than {MAX_OBJECT_CHARACTERS} characters"
            )
        self._left = left
        return found

    def end(self) -> str:
        """What was left of an object that has no end: text."""
        left, self._left = self._left, ""
        return left


_TEXT_INPUT, _TEXT_OUTPUT = "text_input", "text_output"
# What an object of TorchServe's handlers calls its text, and what the KServe envelopes put around it.
_TEXT, _PREDICTIONS = "text", "predictions"


class TorchServeGenerateTranslator:
    """One generate, or with `streams` one generate_stream, whose every piece of text becomes an event. TorchServe names
    no content type for a stream: whatever it answers with status 200 is one to a client that wants it."""

    def __init__(self, request: V2Request, envelope: Envelope) -> None:
        self.streams = request.operation is Operation.GENERATE_STREAM
        self._request = request
        self._envelope = envelope
        self._dropped: tuple[str, ...] = ()
        self._head: dict[str, Any] = {"model_name": request.model, "model_version": request.version}
        self._decoder = getincrementaldecoder("utf-8")()
        self._objects: ObjectReader | None = None

    def request(self) -> EngineRequest:
        """What TorchServe is asked. Raises: GatewayError, BAD_REQUEST where the body is malformed, UNSUPPORTED where
        TorchServe has no place for what it says."""
        with refusing(ErrorKind.BAD_REQUEST):
            content = rest_bodies.read_object(self._request.body)
            if "id" in content:
                self._head = {"id": rest_bodies.string(content, "id")} | self._head
            text = rest_bodies.string(content, _TEXT_INPUT)
            others = {key: value for key, value in content.items() if key not in ("id", _TEXT_INPUT, "parameters")}
            others |= rest_bodies.parameters(content)
            body, content_type, fields = self._written(text, others)
        path = predictions_path(self._request.model, self._request.version)
        return EngineRequest(
            path, body, content_type, fields=fields, dropped=self._dropped, streams_any_type=self.streams
        )

    def whole(self, reply: Reply) -> Reply:
        if reply.status >= 400:
            return error_of(reply)
        text = self._decode(reply.body, is_last=True)
        value: Any = text
        if self._objects is not None:
            pieces = self._objects.feed(text)
            value = pieces[0] if len(pieces) == 1 and not self._objects.end() else text
        return Reply(200, _json(self._reply_of(value)))

    def feed(self, data: bytes) -> bytes:
        return self._events(self._decode(data))

    def end(self) -> bytes:
        events = self._events(self._decode(b"", is_last=True))
        left = self._objects.end() if self._objects is not None else ""
        return events + (event_of(orjson.dumps(self._reply_of(left))) if left else b"")

    def _decode(self, data: bytes, *, is_last: bool = False) -> str:
        """The text that is whole by now: a character may be cut in two."""
        try:
            return self._decoder.decode(data, is_last)
        except UnicodeDecodeError:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's text is not UTF-8") from None

    def _events(self, text: str) -> bytes:
        if self._objects is None:
            return event_of(orjson.dumps(self._head | {_TEXT_OUTPUT: text})) if text else b""
        return b"".join([event_of(_json(self._reply_of(piece))) for piece in self._objects.feed(text)])

    def _written(self, text: str, others: Mapping[str, Any]) -> tuple[bytes, str, tuple[Field, ...]]:
        others = dict(others)
        envelope = read_envelope(others, self._envelope)
        fields, _ = sequence_fields({name: others.pop(name) for name in SEQUENCE if name in others})
        if envelope is Envelope.BODY and not others:
            return text.encode(), TEXT, fields
        self._objects = ObjectReader()
        if envelope is Envelope.BODY:
            return _json({"prompt": text} | others), JSON, fields
        if others:
            if not self._request.drop:
                names = ", ".join(f"'{name}'" for name in others)
                raise unsupported(f"parameter {names} cannot be told to TorchServe in the {envelope.value} envelope")
            self._dropped = tuple(others)
        name = _TEXT_INPUT if envelope is Envelope.KSERVEV2 else "data"
        tensor = RawTensor(name, "BYTES", (1,), join_elements([text.encode()]))
        if envelope is Envelope.KSERVEV2:
            return in_kservev2([tensor], self._head.get("id", "")), JSON, fields
        return in_instances([tensor], envelope), JSON, fields

    def _reply_of(self, value: Mapping[str, Any] | str) -> dict[str, Any]:
        """An event, or a reply: the text of an object, and the rest of it beside."""
        if isinstance(value, str):
            return self._head | {_TEXT_OUTPUT: value}
        if isinstance(value.get(_TEXT), str):
            rest = {name: member for name, member in value.items() if name != _TEXT}
            return rest | self._head | {_TEXT_OUTPUT: value[_TEXT]}
        if value.keys() == {_PREDICTIONS}:
            return self._head | {_TEXT_OUTPUT: _only(value[_PREDICTIONS])}
        outputs = value.get("outputs")
        if isinstance(outputs, list) and len(outputs) == 1 and isinstance(outputs[0], dict):
            return self._head | {_TEXT_OUTPUT: _only(outputs[0].get("data"))}
        return self._head | {_TEXT_OUTPUT: triton_json.write(value).decode()}


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _json(value: Any) -> bytes:
    """JSON with the names that Python has for what is not finite."""
    written = orjson.dumps(value)
    return written if b"null" not in written else json.dumps(value, separators=(",", ":")).encode()
