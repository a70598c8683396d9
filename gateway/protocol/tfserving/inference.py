"""One V2 inference at TF Serving, by its REST or by its gRPC, for a client of V2's REST or gRPC."""

from __future__ import annotations

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.errors import error_json, read_error, refusing
from gateway.protocol.conversion.infer import infer_request_of_rest, rest_of_infer_response
from gateway.protocol.conversion.messages import write_response
from gateway.protocol.conversion.tensors import RawTensor
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import message
from gateway.protocol.tfserving import examples, predict
from gateway.protocol.tfserving.infer_request import Method, read_infer_request
from gateway.protocol.tfserving.model_info import Signatures
from gateway.protocol.tfserving.rpcs import EngineCall, infer_call, read_infer
from gateway.protocol.translator import GRPC, EngineRequest, Reply, V2Request, WholeTranslator, in_rest


class Inference:
    """What a serialised ModelInferRequest asks, and the ModelInferResponse that answers it."""

    def __init__(
        self, message: bytes, *, model: str, version: str = "", signatures: Signatures | None = None, drop: bool = False
    ) -> None:
        """Read a serialised ModelInferRequest; `model` and `drop` as of `read_infer_request`. `signatures` are what the
        engine told of that version, None where it told nothing: then datatypes of JSON are guessed. Raises: as that;
        BAD_REQUEST where the request is not as the signature says."""
        self.requested = read_infer_request(message, model=model, version=version, drop=drop)
        if signatures is not None:
            self.know(signatures)

    def know(self, signatures: Signatures) -> None:
        """Take what the engine tells of the target. Raises: GatewayError(BAD_REQUEST) where the request is not as its
        signature says."""
        self.requested = self.requested.knowing(signatures)

    def rest_request(self) -> EngineRequest:
        """What TF Serving is asked by REST. Raises: GatewayError, BAD_REQUEST where the tensors cannot be told,
        UNSUPPORTED where no feature holds them."""
        write = predict.write_body if self.requested.method is Method.PREDICT else examples.write_body
        with refusing(ErrorKind.BAD_REQUEST):
            path = f"{self.requested.target.path}:{self.requested.method.value}"
            return EngineRequest(path, write(self.requested), dropped=self.requested.dropped)

    def response_of_rest(self, body: bytes) -> bytes:
        """The serialised ModelInferResponse of a reply with status 200. Raises: GatewayError, UPSTREAM_PROTOCOL where
        the reply cannot be understood, BAD_REQUEST where an output that the request wants is not in it."""
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
        """What TF Serving is asked by gRPC. Raises: as `rest_request`."""
        with refusing(ErrorKind.BAD_REQUEST):
            return infer_call(self.requested)

    def response_of_call(self, data: bytes) -> bytes:
        """The serialised ModelInferResponse of the reply to `call`. Raises: as `response_of_rest`."""
        with refusing(ErrorKind.UPSTREAM_PROTOCOL):
            version, outputs = read_infer(data, self.requested)
            return self._response(version or self.requested.target.version, outputs)

    def _response(self, version: str, outputs: list[RawTensor]) -> bytes:
        response = message("inference.ModelInferResponse")(
            id=self.requested.id, model_name=self.requested.target.name, model_version=version
        )
        return write_response(response, self._chosen(outputs))

    def _chosen(self, outputs: list[RawTensor]) -> list[RawTensor]:
        """Those that the request wants, in its order; all, by their names, where it wants none in particular."""
        by_name = {output.name: output for output in outputs}
        if not self.requested.wanted:
            return [by_name[name] for name in sorted(by_name)]
        for name in self.requested.wanted:
            if name not in by_name:
                text = f"unexpected inference output '{name}' for model '{self.requested.target.name}'"
                raise GatewayError(ErrorKind.BAD_REQUEST, f"{text}, which answers {', '.join(sorted(by_name))}")
        return [by_name[name] for name in dict.fromkeys(self.requested.wanted)]


class InferTranslation(Inference, WholeTranslator):
    """A client of V2's REST, and TF Serving's REST: a `Translator`. Predict can be read for certain only with its
    signature: `know` what `metadata_path` of the target answers."""

    def __init__(self, request: V2Request) -> None:
        """Raises: as `Inference`."""
        message, self._wanted = infer_request_of_rest(request.body, request.head_bytes, "", "")
        super().__init__(message, model=request.model, version=request.version, drop=request.drop)

    def request(self) -> EngineRequest:
        return self.rest_request()

    def whole(self, reply: Reply) -> Reply:
        if reply.status != 200:
            return Reply(reply.status, error_json(read_error(reply.body)[0]))
        return self._reply_of(self.response_of_rest(reply.body))

    def _reply_of(self, response: bytes) -> Reply:
        """The client's reply for a serialised ModelInferResponse. Raises: GatewayError(BAD_REQUEST) where the client
        wants in JSON what only binary data holds."""
        return in_rest(rest_of_infer_response(response, self._wanted))


class CallTranslation(InferTranslation):
    """The same with a request that is a call: its path is the method's, its body the message."""

    def request(self) -> EngineRequest:
        call = self.call()
        return EngineRequest(call.path.decode("ascii"), call.message, GRPC, dropped=self.requested.dropped)

    def whole(self, reply: Reply) -> Reply:
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        return self._reply_of(self.response_of_call(reply.body))
