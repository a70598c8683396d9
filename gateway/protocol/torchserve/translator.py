"""The translation of one V2 request for a TorchServe, by what it asks."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.conversion.infer import WantedOutputs, infer_request_of_rest, rest_of_infer_response
from gateway.protocol.operations import Operation
from gateway.protocol.torchserve.generate import TorchServeGenerateTranslator
from gateway.protocol.torchserve.reply import OUTPUT, error_of, infer_response
from gateway.protocol.torchserve.request import (
    Envelope,
    TorchServeRequest,
    http_request,
    predictions_path,
    torchserve_request,
)
from gateway.protocol.translator import EngineRequest, Reply, Translator, WholeTranslator, in_rest

PLATFORM = "torchserve"


def translator(
    operation: Operation,
    body: bytes = b"",
    head_bytes: int | None = None,
    *,
    model: str,
    version: str = "",
    model_name: str = "",
    envelope: Envelope = Envelope.BODY,
    drop: bool = False,
) -> Translator:
    """The translation of a V2 REST request.

    `model` is the name at TorchServe, `told` the one that the client reads (the same where it is empty); `head_bytes`
    as `Inference-Header-Content-Length` tells; `drop` leaves out parameters that have no meaning there.
    Raises: GatewayError(UNSUPPORTED) for an operation that TorchServe has nothing like.
    """
    model_name = model_name or model
    match operation:
        case Operation.INFER:
            return TorchServeInferTranslator(
                body, head_bytes, model=model, version=version, model_name=model_name, envelope=envelope, drop=drop
            )
        case Operation.GENERATE | Operation.GENERATE_STREAM:
            streams = operation is Operation.GENERATE_STREAM
            return TorchServeGenerateTranslator(
                body,
                model=model,
                version=version,
                model_name=model_name,
                envelope=envelope,
                drop=drop,
                streams=streams,
            )
        case Operation.MODEL_READY | Operation.MODEL_METADATA:
            return ModelTranslator(operation, model=model, version=version, model_name=model_name)
        case _:
            raise unsupported(f"'{operation.value}' is nothing that TorchServe's inference API has")


class TorchServeInferTranslator(WholeTranslator):
    """One infer, in JSON or with binary tensors."""

    def __init__(
        self,
        body: bytes,
        head_bytes: int | None = None,
        *,
        model: str,
        version: str = "",
        model_name: str = "",
        envelope: Envelope = Envelope.BODY,
        drop: bool = False,
    ) -> None:
        self._body, self._head_bytes = body, head_bytes
        self._model, self._version, self._model_name = model, version, model_name or model
        self._envelope, self._drop = envelope, drop
        self._sent: TorchServeRequest | None = None
        self._wanted = WantedOutputs()

    def request(self) -> EngineRequest:
        return http_request(self._read(), self._model, self._version)

    def _read(self) -> TorchServeRequest:
        if self._head_bytes == 0:
            raise unsupported("a raw binary request names no input: put it into a JSON header")
        message, self._wanted = infer_request_of_rest(self._body, self._head_bytes, self._model, self._version)
        self._sent = torchserve_request(message, self._envelope, drop=self._drop)
        return self._sent

    def whole(self, reply: Reply) -> Reply:
        if reply.status >= 400:
            return error_of(reply)
        assert self._sent is not None, "request() comes before whole()"
        message = infer_response(
            self._sent, reply.body, reply.content_type, model=self._model_name, version=self._version
        )
        return self._rest_reply(message)

    def _rest_reply(self, message: bytes) -> Reply:
        """The client's reply of a serialised ModelInferResponse."""
        return in_rest(rest_of_infer_response(message, self._wanted))


class ModelTranslator(WholeTranslator):
    """Whether TorchServe has a model, and what a V2 client may know of it.

    Its inference port answers this without asking the model: OPTIONS describes a model's path, 404 where there is none.
    Whether its workers live is told by the management port alone, or for all models together by `GET /ping`. Its
    models declare no tensors; the metadata says what every handler takes and gives, one BYTES.
    """

    def __init__(self, operation: Operation, *, model: str, version: str = "", model_name: str = "") -> None:
        self._operation = operation
        self._model, self._version, self._model_name = model, version, model_name or model

    def request(self) -> EngineRequest:
        return EngineRequest(predictions_path(self._model, self._version), method="OPTIONS")

    def whole(self, reply: Reply) -> Reply:
        """As `Translator.whole`; a model that is not there is not ready, which Triton tells by 400."""
        is_ready = self._operation is Operation.MODEL_READY
        if reply.status >= 400:
            error = error_of(reply)
            return Reply(400, error.body) if is_ready and reply.status == 404 else error
        return Reply(200) if is_ready else Reply(200, orjson.dumps(metadata_of(self._model_name, self._version)))


def metadata_of(model: str, version: str = "") -> dict[str, Any]:
    """V2's metadata of a model that declares none."""
    return {
        "name": model,
        "versions": [version] if version else [],
        "platform": PLATFORM,
        "inputs": [{"name": "input", "datatype": "BYTES", "shape": [1]}],
        "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": [1]}],
    }
