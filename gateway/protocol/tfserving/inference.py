"""One V2 inference at TF Serving, by its REST or by its gRPC, for a client of V2's REST or gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.protocol.conversion import raw_contents, triton_json
from gateway.protocol.conversion.errors import refusing, unsupported
from gateway.protocol.conversion.infer import infer_request_of_rest, rest_of_infer_response
from gateway.protocol.conversion.tensors import RawTensor
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import message
from gateway.protocol.tfserving import examples, predict
from gateway.protocol.tfserving.infer_request import Method, TFServingRequest, read_infer_request
from gateway.protocol.tfserving.model_info import ModelPath, Signatures
from gateway.protocol.tfserving.rpcs import EngineCall, infer_call, read_infer
from gateway.protocol.translator import GRPC, EngineRequest, Reply, WholeTranslator, in_rest

_MAX_ERROR_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Inference:
    """What a serialised ModelInferRequest asks, and the ModelInferResponse that answers it."""

    requested: TFServingRequest

    def rest_request(self) -> EngineRequest:
        """What TF Serving is asked by REST.

        Raises: GatewayError, BAD_REQUEST where the tensors cannot be told, UNSUPPORTED where no feature holds them.
        """
        write = predict.write_body if self.requested.method is Method.PREDICT else examples.write_body
        with refusing(ErrorKind.BAD_REQUEST):
            path = f"{self.requested.target.path}:{self.requested.method.value}"
            return EngineRequest(path, write(self.requested), dropped=self.requested.dropped)

    def response_of_rest(self, body: bytes) -> bytes:
        """The serialised ModelInferResponse of a reply with status 200.

        Raises: GatewayError, UPSTREAM_PROTOCOL where the reply cannot be understood, BAD_REQUEST where an output that
        the request wants is not in it.
        """
        with refusing(ErrorKind.UPSTREAM_PROTOCOL):
            content = triton_json.read(body)
            match self.requested.method:
                case Method.PREDICT:
                    outputs = predict.read_body(content, self.requested)
                case Method.CLASSIFY:
                    outputs = examples.read_classifications(content)
                case Method.REGRESS:
                    outputs = examples.read_regressions(content)
            return self._response(self.requested.target.version, outputs)

    def call(self) -> EngineCall:
        """What TF Serving is asked by gRPC.

        Raises: as `rest_request`.
        """
        with refusing(ErrorKind.BAD_REQUEST):
            return infer_call(self.requested)

    def response_of_call(self, data: bytes) -> bytes:
        """The serialised ModelInferResponse of the reply to `call`.

        Raises: as `response_of_rest`.
        """
        with refusing(ErrorKind.UPSTREAM_PROTOCOL):
            version, outputs = read_infer(data, self.requested)
            return self._response(version or self.requested.target.version, outputs)

    def _response(self, version: str, outputs: list[RawTensor]) -> bytes:
        outputs = self._wanted(outputs)
        response = message("inference.ModelInferResponse")(
            id=self.requested.id, model_name=self.requested.target.name, model_version=version
        )
        for output in outputs:
            response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        raws = [output.raw for output in outputs]
        return raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)

    def _wanted(self, outputs: list[RawTensor]) -> list[RawTensor]:
        """Those that the request wants, in its order; all, by their names, where it wants none in particular."""
        by_name = {output.name: output for output in outputs}
        if not self.requested.wanted:
            return [by_name[name] for name in sorted(by_name)]
        for name in self.requested.wanted:
            if name not in by_name:
                text = f"unexpected inference output '{name}' for model '{self.requested.target.name}'"
                raise GatewayError(ErrorKind.BAD_REQUEST, f"{text}, which answers {', '.join(sorted(by_name))}")
        return [by_name[name] for name in dict.fromkeys(self.requested.wanted)]


def inference(
    message: bytes, *, model: str, version: str = "", signatures: Signatures | None = None, drop: bool = False
) -> Inference:
    """Read a serialised ModelInferRequest. `model` is the name at the engine, with or without `:label`; `signatures`
    are what the engine told of that version, None where it told nothing: then datatypes of JSON are guessed. `drop`:
    whether parameters without a place are dropped.

    Raises: GatewayError, BAD_REQUEST where it is malformed or not as the signature says, UNSUPPORTED where TF Serving
    has no place for what it says.
    """
    requested = read_infer_request(message, model=model, version=version, drop=drop)
    return Inference(requested if signatures is None else requested.knowing(signatures))


class InferTranslation(WholeTranslator):
    """A client of V2's REST, and TF Serving's REST: a `translating.Translator`.

    Predict wants to know its signature before it asks: `know` what `target.metadata_path` answers.
    """

    def __init__(
        self, body: bytes, head_bytes: int | None, *, model: str, version: str = "", drop: bool = False
    ) -> None:
        """Read a request. `head_bytes` is Inference-Header-Content-Length, the others are as of `inference`.

        Raises: as `inference`.
        """
        if head_bytes == 0:
            raise unsupported(
                "a raw binary request (Inference-Header-Content-Length: 0) cannot be told to TF Serving: "
                "name the input in a JSON header"
            )
        requested, self._wanted = infer_request_of_rest(body, head_bytes, "", "")
        self._inference = inference(requested, model=model, version=version, drop=drop)

    @property
    def target(self) -> ModelPath:
        """The model, in the version or by the label that the request names."""
        return self._inference.requested.target

    @property
    def wants_signatures(self) -> bool:
        """Whether the reply can be read for certain only with the model's signatures known: that of predict."""
        return self._inference.requested.method is Method.PREDICT

    def know(self, signatures: Signatures) -> None:
        """Take what the engine tells of `target`.

        Raises: GatewayError(BAD_REQUEST) where the request is not as its signature says.
        """
        self._inference = Inference(self._inference.requested.knowing(signatures))

    @property
    def inference(self) -> Inference:
        """The same request, for its gRPC."""
        return self._inference

    def request(self) -> EngineRequest:
        """Raises: as `Inference.rest_request`."""
        return self._inference.rest_request()

    def whole(self, reply: Reply) -> Reply:
        """Raises: as `Inference.response_of_rest`."""
        if reply.status != 200:
            return Reply(reply.status, orjson.dumps({"error": error_text(reply.body)}))
        return self.rest_of(self._inference.response_of_rest(reply.body))

    def rest_of(self, response: bytes) -> Reply:
        """The client's reply for a serialised ModelInferResponse: of `Inference.response_of_call`, say.

        Raises: GatewayError(BAD_REQUEST) where the client wants in JSON what only binary data holds.
        """
        return in_rest(rest_of_infer_response(response, self._wanted))


def error_text(body: bytes) -> str:
    """What an error of TF Serving's REST says. Old versions escape it as C does, which is no JSON."""
    try:
        content: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:_MAX_ERROR_BYTES].decode("utf-8", "replace").strip()
    if isinstance(content, dict):
        content = content.get("error", content)
    return content if isinstance(content, str) else orjson.dumps(content)[:_MAX_ERROR_BYTES].decode("utf-8", "replace")


class CallTranslation(InferTranslation):
    """A `translating.Translator` whose request is a call: its path is the method's, its body the message."""

    def request(self) -> EngineRequest:
        """Raises: as `Inference.call`."""
        call = self.inference.call()
        return EngineRequest(call.path.decode("ascii"), call.message, GRPC, dropped=self.inference.requested.dropped)

    def whole(self, reply: Reply) -> Reply:
        """Raises: as `Inference.response_of_call`."""
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        return self.rest_of(self.inference.response_of_call(reply.body))
