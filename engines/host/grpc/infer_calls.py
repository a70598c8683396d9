"""ModelInfer and ModelStreamInfer: one inference, and many on one stream, without tasks.

On a stream, responses of models that are not decoupled come in the order of their requests, those of decoupled models
as they come.
Source: Triton server `grpc/stream_infer_handler.cc`.
"""

from __future__ import annotations

from collections import deque
from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferResponse, Raw
from engines.host.grpc.call import BaseCall, CallOwner, UnaryCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.replies import StatusError
from engines.host.grpc.requests import InferMessage
from engines.host.grpc.responses import empty_final, streamed, write_infer
from engines.host.model import HostedModel
from engines.host.request_fields import check_single_response, read_version, single_response
from gateway.protocol.conversion.stream import stream_error
from gateway.protocol.grpc_status import UNAVAILABLE
from gateway.wire.grpc import MessageReader, decompress
from gateway.wire.http2.stream import Stream


class InferCall(UnaryCall):
    """Answers with the single response, once the inference is over."""

    _call: InferenceCall | None = None
    _message: InferMessage
    _model: HostedModel
    _response: InferResponse | None = None
    _num_responses = 0

    def answer(self, data: bytes, at: int, end: int) -> None:
        front, head = self.front, self.head
        service = front.service
        message = self._message = front.read_request(data, at, end)
        version = read_version(message.version)
        model = self._model = service.model(message.model, version)
        if model.is_decoupled and not model.stream_input:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        request = message.infer_request(service.regions, head.plan.forwarded, head.trace, version)
        if model.is_decoupled:
            check_single_response(model, request)
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
        message = self._message
        try:
            response = single_response(self._response, self._num_responses)
            self.write(write_infer(self._model, message.id, response, message.classes))
            self.succeed()
        except Exception as error:  # the instance has other calls to answer
            self.fail(error)


class StreamInferCall(BaseCall):
    """Stops reading while its client does not read, or while too many inferences are in flight."""

    _owed = 0  # bytes whose window is not given back
    _num_bytes = 0
    _has_ended = False  # the client's side

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._reader = MessageReader(owner.front.limits.max_message_bytes)
        self.turns: deque[OrderedResponse] = deque()  # of inferences that answer in order
        self._in_flight: set[OrderedResponse] = set()
        self._is_leaving = owner.front.is_draining
        super().__init__(owner, stream, head)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self.is_over:
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:
                    message = decompress(message, self.head.plan.encoding, self.front.limits.max_message_bytes)
                self._start(message)
                if self.is_over:
                    return
        except Exception as error:
            self.abort(error)
            return
        if ended:
            self._has_ended = True
            self._end_if_done()
        else:
            self._owed += len(data)
            self._num_bytes += len(data)
            self.credit()

    def drained(self, stream: Stream) -> None:
        self.credit()

    def abandon(self) -> None:
        turns, self._in_flight = self._in_flight, set()
        self.turns.clear()
        for turn in turns:
            turn.cancel()

    @property
    def num_received(self) -> int | None:
        return None if self._reader.is_between_messages else self._num_bytes

    def credit(self) -> None:
        """Give the client its window back, unless too much waits."""
        if self._owed and not self.stream.is_waiting and len(self._in_flight) < self.front.limits.max_calls_of_stream:
            owed, self._owed = self._owed, 0
            self.stream.credit(owed)

    def turn_ended(self, turn: OrderedResponse) -> None:
        """An inference is over: write the responses whose turn has come."""
        self._in_flight.discard(turn)
        turns = self.turns
        while turns and turns[0].is_over:
            for message in turns.popleft().waiting:
                self.send(message)
        if not self.is_over:
            self.credit()
            self._end_if_done()

    def send(self, message: list[Raw]) -> None:
        if not self.is_over:
            try:
                self.write(message)
            except EngineError as error:
                self.abort(error)

    def leave(self) -> None:
        """End once all inferences in flight are answered."""
        self._is_leaving = True
        self._end_if_done()

    def _start(self, data: bytes) -> None:
        turn = OrderedResponse(self, self.front.read_request(data, 0, len(data)))
        self._in_flight.add(turn)
        self.turns.append(turn)
        try:
            turn.start()
        except EngineError as error:
            turn.refuse(error)

    def _end_if_done(self) -> None:
        if self._in_flight or self.turns:
            return
        if self._has_ended:
            self.succeed()
        elif self._is_leaving and self._reader.is_between_messages:
            self.fail(StatusError(UNAVAILABLE, "the host is stopping"))


class OrderedResponse:
    """One inference of a stream. `waiting` are its responses that wait for their turn."""

    _model: HostedModel
    _call: InferenceCall | None = None
    _is_starting = False
    is_ordered = True  # until the model is known
    is_over = False

    def __init__(self, stream: StreamInferCall, message: InferMessage) -> None:
        self._stream = stream
        self._message = message
        self.waiting: list[list[Raw]] = []

    def start(self) -> None:
        """Raises: EngineError for an unknown model, or a malformed request."""
        stream, message = self._stream, self._message
        service, head = stream.front.service, stream.head
        version = read_version(message.version)
        model = self._model = service.model(message.model, version)
        if model.is_decoupled:
            self.is_ordered = False
            stream.turns.pop()
        request = message.infer_request(service.regions, head.plan.forwarded, head.trace, version)
        call = self._call = InferenceCall(request, self._respond, monotonic_ns())
        self._is_starting = True
        service.infer(call)
        self._is_starting = False

    def refuse(self, error: EngineError) -> None:
        """Report a request that was never submitted: by its id alone, without ending the stream."""
        self._send([stream_error(error.message, self._message.id)])
        self._end()

    def cancel(self) -> None:
        self.is_over = True
        if self._call is not None:
            self._call.cancel()

    def _respond(self, response: InferResponse | None, is_final: bool) -> None:
        if self.is_over:
            return
        try:
            if response is not None:
                self._send_response(response, is_final)
            elif not self.is_ordered and self._message.wants_empty_final:
                message = self._message
                self._send(empty_final(message.id, message.model, message.version))
        except Exception as error:  # the instance has other calls to answer
            self._stream.abort(error)
        if is_final and not self.is_over:
            self._end()

    def _send_response(self, response: InferResponse, is_final: bool) -> None:
        message, stream = self._message, self._stream
        error = response.error
        if error is None:
            try:
                pieces = write_infer(self._model, message.id, response, message.classes)
            except EngineError as failure:
                error = failure
            else:
                self._send(streamed(pieces, is_final=is_final))
                return
        if self._is_starting:
            self._send([stream_error(error.message, message.id)])
        elif stream.head.plan.wants_grpc_errors:
            stream.abort(error)
        else:
            text = stream_error(error.message, message.id, message.model, message.version, is_final=is_final)
            self._send([text])

    def _send(self, message: list[Raw]) -> None:
        if self.is_ordered:
            self.waiting.append(message)
        else:
            self._stream.send(message)

    def _end(self) -> None:
        self.is_over = True
        self._stream.turn_ended(self)
