"""A client of V2's REST, and a TorchServe that has gRPC alone."""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.infer import WantedOutputs, infer_request_of_rest, rest_of_infer_response
from gateway.protocol.conversion.refusals import unsupported
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.torchserve.answering import answered
from gateway.protocol.torchserve.asking import OCTETS, Asked, Envelope, asked
from gateway.protocol.torchserve.predictions import PREDICTIONS, prediction, predictions_request
from gateway.protocol.translating import JSON, EngineRequest, Reply

GRPC = "application/grpc"


class CallTranslator:
    """A `translating.Translator` whose request is a call: its path is the method's, its body the message."""

    streams = False

    def __init__(
        self,
        body: bytes,
        head_bytes: int | None,
        *,
        model: str,
        version: str = "",
        told: str = "",
        envelope: Envelope = Envelope.BODY,
        drop: bool = False,
    ) -> None:
        self._body, self._head_bytes = body, head_bytes
        self._model, self._version, self._told = model, version, told or model
        self._envelope, self._drop = envelope, drop
        self._asked: Asked | None = None
        self._wanted = WantedOutputs()

    def request(self) -> EngineRequest:
        """As `Translator.request`."""
        if self._head_bytes == 0:
            raise unsupported("a raw binary request names no input: put it into a JSON header")
        message, self._wanted = infer_request_of_rest(self._body, self._head_bytes, self._model, self._version)
        self._asked = asked(message, self._envelope, drop=self._drop)
        call = predictions_request(self._asked, self._model, self._version)
        return EngineRequest(PREDICTIONS, call, GRPC, dropped=self._asked.dropped)

    def whole(self, reply: Reply) -> Reply:
        """As `Translator.whole`."""
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        assert self._asked is not None, "whoever asks nothing gets no answer"
        found = prediction(reply.body)
        if found.code:
            return Reply(500, orjson.dumps({"error": found.error}))
        message = answered(self._asked, found.content, "", model=self._told, version=self._version)
        body = rest_of_infer_response(message, self._wanted)
        return Reply(200, body.data, JSON if body.head_bytes is None else OCTETS, body.head_bytes)

    def feed(self, data: bytes) -> bytes:
        """Nothing streams."""
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine streams its answer to a request for one")

    def end(self) -> bytes:
        """Nothing streams."""
        return b""

    def failed(self, message: str, kind: str) -> bytes:
        """Nothing streams."""
        return b""
