"""ModelInfer: one message, one inference, one answer. No task and no wait: the answer is written where it comes."""

from __future__ import annotations

from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, internal
from engines.core.messages import InferResponse
from engines.host.frontend_api import ServedModel, check_one_answer, read_version
from engines.host.grpc.call import UnaryCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.requests import Asked
from engines.host.grpc.server_context import CallOwner
from gateway.wire.http2.stream import Stream


class InferCall(UnaryCall):
    """Answers with the call's only response, once it has ended."""

    __slots__ = ("_asked", "_call", "_model", "_num_responses", "_response")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._call: InferenceCall | None = None
        self._asked: Asked
        self._model: ServedModel
        self._response: InferResponse | None = None
        self._num_responses = 0
        super().__init__(owner, stream, head)

    def answer(self, data: bytes, at: int, end: int) -> None:
        front, head = self.front, self.head
        service = front.service
        asked = self._asked = front.read_request(data, at, end)
        version = read_version(asked.version)
        model = self._model = service.model(asked.model, version)
        if model.is_decoupled and not model.stream_input:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        request = asked.infer_request(service.regions, head.plan.forwarded, head.trace, version)
        if model.is_decoupled:
            check_one_answer(model, request)
        call = self._call = InferenceCall(request, self._respond, monotonic_ns())
        service.infer(call)

    def abandon(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _respond(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._num_responses += 1
            self._response = response
        if not is_final or self.is_over:
            return
        try:
            self._tell()
        except Exception as error:  # whoever answers has others to answer
            self.fail(error)

    def _tell(self) -> None:
        response = self._response
        if response is None or self._num_responses != 1:
            raise internal(f"expected a single response, got {self._num_responses}")
        if response.error is not None:
            raise response.error
        asked = self._asked
        self.write(self.front.writer(self._model).write(asked.id, response, asked.classes))
        self.succeed()
